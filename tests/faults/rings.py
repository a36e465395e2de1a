"""F24: producers on rings die, stop, scribble, hoard and stay too long; workers die as they read.

Checked: no acknowledged record is lost, no record is duplicated or was never sent, other producers
are not affected, no worker ends or stalls, and nothing leaks: no descriptor, no memory, no file.  A
ring's victims (ring_victims.py) and the producers that outlive it (ring_survivor.py) are programs
of their own, and report their actions.
"""

from __future__ import annotations

import json
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.transport.run_directory import local_path
from tests.faults.harness import SERVE_S_MAX, WAIT_S_MAX, FaultHarness, load_factor
from tests.faults.history import ACKED, REFUSED, UNKNOWN, Send
from tests.faults.prober import guarded
from tests.faults.processes import SUPERVISOR, children_of, until
from tests.faults.raw_connection import RawConnection
from tests.faults.ring_client import Ledger, Place, batch_of, value_of

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("ring_saboteur.c")
CONFIG = {
    # Small, so that a lap is short.
    "native.ring.bytes": str(128 << 10),
    # A node without heartbeats for so long is not only waiting for a processor.
    "broker.session.timeout.ms": "10000",
}
SCRIBBLES_PER_KILL = 100
KILLS_PER_TURN = 20
STALE_COUNT = 3
TEMPLATES = 20
GONE_S_MAX = 10.0
TURN_S_MAX = 120.0


def sabotage(harness: FaultHarness, count: int) -> None:
    """Kill `count` producers, and scribble a hundred times as many frames."""
    with tempfile.TemporaryDirectory() as directory:
        play = Sabotage(harness, Path(directory))
        try:
            play.begin()
            while harness.faults_done < count and harness.goes_on:
                play.turn(min(KILLS_PER_TURN, count - harness.faults_done))
        finally:
            play.end()
        play.nothing_is_left()


