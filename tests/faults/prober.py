"""Looks at a broker through single requests: who leads what, and whether it serves just now.

A Prober has a thread for each partition, which sends one record after the other to whoever it
believes leads, reads each back where it was acknowledged, and writes down what came: an
acknowledgement, or a trouble.  After a trouble it asks for the leader and tries again at once, so
the first acknowledgement tells to a few milliseconds when a partition serves again.  A former
leader is asked once more after each move: it may not accept.

A Watcher asks every node in turn who leads what.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.faults.asking import Address, Leader, Line
from tests.faults.history import ACKED, NOBODY, REFUSED, History, Read, Send, Told

PACE_S = 0.02
"""Between two records of a partition that serves."""
AGAIN_S = 0.002
ANSWER_S_MAX = 1.0
"""A stopped process answers nobody; then the leader is asked for."""
LOOK_S_MAX = 0.25
"""For Metadata, which any other node can tell as well."""
WATCH_S = 0.02

STALE = {3: "unknown topic or partition", 5: "leader not available", 6: "not leader or follower"}
"""What a client bears without a word: nothing was done, and it asks for the leader again."""


class Trouble(NamedTuple):
    """An attempt that was not acknowledged: when it began, where, and what was said."""

    at: float
    partition: int
    node: int
    said: str


class Directory:
    """Where the nodes are and who leads, as last told by anybody; asks whom it knows in turn.

    What is told is written into the history.  Threads share it.
    """

    def __init__(self, topic: str, first: list[Address], history: History) -> None:
        self.topic = topic
        self.history = history
        self.addresses: dict[int, Address] = dict(enumerate(first))
        self.leaders: dict[int, Leader] = {}
        self.lock = threading.Lock()
        self.turn = 0

    def told(self, by: int, line: Line) -> None:
        """Ask on this line, and write the answer down."""
        asked_at = time.monotonic()
        answer = line.cluster(self.topic)
        answered_at = time.monotonic()
        with self.lock:
            self.addresses = answer.addresses or self.addresses
            for leader in answer.leaders:
                self.history.told.append(
                    Told(
                        by,
                        leader.partition,
                        leader.node,
                        leader.leader_epoch,
                        asked_at,
                        answered_at,
                    )
                )
                known = self.leaders.get(leader.partition)
                if known is None or known.leader_epoch <= leader.leader_epoch:
                    self.leaders[leader.partition] = leader

    def ask_anybody(self) -> None:
        """Ask the next node; it may be away."""
        nodes = sorted(self.addresses)
        self.turn += 1
        node = nodes[self.turn % len(nodes)]
        try:
            with Line(self.addresses[node], LOOK_S_MAX) as line:
                self.told(node, line)
        except OSError:
            time.sleep(AGAIN_S)

    def leader_of(self, partition: int) -> tuple[int, Address] | None:
        """The node and where it listens, when both are known."""
        leader = self.leaders.get(partition)
        if leader is None or leader.node not in self.addresses:
            return None
        return leader.node, self.addresses[leader.node]

    def led_by(self, node: int) -> list[int]:
        """The partitions that the node leads, as far as is known."""
        return [each.partition for each in list(self.leaders.values()) if each.node == node]


class Prober:
    """Probes one partition until told to end."""

    def __init__(self, directory: Directory, partition: int, faults: list[str]) -> None:
        self.directory = directory
        self.topic = directory.topic
        self.partition = partition
        self.history = directory.history
        self.troubles: list[Trouble] = []
        self.sends: list[Send] = []
        self.line: Line | None = None
        self.node = NOBODY
        self.lines = 0
        self.number = 0
        self.size = 1
        """Of what is sent besides the name."""
        self.running = True
        self.thread = threading.Thread(target=guarded, args=(self.run, faults))

    def run(self) -> None:
        """Probe, with a pause after each that went well."""
        while self.running:
            time.sleep(PACE_S if self.probe() else AGAIN_S)
        self.hang_up()

    def probe(self) -> bool:
        """One record, and a look at it; whether both went well."""
        at = time.monotonic()
        try:
            line = self.connected()
            if line is None:
                return False
            send = self.sent(line, self.node, self.name)
            if send.outcome == ACKED:
                code, value = line.value_at(self.topic, self.partition, send.offset)
                if code == 0:
                    self.history.looks.append(Read(self.partition, send.offset, value))
                    return True
                self.complain(at, f"fetch: error {code}")
        except OSError as fault:
            self.complain(at, f"{type(fault).__name__}: {fault}")
        self.hang_up()
        return False

    @property
    def name(self) -> str:
        """Of the line: what one line carries is in order, two are not in each other's."""
        return f"prober-{self.partition}-{self.lines}"

    def connected(self) -> Line | None:
        """The line to the leader; made anew when another leads."""
        found = self.directory.leader_of(self.partition)
        if self.line is not None and found is not None and found[0] == self.node:
            return self.line
        former = self.node
        if self.line is not None:
            self.ask_the_former(self.line, former)
            self.hang_up()
        if found is None:
            self.directory.ask_anybody()
            return None
        self.node, address = found
        self.lines += 1
        self.line = Line(address, ANSWER_S_MAX)
        self.directory.told(self.node, self.line)
        return self.line

    def ask_the_former(self, line: Line, node: int) -> None:
        """One record for a leader that has been replaced: what it accepts shows in the history."""
        try:
            self.sent(line, node, self.name)
        except OSError:
            return

    def sent(self, line: Line, node: int, name: str) -> Send:
        """Send one record and write down what came of it."""
        self.number += 1
        send = Send(name, self.partition, f"{name}/{self.number}/{'x' * self.size}", node=node)
        send.sent_at = time.monotonic()
        self.history.sends.append(send)
        self.sends.append(send)
        code, offset = line.produce(self.topic, self.partition, send.value)
        send.answered_at = time.monotonic()
        if code == 0:
            send.offset = offset
            send.outcome = ACKED
        else:
            if code in STALE:
                send.outcome = REFUSED
            self.complain(send.sent_at, f"produce: {STALE.get(code, f'error {code}')}")
        return send

    def complain(self, at: float, said: str) -> None:
        self.troubles.append(Trouble(at, self.partition, self.node, said))

    def hang_up(self) -> None:
        """Forget the line; whom to ask next is to be found out."""
        if self.line is not None:
            self.line.close()
        self.line = None
        self.node = NOBODY
        self.directory.ask_anybody()


