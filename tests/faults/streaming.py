"""Kafka Streams counts words exactly once (exactly_once_v2), killed and started again.

    python -m tests.faults.streaming --kills 5              kills of the program and of brokers
    python -m tests.faults.streaming --against apache       with Apache Kafka as the broker

java/WordCount.java has RocksDB state with a changelog, and a repartition topic.  Every change of a
count is written, so a read_committed consumer of its output must read 1, 2, 3 … of each word, up to
the number of times that the word was sent.  Every run appends a line to record.jsonl.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java_client import SMALL, compiled
from tests.faults.run import recorded, write_down
from tests.faults.victims import Victim, victims
from tools.apache_kafka import STREAMS, classpath, java_executable

SOURCE, SINK = "words", "word-counts"
PARTITIONS = 2
WORDS = [f"word-{number}" for number in range(50)]
LINE_WORDS = 5
LINES_A_PACE = 100
PACE_S = 0.2
WAIT_S_MAX = 120.0
QUIET_S = 3.0
PROGRESS_MIN = 300
"""Counts read between two kills, so that each kill is in the midst of work."""


@dataclass
class Streaming:
    """The parameters and the result of a run."""

    kills_wanted: int
    seed: int
    durability: str = "os"
    seconds: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    read: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            "STREAMS",
            count=sum(self.kills.values()),
            seed=self.seed,
            workers=2,
            durability=self.durability,
            acked=self.sent.total(),
            acked_per_second=round(self.sent.total() / max(self.seconds, 0.001)),
            violations=len(self.complaints),
            acts=dict(self.kills),
        )


class Counting:
    """The Java program, its input and its output."""

    def __init__(self, run: Streaming, victim: Victim, scratch: Path) -> None:
        self.run = run
        self.victim = victim
        self.scratch = scratch
        self.dice = random.Random(run.seed)
        jars = classpath(STREAMS)
        classes = compiled(Path(__file__).with_name("java"), [jars])
        self.words = [
            java_executable(), *SMALL, "-cp", f"{classes}:{jars}", "WordCount",
            victim.bootstrap, str(scratch / "state"), SOURCE, SINK,
        ]  # fmt: skip
        admin = AdminClient({"bootstrap.servers": victim.bootstrap, "log_level": 0})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (SOURCE, SINK)]
        for future in admin.create_topics(topics).values():
            future.result(WAIT_S_MAX)
        config: dict[str, Any] = {"bootstrap.servers": victim.bootstrap, "log_level": 0}
        self.producer = Producer({**config, "enable.idempotence": True})
        self.consumer = Consumer({
            **config, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        })  # fmt: skip
        self.consumer.assign([TopicPartition(SINK, at, 0) for at in range(PARTITIONS)])
        self.output = (scratch / "output").open("wb")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words, stdout=self.output, stderr=self.output, stdin=subprocess.DEVNULL
        )

    def send(self) -> None:
        for _ in range(LINES_A_PACE):
            words = self.dice.choices(WORDS, k=LINE_WORDS)
            self.run.sent.update(words)
            at = self.dice.randrange(PARTITIONS)
            self.producer.produce(SOURCE, " ".join(words).encode(), partition=at)
        self.producer.poll(0)

    def receive(self, seconds: float) -> int:
        """Read counts for a moment; return how many came."""
        came = 0
        for message in self.consumer.consume(5_000, timeout=seconds):
            if message.error() is None:
                word = (message.key() or b"").decode()
                self.run.read[word].append(int.from_bytes(message.value() or b"", "big"))
                came += 1
        return came

    def advance(self, count: int) -> None:
        """Send words until so many counts have been read."""
        deadline = time.monotonic() + WAIT_S_MAX
        while count > 0:
            self.send()
            count -= self.receive(PACE_S)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no counts within {WAIT_S_MAX} s")

    def strike(self) -> None:
        """Kill the program or a process of the broker; at times the state is lost with it."""
        if self.dice.random() < 0.4:
            self.run.kills[self.victim.strike(self.dice)] += 1
            return
        self.process.kill()
        self.process.wait()
        self.run.kills["the program"] += 1
        if self.dice.random() < 0.3:
            shutil.rmtree(self.scratch / "state", ignore_errors=True)
            self.run.kills["its state"] += 1
        self.start()

    def finish(self) -> None:
        """Wait until all that was sent is counted, and nothing more comes."""
        assert self.producer.flush(WAIT_S_MAX) == 0
        deadline = time.monotonic() + WAIT_S_MAX
        while sum(map(len, self.run.read.values())) < self.run.sent.total():
            self.receive(PACE_S)
            if time.monotonic() > deadline:
                break
        self.process.terminate()
        self.process.wait()
        quiet = time.monotonic() + QUIET_S
        while time.monotonic() < quiet:
            self.receive(PACE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.consumer.close()
        self.output.close()


def judge(run: Streaming) -> None:
    """Complain of each word whose counts are not 1, 2, 3 … to the number that was sent."""
    for word, count in run.sent.items():
        wanted = list(range(1, count + 1))
        if (found := run.read[word]) != wanted:
            pairs = zip(found, wanted, strict=False)
            at = next((i for i, pair in enumerate(pairs) if pair[0] != pair[1]), None)
            run.complaints.append(
                f"{word} was sent {count} times; {len(found)} counts, wrong from {at}:"
                f" {found[at or 0 :][:5]}, the last {found[-3:]}"
            )


def count(run: Streaming, victim: Victim, scratch: Path) -> None:
    counting = Counting(run, victim, scratch)
    try:
        counting.advance(PROGRESS_MIN)
        while sum(run.kills.values()) < run.kills_wanted:
            counting.strike()
            counting.advance(PROGRESS_MIN)
        counting.finish()
    except TimeoutError as fault:
        told = (scratch / "output").read_text(errors="replace").splitlines()
        run.complaints.append(f"{fault}: {told[-8:]}")
    finally:
        counting.end()
    judge(run)


def played(run: Streaming, against: str) -> Streaming:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, victims(against, run.durability) as victim:
        count(run, victim, Path(scratch))
        run.seconds = time.monotonic() - begun
    return run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.streaming", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--durability", default="os")
    parser.add_argument("--against", choices=("kafkalite", "apache"), default="kafkalite")
    words = parser.parse_args(arguments)
    bad = 0
    for seed in range(words.seed, words.seed + words.runs):
        run = played(Streaming(words.kills, seed, words.durability), words.against)
        if words.against == "kafkalite":
            write_down(run)
        print(
            f"{'BAD ' if run.complaints else 'good'} STREAMS seed {seed}  {run.sent.total()} words"
            f"  {run.seconds:.0f} s  kills {dict(run.kills)}",
            *run.complaints[:10], sep="\n      ", flush=True,
        )  # fmt: skip
        bad += bool(run.complaints)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
