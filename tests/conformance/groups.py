"""Scenarios of groups: assignments as members join, leave, return and die."""

from __future__ import annotations

from itertools import pairwise

from confluent_kafka.admin import ConsumerGroupDescription

from tests.conformance.members import MORTAL, Group, feeding
from tests.conformance.table import (
    ANSWER_S_MAX,
    ASSIGNORS,
    COOPERATIVE,
    FENCED,
    GROUPS,
    KEEPING,
    ORDERLY,
    STATIC,
    Client,
    Kafka,
    Member,
    Place,
    Sent,
    done,
    scenario,
    until,
)

TEN = [Sent(b"%d" % i, b"k") for i in range(10)]


@scenario(GROUPS, ORDERLY)
def a_group_grows_and_shrinks_and_reads_each_record_once(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    with Group(client, kafka, topic, auto_commit_interval_ms="100") as group:
        with feeding(kafka, topic, 4) as feed:
            for _ in range(3):
                group.join()
                group.settle()
            for _ in range(2):
                group.leave(group.members[0])
                group.settle()
        group.has_read_once(feed.count)


@scenario(GROUPS, assignor=ASSIGNORS)
def members_share_two_topics_under_each_assignor(
    client: Client, kafka: Kafka, assignor: str
) -> None:
    topics = kafka.topic(partitions=3), kafka.topic(partitions=2)
    settings = {"partition.assignment.strategy": assignor}
    with Group(client, kafka, *topics, **settings) as group:
        for _ in range(2):
            group.join()
            group.settle()
        assert described(kafka, group).partition_assignor in (assignor, "RoundRobinAssigner")
        for topic in topics:
            client.produce(kafka, topic, TEN)
        group.has_read_once(2 * len(TEN))


def described(kafka: Kafka, group: Group) -> ConsumerGroupDescription:
    (found,) = done(kafka.admin.describe_consumer_groups([group.name]))
    return found


@scenario(GROUPS, ORDERLY, COOPERATIVE)
def a_cooperative_member_gives_up_only_what_another_gets(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=6)
    settings = {"partition.assignment.strategy": COOPERATIVE, "auto.commit.interval.ms": "100"}
    with Group(client, kafka, topic, **settings) as group:
        first = group.join()
        group.settle()
        with feeding(kafka, topic, 6) as feed:
            second = group.join()
            group.settle()
            assert len(second.assigned) == 3
            revoked = [
                place for what, places in first.changes if what == "revoked" for place in places
            ]
            assert sorted(revoked) == sorted(second.assigned)
            moved = second.assigned
            group.leave(second)
            group.settle()
        group.has_read(feed.count)
        # Java reads on in partitions it is about to lose, and commits only if it is told to.
        again = [place for place, often in group.times_read().items() if often > 1]
        kept = {(topic, partition) for topic, partition, _ in again} - moved
        assert not kept or KEEPING not in client.can, group.story()
        assert {(read.topic, read.partition) for read in second.read} <= moved
        for place in group.places - moved:
            assert steps_back(first, place) <= len(first.changes), group.story()


def steps_back(member: Member, place: Place) -> int:
    """Count how often a member went back in a partition; it must not have passed over records."""
    offsets = [read.offset for read in [*member.read] if (read.topic, read.partition) == place]
    steps = [(before, after) for before, after in pairwise(offsets) if after != before + 1]
    assert all(after <= before for before, after in steps), f"{place}: {steps}"
    return len(steps)


@scenario(GROUPS)
def a_member_too_many_waits_and_takes_over(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=1)
    with Group(client, kafka, topic) as group:
        group.join()
        group.settle()
        group.join()
        until(lambda: len(described(kafka, group).members) == 2)
        group.settle()
        client.produce(kafka, topic, TEN)
        group.has_read(len(TEN))
        group.settle()
        (reader,) = (member for member in group.members if member.assigned)
        group.leave(reader)
        group.settle()
        client.produce(kafka, topic, TEN)
        group.has_read_once(2 * len(TEN))


@scenario(GROUPS)
def what_a_killed_member_had_is_read_on_by_the_others(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    settings = {**MORTAL, "auto.commit.interval.ms": "50"}
    with Group(client, kafka, topic, **settings) as group:
        for _ in range(2):
            group.join()
            group.settle()
        with feeding(kafka, topic, 4) as feed:
            victim, survivor = group.members
            until(lambda: len(victim.read) > 50 and len(survivor.read) > 50)
            had = victim.assigned
            group.kill(victim)
            group.settle()
            assert survivor.assigned == group.places
        group.has_read(feed.count)
        again = [place for place, often in group.times_read().items() if often > 1]
        # Only records that the dead member had read and not committed were read again.
        assert {(topic, partition) for topic, partition, _ in again} <= had
        assert {(read.topic, read.partition, read.offset) for read in victim.read} >= {*again}


@scenario(GROUPS)
def two_groups_read_the_same_and_do_not_know_of_each_other(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    with Group(client, kafka, topic) as one, Group(client, kafka, topic) as other:
        one.join()
        one.settle()
        for _ in range(2):
            other.join()
            other.settle()
        one.settle()
        client.produce(kafka, topic, TEN)
        one.has_read_once(len(TEN))
        other.has_read_once(len(TEN))


@scenario(GROUPS)
def a_group_is_entered_through_any_node(client: Client, kafka: Kafka) -> None:
    nodes = kafka.admin.list_topics(timeout=ANSWER_S_MAX).brokers.values()
    topic = kafka.topic(partitions=len(nodes))
    with Group(client, kafka, topic) as group:
        for node in nodes:
            group.join(Kafka(f"{node.host}:{node.port}"))
            group.settle()


@scenario(GROUPS, STATIC)
def a_static_member_comes_back_without_disturbing_the_others(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    with Group(client, kafka, topic, auto_commit_interval_ms="100") as group:
        other = group.join(group_instance_id="other")
        group.settle()
        restarted = group.join(group_instance_id="restarted")
        group.settle()
        with feeding(kafka, topic, 4) as feed:
            had, seen = restarted.assigned, [*other.changes]
            group.leave(restarted)
            back = group.join(group_instance_id="restarted")
            group.settle()
            assert back.assigned == had
            assert other.changes == seen
        group.has_read_once(feed.count)


@scenario(GROUPS, STATIC)
def a_static_member_killed_comes_back_without_disturbing_the_others(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic(partitions=4)
    with Group(client, kafka, topic) as group:
        other = group.join(group_instance_id="other")
        group.settle()
        restarted = group.join(group_instance_id="restarted")
        group.settle()
        had, seen = restarted.assigned, [*other.changes]
        group.kill(restarted)
        back = group.join(group_instance_id="restarted")
        group.settle()
        assert back.assigned == had
        assert other.changes == seen


@scenario(GROUPS, STATIC, FENCED)
def of_two_members_of_one_static_name_the_newer_is_the_member(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    with Group(client, kafka, topic) as group:
        older = group.join(group_instance_id="same")
        group.settle()
        newer = group.join(group_instance_id="same")
        until(lambda: newer.assigned == group.places)
        until(lambda: bool(older.faults))
        assert "enced" in older.faults[0]
        group.kill(older)
        group.settle()