class Watcher:
    """Asks every node in turn, on lines that stay open, who leads what."""

    def __init__(self, directory: Directory, faults: list[str]) -> None:
        self.directory = directory
        self.running = True
        self.lines: dict[int, Line] = {}
        self.thread = threading.Thread(target=guarded, args=(self.run, faults))

    def run(self) -> None:
        while self.running:
            for node, address in list(self.directory.addresses.items()):
                self.look(node, address)
            time.sleep(WATCH_S)
        for line in self.lines.values():
            line.close()

    def look(self, node: int, address: Address) -> None:
        try:
            line = self.lines.get(node) or Line(address, LOOK_S_MAX)
            self.lines[node] = line
            self.directory.told(node, line)
        except OSError:
            if line := self.lines.pop(node, None):
                line.close()


class Metronome:
    """Notes when this process itself was kept from running: that is no pause of the broker's."""

    BEAT_S = 0.005
    LATE_S = 0.05

    def __init__(self, faults: list[str]) -> None:
        self.running = True
        self.stalls: list[tuple[float, float]] = []
        self.thread = threading.Thread(target=guarded, args=(self.run, faults))

    def run(self) -> None:
        last = time.monotonic()
        while self.running:
            time.sleep(self.BEAT_S)
            now = time.monotonic()
            if now - last > self.LATE_S:
                self.stalls.append((last, now))
            last = now

    def stalled_s(self, begin: float, end: float) -> float:
        """For how much of this time."""
        return sum(max(0.0, min(end, late) - max(begin, early)) for early, late in self.stalls)


def guarded(work: Callable[[], None], faults: list[str]) -> None:
    """A thread that fails must not do so in silence."""
    try:
        work()
    except Exception as fault:
        faults.append(f"the harness itself failed: {fault!r}")
        raise


def served_again(sends: list[Send], at: float) -> float | None:
    """When the first record was acknowledged that was sent after `at`."""
    first = None
    for send in reversed(sends):
        if send.sent_at < at:
            break
        if send.outcome == ACKED:
            first = send.answered_at
    return first


def longest_gap(sends: list[Send], begin: float, end: float, metronome: Metronome) -> float:
    """The longest time within these bounds in which we ran, and nothing was acknowledged."""
    acks = [send.answered_at for send in sends if send.outcome == ACKED]
    within = [begin, *(at for at in acks if begin < at < end), end]
    return max(
        late - early - metronome.stalled_s(early, late)
        for early, late in itertools.pairwise(within)
    )
