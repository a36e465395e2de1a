"""F31: members of a share group, killed with their brokers: what is accepted does not come again.

    python -m tests.faults.sharing --kills 50                 a run of 50 kills
    python -m tests.faults.sharing --kills 50 --runs 10       the long form
    python -m tests.faults.sharing --against apache           with Apache Kafka as the broker

Members of three clients take records from the same partitions, hold them for a while, and accept,
release or reject them; some records are released each time.  Members and processes of the broker
are killed meanwhile.  When the producer has ended, the group must process everything; after another
kill of all processes, new members must get new records only.  share_history.py judges.

Every run appends a line to record.jsonl.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from kafkalite import Admin
from kafkalite.errors import KafkaError
from tests.conformance.clients import JAVA, LIBRDKAFKA, NATIVE, missing
from tests.conformance.driven import Driven, DrivenShareMember
from tests.conformance.members import configure
from tests.conformance.table import Delivered, Kafka, Refused
from tests.faults.prober import guarded
from tests.faults.record import recorded, write_down
from tests.faults.share_history import (
    ACCEPT,
    REJECT,
    RELEASE,
    RecordPlace,
    ShareDelivery,
    share_violations,
)
from tests.faults.victims import Victim, victims

PARTITIONS = 4
GROUP = "sharers"
CLIENTS: Sequence[Driven] = (LIBRDKAFKA, NATIVE, JAVA, LIBRDKAFKA, NATIVE)
LIMIT = 5
LOCK_MS = 5_000
CONFIG = {
    "group.share.min.session.timeout.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.min.record.lock.duration.ms": "1000",
}
GROUP_CONFIG = {
    "share.auto.offset.reset": "earliest",
    "share.session.timeout.ms": "3000",
    "share.heartbeat.interval.ms": "300",
    "share.record.lock.duration.ms": str(LOCK_MS),
    "share.delivery.count.limit": str(LIMIT),
}
POISON = 101
"""Each record whose number is a multiple of this is released whenever it comes."""
OUTCOMES, WEIGHTS = (ACCEPT, RELEASE, REJECT), (80, 12, 8)
HELD_SHARE, HELD_S = 0.2, (0.05, 0.6)
"""Share of the polls whose records are held, and for how long."""
POLL_MS = 200
PRODUCE_COUNT, PRODUCE_PAUSE_S = 20, 0.05
PACE_S = (0.1, 0.8)
MEMBER_SHARE = 0.6
"""Share of the kills that hit a member."""
PROGRESS_S_MAX = 60.0
QUIET_S_MAX = 120.0
ADMIN_S_MAX = 5.0


@dataclass
class Sharing:
    """The parameters and the result of a run."""

    kills_wanted: int
    seed: int
    durability: str = "os"
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Errors that ended members; another one was started."""
    acked: set[RecordPlace] = field(default_factory=set)
    deliveries: list[ShareDelivery] = field(default_factory=list)

    @property
    def broker_kills(self) -> int:
        return self.kills.total() - self.kills["a member"]

    @property
    def confirmed(self) -> int:
        return sum(each.confirmed_s is not None for each in self.deliveries)

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            "F31",
            count=self.kills.total(),
            seed=self.seed,
            workers=2,
            durability=self.durability,
            acked=len(self.acked),
            acked_per_second=round(len(self.acked) / max(self.seconds, 0.001)),
            delivered=len(self.deliveries),
            confirmed=self.confirmed,
            violations=len(self.complaints),
            acts=dict(self.kills),
        )


class Sharer:
    """A member in a thread; one that fails is replaced by another one of the same client."""

    def __init__(self, run: Sharing, client: Driven, kafka: Kafka, topic: str, name: str) -> None:
        self.run = run
        self.client = client
        self.kafka = kafka
        self.topic = topic
        self.name = name
        self.dice = random.Random(f"{run.seed} {name}")
        self.member: DrivenShareMember | None = None
        self.is_ended = False
        self.thread = threading.Thread(target=guarded, args=(self.work, run.complaints))
        self.thread.start()

    def work(self) -> None:
        while not self.is_ended:
            try:
                self.member = self.client.share(self.kafka, GROUP, [self.topic])
                while not self.is_ended:
                    self.take(self.member)
                self.member.leave()
            except (Refused, queue.Empty, OSError, ValueError) as error:
                self.run.said.append(f"{self.name}: {error!r}"[:300])
                if self.member is not None:
                    self.member.kill()

    def take(self, member: DrivenShareMember) -> None:
        """Poll, hold the records for a while, and acknowledge them."""
        records = member.poll(POLL_MS)
        now_s = time.monotonic()
        taken = {
            each: ShareDelivery((each.partition, each.offset), self.name, each.count, now_s)
            for each in records
        }
        self.run.deliveries += taken.values()
        if not taken:
            return
        if self.dice.random() < HELD_SHARE:
            time.sleep(self.dice.uniform(*HELD_S))
        sent_s = time.monotonic()
        for each, delivery in taken.items():
            delivery.kind, delivery.sent_s = self.kind(each), sent_s
        failed = member.acknowledge({each: found.kind for each, found in taken.items()})
        now_s = time.monotonic()
        for each, delivery in taken.items():
            if (each.topic, each.partition) not in failed:
                delivery.confirmed_s = now_s

    def kind(self, record: Delivered) -> str:
        if int(record.value or b"0") % POISON == 0:
            return RELEASE
        return self.dice.choices(OUTCOMES, WEIGHTS)[0]

    def kill(self) -> None:
        if self.member is not None:
            self.member.program.process.kill()

    def end(self) -> None:
        self.is_ended = True
        self.thread.join()


