"""Nodes and their partitions, from the first start through every change."""

from __future__ import annotations

import pytest

from kafkalite.config.broker import WORKERS_MAX
from kafkalite.coordination.controller import Controller, NewTopic, PartitionGrowth, TopicDefaults
from kafkalite.coordination.image import NodeImage, topic_records
from kafkalite.coordination.placement import PartitionMove, PlacementLimits
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


def a_log_of_the_first_version() -> list[bytes]:
    """Return the log of a broker with a single process: its node, and a topic of 6 partitions."""
    value = "02 00 00000000 0a" + b"localhost".hex() + "00002384 00 00"
    log = [bytes.fromhex(value)]
    controller = cluster_of(workers=0)
    topic = create(controller, NewTopic("old", 6))["old"]
    return [*log, *map(internal.write, topic_records(topic))]


# -- settling ------------------------------------------------------------------------------------


def test_a_cluster_of_one_process_gets_workers_and_gives_them_up_again():
    controller = Controller()
    for value in a_log_of_the_first_version():
        controller.replay(internal.read(value))
    assert leaders_of(controller, "old") == [0] * 6
    settle(controller, workers=3)
    assert leaders_of(controller, "old") == [1, 2, 3, 1, 2, 3]
    assert epochs_of(controller, "old") == [1] * 6
    settle(controller, workers=0)
    assert leaders_of(controller, "old") == [0] * 6
    assert epochs_of(controller, "old") == [2] * 6
    assert controller.image.nodes == {0: NodeImage(0, "localhost", 9092)}


def test_settling_what_is_settled_leaves_no_records():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 7), NewTopic("b", 2, config=DEDICATED))
    # For a dedicated node, set_node_address has set the listener by now.
    for node_id in (4, 5):
        do(controller, controller.set_node_address(node_id, "localhost", 9092 + node_id, None))
    assert controller.register_nodes(addresses(5), None).records == []


def test_a_worker_that_is_no_more_leaves_its_partitions_to_the_others_and_only_those():
    controller = cluster_of(workers=3)
    create(controller, NewTopic("a", 6))
    settle(controller, workers=2)
    assert leaders_of(controller, "a") == [1, 2, 1, 1, 2, 2]
    assert epochs_of(controller, "a") == [0, 0, 1, 0, 0, 1]
    assert controller.image.nodes.keys() == {0, 1, 2}


def test_a_worker_more_gets_nothing_that_another_has():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("a", 4))
    settle(controller, workers=3)
    assert leaders_of(controller, "a") == [1, 2, 1, 2]
    assert epochs_of(controller, "a") == [0] * 4


def test_a_node_is_settled_at_its_new_address_with_its_rack():
    controller = cluster_of(workers=1)
    do(controller, controller.register_nodes({0: ("h", 1), 1: ("h", 2)}, "r"))
    assert controller.image.nodes == {0: NodeImage(0, "h", 1, "r"), 1: NodeImage(1, "h", 2, "r")}


def test_a_draining_worker_goes_on_draining_after_a_restart():
    controller = cluster_of(workers=2)
    laid_out(controller, "a", [1, 1])
    do(controller, controller.set_draining(1, True))
    settle(controller, workers=2)
    assert controller.image.nodes[1].draining
    assert leaders_of(controller, "a") == [1, 1]
    settle(controller, workers=3)
    assert controller.image.placeable == [2, 3]


def test_a_worker_drains_no_more_when_those_that_should_take_over_are_gone():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    settle(controller, workers=1)
    assert controller.image.placeable == [1]


def test_bytes_decide_where_counts_are_equal():
    controller = cluster_of(workers=3)
    topic = laid_out(controller, "a", [1, 2])
    laid_out(controller, "b", [3])
    sizes = {(topic.topic_id, 0): 100, (topic.topic_id, 1): 10}
    settle(controller, workers=2, sizes=sizes)
    assert leaders_of(controller, "b") == [2]


# -- adding, removing, draining ------------------------------------------------------------------


def test_an_added_worker_takes_partitions_once_it_has_a_listener():
    controller = cluster_of(workers=1)
    assert do(controller, controller.add_node()) == 2
    assert controller.image.nodes[2] == NodeImage(2, "", 0)
    create(controller, NewTopic("a", 2))
    do(controller, controller.set_node_address(2, "h", 9094, "r"))
    assert controller.image.nodes[2] == NodeImage(2, "h", 9094, "r")
    create(controller, NewTopic("b", 2))
    assert (leaders_of(controller, "a"), leaders_of(controller, "b")) == ([1, 1], [2, 1])


def test_the_id_of_a_removed_node_is_not_given_again_whatever_the_machine_is_made_from():
    controller = cluster_of(workers=2)
    do(controller, controller.add_node())
    do(controller, controller.remove_node(3))
    again = snapshot_of(controller)
    assert again.image.nodes == controller.image.nodes
    assert do(controller, controller.add_node()) == do(again, again.add_node()) == 4


