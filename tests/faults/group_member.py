"""GroupMember: a member of a group as a process of its own, to be killed and stopped.

    python -m tests.faults.<client>_member BOOTSTRAP TOPIC GROUP NAME TURN STRATEGY [INSTANCE]

It reads and commits, and writes its events to standard output, each a JSON list on a line:

    ["assigned", [partition, …]]   ["revoked", […]]   ["lost", […]]
    ["read", partition, first offset, last offset]
    ["commit", partition, offset, metadata, error code or 0]
    ["error", text]

A commit's metadata is the member's name, the number of its start, and a counter, so that the log of
offsets shows which member committed what.  It leaves the group at SIGTERM.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from typing import Any, NamedTuple

SESSION_MS = 2_000
HEARTBEAT_MS = 300
MAX_POLL_INTERVAL_MS = 10_000
READ_COUNT_MAX = 200
POLL_S = 0.1


class Outcome(NamedTuple):
    """The outcome of a commit."""

    code: int = 0
    """0, the error code of a response, or a negative number if there was no response."""
    unexpected: str = ""
    """The error, if these faults do not explain it."""


def tell(*words: Any) -> None:
    print(json.dumps(words), flush=True)


class GroupMember:
    """One member, from its subscription to its end; a subclass has the client."""

    def __init__(self, topic: str, name: str, turn: str) -> None:
        self.topic = topic
        self.name = f"{name}/{turn}"
        self.commits = 0
        self.running = True
        self.positions: dict[int, int] = {}

    # The client.

    def subscribe(self) -> None:
        raise NotImplementedError

    def poll(self) -> Iterable[tuple[int, int]]:
        """Return the partitions and offsets of new records."""
        raise NotImplementedError

    def commit_offset(self, partition: int, offset: int, word: str) -> Outcome:
        raise NotImplementedError

    def close(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    # The loop.

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.end)
        self.subscribe()
        while self.running:
            self.read()
            self.commit(self.positions)
        self.close()

    def end(self, *_: object) -> None:
        self.running = False

    def fail(self, text: str) -> None:
        """Report an error that ends the member."""
        tell("error", text)
        self.running = False

    # Rebalance callbacks.

    def assigned(self, partitions: Iterable[int]) -> None:
        tell("assigned", [*partitions])

    def revoked(self, partitions: Iterable[int]) -> None:
        """Commit what was read of the partitions."""
        going = {*partitions}
        self.commit({each: at for each, at in self.positions.items() if each in going})
        self.gone("revoked", going)

    def gone(self, word: str, partitions: Iterable[int]) -> None:
        """Forget partitions that were revoked or lost."""
        for each in partitions:
            self.positions.pop(each, None)
        tell(word, [*partitions])

    # Reading.

    def read(self) -> None:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for partition, offset in self.poll():
            first.setdefault(partition, offset)
            last[partition] = offset
        for partition, offset in last.items():
            tell("read", partition, first[partition], offset)
            self.positions[partition] = offset + 1

    def commit(self, positions: dict[int, int]) -> None:
        for partition, offset in list(positions.items()):
            self.commits += 1
            word = f"{self.name}/{self.commits}"
            outcome = self.commit_offset(partition, offset, word)
            tell("commit", partition, offset, word, outcome.code)
            if outcome.unexpected:
                tell("error", f"commit: {outcome.unexpected}")
            if positions is self.positions and (
                not outcome.code or positions.get(partition) != offset
            ):
                # A failed commit is retried while the partition is assigned.
                positions.pop(partition, None)
