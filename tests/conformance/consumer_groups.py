"""Scenarios of groups of the consumer protocol (KIP-848), which the coordinator assigns."""

from __future__ import annotations

from confluent_kafka import ConsumerGroupType

from tests.conformance.clients import LIBRDKAFKA
from tests.conformance.members import MEMBER, Group, configure, feeding
from tests.conformance.table import (
    ANSWER_S_MAX,
    CONSUMER_PROTOCOL,
    GROUPS,
    Client,
    Kafka,
    Sent,
    scenario,
    until,
)

TEN = [Sent(b"%d" % i, b"k") for i in range(10)]
QUICK_GROUP = {"consumer.session.timeout.ms": "45000", "consumer.heartbeat.interval.ms": "100"}
"""Members follow each other quickly, and none expires on a busy machine."""
MORTAL_GROUP = {**QUICK_GROUP, "consumer.session.timeout.ms": "3000"}
"""A killed member expires soon."""


class ConsumerGroup(Group):
    """A group of the consumer protocol: its timeouts are the group's, not the members'."""

    member_settings = {"group.protocol": "consumer", "auto.commit.interval.ms": "50"}

    def configure(self, texts: dict[str, str]) -> None:
        """Set configs of the group, before it exists."""
        configure(self.kafka, self.name, texts)

    def is_of_the_consumer_protocol(self) -> bool:
        """Return whether the group is listed with this type."""
        return has_type(self.kafka, self, ConsumerGroupType.CONSUMER)


def has_type(kafka: Kafka, group: Group, kind: ConsumerGroupType) -> bool:
    """Return whether a group is listed with this type."""
    listed = kafka.admin.list_consumer_groups(types={kind})
    return group.name in {each.group_id for each in listed.result(ANSWER_S_MAX).valid}


@scenario(CONSUMER_PROTOCOL)
def the_coordinator_assigns_as_members_come_and_go(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    with ConsumerGroup(client, kafka, topic) as group:
        group.configure(QUICK_GROUP)
        with feeding(kafka, topic, 4) as feed:
            for _ in range(3):
                group.join()
                group.settle()
            group.leave(group.members[0])
            group.settle()
            assert group.is_of_the_consumer_protocol()
        group.has_read(feed.count)


@scenario(CONSUMER_PROTOCOL, assignor=["range", "uniform"])
def members_name_the_assignor_of_the_coordinator(
    client: Client, kafka: Kafka, assignor: str
) -> None:
    topics = sorted([kafka.topic(partitions=3), kafka.topic(partitions=3)])
    with ConsumerGroup(client, kafka, *topics, group_remote_assignor=assignor) as group:
        group.configure(QUICK_GROUP)
        for _ in range(2):
            group.join()
            group.settle()
        sizes = sorted(len(member.assigned) for member in group.members)
        assert sizes == ([2, 4] if assignor == "range" else [3, 3])


@scenario(CONSUMER_PROTOCOL)
def the_partitions_of_a_killed_member_go_to_the_others(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    with ConsumerGroup(client, kafka, topic) as group:
        group.configure(MORTAL_GROUP)
        for _ in range(2):
            group.join()
            group.settle()
        group.kill(group.members[0])
        group.settle()
        client.produce(kafka, topic, TEN)
        group.has_read_once(len(TEN))


@scenario(CONSUMER_PROTOCOL)
def a_static_member_returns_to_its_partitions(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    with ConsumerGroup(client, kafka, topic) as group:
        group.configure(QUICK_GROUP)
        for instance in ("one", "two"):
            group.join(group_instance_id=instance)
            group.settle()
        one, two = group.members
        had = one.assigned
        others = [*two.changes]
        group.leave(one)
        group.join(group_instance_id="one")
        group.settle()
        assert group.members[-1].assigned == had
        assert two.changes == others


@scenario(CONSUMER_PROTOCOL)
def a_regular_expression_matches_whole_names(client: Client, kafka: Kafka) -> None:
    prefix = kafka.name()
    topics = [f"{prefix}-{end}" for end in ("a", "b")]
    for name in [*topics, f"not-{prefix}-a", f"{prefix}-c"]:
        kafka.topic(name=name)
    with ConsumerGroup(client, kafka, *topics) as group:
        group.configure(QUICK_GROUP)
        group.subscription = [f"^{prefix}-[ab]"]
        for _ in range(2):
            group.join()
            group.settle()
        for name in topics:
            client.produce(kafka, name, TEN)
        group.has_read_once(2 * len(TEN))


@scenario(CONSUMER_PROTOCOL)
def the_next_member_reads_on_from_the_committed_offset(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with ConsumerGroup(client, kafka, topic, enable_auto_commit="false") as group:
        group.configure(QUICK_GROUP)
        first = group.join()
        client.produce(kafka, topic, TEN)
        group.has_read_once(len(TEN))
        first.commit({(topic, 0): (7, "seven")})
        until(lambda: kafka.committed(group.name) == {(topic, 0): (7, "seven")})
        group.leave(first)
        second = group.join()
        until(lambda: len(second.read) == 3)
        assert [read.offset for read in second.read] == [7, 8, 9]


@scenario(CONSUMER_PROTOCOL)
def a_group_changes_its_protocol_member_by_member(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    classic = {"group.protocol": "classic", **MEMBER}
    with ConsumerGroup(client, kafka, topic) as group:
        group.configure(QUICK_GROUP)
        with feeding(kafka, topic, 4) as feed:
            for settings in (classic, classic, {}, {}):
                if len(group.members) == 3:
                    group.leave(group.members[0])
                    group.settle()
                group.join(**settings)
                group.settle()
            group.leave(group.members[0])
            group.settle()
            assert group.is_of_the_consumer_protocol()
        group.has_read(feed.count)


@scenario(GROUPS)
def two_classic_members_stay_while_their_group_is_upgraded_and_downgraded(
    client: Client, kafka: Kafka
) -> None:
    """The member of the consumer protocol is one of librdkafka, whatever the client is."""
    topic = kafka.topic(partitions=6)
    with Group(client, kafka, topic, auto_commit_interval_ms="50") as group:
        configure(kafka, group.name, QUICK_GROUP)
        with feeding(kafka, topic, 6) as feed:
            for _ in range(2):
                group.join()
                group.settle()
            new = LIBRDKAFKA.join(kafka, group.name, [topic], ConsumerGroup.member_settings)
            group.members.append(new)
            group.settle()
            assert has_type(kafka, group, ConsumerGroupType.CONSUMER)
            group.leave(new)
            group.settle()
            assert has_type(kafka, group, ConsumerGroupType.CLASSIC)
        group.has_read(feed.count)
