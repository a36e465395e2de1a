"""Assignors: sizes, movement and stability, compared with formulas and with exhaustive search."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.coordination.groups.assignment import assignors
from kafkalite.coordination.groups.assignment.assignors import NO_OWNER, Subscribers
from kafkalite.coordination.steps import result_of

A, B, C, D = (bytes([number]) * 16 for number in range(1, 5))
TOPICS = (A, B, C, D)


def assign_range(group, counts, old):
    return result_of(assignors.assign_range(group, counts, old))


def assign_uniform(group, counts, old):
    return result_of(assignors.assign_uniform(group, counts, old))


def members(*subscriptions, ids=None, instances=None):
    """Return members with these subscriptions, named m0, m1, …"""
    count = len(subscriptions)
    return Subscribers(
        ids or [f"m{number}" for number in range(count)],
        instances or [None] * count,
        [frozenset(topics) for topics in subscriptions],
    )


def sizes(assignment, member_count):
    counts = Counter(owner for owners in assignment.values() for owner in owners)
    assert NO_OWNER not in counts
    return [counts[member] for member in range(member_count)]


def moved(before, after):
    """Return how many partitions with an owner have another one now."""
    return sum(
        old not in (NO_OWNER, new)
        for topic_id, owners in after.items()
        for old, new in zip(before.get(topic_id, ()), owners, strict=False)
    )


def test_cost_of_common_topics_counts_their_subscriptions_twice():
    """They are read, and then compared with those of the other topics."""
    common = [bytes([1, number]) * 8 for number in range(20)]
    group = members(*[{*common, bytes([2, number]) * 8} for number in range(30)])
    assert sum(assignors.subscribers_by_topic(group, range(30))) >= 2 * len(common) * 30


# -- range ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitions", "member_count", "owners"),
    [
        (0, 2, []),
        (1, 2, [0]),
        (2, 2, [0, 1]),
        (5, 2, [0, 0, 0, 1, 1]),
        (8, 3, [0, 0, 0, 1, 1, 1, 2, 2]),
    ],
)
def test_range_assigns_contiguous_runs(partitions, member_count, owners):
    group = members(*[{A}] * member_count)
    assert assign_range(group, {A: partitions}, {}) == {A: owners}


def test_range_puts_instance_ids_before_member_ids():
    group = members({A}, {A}, {A}, {A}, ids=["d", "c", "b", "a"], instances=[None, "z", None, "y"])
    assert assign_range(group, {A: 4}, {}) == {A: [3, 1, 2, 0][:4]}


@given(st.data())
@settings(max_examples=60)
def test_range_does_not_depend_on_the_old_target(data):
    subscriptions = data.draw(st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1))
    counts = {topic_id: data.draw(st.integers(0, 9)) for topic_id in TOPICS}
    group = members(*subscriptions, ids=[f"{number:03}" for number in range(len(subscriptions))])
    old = {A: data.draw(st.lists(st.integers(-1, len(subscriptions) - 1)))}
    assigned = assign_range(group, counts, old)
    for topic_id in TOPICS:
        subscribed = [at for at, topics in enumerate(subscriptions) if topic_id in topics]
        expected = []
        for place, member in enumerate(subscribed):
            more = place < counts[topic_id] % len(subscribed)
            expected += [member] * (counts[topic_id] // len(subscribed) + more)
        assert assigned.get(topic_id, []) == expected


# -- uniform, equal subscriptions ----------------------------------------------------------------


@st.composite
def equal_groups(draw):
    """Draw a group whose members subscribe to the same topics, and an old target."""
    member_count = draw(st.integers(1, 8))
    topics = draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    counts = {topic_id: draw(st.integers(0, 8)) for topic_id in topics}
    owner = st.integers(-1, member_count - 1)
    old = {
        topic_id: draw(st.lists(owner, max_size=10))
        for topic_id in draw(st.lists(st.sampled_from(TOPICS), unique=True))
    }
    return members(*[topics] * member_count), counts, old


@given(equal_groups())
@settings(max_examples=150)
def test_uniform_sizes_differ_by_one_and_moves_are_the_fewest(drawn):
    group, counts, old = drawn
    assigned = assign_uniform(group, counts, old)
    assert {topic_id: len(owners) for topic_id, owners in assigned.items()} == counts
    by_member = sizes(assigned, len(group.member_ids))
    assert max(by_member) - min(by_member) <= 1
    held = Counter(
        owner
        for topic_id, count in counts.items()
        for owner in old.get(topic_id, ())[:count]
        if owner != NO_OWNER
    )
    quota, extra = divmod(sum(counts.values()), len(group.member_ids))
    # Every choice of the members with one partition more: the best of them keeps the most.
    kept = sorted((held[member] for member in range(len(group.member_ids))), reverse=True)
    most = sum(min(each, quota + (place < extra)) for place, each in enumerate(kept))
    assert moved(old, assigned) == sum(kept) - most


@given(equal_groups())
@settings(max_examples=50)
def test_uniform_does_not_change_its_own_assignment(drawn):
    group, counts, old = drawn
    assigned = assign_uniform(group, counts, old)
    assert assign_uniform(group, counts, assigned) == assigned


@pytest.mark.parametrize("partitions", [1, 7, 12, 30])
@pytest.mark.parametrize("member_count", [2, 3, 5])
def test_uniform_moves_few_partitions_for_one_member_more_or_less(partitions, member_count):
    counts = {A: partitions, B: partitions}
    group = members(*[{A, B}] * member_count)
    before = assign_uniform(group, counts, {})
    most = math.ceil(2 * partitions / member_count) + member_count
    larger = members(*[{A, B}] * (member_count + 1))
    assert moved(before, assign_uniform(larger, counts, before)) <= most
    left = {
        topic_id: [owner if owner < member_count - 1 else NO_OWNER for owner in owners]
        for topic_id, owners in before.items()
    }
    smaller = members(*[{A, B}] * (member_count - 1))
    assert moved(left, assign_uniform(smaller, counts, left)) == 0


def test_uniform_spreads_the_partitions_of_a_new_topic():
    assigned = assign_uniform(members(*[{A}] * 3), {A: 6}, {})
    assert assigned == {A: [0, 1, 2, 0, 1, 2]}


def test_uniform_keeps_assigned_partitions_when_a_topic_grows():
    assert assign_uniform(members({A}, {A}), {A: 4}, {A: [1, 0]}) == {A: [1, 0, 0, 1]}


# -- uniform, unequal subscriptions --------------------------------------------------------------


@st.composite
def unequal_groups(draw):
    """Draw a group with any subscriptions, and an old target."""
    subscriptions = draw(st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7))
    counts = {topic_id: draw(st.integers(0, 8)) for topic_id in TOPICS}
    owner = st.integers(-1, len(subscriptions) - 1)
    old = {topic_id: draw(st.lists(owner, max_size=10)) for topic_id in TOPICS}
    return members(*subscriptions), counts, old


@given(unequal_groups())
@settings(max_examples=250)
def test_uniform_balances_the_subscribers_of_each_topic(drawn):
    group, counts, old = drawn
    assigned = assign_uniform(group, counts, old)
    by_member = sizes(assigned, len(group.member_ids))
    subscribed = {topic_id for topics in group.topics for topic_id in topics}
    assert assigned.keys() == subscribed
    for topic_id, owners in assigned.items():
        assert len(owners) == counts[topic_id]
        subscribers = [at for at, topics in enumerate(group.topics) if topic_id in topics]
        assert set(owners) <= set(subscribers)
        # No partition of this topic could move to a member that has two fewer.
        low = min(by_member[member] for member in subscribers)
        assert all(by_member[owner] - low <= 1 for owner in owners)


@given(unequal_groups())
@settings(max_examples=50)
def test_uniform_does_not_change_its_own_unequal_assignment(drawn):
    group, counts, old = drawn
    assigned = assign_uniform(group, counts, old)
    assert assign_uniform(group, counts, assigned) == assigned


def test_uniform_moves_nothing_in_a_balanced_group_with_other_topics():
    group = members({A, B}, {A}, {B})
    assigned = assign_uniform(group, {A: 2, B: 2}, {A: [1, 0], B: [2, 2]})
    assert assigned == {A: [1, 0], B: [2, 2]}


def test_uniform_reassigns_partitions_that_are_no_longer_subscribed():
    group = members({A}, {A, B})
    assert assign_uniform(group, {A: 2, B: 1}, {A: [0, 0], B: [0]}) == {A: [0, 0], B: [1]}


# -- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("assign", [assign_range, assign_uniform])
def test_group_without_members_or_topics_has_no_assignment(assign):
    assert assign(members(), {}, {A: [0]}) == {}
    assert assign(members(set(), set()), {}, {A: [0, 1]}) == {}
    assert assign(members({A}, {A}), {A: 0}, {}) == {A: []}


def test_target_of_inverts_an_assignment():
    owners = {A: [1, 0, 1], B: [NO_OWNER, 2]}
    assert result_of(assignors.target_of(owners, 4)) == [{A: [1]}, {A: [0, 2]}, {B: [1]}, {}]
