"""Targets of large groups: computed and written in steps, while the group serves its members."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.assignment.assignors import ASSIGNORS
from kafkalite.coordination.groups.assignment.subscribed_topics import KnownTopic
from kafkalite.coordination.groups.assignment.target_assignment import (
    TargetInput,
    TargetMember,
    compute_target,
)
from kafkalite.coordination.groups.consumer import group_change, target_updates
from kafkalite.coordination.groups.consumer.group_change import GroupChange
from kafkalite.coordination.groups.group_coordinator import TICK_COUNT_MAX
from kafkalite.coordination.steps import PART_SIZE
from kafkalite.errors import RebalanceInProgress
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.consumer_group_records import TARGET_MEMBER, TARGET_METADATA
from tests.coordination.groups.consumer.test_group_migration import (
    ClassicConsumer,
    assignment_of,
)
from tests.coordination.groups.consumers import ConsumerClient, settle
from tests.coordination.groups.harness import GroupHarness

PARTITIONS = 8
NAMES = "abcd"


@pytest.fixture
def harness(monkeypatch):
    """Each tick computes a part, or writes the record of one member."""
    monkeypatch.setattr(group_change, "INLINE_SIZE_MAX", 0)
    monkeypatch.setattr(target_updates, "STEP_COST", 1)
    harness = GroupHarness()
    harness.topics.create("t", PARTITIONS)
    return harness


def joined(harness, *names, **options):
    clients = [ConsumerClient(harness, name, "t", **options) for name in names]
    for client in clients:
        client.join()
    return clients


def tick(harness):
    """Run one tick at the time of the next deadline; return the kinds of its records."""
    begin = len(harness.log)
    harness.now_ms = max(harness.now_ms, harness.machine.next_due_ms)
    harness.take(harness.machine.tick(harness.now_ms, harness.wall_ms))
    return [group_records.read(*entry).kind for entry in harness.log[begin:]]


def tick_until_written(harness, count=1):
    """Run ticks until `count` members have their part of a new target."""
    while count:
        kinds = tick(harness)
        assert len(kinds) <= 1
        count -= kinds == [TARGET_MEMBER]


def epochs(harness):
    described = harness.described()
    return described["group_epoch"], described["assignment_epoch"]


def partitions_of(clients):
    return sorted(index for client in clients for index in client.partitions)


def test_members_keep_the_old_target_until_the_new_one_is_written(harness):
    a, b = joined(harness, "a", "b")
    settle(a, b)
    before = epochs(harness)
    (c,) = joined(harness, "c")
    assert c.partitions == []
    tick_until_written(harness)
    assert epochs(harness) == (before[0] + 1, before[1])
    for client in (a, b):
        response = client.step()
        assert (response.code, response.member_epoch) == (0, before[1])
        assert len(client.partitions) == PARTITIONS // 2
    settle(a, b, c)
    assert epochs(harness) == (before[0] + 1, before[0] + 1)
    assert partitions_of([a, b, c]) == [*range(PARTITIONS)]


def test_target_has_one_epoch_record_after_those_of_the_members(harness):
    joined(harness, *NAMES)
    begin = len(harness.log)
    harness.after(100)
    kinds = [group_records.read(*entry).kind for entry in harness.log[begin:]]
    assert kinds == [TARGET_MEMBER] * len(NAMES) + [TARGET_METADATA]


def test_member_that_leaves_meanwhile_gets_no_target(harness):
    clients = joined(harness, *NAMES)
    tick_until_written(harness)
    clients[-1].leave()
    settle(*clients[:-1])
    group = harness.machine.groups.get("g")
    assert group.target.keys() == {"a", "b", "c"}
    assert partitions_of(clients[:-1]) == [*range(PARTITIONS)]


@pytest.mark.parametrize("written", [0, 1, 2])
def test_static_member_that_returns_meanwhile_gets_the_target_of_its_instance(harness, written):
    clients = [ConsumerClient(harness, name, "t", instance_id=name) for name in "abc"]
    for client in clients:
        client.join()
    tick_until_written(harness, written)
    clients[1].leave(epoch=-2)
    clients[1].name = "another"
    epoch = epochs(harness)[0]
    assert clients[1].join().code == 0
    settle(*clients)
    assert epochs(harness) == (epoch, epoch)
    assert partitions_of(clients) == [*range(PARTITIONS)]


def test_all_members_that_leave_meanwhile_end_the_update(harness):
    (a,) = joined(harness, "a")
    tick(harness)
    a.leave()
    harness.after(100)
    group_epoch, assignment_epoch = epochs(harness)
    assert group_epoch == assignment_epoch
    (b,) = joined(harness, "b")
    settle(b)
    assert b.partitions == [*range(PARTITIONS)]


def test_heartbeats_meanwhile_do_not_look_at_all_members(harness, monkeypatch):
    monkeypatch.setattr(group_change, "INLINE_SIZE_MAX", PARTITIONS)
    clients = joined(harness, "a", "b")
    tick(harness)
    with monkeypatch.context() as patch:
        patch.setattr(GroupChange, "members", lambda _: pytest.fail("all members are read"))
        assert [client.step().code for client in clients] == [0, 0]
    settle(*clients)
    assert partitions_of(clients) == [*range(PARTITIONS)]


def test_group_that_changes_meanwhile_gets_another_target(harness):
    clients = joined(harness, "a", "b")
    tick_until_written(harness)
    clients += joined(harness, "c")
    harness.after(100)
    group_epoch, assignment_epoch = epochs(harness)
    assert group_epoch == assignment_epoch
    settle(*clients)
    assert partitions_of(clients) == [*range(PARTITIONS)]


@pytest.mark.parametrize("ticks", range(1, 6))
def test_target_that_cannot_be_written_is_begun_again(harness, ticks):
    clients = joined(harness, "a", "b")
    for _ in range(ticks):
        tick(harness)
    harness.writable = False
    tick(harness)
    harness.writable = True
    settle(*clients)
    assert partitions_of(clients) == [*range(PARTITIONS)]


@pytest.mark.parametrize("written", [0, 1])
def test_coordinator_that_restarts_meanwhile_computes_the_target(harness, written):
    clients = joined(harness, "a", "b")
    tick_until_written(harness, written)
    harness.restart()
    settle(*clients)
    assert partitions_of(clients) == [*range(PARTITIONS)]


def test_targets_of_several_groups_take_turns(harness):
    clients = [ConsumerClient(harness, name, "t", group_id=f"g{name}") for name in NAMES]
    for client in clients:
        client.join()
    harness.after(200)
    for client in clients:
        client.step()
        assert client.partitions == [*range(PARTITIONS)]


def test_classic_member_need_not_rejoin_while_several_targets_are_computed(harness):
    classic = ClassicConsumer(harness, "classic")
    harness.joined(classic)
    assert classic.sync({classic.member_id: assignment_of(*range(PARTITIONS))}).code == 0
    joined(harness, "new")
    joined(harness, "other", group_id="other")
    group_epoch, assignment_epoch = epochs(harness)
    assert assignment_epoch < group_epoch
    while epochs(harness) == (group_epoch, assignment_epoch):
        assert classic.beat().code == 0
        tick(harness)
    assert classic.beat().code == RebalanceInProgress.code


def test_target_goes_on_when_another_group_is_deleted(harness):
    (a,) = joined(harness, "a")
    joined(harness, "b", group_id="other")
    tick(harness)
    harness.machine.groups.drop(harness.machine.groups.get("other"))
    harness.after(100)
    group_epoch, assignment_epoch = epochs(harness)
    assert group_epoch == assignment_epoch
    a.step()
    assert a.partitions == [*range(PARTITIONS)]


@pytest.mark.parametrize("name", ASSIGNORS)
@pytest.mark.parametrize("is_equal", [True, False])
def test_parts_of_a_large_target_are_bounded(name, is_equal):
    topics = [KnownTopic(f"t{at}", bytes([at]) * 16, 3 * PART_SIZE) for at in range(1, 4)]
    every = frozenset(topic.name for topic in topics)
    members = [
        TargetMember(f"m{at}", None, every if is_equal else every - {topics[at % 3].name}, "")
        for at in range(PART_SIZE // 4)
    ]
    before = {members[0].member_id: {topics[0].topic_id: [*range(3 * PART_SIZE)]}}
    steps = compute_target(TargetInput(2, ASSIGNORS[name], members, topics, {}, before))
    costs = []
    try:
        while True:
            costs.append(next(steps))
    except StopIteration as ended:
        target = ended.value
    assert sum(len(each) for by_topic in target.values() for each in by_topic.values()) == (
        9 * PART_SIZE
    )
    assert max(costs) <= 4 * PART_SIZE
    assert len(costs) >= 9


def test_unlike_subscriptions_are_resolved_in_steps():
    topics = [KnownTopic(f"t{at}", at.to_bytes(16, "big"), 1) for at in range(PART_SIZE // 4)]
    names = frozenset(topic.name for topic in topics)
    members = [TargetMember(f"m{at}", None, names - {f"t{at}"}, "") for at in range(50)]
    costs = [*compute_target(TargetInput(2, ASSIGNORS["range"], members, topics, {}, {}))]
    assert max(costs) <= 4 * PART_SIZE
    assert sum(costs) >= 3 * sum(len(member.topic_names) for member in members)


def test_target_of_members_with_many_topics_is_computed_in_steps(monkeypatch):
    harness = GroupHarness()
    names = [f"t{at}" for at in range(20)]
    for name in names:
        harness.topics.create(name, 1)
    monkeypatch.setattr(group_change, "INLINE_SIZE_MAX", 29)
    a, b, c = (ConsumerClient(harness, name, *names) for name in "abc")
    assert (a.join().member_epoch, b.join().member_epoch) == (2, 3)
    assert c.join().member_epoch == 3
    settle(a, b, c)
    assert len({*a.assigned} | {*b.assigned} | {*c.assigned}) == 20


def test_members_that_expire_together_are_removed_in_several_ticks():
    harness = GroupHarness(consumer_max_size=1_000)
    harness.topics.create("t", 1)
    joined(harness, *(f"m{at}" for at in range(2 * TICK_COUNT_MAX + 1)))
    sizes = []
    while harness.machine.list(states=["Empty"]) == []:
        begin = len(harness.log)
        tick(harness)
        sizes.append(len(harness.log) - begin)
    assert max(sizes) < 4 * TICK_COUNT_MAX