class Feeder:
    """Produces to all partitions until it is ended."""

    def __init__(self, run: Sharing, bootstrap: str, topic: str) -> None:
        self.run = run
        self.topic = topic
        self.is_ended = False
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self.thread = threading.Thread(target=guarded, args=(self.work, run.complaints))
        self.thread.start()

    def work(self) -> None:
        number = 0
        while not self.is_ended:
            for _ in range(PRODUCE_COUNT):
                self.send(number)
                number += 1
            self.producer.poll(PRODUCE_PAUSE_S)
        if self.producer.flush(QUIET_S_MAX):
            self.run.complaints.append("the producer has records without an outcome")

    def send(self, number: int) -> None:
        self.producer.produce(
            self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self.delivered
        )

    def delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.run.acked.add((message.partition(), message.offset()))

    def end(self) -> None:
        self.is_ended = True
        self.thread.join()


def share(run: Sharing, victim: Victim) -> None:
    """Share records under kills, and judge what the members saw."""
    dice = random.Random(run.seed)
    kafka = Kafka(victim.bootstrap)
    topic = kafka.topic(PARTITIONS)
    configure(kafka, GROUP, GROUP_CONFIG)
    feeder = Feeder(run, victim.bootstrap, topic)
    sharers = started(run, kafka, topic, "member")
    try:
        while run.kills.total() < run.kills_wanted and not run.complaints:
            time.sleep(dice.uniform(*PACE_S))
            strike(run, victim, sharers, dice)
            wait_for_progress(run)
    finally:
        feeder.end()
        if not run.complaints:
            wait_until_processed(run, victim.bootstrap, "the kills")
        for sharer in sharers:
            sharer.end()
    if not run.complaints:
        stays_away(run, victim, kafka, topic, dice)
    run.complaints += share_violations(run.deliveries, run.acked, LIMIT, run.broker_kills)


def started(run: Sharing, kafka: Kafka, topic: str, word: str) -> list[Sharer]:
    there = [client for client in CLIENTS if not missing(client)]
    return [
        Sharer(run, client, kafka, topic, f"{word} {number} of {client.name}")
        for number, client in enumerate(there)
    ]


def strike(
    run: Sharing, victim: Victim, sharers: Sequence[Sharer], dice: random.Random
) -> None:
    if dice.random() < MEMBER_SHARE:
        dice.choice(sharers).kill()
        run.kills["a member"] += 1
    else:
        run.kills[victim.strike(dice)] += 1


def wait_for_progress(run: Sharing) -> None:
    """Wait until an acknowledgement is confirmed: only what makes progress is killed."""
    before, deadline = run.confirmed, time.monotonic() + PROGRESS_S_MAX
    while run.confirmed == before and not run.complaints:
        if time.monotonic() > deadline:
            run.complaints.append(f"nothing was acknowledged for {PROGRESS_S_MAX} s")
        time.sleep(0.05)


def wait_until_processed(run: Sharing, bootstrap: str, after: str) -> None:
    """Wait until the group has processed all records."""
    deadline = time.monotonic() + QUIET_S_MAX
    lags: list[int | None] = []
    while time.monotonic() < deadline:
        try:
            with Admin(bootstrap) as admin:
                lags = [each.lag for each in admin.share_offsets(GROUP, ADMIN_S_MAX).values()]
        except KafkaError:
            continue
        if lags == [0] * PARTITIONS:
            return
        time.sleep(0.2)
    run.complaints.append(f"not all records were processed after {after}: {lags} are left")


def stays_away(
    run: Sharing, victim: Victim, kafka: Kafka, topic: str, dice: random.Random
) -> None:
    """Kill every process; new members must get new records only."""
    run.kills[victim.strike_all(dice)] += 1
    old, before = {*run.acked}, len(run.deliveries)
    feeder = Feeder(run, victim.bootstrap, topic)
    sharers = started(run, kafka, topic, "late member")
    wait_for_progress(run)
    feeder.end()
    wait_until_processed(run, victim.bootstrap, "the last kill")
    for sharer in sharers:
        sharer.end()
    again = [each for each in run.deliveries[before:] if each.place in old]
    if again:
        run.complaints.append(f"{len(again)} records came again after a restart: {again[0]}")


def played(run: Sharing, against: str) -> Sharing:
    begun = time.monotonic()
    with victims(against, run.durability, CONFIG) as victim:
        try:
            share(run, victim)
        finally:
            run.seconds = time.monotonic() - begun
            for client in {*CLIENTS}:
                client.close()
    return run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sharing", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--durability", default="os")
    parser.add_argument("--against", choices=("kafkalite", "apache"), default="kafkalite")
    words = parser.parse_args(arguments)
    bad = 0
    for seed in range(words.seed, words.seed + words.runs):
        run = played(Sharing(words.kills, seed, words.durability), words.against)
        if words.against == "kafkalite":
            write_down(run)
        print(
            f"{'BAD ' if run.complaints else 'good'} F31 seed {seed}  {len(run.acked)} records"
            f"  {len(run.deliveries)} deliveries, {run.confirmed} confirmed  {run.seconds:.0f} s"
            f"  kills {dict(run.kills)}",
            *run.complaints[:10], *(run.said[-10:] if run.complaints else ()),
            sep="\n      ", flush=True,
        )  # fmt: skip
        bad += bool(run.complaints)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
