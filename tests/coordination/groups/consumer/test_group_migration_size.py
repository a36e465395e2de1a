"""Groups that are too large to change between the classic and the consumer protocol."""

from __future__ import annotations

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.classic.classic_members import ClassicMember
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.protocol.schemas import group_records
from tests.coordination.groups.consumer.test_group_migration import (
    ClassicConsumer,
    assignment_of,
    kind_of,
    metadata_of,
    with_topic,
)
from tests.coordination.groups.consumers import ConsumerClient
from tests.coordination.groups.harness import REBALANCE_MS, SESSION_MS, GroupHarness


def large_group(member_count: int) -> GroupHarness:
    """Return a coordinator whose log has a classic group with members of one partition each."""
    harness = with_topic(max_size=10_000, consumer_max_size=10_000)
    harness.topics.grow("t", member_count)
    group = ClassicGroup("g")
    for index in range(member_count):
        member = ClassicMember(
            f"a{index}", None, "a", "/h", REBALANCE_MS, SESSION_MS,
            {"range": metadata_of("t")}, assignment_of(index),
        )  # fmt: skip
        group.generation.add(member, "consumer")
    harness.log.append(group_records.write(group.convert(1, 0)))
    harness.restart()
    return harness


def test_group_with_too_many_members_is_not_upgraded():
    harness = large_group(1_800)
    before = len(harness.log)
    joined = ConsumerClient(harness, "n", "t").join()
    assert joined.code == 69
    assert "has 1800 members" in str(joined.fault)
    assert kind_of(harness) is ClassicGroup
    assert len(harness.log) == before


def test_group_with_too_many_topics_is_not_upgraded():
    harness = with_topic()
    clients = [ClassicConsumer(harness, f"a{at}") for at in range(14)]
    for at, client in enumerate(clients):
        topics = [f"{at}-{number}" for number in range(9_999)]
        client.protocols = {"cooperative-sticky": metadata_of("t", *topics)}
    harness.joined(*clients)
    joined = ConsumerClient(harness, "n", "t").join()
    assert joined.code == 69
    assert "too many topics and partitions" in str(joined.fault)
    assert kind_of(harness) is ClassicGroup
    for client in clients[2:]:
        harness.leave("g", (client.member_id, None))
    assert ConsumerClient(harness, "n", "t").join().code == 0


def test_target_of_upgraded_group_is_computed_in_a_later_tick():
    """The records of the upgrade take long enough for one decision."""
    harness = large_group(950)
    new = ConsumerClient(harness, "n", "t")
    assert new.join().code == 0
    assert harness.described()["group_state"] == "Assigning"
    harness.after(100)
    assert harness.described()["group_state"] == "Reconciling"


def test_group_with_too_many_members_stays_a_consumer_group():
    harness = large_group(900)
    new = ConsumerClient(harness, "n", "t")
    assert new.join().code == 0
    for at in range(900):
        late = ClassicConsumer(harness, f"late{at}")
        late.protocols = {"range": metadata_of("t")}
        assert late.join().code == 0
    new.leave()
    assert kind_of(harness) is ConsumerGroup
    members = [*harness.machine.groups.get("g").members]
    harness.leave("g", *[(member_id, None) for member_id in members[:500]])
    assert kind_of(harness) is ClassicGroup
    assert len(harness.member_ids()) == 1_300
