"""F23: Kafka's TransactionalMessageCopier, killed with its brokers: every message is copied once.

    python -m tests.faults.copying --messages 5000                  a run of 5,000 messages
    python -m tests.faults.copying --messages 100000 --runs 10      the long form
    python -m tests.faults.copying --workers 0                      a broker of one process
    python -m tests.faults.copying --against apache                 with Apache Kafka as the broker
    python -m tests.faults.copying --copier native                  native_copier.py copies

As Apache Kafka's own system test: a copier for each of two partitions of a topic copies to a topic
of three partitions, and commits its position in the same transactions.  Copiers and processes of
the broker are killed meanwhile.  A read_committed consumer that follows, and another one at the
end, must read exactly the messages, each once.  Every run appends a line to record.jsonl.

Left out: the copiers' group mode, whose rebalances F22 tests.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java_client import SMALL
from tests.faults.prober import guarded
from tests.faults.record import recorded, write_down
from tests.faults.victims import Victim, victims
from tools.apache_kafka import CLIENTS_V1, TOOLS, classpath, java_executable

SOURCE, SINK, GROUP = "copy-source", "copy-sink", "copiers"
SOURCE_PARTITIONS, SINK_PARTITIONS = 2, 3
TRANSACTION_SIZE = 100
TIMEOUT_MS = 10_000
"""The copiers' transaction timeout: longer than a broker's restart."""
PACE_S = (0.2, 1.5)
RUN_S_MAX = 1_800.0
QUIET_S_MAX = 60.0
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"


@dataclass
class Copying:
    """The parameters and the result of a run."""

    messages: int
    seed: int
    version: int
    durability: str = "os"
    copier: str = "java"
    workers: int = 2
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """The output of copiers that failed."""

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            "F23",
            count=sum(self.kills.values()),
            seed=self.seed,
            workers=self.workers,
            durability=self.durability,
            transactions=self.version,
            copier=self.copier,
            acked=self.messages,
            acked_per_second=round(self.messages / max(self.seconds, 0.001)),
            violations=len(self.complaints),
            acts=dict(self.kills),
        )


def copier_words(bootstrap: str, partition: int, version: int) -> list[str]:
    jars = classpath(TOOLS)
    if version == 1:
        jars = f"{classpath(CLIENTS_V1)}:{jars}"
    return [
        java_executable(), *SMALL, "-cp", jars, COPIER, "--broker-list", bootstrap,
        "--input-topic", SOURCE, "--input-partition", str(partition), "--output-topic", SINK,
        "--consumer-group", GROUP, "--transactional-id", f"copier-{partition}",
        "--transaction-size", str(TRANSACTION_SIZE), "--transaction-timeout", str(TIMEOUT_MS),
        "--enable-random-aborts", "--use-group-metadata",
    ]  # fmt: skip


class Copier:
    """Starts the copier of a partition until it has copied everything."""

    def __init__(self, run: Copying, bootstrap: str, partition: int) -> None:
        self.run = run
        self.words = (
            [sys.executable, "-m", "tests.faults.native_copier", bootstrap, str(partition)]
            if run.copier == "native"
            else copier_words(bootstrap, partition, run.version)
        )
        self.partition = partition
        self.process: subprocess.Popen[str] | None = None
        self.progress = 0
        self.is_done = False
        self.is_ended = False
        self.thread = threading.Thread(target=guarded, args=(self.work, run.complaints))
        self.thread.start()

    def work(self) -> None:
        deadline = time.monotonic() + RUN_S_MAX
        while not self.is_done and not self.is_ended:
            if time.monotonic() > deadline:
                self.run.complaints.append(f"copier {self.partition} did not end")
                return
            self.once()

    def once(self) -> None:
        """Run the copier to its end, which may be a kill, or an error that it does not handle."""
        self.process = subprocess.Popen(
            self.words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        last: list[str] = []
        remaining = -1
        for line in self.process.stdout:
            try:
                remaining = json.loads(line)["remaining"]
                self.progress += 1
            except (ValueError, KeyError, TypeError):
                last.append(line.rstrip())
        code = self.process.wait()
        self.is_done = code == 0 and remaining == 0
        if not self.is_done and code > 0:
            self.run.said.append(f"copier {self.partition} ended with {code}: {last[-12:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def end(self) -> None:
        self.is_ended = True
        self.kill()
        self.thread.join()


class Reader:
    """A read_committed consumer of the whole sink; its values are in the order of arrival."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[bytes] = []
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "earliest", "log_level": 0,
        })  # fmt: skip
        self.consumer.assign([TopicPartition(SINK, at, 0) for at in range(SINK_PARTITIONS)])

    def poll(self) -> int:
        """Read what arrives in a moment; return the number of records."""
        found = [
            message.value() or b""
            for message in self.consumer.consume(1_000, timeout=0.2)
            if message.error() is None
        ]
        self.values += found
        return len(found)


