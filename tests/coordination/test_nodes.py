"""Nodes and their partitions, from the first start through every change."""

from __future__ import annotations

import pytest

from kafkalite.config.broker import WORKERS_MAX
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import NodeImage, topic_records
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.coordination.placement import PartitionMove, PlacementLimits
from kafkalite.coordination.topics import NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.errors import InvalidReplicaAssignment, InvalidRequest, PolicyViolation
from kafkalite.protocol.schemas import internal
from tests.coordination.factories import (
    DEDICATED,
    addresses,
    cluster_of,
    create,
    do,
    epochs_of,
    grow,
    laid_out,
    leaders_of,
    settle,
    topic_id,
)


def snapshot_of(controller: Controller) -> Controller:
    again = Controller()
    for record in controller.records():
        again.replay(internal.read(internal.write(record)))
    return again


def records_of_the_first_version() -> list[bytes]:
    """Return the log of a broker with a single process: its node, and a topic of 6 partitions."""
    value = "02 00 00000000 0a" + b"localhost".hex() + "00002384 00 00"
    log = [bytes.fromhex(value)]
    controller = cluster_of(workers=0)
    topic = create(controller, NewTopic("old", 6))["old"]
    return [*log, *map(internal.write, topic_records(topic))]


# -- settling ------------------------------------------------------------------------------------


def test_partitions_move_between_node_0_and_workers_at_start():
    controller = Controller()
    for value in records_of_the_first_version():
        controller.replay(internal.read(value))
    assert leaders_of(controller, "old") == [0] * 6
    settle(controller, workers=3)
    assert leaders_of(controller, "old") == [1, 2, 3, 1, 2, 3]
    assert epochs_of(controller, "old") == [1] * 6
    settle(controller, workers=0)
    assert leaders_of(controller, "old") == [0] * 6
    assert epochs_of(controller, "old") == [2] * 6
    assert controller.image.nodes == {0: NodeImage(0, "localhost", 9092)}


def test_register_nodes_without_changes_writes_no_records():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 7), NewTopic("b", 2, config=DEDICATED))
    # For a dedicated node, set_node_address has set the listener by now.
    for node_id in (4, 5):
        do(controller, controller.set_node_address(node_id, "localhost", 9092 + node_id, None))
    assert controller.register_nodes(addresses(5), {}).records == []


def test_only_partitions_of_a_removed_worker_move():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6))
    settle(controller, workers=2)
    assert leaders_of(controller, "a") == [1, 2, 1, 1, 2, 2]
    assert epochs_of(controller, "a") == [0, 0, 1, 0, 0, 1]
    assert controller.image.nodes.keys() == {0, 1, 2}


def test_added_worker_gets_no_existing_partition():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("a", 4))
    settle(controller, workers=3)
    assert leaders_of(controller, "a") == [1, 2, 1, 2]
    assert epochs_of(controller, "a") == [0] * 4


def test_register_nodes_updates_address_and_rack():
    controller = cluster_of(workers=1)
    do(controller, controller.register_nodes({0: ("h", 1), 1: ("h", 2)}, {0: "r", 1: "s"}))
    assert controller.image.nodes == {0: NodeImage(0, "h", 1, "r"), 1: NodeImage(1, "h", 2, "s")}


def test_racks_of_nodes_change():
    controller = cluster_of(workers=2)
    do(controller, controller.set_racks({0: None, 1: "r"}))
    assert [node.rack for node in controller.image.nodes.values()] == [None, "r", None]
    assert controller.set_racks({1: "r"}).records == []
    do(controller, controller.set_racks({2: "s"}))
    assert [node.rack for node in controller.image.nodes.values()] == [None, None, "s"]


def test_draining_survives_a_restart():
    controller = cluster_of(workers=2)
    laid_out(controller, "a", [1, 1])
    do(controller, controller.set_draining(1, True))
    settle(controller, workers=2)
    assert controller.image.nodes[1].draining
    assert leaders_of(controller, "a") == [1, 1]
    settle(controller, workers=3)
    assert controller.image.placeable == [2, 3]


def test_draining_ends_when_no_other_worker_is_left():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    settle(controller, workers=1)
    assert controller.image.placeable == [1]


def test_equal_counts_are_decided_by_bytes():
    controller = cluster_of(workers=3)
    topic = laid_out(controller, "a", [1, 2])
    laid_out(controller, "b", [3])
    sizes = {(topic.topic_id, 0): 100, (topic.topic_id, 1): 10}
    settle(controller, workers=2, sizes=sizes)
    assert leaders_of(controller, "b") == [2]


# -- adding, removing, draining ------------------------------------------------------------------


