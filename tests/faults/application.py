"""An application that works exactly once, killed with its brokers: what streaming.py runs.

An application is one or more processes of a Java program.  It reads what `send` produces and writes
to its sinks, which a read_committed consumer follows.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.faults.record import recorded
from tests.faults.victims import Victim

PARTITIONS = 2
PACE_S = 0.2
WAIT_S_MAX = 120.0
QUIET_S = 3.0
BROKER_SHARE, STATE_SHARE = 0.4, 0.3


@dataclass
class ApplicationRun:
    """The parameters and the result of a run."""

    name: str
    kills_wanted: int
    seed: int
    durability: str = "os"
    seconds: float = 0.0
    sent: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            self.name,
            count=sum(self.kills.values()),
            seed=self.seed,
            workers=2,
            durability=self.durability,
            acked=self.sent,
            acked_per_second=round(self.sent / max(self.seconds, 0.001)),
            violations=len(self.complaints),
            acts=dict(self.kills),
        )


class Application(ABC):
    """The processes of the program, its input and its output."""

    name: ClassVar[str]
    sources: ClassVar[Sequence[str]]
    sinks: ClassVar[Sequence[str]]
    partitions: ClassVar[int] = PARTITIONS
    instances: ClassVar[int] = 1
    progress_min: ClassVar[int]
    """Records read between two kills, so that each kill is in the midst of work."""

    def __init__(self, run: ApplicationRun, victim: Victim, scratch: Path) -> None:
        self.run = run
        self.victim = victim
        self.scratch = scratch
        self.dice = random.Random(run.seed)
        self.prepare()
        config: dict[str, Any] = {"bootstrap.servers": victim.bootstrap, "log_level": 0}
        topics = [NewTopic(name, self.partitions, 1) for name in (*self.sources, *self.sinks)]
        admin = AdminClient(config)
        for future in admin.create_topics(topics).values():
            future.result(WAIT_S_MAX)
        self.producer = Producer({**config, "enable.idempotence": True})
        self.consumer = Consumer({
            **config, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        })  # fmt: skip
        self.consumer.assign([
            TopicPartition(sink, at, 0) for sink in self.sinks for at in range(self.partitions)
        ])  # fmt: skip
        self.output = (scratch / "output").open("wb")
        self.processes = [self.start(each) for each in range(self.instances)]

    # -- the program --------------------------------------------------------------------------

    @abstractmethod
    def prepare(self) -> None:
        """Compile the program and write its files."""

    @abstractmethod
    def command(self, instance: int) -> list[str]:
        """Return the command of a process, whose state is in `state(instance)`."""

    @abstractmethod
    def send(self) -> None:
        """Send some input."""

    @abstractmethod
    def take(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        """Take a record of a sink, in the order of its partition."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Return whether as much was taken as all input must give."""

    @abstractmethod
    def judge(self) -> list[str]:
        """Return what is wrong with the records taken."""

    # -- a run --------------------------------------------------------------------------------

    def state(self, instance: int) -> Path:
        return self.scratch / f"state-{instance}"

    def start(self, instance: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(instance), stdout=self.output, stderr=self.output,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def receive(self, seconds: float) -> int:
        """Read records for a moment; return how many came."""
        came = 0
        for message in self.consumer.consume(5_000, timeout=seconds):
            if message.error() is None:
                self.take(message.topic() or "", message.key(), message.value())
                came += 1
        return came

    def advance(self) -> None:
        """Send input until enough records of the sinks have been read."""
        deadline = time.monotonic() + WAIT_S_MAX
        missing = self.progress_min
        while missing > 0:
            self.send()
            missing -= self.receive(PACE_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no output within {WAIT_S_MAX} s")

    def strike(self) -> None:
        """Kill a process of the program or of the broker; at times the state is lost with it."""
        if self.dice.random() < BROKER_SHARE:
            self.run.kills[self.victim.strike(self.dice)] += 1
            return
        instance = self.dice.randrange(self.instances)
        self.end_instance(instance)
        self.run.kills["the program"] += 1
        if self.state(instance).exists() and self.dice.random() < STATE_SHARE:
            shutil.rmtree(self.state(instance), ignore_errors=True)
            self.run.kills["its state"] += 1
        self.processes[instance] = self.start(instance)

    def finish(self) -> None:
        """Wait until all input was processed, and nothing more comes."""
        assert self.producer.flush(WAIT_S_MAX) == 0
        deadline = time.monotonic() + WAIT_S_MAX
        while not self.is_complete() and time.monotonic() < deadline:
            self.receive(PACE_S)
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        quiet = time.monotonic() + QUIET_S
        while time.monotonic() < quiet:
            self.receive(PACE_S)

    def end_instance(self, instance: int) -> None:
        self.processes[instance].kill()
        self.processes[instance].wait()

    def end(self) -> None:
        for instance in range(self.instances):
            self.end_instance(instance)
        self.consumer.close()
        self.output.close()
