"""Members of one group for a scenario, and records that are produced while they read."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Self

from confluent_kafka import ConsumerGroupState, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from tests.conformance.table import (
    ANSWER_S_MAX,
    Client,
    Kafka,
    Member,
    Place,
    Read,
    Refused,
    done,
    until,
)

MEMBER = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "50"}
"""A member that learns of a rebalance at once, and survives the pauses of a busy machine."""

MORTAL = {"session.timeout.ms": "1000", "heartbeat.interval.ms": "100"}
"""A member whose session expires soon after it is killed."""

FEED_PAUSE_S = 0.002


class Group:
    """The members of a group, all of one client and topics; all are ended with the `with` block."""

    member_settings = MEMBER

    def __init__(self, client: Client, kafka: Kafka, *topics: str, **settings: str) -> None:
        self.client = client
        self.kafka = kafka
        self.name = kafka.name()
        self.topics = topics
        self.subscription: Sequence[str] = topics
        self.settings = self.member_settings | dotted(settings)
        self.members: list[Member] = []
        self.gone: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for member in [*self.members]:
            try:
                if kind is None:
                    self.leave(member)
            finally:
                with contextlib.suppress(Exception):
                    member.kill() if member in self.members else None

    # Membership.

    def join(self, kafka: Kafka | None = None, **settings: str) -> Member:
        """Start a new member, which connects to this Kafka's address."""
        words = self.settings | dotted(settings)
        member = self.client.join(kafka or self.kafka, self.name, self.subscription, words)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        """Close a member in an orderly way."""
        member.leave()
        self.left(member)

    def kill(self, member: Member) -> None:
        member.kill()
        self.left(member)

    def left(self, member: Member) -> None:
        self.members.remove(member)
        self.gone.append(member)

    # Assignments.

    @property
    def places(self) -> frozenset[Place]:
        """All partitions of its topics."""
        found = {}
        for topic in self.topics:
            told = self.kafka.admin.list_topics(topic, timeout=ANSWER_S_MAX)
            found[topic] = told.topics[topic]
        return frozenset((topic, at) for topic in found for at in found[topic].partitions)

    def settle(self) -> None:
        """Wait until each partition has one member, no member is idle while another could share,
        and the coordinator reports the same: no rebalance is in progress."""
        places = self.places
        # A new client: an admin may wait for ever for a coordinator that was restarted.
        admin = Kafka(self.kafka.bootstrap).admin

        def settled() -> bool:
            held = [member.assigned for member in self.members]
            assert not any(member.faults for member in self.members), self.faults
            idle = sum(not places for places in held)
            return (
                sum(map(len, held)) == len(places)
                and frozenset().union(*held) == places
                and idle == max(0, len(held) - len(places))
                and self.told(admin) == sorted(map(sorted, held))
            )

        until(settled)

    def told(self, admin: AdminClient) -> list[list[Place]] | None:
        """Return each member's partitions as the coordinator reports them; None unless stable."""
        try:
            (found,) = done(admin.describe_consumer_groups([self.name]))
        except Refused:
            return None
        if found.state is not ConsumerGroupState.STABLE:
            return None
        return sorted(
            sorted((place.topic, place.partition) for place in member.assignment.topic_partitions)
            for member in found.members
        )

    @property
    def faults(self) -> list[str]:
        return [fault for member in self.members for fault in member.faults]

    # Records read.

    @property
    def read(self) -> list[Read]:
        return [read for member in [*self.gone, *self.members] for read in [*member.read]]

    def has_read(self, count: int) -> None:
        """Wait until `count` different records were read."""
        until(lambda: len(self.times_read()) >= count)

    def times_read(self) -> Counter[tuple[str, int, int]]:
        """Count the reads of each record, by topic, partition and offset."""
        return Counter((read.topic, read.partition, read.offset) for read in self.read)

    def has_read_once(self, count: int) -> None:
        """Wait until `count` records were read, and check that none was read twice."""
        self.has_read(count)
        times = self.times_read()
        assert len(times) == count
        again = sorted(place for place, often in times.items() if often > 1)
        assert again == [], f"read more than once: {again}\n{self.story()}"

    def story(self) -> str:
        """Describe assignments, reads and committed offsets, for a failed test."""
        lines = [f"committed: {self.kafka.committed(self.name)}"]
        for number, member in enumerate([*self.gone, *self.members]):
            state = "gone" if member in self.gone else "a member"
            lines.append(f"{number}, {state}: {[(w, sorted(p)) for w, p in member.changes]}")
            lines.append(f"   read: {[(r.topic, r.partition, r.offset) for r in [*member.read]]}")
        return "\n".join(lines)

    def committed(self, topic: str, partition: int = 0) -> int:
        """Return the group's committed offset, -1 for none."""
        return self.kafka.committed(self.name).get((topic, partition), (-1, ""))[0]


def dotted(settings: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def configure(kafka: Kafka, group: str, texts: dict[str, str]) -> None:
    """Set configs of a group, which need not exist."""
    entries = [
        ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
        for name, text in texts.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    done(kafka.admin.incremental_alter_configs([resource]))


class Feed:
    """The number of records sent, valid after the `with` block."""

    count = 0


@contextlib.contextmanager
def feeding(kafka: Kafka, topic: str, partitions: int) -> Iterator[Feed]:
    """Produce to all partitions in turn during the `with` block; some records before it begins."""
    feed = Feed()
    ended = threading.Event()
    faults: list[object] = []
    settings = {"linger.ms": 0, "enable.idempotence": True, "reconnect.backoff.max.ms": 100}
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0, **settings})

    def send() -> None:
        while not ended.is_set():
            producer.produce(
                topic,
                b"%d" % feed.count,
                partition=feed.count % partitions,
                on_delivery=lambda fault, _: faults.append(fault) if fault else None,
            )
            feed.count += 1
            producer.poll(0)
            ended.wait(FEED_PAUSE_S)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        until(lambda: feed.count > 10 * partitions)
        yield feed
    finally:
        ended.set()
        thread.join()
        assert producer.flush(ANSWER_S_MAX) == 0
    if faults:
        raise Refused(str(faults[0]))