def test_added_worker_gets_partitions_once_it_has_a_listener():
    controller = cluster_of(workers=1)
    assert do(controller, controller.add_node()) == 2
    assert controller.image.nodes[2] == NodeImage(2, "", 0)
    create(controller, NewTopic("a", 2))
    do(controller, controller.set_node_address(2, "h", 9094, "r"))
    assert controller.image.nodes[2] == NodeImage(2, "h", 9094, "r")
    create(controller, NewTopic("b", 2))
    assert (leaders_of(controller, "a"), leaders_of(controller, "b")) == ([1, 1], [2, 1])


def test_id_of_a_removed_node_is_not_reused():
    controller = cluster_of(workers=2)
    do(controller, controller.add_node())
    do(controller, controller.remove_node(3))
    again = snapshot_of(controller)
    assert again.image.nodes == controller.image.nodes
    assert do(controller, controller.add_node()) == do(again, again.add_node()) == 4


def test_address_of_an_unknown_node_is_ignored():
    controller = cluster_of(workers=1)
    assert controller.set_node_address(7, "h", 1, None).records == ()
    assert controller.set_node_address(1, "localhost", 9093, None).records == []


@pytest.mark.parametrize(
    ("node_id", "words"),
    [
        (0, "supervisor"),
        (9, "no node 9; the workers are: 1, 2, 3"),
        (-1, "no node -1"),
        (1, "still leads 2 partitions; drain it first: kafkalite node drain 1"),
        (4, "dedicated to topic alone"),
    ],
)
def test_remove_of_a_node_in_use_is_refused(node_id, words):
    controller = cluster_of(workers=3)
    laid_out(controller, "a", [1, 1])
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    with pytest.raises(InvalidRequest, match=words):
        controller.remove_node(node_id)


def test_last_worker_cannot_be_removed_or_drained():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    for decide in (controller.remove_node, lambda node_id: controller.set_draining(node_id, True)):
        with pytest.raises(InvalidRequest, match="No other worker"):
            decide(2)
    do(controller, controller.remove_node(1))
    with pytest.raises(InvalidRequest, match="No other worker"):
        controller.remove_node(2)


def test_draining_worker_gets_no_partitions_until_restored():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    create(controller, NewTopic("a", 3))
    do(controller, controller.set_draining(1, False))
    create(controller, NewTopic("b", 3))
    assert (leaders_of(controller, "a"), leaders_of(controller, "b")) == ([2, 2, 2], [1, 2, 1])


@pytest.mark.parametrize(("node_id", "words"), [(0, "supervisor"), (9, "no node 9"), (3, "alone")])
def test_drain_of_supervisor_unknown_or_dedicated_node_is_refused(node_id, words):
    controller = cluster_of(workers=2)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    with pytest.raises(InvalidRequest, match=words):
        controller.set_draining(node_id, True)


def test_add_node_without_workers_is_refused():
    with pytest.raises(InvalidRequest, match="--workers 1"):
        cluster_of(workers=0).add_node()


def test_number_of_workers_is_bounded():
    controller = cluster_of(workers=WORKERS_MAX)
    with pytest.raises(PolicyViolation, match="128"):
        controller.add_node()


# -- moving --------------------------------------------------------------------------------------


def test_move_changes_the_leader_and_raises_the_epoch():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 1])
    moves = [PartitionMove(topic.topic_id, 1, 1, 2)]
    assert do(controller, controller.move(moves)) == moves
    moved = controller.image.topics["a"].partitions[1]
    assert moved == PartitionImage(2, 1, (2,), (2,), partition_epoch=1)
    assert (controller.image.led_count(1), controller.image.led_count(2)) == (1, 1)


def test_invalid_moves_are_skipped():
    controller = cluster_of(workers=5)
    topic = laid_out(controller, "a", [1, 1])
    alone = create(controller, NewTopic("alone", 1, config=DEDICATED))["alone"]
    do(controller, controller.set_draining(3, True))
    do(controller, controller.set_node_address(4, "", 0, None))
    good = PartitionMove(topic.topic_id, 0, 1, 2)
    moves = [
        PartitionMove(topic.topic_id, 1, 2, 1),  # it is not led by node 2
        PartitionMove(topic.topic_id, 1, 1, 1),
        PartitionMove(topic.topic_id, 1, 1, 0),
        PartitionMove(topic.topic_id, 1, 1, 3),  # draining
        PartitionMove(topic.topic_id, 1, 1, 4),  # without a listener
        PartitionMove(topic.topic_id, 1, 1, 6),  # dedicated
        PartitionMove(topic.topic_id, 1, 1, 9),
        PartitionMove(topic.topic_id, 7, 1, 2),
        PartitionMove(topic_id(), 0, 1, 2),
        PartitionMove(alone.topic_id, 0, 6, 2),  # stays with its dedicated worker
        good,
        PartitionMove(topic.topic_id, 0, 1, 5),  # its move to node 2 was accepted above
    ]
    assert do(controller, controller.move(moves)) == [good]
    assert leaders_of(controller, "a") == [2, 1]


