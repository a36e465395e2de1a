"""Topics with several replicas: their placement, their records and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite import errors
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import node_record
from kafkalite.coordination.partition_image import PartitionImage, new_partition
from kafkalite.coordination.placement import PlacementLimits, drain_moves, rebalance_moves
from kafkalite.coordination.topic_names import CONSUMER_OFFSETS
from kafkalite.coordination.topics import NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.protocol.schemas import internal
from tests.coordination.factories import (
    DEDICATED,
    cluster_of,
    create,
    do,
    grow,
    laid_out,
    leaders_of,
    topic_id,
)

ONE_LEADS = PlacementLimits(leading_max=1)


def replicas_of(controller: Controller, name: str) -> list[tuple[int, ...]]:
    partitions = controller.image.topics[name].partitions
    return [partition.replicas for partition in partitions.values()]


def replica_counts(controller: Controller) -> Counter[int]:
    counts = Counter(dict.fromkeys(controller.image.workers, 0))
    for topic in controller.image.topics.values():
        for partition in topic.partitions.values():
            counts.update(partition.replicas)
    return counts


def fence(controller: Controller, *node_ids: int) -> None:
    for node_id in node_ids:
        controller.replay(node_record(controller.image.nodes[node_id]._replace(fenced=True)))


# -- placement -----------------------------------------------------------------------------------


@given(
    workers=st.integers(1, 7),
    topics=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 7)), min_size=1, max_size=5),
    leading_max=st.integers(1, 7),
)
def test_replicas_of_a_partition_are_on_different_nodes_and_spread(workers, topics, leading_max):
    controller = cluster_of(workers=workers)
    limits = PlacementLimits(leading_max=leading_max)
    for number, (count, factor) in enumerate(topics):
        name, factor = f"t{number}", min(factor, workers)
        topic = create(controller, NewTopic(name, count, factor), limits=limits)[name]
        leaders = leaders_of(controller, name)
        for partition in topic.partitions.values():
            assert len({*partition.replicas}) == factor == len(partition.isr)
            assert partition.leader == partition.replicas[0] <= leading_max
            assert {*partition.replicas} <= {*controller.image.workers}
        led = Counter(dict.fromkeys(range(1, min(workers, leading_max) + 1), 0)) + Counter(leaders)
        assert max(led.values()) - min(led.values()) <= 1 or count < len(led)
        of_topic = Counter(dict.fromkeys(controller.image.workers, 0))
        for replicas in replicas_of(controller, name):
            of_topic.update(replicas)
        if leading_max >= workers:
            assert max(of_topic.values()) - min(of_topic.values()) < max(2, workers)


@given(workers=st.integers(2, 6), factor=st.integers(1, 6), turns=st.integers(1, 3))
def test_whole_turns_of_followers_load_all_nodes_equally(workers, factor, turns):
    factor = min(factor, workers)
    controller = cluster_of(workers=workers)
    create(controller, NewTopic("a", workers * (workers - 1) * turns, factor))
    assert len(set(replica_counts(controller).values())) == 1


def test_leaders_are_chosen_as_for_a_topic_with_one_replica():
    controller = cluster_of(workers=3)
    laid_out(controller, "crowd", [1, 1, 2])
    alone = do(
        controller,
        controller.create_topics(
            [NewTopic("a", 5)], [topic_id()], TopicDefaults(1, 1), validate_only=True
        ),
    )["a"]
    create(controller, NewTopic("b", 5, 3))
    assert leaders_of(controller, "b") == [each.leader for each in alone.partitions.values()]


def test_followers_are_striped_so_that_each_pair_of_nodes_is_used():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6, 2))
    assert sorted(replicas_of(controller, "a")) == sorted(permutations((1, 2, 3), 2))


def test_partitions_of_a_leader_have_each_other_node_as_first_follower():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6, 3))
    assert sorted(replicas_of(controller, "a")) == sorted(permutations((1, 2, 3)))


def test_leaders_of_few_partitions_are_followed_by_different_nodes():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 3, 3))
    assert replicas_of(controller, "a") == [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


def test_standby_workers_follow_the_leading_ones():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 4, 2), limits=ONE_LEADS)
    assert Counter(replicas_of(controller, "a")) == {(1, 2): 2, (1, 3): 2}


def test_followers_go_where_the_fewest_replicas_are():
    controller = cluster_of(workers=3)
    laid_out(controller, "crowd", [2] * 3 + [1] * 4)
    create(controller, NewTopic("a", 1, 2))
    assert replicas_of(controller, "a") == [(3, 2)]


def test_topics_of_one_partition_share_the_load_of_followers():
    controller = cluster_of(workers=3)
    create(controller, *(NewTopic(name, 1, 2) for name in "abcdef"))
    assert {*replica_counts(controller).values()} == {4}


def test_draining_and_dedicated_workers_get_no_replicas():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    do(controller, controller.set_draining(2, True))
    create(controller, NewTopic("a", 4, 2))
    assert {node for replicas in replicas_of(controller, "a") for node in replicas} == {1, 3}
    answer = create(controller, NewTopic("b", 1, 3))["b"]
    assert isinstance(answer, errors.InvalidReplicationFactor)


def test_fenced_node_leads_no_new_partition_and_is_not_in_sync():
    controller = cluster_of(workers=3)
    fence(controller, 1)
    create(controller, NewTopic("a", 3, 3), NewTopic("b", 3, 2))
    for partition in controller.image.topics["a"].partitions.values():
        assert sorted(partition.replicas) == [1, 2, 3] and partition.replicas[-1] == 1
        assert partition.leader == partition.isr[0] == partition.replicas[0]
        assert 1 not in partition.isr and not partition.is_new
    assert 1 not in leaders_of(controller, "b")
    again = Controller()
    for record in controller.records():
        again.replay(record)
    assert again.image.topics == controller.image.topics


def test_new_partition_on_fenced_nodes_only_has_all_replicas_in_sync():
    controller = cluster_of(workers=2)
    fence(controller, 1, 2)
    topic = create(controller, NewTopic("a", 1, 2))["a"]
    assert topic.partitions[0] == new_partition(1, 2)


# -- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_factor_above_the_number_of_nodes_is_refused(workers):
    controller = cluster_of(workers=workers)
    answer = create(controller, NewTopic("a", 1, 2))["a"]
    assert isinstance(answer, errors.InvalidReplicationFactor)
    assert str(answer) == (
        "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be"
        " reached because only 1 broker(s) are registered."
    )


@pytest.mark.parametrize("factor", [0, -2])
def test_factor_below_one_is_refused(factor):
    answer = create(cluster_of(workers=3), NewTopic("a", 1, factor))["a"]
    assert isinstance(answer, errors.InvalidReplicationFactor)
    assert "larger than 0" in str(answer)


def test_dedicated_topic_has_one_replica():
    controller = cluster_of(workers=3)
    answer = create(controller, NewTopic("a", 1, 2, config=DEDICATED))["a"]
    assert isinstance(answer, errors.InvalidReplicaAssignment)
    assert "replication factor is 1" in str(answer)


def test_default_replication_factor_applies():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a"), defaults=TopicDefaults(2, 3))
    assert [len(replicas) for replicas in replicas_of(controller, "a")] == [3, 3]


# -- assignments ---------------------------------------------------------------------------------


def test_assigned_replicas_keep_their_order():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", assignments=[(0, [3, 1]), (1, [1, 2])]))
    assert controller.image.topics["a"].partitions == {
        0: PartitionImage(3, 0, (3, 1), (3, 1)),
        1: PartitionImage(1, 0, (1, 2), (1, 2)),
    }


@pytest.mark.parametrize(
    ("assignment", "why"),
    [
        ([[]], "no node"),
        ([[1, 1]], "more than once"),
        ([[1, 9]], "not there"),
        ([[1, 2], [3]], "have 2 replicas"),
        ([[1, 0]], "supervisor"),
        ([[0, 1]], "supervisor"),
        ([[1, 4]], "serves one partition alone"),
    ],
)
def test_assignment_that_cannot_be_is_refused(assignment, why):
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    answer = create(controller, NewTopic("a", assignments=[*enumerate(assignment)]))["a"]
    assert isinstance(answer, errors.InvalidReplicaAssignment)
    assert why in str(answer)


def test_added_partitions_have_the_factor_of_the_topic():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 1, 2))
    assert grow(controller, PartitionGrowth("a", 6)) == {"a": None}
    assert {*map(len, replicas_of(controller, "a"))} == {2}
    assert {*replica_counts(controller).values()} <= {3, 4, 5}
    assert grow(controller, PartitionGrowth("a", 7, [[3, 1]])) == {"a": None}
    assert replicas_of(controller, "a")[6] == (3, 1)
    for node_ids in ([3], [0], [1, 2, 3]):
        answer = grow(controller, PartitionGrowth("a", 8, [node_ids]))["a"]
        assert isinstance(answer, errors.InvalidReplicaAssignment)


def test_added_partitions_that_lack_nodes_are_refused():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("a", 1, 2))
    controller.replay(node_record(controller.image.nodes[2]._replace(draining=True)))
    answer = grow(controller, PartitionGrowth("a", 2))["a"]
    assert isinstance(answer, errors.InvalidReplicationFactor)


# -- records -------------------------------------------------------------------------------------


def test_snapshot_has_a_record_for_each_run_of_a_factor():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 5, 3), NewTopic("b", 4), NewTopic("c", 2, 2))
    records = [each for each in controller.records() if each.kind is internal.PARTITIONS]
    assert [(len(each.fields["replicas"]), each.fields["factor"]) for each in records] == [
        (15, 3), (4, 1), (4, 2),
    ]  # fmt: skip
    again = Controller()
    for record in controller.records():
        again.replay(internal.read(internal.write(record)))
    assert again.image.topics == controller.image.topics
    for node_id in range(4):
        assert again.image.led_count(node_id) == controller.image.led_count(node_id)
        assert again.image.replica_count(node_id) == controller.image.replica_count(node_id)


def test_partitions_of_one_record_are_bounded_by_their_replicas(monkeypatch):
    monkeypatch.setattr("kafkalite.coordination.image.RUN_MAX", 7)
    controller = cluster_of(workers=3)
    result = controller.create_topics([NewTopic("a", 5, 3)], [topic_id()], TopicDefaults(1, 1))
    sizes = [len(r.fields["replicas"]) for r in result.records if r.kind is internal.PARTITIONS]
    assert sizes == [6, 6, 3]
    do(controller, result)
    assert [*controller.image.topics["a"].partitions] == [0, 1, 2, 3, 4]


# -- moves and removal ---------------------------------------------------------------------------


def test_partition_with_several_replicas_is_not_moved():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6, 2), NewTopic("b", 3))
    moves = drain_moves(controller.image, 1, {})
    names = {controller.image.topics_by_id[move.topic_id].name for move in moves}
    assert names == {"b"}
    laid_out(controller, "crowd", [1] * 9)
    names = {
        controller.image.topics_by_id[move.topic_id].name
        for move in rebalance_moves(controller.image, {})
    }
    assert "a" not in names
    a = controller.image.topics["a"]
    move = moves[0]._replace(topic_id=a.topic_id, partition=0, from_node=a.partitions[0].leader)
    for to_node in (1, 2, 3):
        assert do(controller, controller.move([move._replace(to_node=to_node)])) == []


def test_restart_keeps_partitions_with_several_replicas():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6, 2))
    before = dict(controller.image.topics["a"].partitions)
    addresses = {n: ("localhost", 9092 + n) for n in range(4)}
    do(controller, controller.register_nodes(addresses, {}))
    assert controller.image.topics["a"].partitions == before


@pytest.mark.parametrize("workers", [0, 2])
def test_start_without_a_node_that_has_replicas_is_refused(workers):
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 1, 3), NewTopic("b", 3))
    addresses = {n: ("localhost", 9092 + n) for n in range(workers + 1)}
    with pytest.raises(errors.InvalidRequest, match="of 1 partitions.*--workers 3 or more"):
        controller.register_nodes(addresses, {})


def test_node_with_replicas_is_not_removed():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 1, 2))
    with pytest.raises(errors.InvalidRequest, match="has replicas of 1 partitions; drain"):
        controller.remove_node(2)
    do(controller, controller.remove_node(3))
    assert 3 not in controller.image.nodes


def test_topic_without_a_leader_is_deleted():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("a", 1, 2))["a"]
    leaderless = topic.partitions[0]._replace(leader=-1)
    controller.image.topics["a"].partitions[0] = leaderless
    assert do(controller, controller.delete_topics({topic.topic_id: "a"})) == {"a": None}


def offsets_topic(
    workers: int, partitions: int, factor: int, fenced: Sequence[int] = ()
) -> list[PartitionImage]:
    """Return the partitions of a new internal topic."""
    controller = cluster_of(workers)
    for node_id in fenced:
        node = controller.image.nodes[node_id]
        controller.replay(node_record(node._replace(fenced=True)))
    created = controller.create_internal_topic(CONSUMER_OFFSETS, topic_id(), partitions, {}, factor)
    do(controller, created)
    return [*controller.image.topics[CONSUMER_OFFSETS].partitions.values()]


def test_internal_topic_is_led_by_node_0_and_followed_by_workers():
    made = offsets_topic(workers=3, partitions=6, factor=2)
    assert {(each.leader, each.replicas[0], len(each.replicas)) for each in made} == {(0, 0, 2)}
    assert Counter(each.replicas[1] for each in made) == {1: 2, 2: 2, 3: 2}
    assert all(each.isr == each.replicas for each in made)


def test_internal_topic_begins_in_sync_on_active_nodes_only():
    (made,) = offsets_topic(workers=2, partitions=1, factor=3, fenced=[1])
    assert {*made.replicas} == {0, 1, 2} and made.replicas[0] == made.leader == 0
    assert {*made.isr} == {0, 2}
