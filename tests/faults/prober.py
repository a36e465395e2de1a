"""Probes of a broker by single requests: leaders, and the times at which partitions are served.

A Prober has a thread for one partition: it sends one record after the other to the supposed leader,
reads each back where it was acknowledged, and records an acknowledgement or an error.  After an
error it refreshes the leader and retries at once, so the first acknowledgement gives within a few
milliseconds the time when a partition is served again.  After each move it sends one more record to
the former leader, which must not accept it.

A Watcher requests the leaders from every node in turn.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.faults.history import ACKED, NO_NODE, REFUSED, History, LeaderObservation, Read, Send
from tests.faults.raw_connection import Address, Leader, RawConnection

PACE_S = 0.02
"""Pause between two records of a partition that is served."""
AGAIN_S = 0.002
RESPONSE_S_MAX = 1.0
"""Timeout of a stopped process's response; then the leader is refreshed."""
LOOK_S_MAX = 0.25
"""Timeout of Metadata, which any other node can provide as well."""
WATCH_S = 0.02

NOT_LEADER = 6
STALE = {
    3: "unknown topic or partition",
    5: "leader not available",
    NOT_LEADER: "not leader or follower",
    19: "not enough replicas",
}
"""Errors that a client retries without reporting them: nothing was done."""


class Trouble(NamedTuple):
    """An attempt that was not acknowledged: its start, its node, and the error."""

    at: float
    partition: int
    node: int
    said: str


class Directory:
    """Addresses and leaders by the latest Metadata; requests it from the known nodes in turn.

    Each response is added to the history.  Shared by threads.
    """

    def __init__(self, topic: str, first: list[Address], history: History) -> None:
        self.topic = topic
        self.history = history
        self.addresses: dict[int, Address] = dict(enumerate(first))
        self.leaders: dict[int, Leader] = {}
        self.is_replicated = False
        """True if partitions have followers."""
        self.lock = threading.Lock()
        self.turn = 0

    def observe(self, by: int, line: RawConnection) -> None:
        """Request Metadata over this connection, and record the response."""
        asked_at = time.monotonic()
        answer = line.cluster(self.topic)
        answered_at = time.monotonic()
        with self.lock:
            self.addresses = answer.addresses or self.addresses
            for leader in answer.leaders:
                self.history.observations.append(
                    LeaderObservation(
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
        """Request Metadata from the next node, which may be unavailable."""
        nodes = sorted(self.addresses)
        self.turn += 1
        node = nodes[self.turn % len(nodes)]
        try:
            with RawConnection(self.addresses[node], LOOK_S_MAX) as line:
                self.observe(node, line)
        except OSError:
            time.sleep(AGAIN_S)

    def leader_of(self, partition: int) -> tuple[int, Address] | None:
        """Return the leader and its address, or None if one of them is unknown."""
        leader = self.leaders.get(partition)
        if leader is None or leader.node not in self.addresses:
            return None
        return leader.node, self.addresses[leader.node]

    def led_by(self, node: int) -> list[int]:
        """Return the partitions that the node leads, by the latest Metadata."""
        return [each.partition for each in list(self.leaders.values()) if each.node == node]


class Prober:
    """A thread that probes one partition until it is stopped."""

    def __init__(self, directory: Directory, partition: int, faults: list[str]) -> None:
        self.directory = directory
        self.topic = directory.topic
        self.partition = partition
        self.history = directory.history
        self.troubles: list[Trouble] = []
        self.sends: list[Send] = []
        self.line: RawConnection | None = None
        self.node = NO_NODE
        self.lines = 0
        self.number = 0
        self.size = 1
        """Size of a record's padding after its name."""
        self.running = True
        self.thread = threading.Thread(target=guarded, args=(self.run, faults))

    def run(self) -> None:
        """Probe, with a pause after each success."""
        while self.running:
            time.sleep(PACE_S if self.probe() else AGAIN_S)
        self.hang_up()

    def probe(self) -> bool:
        """Send one record and read it back; return True if both succeeded."""
        at = time.monotonic()
        try:
            line = self.connected()
            if line is None:
                return False
            send = self.sent(line, self.node, self.name)
            if send.outcome == ACKED:
                code, value = line.value_at(self.topic, self.partition, send.offset)
                if code == 0:
                    self.history.lookups.append(Read(self.partition, send.offset, value))
                    return True
                self.complain(at, f"fetch: error {code}")
        except OSError as fault:
            self.complain(at, f"{type(fault).__name__}: {fault}")
        self.hang_up()
        return False

    @property
    def name(self) -> str:
        """The connection's producer name: order holds within one connection only."""
        return f"prober-{self.partition}-{self.lines}"

    def connected(self) -> RawConnection | None:
        """Return the connection to the leader; reconnect if there is another leader."""
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
        self.line = RawConnection(address, RESPONSE_S_MAX)
        self.directory.observe(self.node, self.line)
        return self.line

    def ask_the_former(self, line: RawConnection, node: int) -> None:
        """Send one record to a former leader: if it accepts, the history shows it."""
        try:
            self.sent(line, node, self.name)
        except OSError:
            return

    def sent(self, line: RawConnection, node: int, name: str) -> Send:
        """Send one record and record the outcome."""
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
            # A leader with followers that has appended a record answers so, too, if another one is
            # elected before the record is committed; it may be on other replicas.
            may_be_there = code == NOT_LEADER and self.directory.is_replicated
            if code in STALE and not may_be_there:
                send.outcome = REFUSED
            self.complain(send.sent_at, f"produce: {STALE.get(code, f'error {code}')}")
        return send

    def complain(self, at: float, said: str) -> None:
        self.troubles.append(Trouble(at, self.partition, self.node, said))

    def hang_up(self) -> None:
        """Close the connection; the leader must be found again."""
        if self.line is not None:
            self.line.close()
        self.line = None
        self.node = NO_NODE
        self.directory.ask_anybody()


class Watcher:
    """A thread that requests the leaders from every node in turn, on persistent connections."""

    def __init__(self, directory: Directory, faults: list[str]) -> None:
        self.directory = directory
        self.running = True
        self.lines: dict[int, RawConnection] = {}
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
            line = self.lines.get(node) or RawConnection(address, LOOK_S_MAX)
            self.lines[node] = line
            self.directory.observe(node, line)
        except OSError:
            if line := self.lines.pop(node, None):
                line.close()


class Metronome:
    """A thread that records when this process did not run: those are no pauses of the broker."""

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
        """Return the seconds within these bounds in which this process did not run."""
        return sum(max(0.0, min(end, late) - max(begin, early)) for early, late in self.stalls)


def guarded(work: Callable[[], None], faults: list[str]) -> None:
    """Record the exception of a thread as a failure of the harness."""
    try:
        work()
    except Exception as fault:
        faults.append(f"the harness itself failed: {fault!r}")
        raise


def recovered_at(sends: list[Send], at: float) -> float | None:
    """Return the time of the first acknowledgement of a record sent after `at`."""
    first = None
    for send in reversed(sends):
        if send.sent_at < at:
            break
        if send.outcome == ACKED:
            first = send.answered_at
    return first


def longest_gap(sends: list[Send], begin: float, end: float, metronome: Metronome) -> float:
    """Return the longest time within the bounds without an acknowledgement, less own stalls."""
    acks = [send.answered_at for send in sends if send.outcome == ACKED]
    within = [begin, *(at for at in acks if begin < at < end), end]
    return max(
        late - early - metronome.stalled_s(early, late)
        for early, late in itertools.pairwise(within)
    )
