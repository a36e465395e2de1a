"""Responses about topics with several replicas: leaders, ISR, ELR and offline replicas."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.coordination.image import NodeImage, TopicImage, node_record, topic_records
from kafkalite.coordination.partition_image import (
    NO_LEADER,
    PartitionImage,
    RecoveryState,
    new_partition,
    partition_record,
)
from kafkalite.protocol.schemas.cluster import (
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_TOPICS,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
)

TOPIC_ID = b"r" * 16
IN_SYNC = new_partition(1, 2, 3)
SHRUNK = PartitionImage(2, 4, (1, 2, 3), (2,), 9, elr=(3,))
LEADERLESS = PartitionImage(NO_LEADER, 6, (3, 1), (), 9, elr=(1,), last_known_elr=(3,))
REASSIGNED = PartitionImage(1, 2, (2, 3, 1), (1,), 3, adding=(2, 3), removing=(1,))
ALONE = PartitionImage(3, 0, (3,), (3,))


@pytest.fixture
def replicated(broker):
    """A node whose image has three workers, and a topic with one partition in each state."""
    image = broker.node.image
    for node_id in (1, 2, 3):
        image.replay(node_record(NodeImage(node_id, "localhost", 9_092 + node_id)))
    partitions = dict(enumerate((IN_SYNC, SHRUNK, LEADERLESS, REASSIGNED, ALONE)))
    for record in topic_records(TopicImage("r", TOPIC_ID, partitions)):
        image.replay(record)
    return broker


def change(broker, node_id, **fields):
    image = broker.node.image
    image.replay(node_record(image.nodes[node_id]._replace(**fields)))


def metadata(broker):
    topics = [{"topic_id": bytes(16), "name": "r"}]
    answer = broker.request(METADATA, 12, topics=topics, allow_auto_topic_creation=False)
    return answer.topics[0].partitions


def described(broker):
    answer = broker.request(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": "r"}], cursor=None)
    return answer.topics[0].partitions


def states(partitions):
    return [
        (each.error_code, each.leader_id, [*each.isr_nodes], [*each.offline_replicas])
        for each in partitions
    ]


WHOLE = [
    (0, 1, [1, 2, 3], []),
    (0, 2, [2], []),
    (5, -1, [], []),
    (0, 1, [1], []),
    (0, 3, [3], []),
]


@pytest.mark.parametrize("request_by", [metadata, described])
def test_partitions_are_described_with_their_replicas(replicated, request_by):
    partitions = request_by(replicated)
    assert states(partitions) == WHOLE
    assert [[*each.replica_nodes] for each in partitions] == [
        [1, 2, 3], [1, 2, 3], [3, 1], [2, 3, 1], [3],
    ]  # fmt: skip
    assert [each.leader_epoch for each in partitions] == [0, 4, 6, 2, 0]


@pytest.mark.parametrize("request_by", [metadata, described])
def test_replicas_on_a_fenced_node_are_offline(replicated, request_by):
    change(replicated, 3, fenced=True)
    assert states(request_by(replicated)) == [
        (0, 1, [1, 2, 3], [3]),
        (0, 2, [2], [3]),
        (5, -1, [], [3]),
        (0, 1, [1], [3]),
        (0, 3, [3], []),  # its only replica, which is restarted
    ]
    change(replicated, 3, fenced=False)
    assert states(request_by(replicated)) == WHOLE


def test_leader_on_a_fenced_node_is_not_available(replicated):
    change(replicated, 1, fenced=True)
    assert states(metadata(replicated))[0] == (5, -1, [1, 2, 3], [1])


def test_shutting_down_node_still_serves(replicated):
    change(replicated, 1, shutting_down=True)
    assert states(metadata(replicated)) == WHOLE


def test_replicas_on_a_node_without_a_listener_are_offline(replicated):
    change(replicated, 3, port=0)
    assert states(metadata(replicated)) == [
        (0, 1, [1, 2, 3], [3]),
        (0, 2, [2], [3]),
        (5, -1, [], [3]),
        (0, 1, [1], [3]),
        (5, -1, [], [3]),
    ]


def test_log_that_failed_here_is_an_offline_replica(replicated, monkeypatch):
    replicated.node.metadata.node_id = replicated.node.node_id = 2
    monkeypatch.setattr(replicated.node.replicas, "offline", lambda topic: {0, 1})
    assert states(metadata(replicated))[:3] == [
        (0, 1, [1, 2, 3], [2]),
        (5, -1, [2], [2]),
        (5, -1, [], []),
    ]


def test_eligible_leader_replicas_are_described(replicated):
    partitions = described(replicated)
    assert [[*each.eligible_leader_replicas] for each in partitions] == [[], [3], [1], [], []]
    assert [[*each.last_known_elr] for each in partitions] == [[], [], [3], [], []]


def test_fenced_node_is_described_as_fenced(replicated):
    change(replicated, 3, fenced=True)
    answer = replicated.request(DESCRIBE_CLUSTER, 2, include_fenced_brokers=True)
    assert {each.broker_id: each.is_fenced for each in answer.brokers}[3] is True
    assert {each.broker_id: each.is_fenced for each in answer.brokers}[2] is False


def test_leader_for_stale_clients_is_without_endpoint_if_there_is_none(replicated):
    cache = replicated.node.metadata
    assert cache.leader_of("r", 2) == (NO_LEADER, 6)
    assert cache.endpoints(None, [cache.leader_of("r", 2)]) == []


# -- requests ------------------------------------------------------------------------------------


def test_created_topic_is_returned_with_its_replication_factor(replicated):
    topic = {"name": "new", "num_partitions": 2, "replication_factor": 3, "configs": []}
    answer = replicated.request(
        CREATE_TOPICS, 7, topics=[topic], validate_only=True, timeout_ms=1_000
    )
    (created,) = answer.topics
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 2, 3)


@pytest.mark.parametrize("factor", [0, 4])
def test_factor_without_nodes_is_refused(replicated, factor):
    topic = {"name": "new", "num_partitions": 1, "replication_factor": factor, "configs": []}
    answer = replicated.request(
        CREATE_TOPICS, 7, topics=[topic], validate_only=True, timeout_ms=1_000
    )
    assert answer.topics[0].error_code == errors.InvalidReplicationFactor.code


def test_reassignments_in_progress_are_listed(replicated):
    def listed(topics):
        answer = replicated.request(LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=1, topics=topics)
        assert answer.error_code == 0
        return [
            (topic.name, each.partition_index, [*each.replicas], [*each.adding_replicas],
             [*each.removing_replicas])
            for topic in answer.topics
            for each in topic.partitions
        ]  # fmt: skip

    in_progress = [("r", 3, [2, 3, 1], [2, 3], [1])]
    assert listed(None) == in_progress
    assert listed([{"name": "r", "partition_indexes": [0, 3, 3, 99]}]) == in_progress
    assert listed([{"name": "r", "partition_indexes": [0]}]) == []
    assert listed([{"name": "nowhere", "partition_indexes": [0]}]) == []


@pytest.mark.parametrize(
    ("replicas", "code"),
    [
        ([1, 2, 3], 0),
        ([2, 1, 3], 0),
        ([1], 0),
        ([0], errors.InvalidReplicaAssignment.code),
        ([1, 99], errors.InvalidReplicaAssignment.code),
        ([1, 1], errors.InvalidReplicaAssignment.code),
    ],
)
def test_reassignment_to_unknown_or_repeated_nodes_is_refused(replicated, replicas, code):
    asked = {"name": "r", "partitions": [{"partition_index": 0, "replicas": replicas}]}
    answer = replicated.request(
        ALTER_PARTITION_REASSIGNMENTS, 1, timeout_ms=1, topics=[asked]
    )  # fmt: skip
    assert answer.responses[0].partitions[0].error_code == code


# -- elections -----------------------------------------------------------------------------------


def elected(broker, election_type, partitions):
    wanted = None if partitions is None else [{"topic": "r", "partitions": partitions}]
    answer = broker.request(
        ELECT_LEADERS, 2, topic_partitions=wanted, election_type=election_type, timeout_ms=1_000
    )
    assert answer.error_code == 0
    return {
        each.partition_id: each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


def test_preferred_leaders_are_elected_where_they_are_in_sync(replicated):
    image = replicated.node.image
    topic = image.topics["r"]
    moved = IN_SYNC._replace(leader=2, leader_epoch=1, partition_epoch=1)
    image.replay(partition_record(TOPIC_ID, 0, moved))
    unavailable = errors.PreferredLeaderNotAvailable.code
    not_needed = errors.ElectionNotNeeded.code
    assert elected(replicated, 0, [0, 1, 3, 4, 9]) == {
        0: 0, 1: unavailable, 3: unavailable, 4: not_needed, 9: 3,
    }  # fmt: skip
    assert topic.partitions[0] == IN_SYNC._replace(leader_epoch=2, partition_epoch=2)
    assert elected(replicated, 0, [0]) == {0: not_needed}


def test_unclean_election_gives_a_leader_to_a_partition_without_one(replicated):
    change(replicated, 1, fenced=True)
    assert elected(replicated, 1, None) == {2: 0}
    partition = replicated.node.image.topics["r"].partitions[2]
    assert (partition.leader, partition.isr) == (3, (3,))
    assert partition.recovery_state is RecoveryState.RECOVERING


def test_unclean_election_without_active_replicas_is_not_possible(replicated):
    for node_id in (1, 3):
        change(replicated, node_id, fenced=True)
    assert elected(replicated, 1, [2]) == {2: errors.EligibleLeadersNotAvailable.code}
