"""The controller by direct calls: allowed and refused decisions, neither of which changes state
before its records are replayed."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import ClusterImage, PartitionImage, TopicImage
from kafkalite.coordination.placement import PartitionMove
from kafkalite.coordination.topics import (
    NEW_PARTITIONS_MAX,
    NewTopic,
    PartitionGrowth,
    TopicDefaults,
)
from kafkalite.protocol.schemas import internal
from tests.coordination.factories import cluster_of, create, do, grow, leaders_of, topic_id


@pytest.fixture
def controller() -> Controller:
    return cluster_of(workers=0)


def test_topic_exists_after_its_records_are_replayed(controller):
    result = controller.create_topics([NewTopic("flights", 3)], [topic_id()], TopicDefaults(1, 1))
    assert controller.image.topics == {}
    answer = do(controller, result)["flights"]
    assert controller.image.topics == {"flights": answer}
    assert controller.image.topics_by_id == {answer.topic_id: answer}
    assert answer.partitions == dict.fromkeys(range(3), PartitionImage(0, 0, (0,), (0,)))


def test_topic_of_many_partitions_is_written_as_two_records():
    controller = cluster_of(workers=2)
    wanted = NewTopic("many", NEW_PARTITIONS_MAX)
    result = controller.create_topics([wanted], [topic_id()], TopicDefaults(1, 1))
    assert [record.kind for record in result.records] == [internal.TOPIC, internal.PARTITIONS]
    answer = do(controller, result)["many"]
    assert controller.image.topics == {"many": answer}
    assert [controller.image.led_count(node) for node in (0, 1, 2)] == [0, 5_000, 5_000]
    result = controller.create_partitions([PartitionGrowth("many", NEW_PARTITIONS_MAX + 3)])
    assert [record.kind for record in result.records] == [internal.PARTITIONS]
    do(controller, result)
    assert leaders_of(controller, "many")[-3:] == [1, 2, 1]
    assert controller.image.led_count(1) == 5_002


def test_snapshot_of_moved_partitions_restores_the_image():
    controller = cluster_of(workers=2)
    topic = create(controller, NewTopic("a", 7))["a"]
    moves = [
        PartitionMove(topic.topic_id, index, topic.partitions[index].leader, 2) for index in (0, 4)
    ]
    assert len(do(controller, controller.move(moves))) == 2
    again = Controller()
    kinds = []
    for record in controller.records():
        kinds.append(record.kind)
        again.replay(record)
    assert again.image.topics == controller.image.topics
    assert [again.image.led_count(n) for n in (1, 2)] == leads_of(controller)
    assert kinds.count(internal.PARTITION) == 2 and kinds.count(internal.PARTITIONS) == 2


def leads_of(controller):
    leaders = leaders_of(controller, "a")
    return [leaders.count(1), leaders.count(2)]


def test_partitions_record_with_a_gap_is_refused(controller):
    topic = create(controller, NewTopic("a", 3))["a"]
    for first in (2, 4):
        record = internal.PARTITIONS(topic_id=topic.topic_id, first=first, replicas=[0], factor=1)
        with pytest.raises(AssertionError):
            controller.image.replay(record)


def test_assignable_nodes_are_computed_once_per_request(monkeypatch):
    controller = cluster_of(workers=2)
    placeable = ClusterImage.placeable.fget
    found = []
    counting = property(lambda image: found.append(1) or placeable(image))
    monkeypatch.setattr(ClusterImage, "placeable", counting)
    create(controller, NewTopic("a", assignments=[(index, [1]) for index in range(100)]))
    assert leaders_of(controller, "a") == [1] * 100
    assert len(found) <= 2


def test_topic_defaults_fill_omitted_values(controller):
    answer = create(controller, NewTopic("a"), defaults=TopicDefaults(7, 1))
    assert len(answer["a"].partitions) == 7


def test_topic_keeps_the_config_it_was_created_with(controller):
    create(controller, NewTopic("a", config={"retention.ms": "60000"}))
    assert controller.image.topics["a"].config == {"retention.ms": "60000"}


def test_validate_only_returns_the_response_without_records(controller):
    result = controller.create_topics(
        [NewTopic("a")], [topic_id()], TopicDefaults(2, 1), validate_only=True
    )
    assert isinstance(result.response["a"], TopicImage)
    assert result.records == []


def test_refused_topic_does_not_affect_others(controller):
    answers = create(controller, NewTopic("a"), NewTopic("b", 0), NewTopic("c"))
    assert isinstance(answers["b"], errors.InvalidPartitions)
    assert controller.image.topics.keys() == {"a", "c"}


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (NewTopic(""), errors.InvalidTopicException),
        (NewTopic("."), errors.InvalidTopicException),
        (NewTopic(".."), errors.InvalidTopicException),
        (NewTopic("a/b"), errors.InvalidTopicException),
        (NewTopic("a\n"), errors.InvalidTopicException),
        (NewTopic("ä"), errors.InvalidTopicException),
        (NewTopic("٣"), errors.InvalidTopicException),
        (NewTopic("a" * 250), errors.InvalidTopicException),
        (NewTopic("there"), errors.TopicAlreadyExists),
        (NewTopic("a_b"), errors.InvalidTopicException),
        (NewTopic("__cluster_metadata"), errors.InvalidRequest),
        (NewTopic("__consumer_offsets"), errors.InvalidRequest),
        (NewTopic("a", 0), errors.InvalidPartitions),
        (NewTopic("a", -2), errors.InvalidPartitions),
        (NewTopic("a", NEW_PARTITIONS_MAX + 1), errors.PolicyViolation),
        (NewTopic("a", 2**31 - 1), errors.PolicyViolation),
        (NewTopic("a", 1, 0), errors.InvalidReplicationFactor),
        (NewTopic("a", 1, -2), errors.InvalidReplicationFactor),
        (NewTopic("a", 1, 2), errors.InvalidReplicationFactor),
        (NewTopic("a", 1, 2**15 - 1), errors.InvalidReplicationFactor),
        (NewTopic("a", config={"no.such.key": "1"}), errors.InvalidConfig),
        (NewTopic("a", config={"retention.ms": "soon"}), errors.InvalidConfig),
        (NewTopic("a", config={"retention.ms": None}), errors.InvalidConfig),
        (NewTopic("a", 1, assignments=[(0, [0])]), errors.InvalidRequest),
        (NewTopic("a", -1, 1, assignments=[(0, [0])]), errors.InvalidRequest),
        (NewTopic("a", assignments=[(0, [7])]), errors.InvalidReplicaAssignment),
        (NewTopic("a", assignments=[(0, [])]), errors.InvalidReplicaAssignment),
        (NewTopic("a", assignments=[(0, [0, 0])]), errors.InvalidReplicaAssignment),
        (NewTopic("a", assignments=[(1, [0])]), errors.InvalidReplicaAssignment),
        (NewTopic("a", assignments=[(-1, [0])]), errors.InvalidReplicaAssignment),
        (NewTopic("a", assignments=[(0, [0]), (0, [0])]), errors.InvalidReplicaAssignment),
        (
            NewTopic("a", assignments=[(i, [0]) for i in range(NEW_PARTITIONS_MAX + 1)]),
            errors.PolicyViolation,
        ),
    ],
    ids=lambda value: repr(value)[:60] if isinstance(value, NewTopic) else "",
)
def test_invalid_topic_is_refused_with_the_error_of_kafka(controller, wanted, fault):
    create(controller, NewTopic("there"), NewTopic("a.b"))
    before = [*controller.records()]
    answer = create(controller, wanted)[wanted.name]
    assert type(answer) is fault
    assert [*controller.records()] == before


def test_colliding_names_in_one_request_are_refused(controller):
    answers = create(controller, NewTopic("a.b"), NewTopic("a_b"))
    assert isinstance(answers["a_b"], errors.InvalidTopicException)


def test_new_partitions_are_bounded_per_request(controller):
    answers = create(controller, NewTopic("a", NEW_PARTITIONS_MAX), NewTopic("b", 1))
    assert isinstance(answers["b"], errors.PolicyViolation)
    assert len(controller.image.topics["a"].partitions) == NEW_PARTITIONS_MAX


def test_partitions_are_assigned_round_robin():
    controller = cluster_of(workers=3)
    partitions = create(controller, NewTopic("a", 6))["a"].partitions
    assert [partition.leader for partition in partitions.values()] == [1, 2, 3, 1, 2, 3]
    assert partitions[4] == PartitionImage(leader=2, leader_epoch=0, replicas=(2,), isr=(2,))


def test_manual_assignment_is_kept():
    controller = cluster_of(workers=3)
    answer = create(controller, NewTopic("a", assignments=[(1, [2]), (0, [3])]))["a"]
    assert {i: partition.leader for i, partition in answer.partitions.items()} == {0: 3, 1: 2}
    grow(controller, PartitionGrowth("a", 4, [[2], [2]]))
    assert leaders_of(controller, "a") == [3, 2, 2, 2]


def test_deleted_topic_loses_its_config_and_frees_its_name(controller):
    answer = create(controller, NewTopic("a.b", config={"retention.ms": "1"}))["a.b"]
    do(controller, controller.delete_topics({answer.topic_id: answer.name}))
    assert controller.image.topics == controller.image.topics_by_id == {}
    assert create(controller, NewTopic("a_b"))["a_b"].config == {}


def test_create_partitions_appends_partitions(controller):
    create(controller, NewTopic("a", 2))
    assert grow(controller, PartitionGrowth("a", 5)) == {"a": None}
    assert [*controller.image.topics["a"].partitions] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (PartitionGrowth("nowhere", 3), errors.UnknownTopicOrPartition),
        (PartitionGrowth("a", 2), errors.InvalidPartitions),
        (PartitionGrowth("a", 1), errors.InvalidPartitions),
        (PartitionGrowth("a", -1), errors.InvalidPartitions),
        (PartitionGrowth("a", 2**31 - 1), errors.PolicyViolation),
        (PartitionGrowth("a", 4, [[0]]), errors.InvalidReplicaAssignment),
        (PartitionGrowth("a", 3, []), errors.InvalidReplicaAssignment),
        (PartitionGrowth("a", 3, [[0, 0]]), errors.InvalidReplicaAssignment),
        (PartitionGrowth("a", 3, [[9]]), errors.InvalidReplicaAssignment),
    ],
    ids=repr,
)
def test_invalid_create_partitions_is_refused(controller, wanted, fault):
    create(controller, NewTopic("a", 2))
    assert type(grow(controller, wanted)[wanted.name]) is fault
    assert len(controller.image.topics["a"].partitions) == 2


def test_create_partitions_with_validate_only_changes_nothing(controller):
    create(controller, NewTopic("a", 2))
    assert grow(controller, PartitionGrowth("a", 3), validate_only=True) == {"a": None}
    assert len(controller.image.topics["a"].partitions) == 2


def test_cluster_id_cannot_be_changed(controller):
    assert controller.set_cluster_id("a-cluster").records == []
    with pytest.raises(errors.InconsistentClusterId):
        controller.set_cluster_id("another-cluster")