def seed_source(bootstrap: str, messages: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(SOURCE, SOURCE_PARTITIONS, 1), NewTopic(SINK, SINK_PARTITIONS, 1)]
    for future in admin.create_topics(topics).values():
        future.result(QUIET_S_MAX)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(messages):
        while True:
            try:
                producer.produce(SOURCE, b"%d" % number, partition=number % SOURCE_PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(QUIET_S_MAX) == 0


def copy(run: Copying, victim: Victim) -> None:
    """Copy under kills, and check what the consumers read."""
    dice = random.Random(run.seed)
    seed_source(victim.bootstrap, run.messages)
    copiers = [Copier(run, victim.bootstrap, at) for at in range(SOURCE_PARTITIONS)]
    follower = Reader(victim.bootstrap)
    strike_at = time.monotonic() + dice.uniform(*PACE_S)
    try:
        while not all(copier.is_done for copier in copiers) and not run.complaints:
            follower.poll()
            # Only what makes progress is killed, so that a run ends.
            if time.monotonic() > strike_at and all(c.progress or c.is_done for c in copiers):
                strike(run, victim, copiers, dice)
                strike_at = time.monotonic() + dice.uniform(*PACE_S)
    finally:
        for copier in copiers:
            copier.end()
    final = Reader(victim.bootstrap)
    for name, reader in (("the follower", follower), ("the final reader", final)):
        compared(run, name, reader)
        reader.consumer.close()


def strike(run: Copying, victim: Victim, copiers: Sequence[Copier], dice: random.Random) -> None:
    for copier in copiers:
        copier.progress = 0
    if dice.random() < 0.5:
        dice.choice(copiers).kill()
        run.kills["a copier"] += 1
    else:
        run.kills[victim.strike(dice)] += 1


def compared(run: Copying, name: str, reader: Reader) -> None:
    """Read to the end; complain if the values are not the messages, each once."""
    deadline = time.monotonic() + QUIET_S_MAX
    while len(reader.values) < run.messages and time.monotonic() < deadline:
        reader.poll()
    while reader.poll():
        pass
    found = Counter(reader.values)
    missing = [at for at in range(run.messages) if b"%d" % at not in found]
    doubled = [value for value, count in found.items() if count > 1]
    if missing or doubled or len(found) != run.messages:
        run.complaints.append(
            f"{name} read {len(reader.values)} records of {run.messages}: {len(missing)} missing"
            f" ({missing[:5]}), {len(doubled)} twice or more ({doubled[:5]})"
        )


def played(run: Copying, against: str) -> Copying:
    begun = time.monotonic()
    with victims(against, run.durability, workers=run.workers) as victim:
        copy(run, victim)
        run.seconds = time.monotonic() - begun
    return run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.copying", description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--version", type=int, choices=(1, 2), default=2, help="of transactions")
    parser.add_argument("--durability", default="os")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--copier", choices=("java", "native"), default="java")
    parser.add_argument("--against", choices=("kafkalite", "apache"), default="kafkalite")
    words = parser.parse_args(arguments)
    bad = 0
    for seed in range(words.seed, words.seed + words.runs):
        run = Copying(
            words.messages, seed, words.version, words.durability, words.copier, words.workers
        )
        played(run, words.against)
        if words.against == "kafkalite":
            write_down(run)
        print(
            f"{'BAD ' if run.complaints else 'good'} F23 seed {seed}  {run.messages} messages"
            f"  {run.seconds:.0f} s  kills {dict(run.kills)}",
            *run.complaints, *(run.said if run.complaints else ()),
            sep="\n      ", flush=True,
        )  # fmt: skip
        bad += bool(run.complaints)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
