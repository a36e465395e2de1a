"""The assignor of share groups: every partition has members, and they share equally."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.coordination.groups.assignment.assignors import Subscribers
from kafkalite.coordination.groups.assignment.share_assignor import assign_simple

A, B, C = (bytes([number]) * 16 for number in range(1, 4))


def members(*subscriptions):
    count = len(subscriptions)
    ids = [f"m{number}" for number in range(count)]
    return Subscribers(ids, [None] * count, [frozenset(topics) for topics in subscriptions])


@pytest.mark.parametrize(
    ("partitions", "member_count", "sharing", "sizes"),
    [
        (4, 2, 1, [2, 2]),
        (5, 2, 1, [3, 2]),
        (1, 3, 3, [1, 1, 1]),
        (2, 3, 2, [2, 1, 1]),
        (3, 7, 3, [2, 1, 1, 2, 1, 1, 1]),
    ],
)
def test_partitions_have_equally_many_members(partitions, member_count, sharing, sizes):
    shared = assign_simple(members(*[{A}] * member_count), {A: partitions}, {})[A]
    assert [len(holders) for holders in shared] == [sharing] * partitions
    counts = Counter(member for holders in shared for member in holders)
    assert [counts[member] for member in range(member_count)] == sizes


@given(st.data())
@settings(max_examples=200)
def test_equal_subscriptions_get_equal_shares_for_any_old_target(data):
    member_count = data.draw(st.integers(1, 8))
    counts = {A: data.draw(st.integers(0, 5)), B: data.draw(st.integers(0, 5))}
    held = st.lists(st.integers(0, member_count - 1), unique=True)
    old = {topic_id: data.draw(st.lists(held, max_size=6)) for topic_id in (A, B, C)}
    group = members(*[{A, B}] * member_count)
    shared = assign_simple(group, counts, old)
    assert {topic_id: len(parts) for topic_id, parts in shared.items()} == counts
    partitions = [*shared[A], *shared[B]]
    for holders in partitions:
        assert len({*holders}) == len(holders) == -(-member_count // len(partitions))
    sizes = Counter(member for holders in partitions for member in holders)
    by_member = [sizes[member] for member in range(member_count)]
    assert max(by_member) - min(by_member) <= 1
    assert assign_simple(group, counts, shared) == shared


@given(st.data())
@settings(max_examples=50)
def test_every_partition_of_a_subscribed_topic_has_a_member(data):
    topics = st.frozensets(st.sampled_from((A, B, C)))
    group = members(*data.draw(st.lists(topics, min_size=1, max_size=7)))
    counts = {topic_id: data.draw(st.integers(0, 5)) for topic_id in (A, B, C)}
    shared = assign_simple(group, counts, {})
    assert shared.keys() == {topic_id for topics in group.topics for topic_id in topics}
    for topic_id, partitions in shared.items():
        assert len(partitions) == counts[topic_id]
        for holders in partitions:
            assert holders
            assert all(topic_id in group.topics[member] for member in holders)


def test_members_keep_partitions_within_the_bounds():
    assert assign_simple(members({A}, {A}), {A: 4}, {A: [[1], [0], [0], [1]]}) == {
        A: [[1], [0], [0], [1]]
    }
    assert assign_simple(members({A}, {A}), {A: 2}, {A: [[0], [0]]}) == {A: [[0], [1]]}


def test_group_without_members_or_partitions_has_no_assignment():
    assert assign_simple(members(), {A: 1}, {}) == {}
    assert assign_simple(members({A}), {A: 0}, {}) == {A: []}
