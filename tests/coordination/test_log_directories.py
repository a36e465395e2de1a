"""Placement over log directories: replicas in different ones first, and leaders in each."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.coordination.controller import Controller
from kafkalite.coordination.placement import PlacementLimits, leading
from kafkalite.coordination.replication import reassignment
from kafkalite.coordination.topics import NewTopic, TopicDefaults
from kafkalite.errors import InvalidRequest
from tests.coordination.factories import addresses, do


def cluster(*homes: str) -> Controller:
    """Return a controller with a worker in each of these log directories."""
    controller = Controller()
    directories = {0: homes[0], **dict(enumerate(homes, 1))}
    do(
        controller,
        controller.register_nodes(addresses(len(homes)), {}, log_directories=directories),
    )
    return controller


def create(controller: Controller, name: str, partitions: int, factor: int) -> list[tuple]:
    """Create a topic and return the replicas of its partitions."""
    topic_id = name.encode().rjust(16, b"\0")
    new = NewTopic(name, partitions, factor)
    do(controller, controller.create_topics([new], [topic_id], TopicDefaults(1, 1)))
    return [p.replicas for p in controller.image.topics[name].partitions.values()]


@given(
    homes=st.lists(st.sampled_from("abcd"), min_size=1, max_size=8),
    topics=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), max_size=5),
)
def test_replicas_share_a_directory_only_if_there_are_too_few(homes, topics):
    controller = cluster(*homes)
    for number, (partitions, factor) in enumerate(topics):
        for replicas in create(controller, f"t{number}", partitions, min(factor, len(homes))):
            assert len(set(replicas)) == len(replicas)
            used = {homes[node_id - 1] for node_id in replicas}
            assert len(used) == min(len(replicas), len({*homes}))


def test_replicas_are_spread_evenly_over_nodes_of_directories():
    controller = cluster("a", "b", "a", "b")
    placed = create(controller, "t", 40, 2)
    assert Counter(node_id for replicas in placed for node_id in replicas) == dict.fromkeys(
        (1, 2, 3, 4), 20
    )


def test_replica_of_a_drained_node_stays_out_of_the_directories_of_the_others():
    controller = cluster("a", "b", "c", "c", "b")
    create(controller, "t", 6, 3)
    for node_id in (1, 2, 3, 4, 5):
        targets = reassignment.replacements(controller.image, node_id, 100)
        for (_, index), target in targets.items():
            before = controller.image.topics["t"].partitions[index].replicas
            kept = {controller.image.nodes[n].log_directory for n in before if n != node_id}
            (new,) = {*target} - {*before}
            if {"a", "b", "c"} - kept - {controller.image.nodes[node_id].log_directory}:
                assert controller.image.nodes[new].log_directory not in kept


def test_leading_workers_are_in_each_directory_unless_their_number_is_set():
    image = cluster("a", "a", "b", "b", "c").image
    nodes = image.placeable
    assert leading(image, nodes, PlacementLimits(leading_max=1)) == [1]
    assert leading(image, nodes, PlacementLimits(3, 1, leads_in_each_directory=True)) == [1, 3, 5]
    assert leading(image, nodes, PlacementLimits(3, 2, leads_in_each_directory=True)) == [
        1,
        2,
        3,
        5,
    ]


def test_worker_with_partitions_in_its_own_directory_is_not_removed_at_start():
    controller = cluster("a", "b", "c")
    create(controller, "t", 3, 1)
    directories = {0: "a", 1: "a", 2: "b"}
    with pytest.raises(InvalidRequest, match="--workers 3 or more, and drain it"):
        controller.register_nodes(addresses(2), {}, log_directories=directories)


def test_worker_is_removed_at_start_if_all_are_in_one_directory():
    controller = cluster("a", "a", "a")
    create(controller, "t", 3, 1)
    directories = dict.fromkeys((0, 1, 2), "a")
    do(controller, controller.register_nodes(addresses(2), {}, log_directories=directories))
    assert 3 not in controller.image.nodes


def test_log_directory_of_a_node_follows_its_registration():
    controller = cluster("a", "b")
    do(controller, controller.set_node_address(2, "localhost", 9094, None, "c"))
    assert controller.image.nodes[2].log_directory == "c"
