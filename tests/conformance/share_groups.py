"""Scenarios of share groups (KIP-932): members get records one by one and acknowledge them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from confluent_kafka import Producer

from kafkalite import Admin
from kafkalite.errors import GroupIdNotFound, InvalidRecordState
from tests.conformance.members import Group, configure, dotted
from tests.conformance.restarts import killed, restarted
from tests.conformance.table import (
    ANSWER_S_MAX,
    GROUPS,
    RENEWALS,
    SHARE_GROUPS,
    Client,
    Delivered,
    Kafka,
    Lifetime,
    Sent,
    ShareMember,
    scenario,
    until,
)

TEN = [Sent(b"%d" % i, b"k") for i in range(10)]
ACCEPT, RELEASE, REJECT, RENEW = "accept", "release", "reject", "renew"
SINGLY = {"batch.num.messages": "1"}
"""Settings of a producer that sends each record as a batch of its own."""

CONFIG = {
    "share.auto.offset.reset": "earliest",
    "share.session.timeout.ms": "6000",
    "share.heartbeat.interval.ms": "100",
}
POLL_MS = 100


class ShareGroup:
    """The members of a share group, all of one client; all are ended with the `with` block."""

    def __init__(
        self, client: Client, kafka: Kafka, topic: str, config: dict[str, str], **settings: str
    ) -> None:
        self.client = client
        self.kafka = kafka
        self.name = kafka.name()
        self.topic = topic
        self.settings = dotted(settings)
        self.members: list[ShareMember] = []
        configure(kafka, self.name, CONFIG | config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for member in [*self.members]:
            if kind is None:
                self.leave(member)
            else:
                member.kill()

    def join(self) -> ShareMember:
        """Start a new member, and wait until each member has partitions."""
        member = self.client.share(self.kafka, self.name, [self.topic], self.settings)
        self.members.append(member)
        with Admin(self.kafka.bootstrap) as admin:
            until(lambda: self.assigned(admin) == len(self.members))
        return member

    def assigned(self, admin: Admin) -> int:
        """Return how many members the coordinator has assigned partitions to."""
        try:
            found = admin.describe_group(self.name, timeout=ANSWER_S_MAX)
        except GroupIdNotFound:
            return 0
        assert found.type in ("share", "classic"), found
        return sum(bool(member.partitions) for member in found.members)

    def leave(self, member: ShareMember) -> None:
        self.members.remove(member)
        try:
            member.leave()
        except BaseException:
            member.kill()
            raise

    def kill(self, member: ShareMember) -> None:
        self.members.remove(member)
        member.kill()

    def poll(self) -> tuple[ShareMember, list[Delivered]]:
        """Poll the members in turn until one of them gets records."""
        found: list[tuple[ShareMember, list[Delivered]]] = []

        def polled() -> bool:
            for member in self.members:
                if records := member.poll(POLL_MS):
                    found.append((member, records))
                    return True
            return False

        until(polled)
        return found[0]

    def take(
        self, count: int, kind: Callable[[Delivered], str] = lambda _: ACCEPT
    ) -> list[Delivered]:
        """Acknowledge each record that comes until `count` were accepted or rejected; return all.

        `kind` is the type of each record's acknowledgement.
        """
        taken: list[Delivered] = []
        ended = 0
        while ended < count:
            member, records = self.poll()
            kinds = {record: kind(record) for record in records}
            assert member.acknowledge(kinds) == {}
            taken += records
            ended += sum(each != RELEASE for each in kinds.values())
        return taken


def offsets_of(records: list[Delivered]) -> list[int]:
    return sorted(record.offset for record in records)


@scenario(SHARE_GROUPS, mode=["explicit", "implicit"])
def each_record_goes_to_one_member_of_a_share_group(
    client: Client, kafka: Kafka, mode: str
) -> None:
    topic = kafka.topic(partitions=2)
    settings = {"share.acknowledgement.mode": mode}
    with ShareGroup(client, kafka, topic, {}, **settings) as group:
        for _ in range(2):
            group.join()
        for partition in range(2):
            client.produce(kafka, topic, TEN, partition)
        taken: list[Delivered] = []
        while len(taken) < 2 * len(TEN):
            member, records = group.poll()
            taken += records
            explicit = dict.fromkeys(records, ACCEPT)
            assert member.acknowledge(explicit if mode == "explicit" else {}) == {}
        # The counts may be above 1: a member that does not know of the other one yet releases the
        # records it has acquired when the partition is no longer its own.
        places = [(record.partition, record.offset) for record in taken]
        assert sorted(places) == [(at, offset) for at in range(2) for offset in range(len(TEN))]


@scenario(SHARE_GROUPS)
def two_members_hold_different_records_of_one_partition(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with ShareGroup(client, kafka, topic, {}, max_poll_records="1") as group:
        one, other = group.join(), group.join()
        for record in TEN:
            client.produce(kafka, topic, [record])
        held: list[Delivered] = []
        until(lambda: bool(held.extend(one.poll(POLL_MS)) or held))
        also: list[Delivered] = []
        until(lambda: bool(also.extend(other.poll(POLL_MS)) or also))
        assert not {*held} & {*also}
        for member, records in ((one, held), (other, also)):
            assert member.acknowledge(dict.fromkeys(records, ACCEPT)) == {}
        rest = group.take(len(TEN) - len(held) - len(also))
        assert offsets_of(held + also + rest) == [*range(len(TEN))]


@scenario(SHARE_GROUPS)
def only_a_released_record_comes_again(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with ShareGroup(client, kafka, topic, {}) as group:
        group.join()

        def kind(record: Delivered) -> str:
            if record.offset % 3 == 0 and record.count == 1:
                return RELEASE
            return REJECT if record.offset % 3 == 1 else ACCEPT

        taken = group.take(len(TEN), kind)
        client.produce(kafka, topic, TEN[:1])
        taken += group.take(1)
        expected = [*range(11), *range(0, 10, 3)]
        assert offsets_of(taken) == sorted(expected)
        assert {record.offset for record in taken if record.count == 2} == {*range(0, 10, 3)}


@scenario(SHARE_GROUPS)
def the_records_of_a_killed_member_go_to_another(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with ShareGroup(client, kafka, topic, {"share.session.timeout.ms": "1000"}) as group:
        victim = group.join()
        _, held = group.poll()
        group.kill(victim)
        until(lambda: no_members(kafka, group.name))
        group.join()
        taken = group.take(len(TEN))
        assert offsets_of(taken) == [*range(len(TEN))]
        assert {record.offset for record in taken if record.count == 2} >= {*offsets_of(held)}


def no_members(kafka: Kafka, group: str) -> bool:
    with Admin(kafka.bootstrap) as admin:
        return not admin.describe_group(group, timeout=ANSWER_S_MAX).members


@scenario(SHARE_GROUPS)
def a_record_held_too_long_goes_to_another_member(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with ShareGroup(client, kafka, topic, {"share.record.lock.duration.ms": "1000"}) as group:
        slow = group.join()
        _, held = group.poll()
        configure(kafka, group.name, {"share.record.lock.duration.ms": "30000"})
        other = group.join()
        taken: list[Delivered] = []
        until(lambda: bool(taken.extend(other.poll(POLL_MS)) or taken))
        late = slow.acknowledge(dict.fromkeys(held, ACCEPT))
        assert late == {(topic, 0): InvalidRecordState.code}
        assert other.acknowledge(dict.fromkeys(taken, ACCEPT)) == {}
        taken += group.take(len(TEN) - len(taken))
        assert offsets_of(taken) == [*range(len(TEN))]
        counts = {record.offset: record.count for record in taken}
        # On a busy host the lock may have expired before the first member's poll returned, too.
        assert all(counts[record.offset] > record.count for record in held)


@scenario(SHARE_GROUPS, RENEWALS)
def a_renewed_record_stays_with_its_member_and_counts_no_delivery(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN[:1])
    with ShareGroup(client, kafka, topic, {}) as group:
        member = group.join()
        _, (record,) = group.poll()
        for _ in range(2):
            assert member.acknowledge({record: RENEW}) == {}
            # Java's consumer returns a renewed record again, other clients do not.
            assert member.poll(POLL_MS) in ([], [record])
        assert member.acknowledge({record: RELEASE}) == {}
        _, (again,) = group.poll()
        assert (again.offset, again.count) == (record.offset, record.count + 1)


@scenario(SHARE_GROUPS)
def a_record_is_delivered_no_more_often_than_the_limit(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with ShareGroup(client, kafka, topic, {"share.delivery.count.limit": "3"}) as group:
        group.join()
        client.produce(kafka, topic, TEN[:1])
        counts = []
        for _ in range(3):
            member, (record,) = group.poll()
            counts.append((record.offset, record.count))
            assert member.acknowledge({record: RELEASE}) == {}
        assert counts == [(0, 1), (0, 2), (0, 3)]
        client.produce(kafka, topic, TEN[1:2])
        assert [(record.offset, record.count) for record in group.take(1)] == [(1, 1)]


@scenario(SHARE_GROUPS)
def a_new_share_group_begins_at_the_end_unless_it_is_configured(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with ShareGroup(client, kafka, topic, {"share.auto.offset.reset": "latest"}) as group:
        member = group.join()
        taken: list[Delivered] = []
        # The time when the group is at the end cannot be seen here: produce until it has a record.
        while not taken:
            client.produce(kafka, topic, [Sent(b"late", b"k")])
            taken += member.poll(POLL_MS)
        assert {record.value for record in taken} == {b"late"}
        assert member.acknowledge(dict.fromkeys(taken, ACCEPT)) == {}


@scenario(SHARE_GROUPS)
def a_share_group_that_reads_committed_gets_no_aborted_record(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "transactional.id": kafka.name(), "log_level": 0}
    )
    producer.init_transactions(ANSWER_S_MAX)
    for number, is_committed in enumerate((True, False, True)):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"%d" % number)
        if is_committed:
            producer.commit_transaction(ANSWER_S_MAX)
        else:
            producer.flush(ANSWER_S_MAX)
            producer.abort_transaction(ANSWER_S_MAX)
    with ShareGroup(client, kafka, topic, {"share.isolation.level": "read_committed"}) as group:
        group.join()
        taken = group.take(6)
        assert sorted(record.value or b"" for record in taken) == [b"0"] * 3 + [b"2"] * 3
        assert {record.count for record in taken} == {1}


@scenario(SHARE_GROUPS, GROUPS)
def a_share_group_and_a_consumer_group_each_get_every_record(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with ShareGroup(client, kafka, topic, {}) as shared, Group(client, kafka, topic) as group:
        shared.join()
        group.join()
        client.produce(kafka, topic, TEN)
        assert offsets_of(shared.take(len(TEN))) == [*range(len(TEN))]
        group.has_read_once(len(TEN))


ENDS: dict[str, Callable[[Lifetime], None]] = {"stopped": restarted, "killed": killed}


@scenario(SHARE_GROUPS, restarts=True, end=[*ENDS])
def acknowledged_records_stay_away_after_a_restart(client: Client, kafka: Kafka, end: str) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    # Otherwise a record that is released often enough would not come again.
    with ShareGroup(client, kafka, topic, {"share.delivery.count.limit": "10"}) as group:
        member = group.join()
        before = group.take(5, lambda record: ACCEPT if record.offset % 2 else RELEASE)
        group.leave(member)
        ENDS[end](kafka.lifetime)
        client.produce(kafka, topic, TEN[:1])
        group.join()
        taken = group.take(6)
        assert offsets_of(taken) == [0, 2, 4, 6, 8, 10]
        counts = {record.offset: record.count for record in before}
        # What a member only holds when it ends is not written, so its count may be lower.
        assert all(record.count > 1 for record in taken if record.offset in counts)
