"""Harness of a scenario: a broker, its clients, and the times of its recoveries."""

from __future__ import annotations

import os
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

from kafkalite.process.run_directory import bus_path
from tests.faults.clients import Clients
from tests.faults.history import History
from tests.faults.prober import (
    Directory,
    Metronome,
    Prober,
    Trouble,
    Watcher,
    longest_gap,
    recovered_at,
)
from tests.faults.processes import SUPERVISOR, Processes, until
from tests.faults.raw_connection import RawConnection

SERVE_S_MAX = 3.0
"""Maximum recovery time of a partition or the controller (I14), on a quiet machine."""
WAIT_S_MAX = 60.0
ACKS_BETWEEN = (50, 1_500)
"""Acknowledgements between two faults, so that requests are in flight; drawn from the seed."""
FILLS_AN_INDEX_ENTRY = 5_000
CHANGE_S_MAX = 0.5
EXISTS_ALREADY, UNKNOWN_TOPIC = 36, 3


class FaultHarness:
    """The broker, the clients and the results of one run."""

    def __init__(
        self,
        processes: Processes,
        topic: str,
        partitions: int,
        seed: int,
        history: History,
        timed: bool,
        replicas: int = 1,
    ) -> None:
        self.processes = processes
        self.timed = timed
        self.replicas = replicas
        self.topic = topic
        self.partitions = range(partitions)
        self.seed = seed
        self.history = history
        self.dice = random.Random(seed)
        self.faults: list[str] = []
        self.faults_done = 0
        self.acts: Counter[str] = Counter()
        """Number of other acts, by name."""
        self.diary: list[str] = []
        """Events of the run, with the clock of the broker's log."""
        self.recoveries: dict[str, list[float]] = defaultdict(list)
        self.directory = Directory(topic, processes.addresses(), history)
        self.directory.is_replicated = replicas > 1
        self.probers = [Prober(self.directory, each, self.faults) for each in self.partitions]
        self.watcher = Watcher(self.directory, self.faults)
        self.metronome = Metronome(self.faults)
        self.topics_made = 0

    def warm_up(self) -> None:
        """Write to every partition and read it, until everything that is created on first use
        exists: indexes, the offsets topic, and in every process the threads that flush."""
        until(
            lambda: self.ask_a_worker("coordinator", "any") == 0,
            WAIT_S_MAX,
            "nobody coordinates groups",
        )
        broker = self.processes.broker
        flushed = broker.topic(3 * len(self.processes.workers), {"durability": "fsync"})
        directory = Directory(flushed, self.processes.addresses(), History())
        for partition in range(3 * len(self.processes.workers)):
            prober = Prober(directory, partition, [])
            until(prober.probe, WAIT_S_MAX, f"partition {partition} takes no record")
            prober.hang_up()
        self.ask_a_worker("delete_topic", flushed)
        for prober in self.probers:
            for size in (1, *[FILLS_AN_INDEX_ENTRY] * 3, 1):
                prober.size = size
                until(prober.probe, WAIT_S_MAX, f"partition {prober.partition} takes no record")
            prober.hang_up()

    def begin(self) -> None:
        """Start the clients."""
        for watching in (self.metronome, self.watcher, *self.probers):
            watching.thread.start()
        bootstrap = self.processes.broker.bootstrap
        self.clients = Clients(bootstrap, self.topic, len(self.partitions), self.seed, self.history)

    def end(self) -> None:
        """Stop the clients and wait for their end."""
        for watching in (self.metronome, self.watcher, *self.probers):
            watching.running = False
        for watching in (self.metronome, self.watcher, *self.probers):
            watching.thread.join()
        try:
            self.clients.end()
        except Exception as fault:
            self.faults.append(f"I14: the end of the log cannot be read: {fault}")
        self.faults += self.clients.faults

    # Between the faults.

    @property
    def goes_on(self) -> bool:
        """True while there is no violation and no client has failed."""
        return not (self.faults or self.clients.faults)

    def work(self) -> None:
        """Let the clients work for a while."""
        if not self.clients.await_acks(self.dice.randint(*ACKS_BETWEEN)):
            self.clients.producing = False

    def served(self, kind: str, at: float, partitions: list[int], within: float) -> float | None:
        """Wait until these partitions are served again; note the time since `at`."""
        deadline = time.monotonic() + WAIT_S_MAX
        last = at
        for index in partitions:
            while (again := recovered_at(self.probers[index].sends, at)) is None:
                if time.monotonic() > deadline:
                    self.faults.append(
                        f"I14: partition {index} does not serve {WAIT_S_MAX} s after {kind}"
                    )
                    return None
                time.sleep(0.001)
            last = max(last, again)
        self.note(kind, last - at - self.metronome.stalled_s(at, last), within)
        return last

    def gaps(self, begin: float, end: float) -> list[float]:
        """Return the longest pause of each partition within these bounds."""
        return [longest_gap(each.sends, begin, end, self.metronome) for each in self.probers]

    def note(self, kind: str, seconds: float, within: float) -> None:
        """Record a duration; in a timed run one above the limit is a violation."""
        self.recoveries[kind].append(seconds)
        self.diary.append(f"{time.time():.3f} {kind}: {seconds:.3f} s")
        within *= load_factor()
        if self.timed and seconds > within:
            self.faults.append(f"I14: {kind}: served again after {seconds:.3f} s, not {within:.1f}")

    def all_up(self, expected: set[int], but: dict[int, int]) -> None:
        """Wait until all these nodes run, and none of them as a process of `but`."""

        def hold() -> bool:
            pids = self.processes.pids()
            return expected <= pids.keys() and not but.items() & pids.items()

        try:
            until(hold, WAIT_S_MAX, f"of the nodes {sorted(expected)} some are missing")
        except TimeoutError as fault:
            self.faults.append(f"I14: {fault}; there are {sorted(self.processes.pids())}")

    def in_sync(self) -> None:
        """Wait until all replicas of every partition are in sync, by the latest Metadata."""

        def hold() -> bool:
            return all(
                leader.isr_size == self.replicas for leader in list(self.directory.leaders.values())
            )

        try:
            until(hold, WAIT_S_MAX, "not all replicas are in sync")
        except TimeoutError as fault:
            self.faults.append(f"I14: {fault}: {self.directory.leaders}")

    # The controller.

    def change_metadata(self, kind: str, at: float, within: float = SERVE_S_MAX) -> None:
        """Create and delete a topic through a worker; note the time until that succeeds."""
        self.topics_made += 1
        name = f"made-{self.topics_made}"
        deadline = time.monotonic() + WAIT_S_MAX
        for asked, well in (("create_topic", (0, EXISTS_ALREADY)), ("delete_topic", (0,))):
            while (code := self.ask_a_worker(asked, name)) not in well:
                if asked == "delete_topic" and code == UNKNOWN_TOPIC:
                    break  # an earlier attempt has succeeded, only its response was lost
                if time.monotonic() > deadline:
                    self.faults.append(f"I14: {asked} fails {WAIT_S_MAX} s after {kind}: {code}")
                    return
                time.sleep(0.005)
            if asked == "create_topic":
                self.note(kind, time.monotonic() - at, within)

    def remove_made(self) -> None:
        """Delete all of those topics: one may have been created after its deletion, by an attempt
        that timed out and waited for the controller."""
        for number in range(1, self.topics_made + 1):
            until(
                lambda name=f"made-{number}": (
                    self.ask_a_worker("delete_topic", name) == UNKNOWN_TOPIC
                ),
                WAIT_S_MAX,
                f"made-{number} cannot be deleted",
            )

    def ask_a_worker(self, asked: str, name: str) -> int | str:
        """Send a request to a random worker; return the error code, or the connection's error."""
        nodes = [node for node in self.directory.addresses if node != SUPERVISOR] or [SUPERVISOR]
        try:
            with RawConnection(
                self.directory.addresses[self.dice.choice(nodes)], CHANGE_S_MAX
            ) as line:
                return int(getattr(line, asked)(name))
        except OSError as fault:
            return f"{type(fault).__name__}: {fault}"

    # Results.

    def troubles(self, begin: float, end: float) -> list[Trouble]:
        """Return the probers' errors within these bounds."""
        return [
            trouble
            for prober in self.probers
            for trouble in prober.troubles
            if begin <= trouble.at <= end
        ]

    def watched(self) -> list[Path]:
        """Return the directories in which no file may be left behind."""
        broker = self.processes.broker
        if self.processes.alone:
            return [broker.data]
        return [broker.data, bus_path(broker.ready).parent]


def load_factor() -> float:
    """Return the factor for time limits under other load: the load average per core."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
