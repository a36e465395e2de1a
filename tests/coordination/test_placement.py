"""Placement of new partitions and rebalancing: known layouts by hand, random ones by invariants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkalite.coordination.controller import Controller
from kafkalite.coordination.placement import (
    CoordinatorType,
    PartitionMove,
    PartitionSizes,
    PlacementLimits,
    coordinator_of,
    coordinator_partition,
    drain_moves,
    rebalance_moves,
)
from kafkalite.coordination.topics import NewTopic, PartitionGrowth
from tests.coordination.factories import (
    DEDICATED,
    cluster_of,
    create,
    do,
    grow,
    laid_out,
    leaders_of,
    settle,
)

# Topics as lists of (leader, size), for up to 4 workers.
LAYOUTS = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 100)), min_size=1, max_size=6),
    max_size=6,
)


def layout(topics: list[list[tuple[int, int]]]) -> tuple[Controller, PartitionSizes]:
    controller = cluster_of(workers=4)
    sizes = {}
    for number, partitions in enumerate(topics):
        topic = laid_out(controller, f"t{number}", [leader for leader, _ in partitions])
        for index, (_, size) in enumerate(partitions):
            sizes[topic.topic_id, index] = size
    return controller, sizes


def counts(controller: Controller) -> list[int]:
    return [controller.image.led_count(node_id) for node_id in controller.image.workers]


def node_sizes(controller: Controller, sizes: PartitionSizes) -> Counter[int]:
    found = Counter(dict.fromkeys(controller.image.workers, 0))
    for (topic_id, index), size in sizes.items():
        found[controller.image.topics_by_id[topic_id].partitions[index].leader] += size
    return found


def unevenness(controller: Controller) -> dict[str, int]:
    """Return for each topic the largest difference of its partition counts between workers."""
    found = {}
    for topic in controller.image.topics.values():
        of = Counter(dict.fromkeys(controller.image.workers, 0))
        of.update(partition.leader for partition in topic.partitions.values())
        found[topic.name] = max(of.values()) - min(of.values())
    return found


# -- new partitions ------------------------------------------------------------------------------


def test_partitions_are_spread_evenly_for_any_topic_sizes():
    for partition_counts in ([1000], [1] * 1000, [7] * 142 + [6], [600, 1, 399]):
        controller = cluster_of(workers=3)
        for number, count in enumerate(partition_counts):
            create(controller, NewTopic(f"t{number}", count))
        assert sorted(counts(controller)) == [333, 333, 334]
        assert max(unevenness(controller).values()) <= 1


def test_topic_balance_precedes_cluster_balance():
    controller = cluster_of(workers=2)
    laid_out(controller, "crowd", [1] * 10)
    create(controller, NewTopic("a", 4))
    assert leaders_of(controller, "a") == [2, 1, 2, 1]


def test_topics_of_one_request_are_spread_together():
    controller = cluster_of(workers=3)
    create(controller, *(NewTopic(name, 1) for name in "abcdef"))
    assert [leaders_of(controller, name) for name in "abcdef"] == [[1], [2], [3], [1], [2], [3]]


def test_new_partition_goes_to_the_worker_with_fewest_bytes():
    controller = cluster_of(workers=3)
    topic = laid_out(controller, "a", [1, 2, 3])
    sizes = {(topic.topic_id, 0): 9, (topic.topic_id, 1): 7, (topic.topic_id, 2): 8}
    create(controller, NewTopic("b", 1), sizes=sizes)
    assert leaders_of(controller, "b") == [2]


def test_added_partitions_go_where_the_topic_has_fewest():
    controller = cluster_of(workers=3)
    laid_out(controller, "a", [1, 1, 2])
    grow(controller, PartitionGrowth("a", 6))
    assert leaders_of(controller, "a") == [1, 1, 2, 3, 2, 3]


# -- workers above leading_max -------------------------------------------------------------------

ONE_LEADS = PlacementLimits(leading_max=1)
TWO_LEAD = PlacementLimits(leading_max=2)


def test_new_partitions_go_to_the_leading_workers_only():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 4), limits=TWO_LEAD)
    assert leaders_of(controller, "a") == [1, 2, 1, 2]
    grow(controller, PartitionGrowth("a", 6), limits=ONE_LEADS)
    assert leaders_of(controller, "a") == [1, 2, 1, 2, 1, 1]


def test_manual_assignment_may_name_a_standby_worker():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", assignments=[(0, [3])]), limits=ONE_LEADS)
    assert leaders_of(controller, "a") == [3]


def test_manual_assignment_to_node_0_means_any_leading_worker():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", assignments=[(0, [0]), (1, [0]), (2, [3])]), limits=TWO_LEAD)
    assert leaders_of(controller, "a") == [1, 2, 3]
    grow(controller, PartitionGrowth("a", 5, [[0], [0]]), limits=TWO_LEAD)
    assert leaders_of(controller, "a") == [1, 2, 3, 1, 2]


def test_dedicated_topic_assigned_to_node_0_gets_its_own_worker():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("alone", assignments=[(0, [0])], config=DEDICATED))
    assert leaders_of(controller, "alone") == [3]


def test_manual_assignment_to_node_0_without_workers_is_kept():
    controller = cluster_of(workers=0)
    create(controller, NewTopic("a", assignments=[(0, [0])]))
    assert leaders_of(controller, "a") == [0]


def test_partitions_of_node_0_move_to_leading_workers_at_start():
    controller = cluster_of(workers=0)
    create(controller, NewTopic("a", 3))
    settle(controller, workers=3, limits=ONE_LEADS)
    assert leaders_of(controller, "a") == [1, 1, 1]


def test_start_keeps_partitions_on_standby_workers():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 3))
    settle(controller, workers=3, limits=ONE_LEADS)
    assert leaders_of(controller, "a") == [1, 2, 3]


def test_drain_of_a_leading_worker_moves_to_a_standby_worker():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 2), limits=ONE_LEADS)
    do(controller, controller.set_draining(1, True))
    do(controller, controller.move(drain_moves(controller.image, 1, {}, ONE_LEADS)))
    assert leaders_of(controller, "a") == [2, 2]
    create(controller, NewTopic("b", 1), limits=ONE_LEADS)
    assert leaders_of(controller, "b") == [2]


@given(LAYOUTS, st.integers(1, 5))
def test_rebalance_leaves_partitions_with_the_leading_workers_only(topics, leading_max):
    controller, sizes = layout(topics)
    limits = PlacementLimits(leading_max=leading_max)
    moves = rebalance_moves(controller.image, sizes, limits)
    do(controller, controller.move(moves))
    leading = counts(controller)[:leading_max]
    assert sum(counts(controller)[leading_max:]) == 0
    assert max(leading) - min(leading) <= 1
    assert rebalance_moves(controller.image, {}, limits) == []


# -- draining ------------------------------------------------------------------------------------


def test_drain_spreads_the_partitions_of_the_worker():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6), NewTopic("b", 3))
    moves = drain_moves(controller.image, 2, {})
    assert do(controller, controller.move(moves)) == moves
    assert counts(controller) == [5, 0, 4]
    assert unevenness_without(controller, 2) <= 1


def unevenness_without(controller: Controller, node_id: int) -> int:
    others = [each for each in controller.image.workers if each != node_id]
    return max(
        abs(leaders_of(controller, name).count(a) - leaders_of(controller, name).count(b))
        for name in controller.image.topics
        for a in others
        for b in others
    )


def test_drain_balances_bytes():
    controller = cluster_of(workers=3)
    topic = laid_out(controller, "a", [1, 1, 1, 1])
    sizes = {(topic.topic_id, index): size for index, size in enumerate([1, 3, 50, 49])}
    do(controller, controller.move(drain_moves(controller.image, 1, sizes)))
    assert sorted(node_sizes(controller, sizes).values()) == [0, 51, 52]


def test_drain_skips_dedicated_and_draining_workers():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    topic = laid_out(controller, "a", [1, 1])
    do(controller, controller.set_draining(2, True))
    assert drain_moves(controller.image, 4, {}) == []
    assert drain_moves(controller.image, 1, {}) == [
        PartitionMove(topic.topic_id, 0, 1, 3),
        PartitionMove(topic.topic_id, 1, 1, 3),
    ]


def test_drain_of_the_only_worker_moves_nothing():
    controller = cluster_of(workers=1)
    create(controller, NewTopic("a", 1))
    assert drain_moves(controller.image, 1, {}) == []


# -- rebalancing ---------------------------------------------------------------------------------


def test_rebalance_to_a_new_worker_takes_the_fewest_moves():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("a", 6), NewTopic("b", 6))
    settle(controller, workers=3)
    moves = rebalance_moves(controller.image, {})
    assert len(moves) == 4
    do(controller, controller.move(moves))
    assert counts(controller) == [4, 4, 4]
    assert unevenness(controller) == {"a": 0, "b": 0}


def test_rebalance_moves_the_most_uneven_topic():
    controller = cluster_of(workers=2)
    laid_out(controller, "even", [1, 1, 1, 2, 2, 2])
    crowded = laid_out(controller, "crowded", [1, 1])
    assert rebalance_moves(controller.image, {}) == [PartitionMove(crowded.topic_id, 0, 1, 2)]


def test_rebalance_swaps_partitions_to_balance_bytes():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 1, 2, 2])
    sizes = {(topic.topic_id, index): size for index, size in enumerate([60, 40, 5, 5])}
    moves = rebalance_moves(controller.image, sizes)
    do(controller, controller.move(moves))
    assert sorted(node_sizes(controller, sizes).values()) == [45, 65]
    assert len(moves) == 2


def test_rebalance_makes_the_most_balancing_swap():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 1, 1, 2, 2, 2])
    sizes = {(topic.topic_id, index): size for index, size in enumerate([85, 5, 5, 0, 0, 60])}
    do(controller, controller.move(rebalance_moves(controller.image, sizes)))
    assert leaders_of(controller, "a") == [2, 1, 1, 2, 2, 1]


def test_rebalance_by_count_moves_a_large_partition_of_a_full_worker():
    controller = cluster_of(workers=2)
    a, b = laid_out(controller, "a", [1, 1]), laid_out(controller, "b", [1])
    c = laid_out(controller, "c", [2])
    sizes = {
        (a.topic_id, 0): 10,
        (a.topic_id, 1): 14,
        (b.topic_id, 0): 80,
        (c.topic_id, 0): 60,
    }
    assert rebalance_moves(controller.image, sizes) == [PartitionMove(a.topic_id, 1, 1, 2)]


def test_rebalance_ignores_gains_below_a_tenth():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 2])
    other = laid_out(controller, "b", [1, 2])
    sizes = {(topic.topic_id, 0): 100, (topic.topic_id, 1): 91, (other.topic_id, 0): 5}
    assert rebalance_moves(controller.image, sizes) == []


def test_rebalance_by_bytes_keeps_topics_spread():
    controller = cluster_of(workers=2)
    a = laid_out(controller, "a", [1, 2])
    b = laid_out(controller, "b", [1, 2])
    sizes = {(a.topic_id, 0): 100, (b.topic_id, 0): 100, (a.topic_id, 1): 1, (b.topic_id, 1): 1}
    moves = rebalance_moves(controller.image, sizes)
    do(controller, controller.move(moves))
    assert node_sizes(controller, sizes) == {1: 101, 2: 101}
    assert unevenness(controller) == {"a": 0, "b": 0}


def test_rebalance_skips_dedicated_and_draining_workers():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    laid_out(controller, "a", [3, 3, 3, 3, 1, 1])
    do(controller, controller.set_draining(3, True))
    do(controller, controller.move(rebalance_moves(controller.image, {})))
    assert leaders_of(controller, "a") == [3, 3, 3, 3, 2, 1]
    assert leaders_of(controller, "alone") == [4]


def test_rebalance_without_workers_moves_nothing():
    controller = cluster_of(workers=0)
    topic = create(controller, NewTopic("a", 3))["a"]
    assert rebalance_moves(controller.image, {(topic.topic_id, 0): 5}) == []


@settings(deadline=None)
@given(LAYOUTS)
def test_rebalance_without_sizes_makes_the_fewest_moves(topics):
    controller, _ = layout(topics)
    before = counts(controller)
    moves = rebalance_moves(controller.image, {})
    fair, left = divmod(sum(before), 4)
    least = sum(max(0, n - fair - (i < left)) for i, n in enumerate(sorted(before, reverse=True)))
    assert len(moves) == least
    assert do(controller, controller.move(moves)) == moves
    assert max(counts(controller)) - min(counts(controller)) <= 1


@settings(deadline=None)
@given(LAYOUTS)
@example([[(1, 10), (1, 1)], [(2, 1)], [(3, 1)], [(4, 1), (4, 1)]])
def test_rebalance_by_size_never_increases_the_largest_worker(topics):
    controller, sizes = layout(topics)
    do(controller, controller.move(rebalance_moves(controller.image, {})))
    by_count, spread = node_sizes(controller, sizes), unevenness(controller)
    again = rebalance_moves(controller.image, sizes)
    places = [move[:2] for move in again]
    assert len(set(places)) == len(places)
    before = counts(controller)
    assert do(controller, controller.move(again)) == again
    assert counts(controller) == before
    after = node_sizes(controller, sizes)
    if again:
        assert max(after.values()) <= max(by_count.values())
        assert sum(n * n for n in after.values()) < sum(n * n for n in by_count.values())
    assert all(unevenness(controller)[name] <= spread[name] for name in spread)
    assert rebalance_moves(controller.image, sizes) == []


@settings(deadline=None)
@given(LAYOUTS, st.randoms())
def test_moves_do_not_depend_on_the_order_of_sizes(topics, dice):
    controller, sizes = layout(topics)
    shuffled = list(sizes.items())
    dice.shuffle(shuffled)
    image = controller.image
    assert rebalance_moves(image, sizes) == rebalance_moves(image, dict(shuffled))
    assert drain_moves(image, 1, sizes) == drain_moves(image, 1, dict(shuffled))


def test_sizes_of_unknown_partitions_are_ignored():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 2])
    sizes = {(bytes(16), 0): 1 << 40, (topic.topic_id, 9): 1 << 40}
    assert rebalance_moves(controller.image, sizes) == []
    create(controller, NewTopic("b", 1), sizes=sizes)
    assert leaders_of(controller, "b") == [1]


@pytest.mark.parametrize(
    ("group_id", "hashed"), [("", 0), ("foo", 101574), ("hello", 99162322), ("é", 233)]
)
def test_coordinator_partition_uses_the_hash_of_java(group_id, hashed):
    for count in (1, 2, 7, 50):
        assert coordinator_partition(group_id, count) == hashed % count


def test_coordinator_partition_of_negative_hash_and_surrogates():
    # "polygenelubricants".hashCode() is -2^31; "😀" is two units, 0xD83D and 0xDE00.
    assert coordinator_partition("polygenelubricants", 50) == 0
    # "billing".hashCode() is -109829509.
    assert coordinator_partition("billing", 50) == 9
    assert coordinator_partition("😀", 1 << 31) == 31 * 0xD83D + 0xDE00


def test_coordinator_leads_the_offsets_partition_of_the_group():
    controller = cluster_of(workers=2)
    assert coordinator_of(controller.image, CoordinatorType.GROUP, "g") is None
    do(controller, controller.create_internal_topic("__consumer_offsets", bytes(16), 50, {}))
    partitions = controller.image.topics["__consumer_offsets"].partitions
    index = coordinator_partition("g", 50)
    partitions[index] = partitions[index]._replace(leader=2)
    assert coordinator_of(controller.image, CoordinatorType.GROUP, "g") == 2
    assert coordinator_of(controller.image, CoordinatorType.GROUP, "h") == 0