class Program:
    """One of the programs, and the thread that reads its output."""

    def __init__(self, play: Sabotage, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.done: dict[str, int] = defaultdict(int)
        """Number of times each act was completed."""
        self.thread = threading.Thread(
            target=guarded, args=(lambda: self.listen(play), play.harness.faults)
        )
        self.thread.start()

    def listen(self, play: Sabotage) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *said = line.split()
            if word == "done":
                play.counts[said[0]] += int(said[1])
                self.done[said[0]] += 1
            else:
                play.harness.faults.append(f"{word} {' '.join(said)}".removeprefix("fault "))

    def end(self, faults: list[str]) -> None:
        """Close the program's standard input and wait for its end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(TURN_S_MAX)
        except subprocess.TimeoutExpired:
            faults.append(f"I14: {self.process.args} does not end")
            self.process.kill()
            self.process.wait()
        self.thread.join()
        self.process.stdout.close()
        if self.process.returncode:
            faults.append(f"{self.process.args} ended with {self.process.returncode}")


class Sabotage:
    """One run of F24."""

    def __init__(self, harness: FaultHarness, directory: Path) -> None:
        self.harness = harness
        self.directory = directory
        self.ledger = directory / "ledger"
        self.counts = harness.acts
        self.programs: list[Program] = []

    # Start.

    def begin(self) -> None:
        """Compile the saboteur, write its templates, and start the programs."""
        saboteur = self.compiled()
        harness = self.harness
        for index in harness.partitions:
            until(
                lambda index=index: harness.directory.leader_of(index) is not None,
                WAIT_S_MAX,
                f"nobody leads partition {index}",
            )
        led = {node: harness.directory.led_by(node) for node in harness.processes.workers}
        self.places = self.found(led)
        templates = [f"{node}={self.templates(node, indexes)}" for node, indexes in led.items()]
        words = (str(self.ledger), str(saboteur), *templates)
        self.victims = Program(self, "tests.faults.ring_victims", *words)
        self.programs.append(self.victims)
        host, port = harness.processes.addresses()[0]
        for node in led:
            place = next(place for place in self.places if place.node == node)
            name = f"survivor-{node}"
            words = (str(self.ledger), name, host, str(port), *map(str, place))
            self.programs.append(Program(self, "tests.faults.ring_survivor", *words))

    def compiled(self) -> Path:
        compiler = shutil.which("cc")
        assert compiler is not None, "F24 wants a C compiler called cc"
        made = self.directory / "saboteur"
        headers = (f"-I{ROOT / 'ext' / layer}" for layer in ("codec", "net"))
        words = ["-std=gnu11", "-O2", *headers, str(SOURCE), "-o", str(made)]
        subprocess.run([compiler, *words], check=True)
        return made

    def found(self, led: dict[int, list[int]]) -> list[Place]:
        """Return every partition, with the node that leads it and its local socket."""
        ready = self.harness.processes.broker.ready
        run_directory = self.harness.watched()[-1]
        for node in led:
            assert local_path(run_directory, node).is_socket(), f"node {node} has no local socket"
        with RawConnection(self.harness.processes.addresses()[0], WAIT_S_MAX) as line:
            topics = [{"topic_id": bytes(16), "name": self.harness.topic}]
            response = line.request(METADATA, 12, {"topics": topics})
        topic_id = bytes(response.topics[0].topic_id).hex()
        return [
            Place(str(run_directory), ready["cluster_id"], node, topic_id, partition)
            for node, partitions in led.items()
            for partition in partitions
        ]

    def templates(self, node: int, partitions: list[int]) -> Path:
        """Write valid batches for the saboteur, which may be in the log any number of times."""
        name = f"scribbler-{node}"
        self.harness.history.unordered |= {name}
        file = self.directory / name
        with file.open("wb") as out:
            for number in range(TEMPLATES):
                partition = partitions[number % len(partitions)]
                batch = batch_of(name, number)
                out.write(struct.pack("<ii", partition, len(batch)) + batch)
                send = Send(name, partition, value_of(name, number))
                self.harness.history.sends.append(send)
        return file

    # Acts.

    def command(self, act: str, count: int, places: list[Place]) -> None:
        assert self.victims.process.stdin is not None
        said = {
            "act": act, "count": count, "places": places,
            "seed": self.harness.dice.randrange(1 << 60),
        }  # fmt: skip
        self.victims.process.stdin.write(json.dumps(said) + "\n")
        self.victims.process.stdin.flush()

    def await_done(self, act: str, times: int, seconds_max: float = TURN_S_MAX) -> None:
        until(
            lambda: self.victims.done[act] >= times or not self.harness.goes_on,
            seconds_max,
            f"{act} is not over",
        )

    def played(self, act: str, count: int) -> None:
        times = self.victims.done[act] + 1
        self.command(act, count, self.places)
        self.await_done(act, times)

    def turn(self, kills: int) -> None:
        """Run some of each act with the workers unharmed; then, in some turns, kill a worker."""
        harness, dice = self.harness, self.harness.dice
        begin, before = time.monotonic(), harness.processes.pids()
        self.played("kill", kills)
        self.played("scribble", kills * SCRIBBLES_PER_KILL)
        for act in ("hoard", "share"):
            if dice.random() < 0.3:
                self.played(act, 1)
        harness.faults_done += kills
        harness.work()
        self.unharmed(begin, before)
        if dice.random() < 0.3:
            self.kill_reading()

    def unharmed(self, begin: float, before: dict[int, int]) -> None:
        """Check that no process has ended, and that no partition has paused."""
        harness, end = self.harness, time.monotonic()
        if harness.processes.pids() != before:
            harness.faults.append(
                f"F24: {before} were the processes, {harness.processes.pids()} are"
            )
        for prober, gap in zip(harness.probers, harness.gaps(begin, end), strict=True):
            harness.recoveries["gap beside bad producers"].append(gap)
            if harness.timed and gap > SERVE_S_MAX * load_factor():
                harness.faults.append(f"I14: partition {prober.partition} paused for {gap:.3f} s")

    def kill_reading(self) -> None:
        """Kill a worker while it reads from rings."""
        harness = self.harness
        node = harness.dice.choice(
            [node for node in harness.processes.workers if node != SUPERVISOR]
        )
        before, times = harness.processes.pids(), self.victims.done["stale"] + 1
        ready = self.victims.done["ready"] + 1
        self.command("stale", STALE_COUNT, [place for place in self.places if place.node == node])
        self.await_done("ready", ready)
        at = harness.processes.signal(before[node], signal.SIGKILL)
        self.counts["killed"] += 1
        harness.served("worker killed as it read", at, harness.directory.led_by(node), SERVE_S_MAX)
        harness.all_up(set(before), {node: before[node]})
        self.await_done("stale", times)

    # End.

    def end(self) -> None:
        """End the programs, and add their ledger and its expectations to the history."""
        harness = self.harness
        for program in self.programs:
            program.end(harness.faults)
        if self.counts["left"] > self.counts["killed"] and not harness.faults:
            harness.faults.append(f"F24: producers that had done nothing lost rings: {self.counts}")
        names = self.written_down()
        once = {name for name in names if not name.startswith("sharer")}
        harness.history.idempotent |= once
        harness.history.unordered |= names - once
        harness.diary.append(f"{time.time():.3f} done: {dict(self.counts)}")

    def written_down(self) -> set[str]:
        """Add the ledger's records to the history; return the names of their senders."""
        sends: dict[tuple[str, int], Send] = {}
        for word, name, number, where in Ledger.read(self.ledger) if self.ledger.exists() else ():
            if word == "acked":
                sends[name, number].outcome, sends[name, number].offset = ACKED, where
            else:
                outcome = REFUSED if word == "late" else UNKNOWN
                sends[name, number] = Send(name, where, value_of(name, number), outcome)
        self.harness.history.sends += sends.values()
        return {name for name, _ in sends}

    def nothing_is_left(self) -> None:
        """Check that no process of the broker maps a ring, and that none has a name."""
        launcher = self.harness.processes.broker.pid
        family = [launcher, *children_of(launcher)]
        try:
            until(lambda: not any(map(holds_a_ring, family)), GONE_S_MAX, "a ring is still held")
        except TimeoutError as fault:
            self.harness.faults.append(f"I13: {fault}")
        found = [path.name for path in Path("/dev/shm").glob("*kafkalite*")]
        # Benchmarks that run at the same time keep their files there.
        named = [name for name in found if not name.startswith("kafkalite-bench-")]
        if named:
            self.harness.faults.append(f"I13: left in /dev/shm: {named}")


def holds_a_ring(pid: int) -> bool:
    """Return True if a process maps a ring."""
    try:
        return "memfd:kafkalite-ring" in Path(f"/proc/{pid}/maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