def test_move_without_workers_changes_nothing():
    controller = cluster_of(workers=0)
    topic = laid_out(controller, "a", [0])
    assert controller.move([PartitionMove(topic.topic_id, 0, 0, 0)]) == ([], [])


# -- dedicated workers ---------------------------------------------------------------------------


def test_dedicated_topic_adds_and_removes_its_workers():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("alone", 2, config=DEDICATED))["alone"]
    assert leaders_of(controller, "alone") == [3, 4]
    assert controller.image.nodes[4] == NodeImage(4, "", 0, dedicated=True)
    assert controller.image.workers == [1, 2]
    grow(controller, PartitionGrowth("alone", 3))
    assert leaders_of(controller, "alone") == [3, 4, 5]
    do(controller, controller.delete_topics({topic.topic_id: topic.name}))
    assert controller.image.nodes.keys() == {0, 1, 2}
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    assert leaders_of(controller, "alone") == [6]


def test_validate_only_of_a_dedicated_topic_adds_no_node():
    controller = cluster_of(workers=2)
    result = controller.create_topics(
        [NewTopic("alone", 2, 1, config=DEDICATED)],
        [topic_id()],
        TopicDefaults(1, 1),
        validate_only=True,
    )
    assert (len(result.response["alone"].partitions), result.records) == (2, [])


def test_dedicated_workers_are_bounded():
    controller = cluster_of(workers=1)
    answers = create(
        controller,
        NewTopic("a", 3, config=DEDICATED),
        NewTopic("b", 2, config=DEDICATED),
        NewTopic("c", 1, config=DEDICATED),
        limits=PlacementLimits(dedicated_max=4),
    )
    assert isinstance(answers["b"], PolicyViolation)
    assert "needs 2 dedicated workers, and 1 of worker.dedicated.max=4" in str(answers["b"])
    assert (leaders_of(controller, "a"), leaders_of(controller, "c")) == ([2, 3, 4], [5])
    limits = PlacementLimits(dedicated_max=4)
    assert isinstance(
        grow(controller, PartitionGrowth("c", 2), limits=limits)["c"], PolicyViolation
    )
    assert controller.image.nodes.keys() == {0, 1, 2, 3, 4, 5}


def test_dedicated_topic_without_workers_shares_node_0():
    controller = cluster_of(workers=0)
    create(controller, NewTopic("alone", 2, config=DEDICATED), NewTopic("a", 2))
    assert leaders_of(controller, "alone") == [0, 0]
    settle(controller, workers=2)
    assert leaders_of(controller, "alone") == [3, 4]
    assert leaders_of(controller, "a") == [1, 2]
    settle(controller, workers=0)
    assert leaders_of(controller, "alone") == [0, 0]
    assert epochs_of(controller, "alone") == [2, 2]
    settle(controller, workers=2)
    assert leaders_of(controller, "alone") == [5, 6]


def test_dedicated_partitions_over_the_limit_share_workers():
    controller = cluster_of(workers=0)
    create(controller, NewTopic("alone", 3, config=DEDICATED))
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=1))
    assert leaders_of(controller, "alone") == [3, 1, 2]
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=2))
    assert leaders_of(controller, "alone") == [3, 4, 2]
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=0))
    assert leaders_of(controller, "alone") == [3, 4, 2]


def test_dedicated_workers_survive_a_restart_without_listener():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    do(controller, controller.set_node_address(3, "h", 9095, "r"))
    settle(controller, workers=2)
    assert controller.image.nodes[3] == NodeImage(3, "h", 0, "r", dedicated=True)
    assert epochs_of(controller, "alone") == [0]
    do(controller, controller.register_nodes({**addresses(2), 3: ("h", 9095)}, {}))
    assert controller.image.nodes[3] == NodeImage(3, "h", 9095, dedicated=True)


@pytest.mark.parametrize(
    ("node_id", "config", "words"),
    [
        (3, {}, "node 3, which takes no partitions now; choose among 1, 2"),
        (4, {}, "node 4, which serves one partition alone"),
        (9, {}, "node 9, which is not there"),
        (1, DEDICATED, "assign none"),
    ],
)
def test_manual_assignment_to_unavailable_workers_is_refused(node_id, config, words):
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    do(controller, controller.set_draining(3, True))
    wanted = NewTopic("a", assignments=[(0, [1]), (1, [node_id])], config=config)
    answer = create(controller, wanted)["a"]
    assert isinstance(answer, InvalidReplicaAssignment)
    with pytest.raises(InvalidReplicaAssignment, match=words):
        raise answer