def test_a_node_that_was_removed_is_located_nowhere():
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
def test_a_node_that_is_needed_is_not_removed(node_id, words):
    controller = cluster_of(workers=3)
    laid_out(controller, "a", [1, 1])
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    with pytest.raises(InvalidRequest, match=words):
        controller.remove_node(node_id)


def test_the_last_worker_that_takes_partitions_neither_goes_nor_drains():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    for decide in (controller.remove_node, lambda node_id: controller.set_draining(node_id, True)):
        with pytest.raises(InvalidRequest, match="No other worker"):
            decide(2)
    do(controller, controller.remove_node(1))
    with pytest.raises(InvalidRequest, match="No other worker"):
        controller.remove_node(2)


def test_a_draining_worker_gets_nothing_until_it_is_taken_back():
    controller = cluster_of(workers=2)
    do(controller, controller.set_draining(1, True))
    create(controller, NewTopic("a", 3))
    do(controller, controller.set_draining(1, False))
    create(controller, NewTopic("b", 3))
    assert (leaders_of(controller, "a"), leaders_of(controller, "b")) == ([2, 2, 2], [1, 2, 1])


@pytest.mark.parametrize(("node_id", "words"), [(0, "supervisor"), (9, "no node 9"), (3, "alone")])
def test_only_a_worker_is_drained(node_id, words):
    controller = cluster_of(workers=2)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    with pytest.raises(InvalidRequest, match=words):
        controller.set_draining(node_id, True)


def test_a_cluster_without_workers_gets_none_while_it_runs():
    with pytest.raises(InvalidRequest, match="--workers 1"):
        cluster_of(workers=0).add_node()


def test_there_are_no_more_workers_than_may_be_asked_for():
    controller = cluster_of(workers=WORKERS_MAX)
    with pytest.raises(PolicyViolation, match="128"):
        controller.add_node()


# -- moving --------------------------------------------------------------------------------------


def test_a_move_changes_the_leader_under_the_next_epoch():
    controller = cluster_of(workers=2)
    topic = laid_out(controller, "a", [1, 1])
    moves = [PartitionMove(topic.topic_id, 1, 1, 2)]
    assert do(controller, controller.move(moves)) == moves
    moved = controller.image.topics["a"].partitions[1]
    assert moved == (2, 1, (2,), (2,))
    assert (controller.image.led_count(1), controller.image.led_count(2)) == (1, 1)


def test_moves_that_make_no_sense_by_now_are_left_out():
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


def test_nothing_moves_in_a_cluster_without_workers():
    controller = cluster_of(workers=0)
    topic = laid_out(controller, "a", [0])
    assert controller.move([PartitionMove(topic.topic_id, 0, 0, 0)]) == ([], [])


# -- dedicated workers ---------------------------------------------------------------------------


def test_each_partition_of_a_dedicated_topic_gets_a_worker_that_comes_and_goes_with_it():
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


def test_validating_a_dedicated_topic_makes_no_node():
    controller = cluster_of(workers=2)
    result = controller.create_topics(
        [NewTopic("alone", 2, 1, config=DEDICATED)],
        [topic_id()],
        TopicDefaults(1, 1),
        validate_only=True,
    )
    assert (len(result.response["alone"].partitions), result.records) == (2, [])


def test_dedicated_workers_are_bounded_within_a_request_as_across_requests():
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


def test_a_dedicated_topic_is_one_like_others_without_workers_and_gets_its_own_with_them():
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


def test_more_dedicated_partitions_than_there_may_be_workers_share_until_there_may():
    controller = cluster_of(workers=0)
    create(controller, NewTopic("alone", 3, config=DEDICATED))
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=1))
    assert leaders_of(controller, "alone") == [3, 1, 2]
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=2))
    assert leaders_of(controller, "alone") == [3, 4, 2]
    settle(controller, workers=2, limits=PlacementLimits(dedicated_max=0))
    assert leaders_of(controller, "alone") == [3, 4, 2]


def test_dedicated_workers_stay_when_the_next_start_does_not_name_them_and_wait_for_a_listener():
    controller = cluster_of(workers=2)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    do(controller, controller.set_node_address(3, "h", 9095, "r"))
    settle(controller, workers=2)
    assert controller.image.nodes[3] == NodeImage(3, "h", 0, "r", dedicated=True)
    assert epochs_of(controller, "alone") == [0]
    do(controller, controller.register_nodes({**addresses(2), 3: ("h", 9095)}, None))
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
def test_a_manual_assignment_names_ordinary_workers_that_take_partitions(node_id, config, words):
    controller = cluster_of(workers=3)
    create(controller, NewTopic("alone", 1, config=DEDICATED))
    do(controller, controller.set_draining(3, True))
    wanted = NewTopic("a", assignments=[(0, [1]), (1, [node_id])], config=config)
    answer = create(controller, wanted)["a"]
    assert isinstance(answer, InvalidReplicaAssignment)
    with pytest.raises(InvalidReplicaAssignment, match=words):
        raise answer
