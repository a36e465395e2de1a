"""Topic APIs of a real node: create, delete, grow, log directories, elections, a full disk."""

from __future__ import annotations

import base64
import shutil

import pytest

from kafkalite import errors
from kafkalite.broker.security import AclOperation
from kafkalite.config.topic import RETENTION_MS
from kafkalite.coordination.topics import NEW_PARTITIONS_MAX
from kafkalite.ids import NO_ID, new_id
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.topics import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
)
from tests.handlers.denying import Denying

DYNAMIC_TOPIC, DEFAULT = 1, 5


def create(broker, *topics, version=7, **options):
    """Create topics given as dicts; return the results by name."""
    whole = [{"num_partitions": 1, "replication_factor": 1, **topic} for topic in topics]
    answers = broker.request(CREATE_TOPICS, version, topics=whole, **options).topics
    return {answer.name: answer for answer in answers}


def delete(broker, *topics, version=6):
    """Delete topics by name (str) or id (bytes); return the results in response order."""
    if version < 6:
        return broker.request(DELETE_TOPICS, version, topic_names=list(topics)).responses
    asked = [
        {"name": topic} if isinstance(topic, str) else {"name": None, "topic_id": topic}
        for topic in topics
    ]
    return broker.request(DELETE_TOPICS, version, topics=asked).responses


def grow(broker, *topics, version=3, **options):
    """Grow topics given as (name, count) or (name, count, assignments); return codes by name."""
    asked = [
        {
            "name": name,
            "count": count,
            "assignments": [{"broker_ids": nodes} for nodes in more[0]] if more else None,
        }
        for name, count, *more in topics
    ]
    answers = broker.request(CREATE_PARTITIONS, version, topics=asked, **options).results
    return {answer.name: answer.error_code for answer in answers}


def names(broker):
    return set(broker.node.image.topics)


# -- CreateTopics --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_of_every_version_creates_a_writable_topic(broker, version):
    answer = create(broker, {"name": "a", "num_partitions": 3}, version=version)["a"]
    assert (answer.error_code, answer.error_message) == (0, None)
    broker.append("a", [1], partition=2)
    if version >= 5:
        assert (answer.num_partitions, answer.replication_factor) == (3, 1)
    if version >= 7:
        assert answer.topic_id == broker.node.image.topics["a"].topic_id != NO_ID


def test_created_topic_survives_a_restart(broker):
    topic_id = broker.create("a", 2, retention_ms="60000")
    broker.append("a", [1], partition=1)
    broker.restart()
    topic = broker.node.image.topics["a"]
    assert (topic.topic_id, topic.config) == (topic_id, {"retention.ms": "60000"})
    assert broker.node.replicas.leader("a", 1).log.end_offset == 1


def test_created_topic_survives_a_kill(broker):
    topic_id = broker.create("a", 2)
    broker.append("a", [1, 2])
    after = broker.killed()
    assert after.node.image.topics["a"].topic_id == topic_id
    assert after.node.replicas.leader("a", 0).log.end_offset == 2
    after.close()


def test_create_topics_uses_broker_defaults(broker):
    broker.restart(**{"num.partitions": "4"})
    answer = create(broker, {"name": "a", "num_partitions": -1, "replication_factor": -1})["a"]
    assert (answer.num_partitions, answer.replication_factor) == (4, 1)


def test_create_topics_returns_configs_with_their_sources(broker):
    answer = create(
        broker, {"name": "a", "configs": [{"name": "segment.bytes", "value": "1048576"}]}
    )["a"]
    configs = {config.name: config for config in answer.configs}
    assert configs["segment.bytes"].value == "1048576"
    assert configs["segment.bytes"].config_source == DYNAMIC_TOPIC
    assert configs["retention.ms"].value == str(RETENTION_MS.default)
    assert configs["retention.ms"].config_source == DEFAULT


def test_create_topics_with_validate_only_creates_nothing(broker):
    answer = create(broker, {"name": "a"}, validate_only=True)["a"]
    assert answer.error_code == 0
    assert names(broker) == set()
    end_offset = broker.node.controller.log.end_offset
    create(broker, {"name": "a"}, validate_only=True)
    assert broker.node.controller.log.end_offset == end_offset


def test_create_topics_accepts_manual_assignments(broker):
    topic = {
        "name": "a",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": index, "broker_ids": [0]} for index in range(2)],
    }
    assert create(broker, topic)["a"].num_partitions == 2


def test_create_topics_error_of_one_topic_leaves_others(broker):
    answers = create(broker, {"name": "a b"}, {"name": "good"})
    assert answers["a b"].error_code == errors.InvalidTopicException.code
    assert names(broker) == {"good"}


@pytest.fixture(scope="module")
def two_topics(lasting):
    lasting.create("there")
    lasting.create("with.dots")
    return lasting


def by_hand(*nodes, **fields):
    return {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": 0, "broker_ids": list(nodes)}],
        **fields,
    }


def config(name, value):
    return {"configs": [{"name": name, "value": value}]}


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ({"name": "there"}, errors.TopicAlreadyExists),
        ({"name": ""}, errors.InvalidTopicException),
        ({"name": ".."}, errors.InvalidTopicException),
        ({"name": "a/../b"}, errors.InvalidTopicException),
        ({"name": "x" * 250}, errors.InvalidTopicException),
        ({"name": "x" * 32_767}, errors.InvalidTopicException),
        ({"name": "\0" * 32_767}, errors.InvalidTopicException),
        ({"name": "with_dots"}, errors.InvalidTopicException),
        ({"name": "__cluster_metadata"}, errors.InvalidRequest),
        ({"name": "__transaction_state"}, errors.InvalidRequest),
        ({"num_partitions": 0}, errors.InvalidPartitions),
        ({"num_partitions": -2}, errors.InvalidPartitions),
        ({"num_partitions": 2**31 - 1}, errors.PolicyViolation),
        ({"num_partitions": NEW_PARTITIONS_MAX + 1}, errors.PolicyViolation),
        ({"replication_factor": 0}, errors.InvalidReplicationFactor),
        ({"replication_factor": 2}, errors.InvalidReplicationFactor),
        (by_hand(0, num_partitions=1), errors.InvalidRequest),
        (by_hand(0, replication_factor=1), errors.InvalidRequest),
        (by_hand(1), errors.InvalidReplicaAssignment),
        (by_hand(0, 0), errors.InvalidReplicaAssignment),
        (by_hand(), errors.InvalidReplicaAssignment),
        (config("retention.ms", "for ever"), errors.InvalidConfig),
        (config("retention.ms", "-2"), errors.InvalidConfig),
        (config("retention.ms", None), errors.InvalidConfig),
        (config("retention", "1"), errors.InvalidConfig),
        (config("cleanup.policy", "keep"), errors.InvalidConfig),
        (
            {
                "configs": [
                    {"name": "min.compaction.lag.ms", "value": "10"},
                    {"name": "max.compaction.lag.ms", "value": "9"},
                ]
            },
            errors.InvalidConfig,
        ),
        (config("x" * 32_767, "1"), errors.InvalidConfig),
        (config("retention.ms", "\0" * 32_767), errors.InvalidConfig),
        (config("segment.bytes", "\U0001f600" * 8_000), errors.InvalidConfig),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, dict) else value.__name__,
)
@pytest.mark.parametrize("version", [2, 7])
def test_invalid_topic_is_refused_with_the_error_of_kafka(two_topics, topic, fault, version):
    topic = {"name": "a", **topic}
    answer = create(two_topics, topic, version=version)[topic["name"]]
    assert answer.error_code == fault.code
    assert answer.error_message
    assert names(two_topics) == {"there", "with.dots"}


def test_create_topics_refuses_a_repeated_topic(broker):
    answers = create(broker, {"name": "a"}, {"name": "a", "num_partitions": 2}, {"name": "b"})
    assert answers["a"].error_code == errors.InvalidRequest.code
    assert names(broker) == {"b"}


def test_create_topics_without_permission_returns_authorization_failed(broker):
    broker.node.authorizer = Denying(AclOperation.CREATE)
    assert create(broker, {"name": "a"})["a"].error_code == errors.TopicAuthorizationFailed.code
    assert names(broker) == set()


def test_create_topics_without_describe_configs_returns_no_configs(broker):
    broker.node.authorizer = Denying(AclOperation.DESCRIBE_CONFIGS)
    answer = create(broker, {"name": "a"})["a"]
    assert (answer.error_code, answer.configs) == (0, [])
    assert answer.topic_config_error_code == errors.TopicAuthorizationFailed.code


# -- DeleteTopics --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_of_every_version_deletes_by_name(broker, version):
    broker.create("a", 2)
    (answer,) = delete(broker, "a", version=version)
    assert (answer.name, answer.error_code) == ("a", 0)
    assert names(broker) == set()
    with pytest.raises(errors.UnknownTopicOrPartition):
        broker.node.replicas.leader("a", 0)


def test_delete_topics_by_id_returns_name_and_id(broker):
    topic_id = broker.create("a")
    (answer,) = delete(broker, topic_id)
    assert (answer.error_code, answer.name, answer.topic_id) == (0, "a", topic_id)


def test_deleted_topic_stays_deleted_and_a_new_one_has_another_id(broker):
    topic_id = broker.create("a")
    broker.append("a", [1])
    delete(broker, "a")
    broker.restart()
    assert names(broker) == set()
    assert broker.create("a") != topic_id
    assert broker.node.replicas.leader("a", 0).log.end_offset == 0


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ({"name": "gone"}, errors.UnknownTopicOrPartition),
        ({"name": None, "topic_id": b"?" * 16}, errors.UnknownTopicId),
        ({"name": None, "topic_id": NO_ID}, errors.InvalidRequest),
        ({"name": "there", "topic_id": b"?" * 16}, errors.InvalidRequest),
        ({"name": "__cluster_metadata"}, errors.UnknownTopicOrPartition),
        ({"name": "x" * 32_767}, errors.UnknownTopicOrPartition),
    ],
    ids=lambda value: repr(value)[:50] if isinstance(value, dict) else value.__name__,
)
def test_delete_topics_error_of_one_topic_leaves_others(broker, topic, fault):
    broker.create("there")
    broker.create("other")
    answers = broker.request(DELETE_TOPICS, 6, topics=[topic, {"name": "other"}]).responses
    assert [answer.error_code for answer in answers] == [fault.code, 0]
    assert answers[0].error_message
    assert names(broker) == {"there"}


def test_delete_topics_refuses_a_repeated_topic(broker):
    topic_id = broker.create("a")
    for twice in (("a", "a"), (topic_id, topic_id)):
        (answer,) = delete(broker, *twice)
        assert answer.error_code == errors.InvalidRequest.code
    assert names(broker) == {"a"}


def test_delete_topics_refuses_a_topic_given_by_name_and_id(broker):
    topic_id = broker.create("a")
    for twice in (("a", topic_id), (topic_id, "a")):
        (answer,) = delete(broker, *twice)
        assert answer.error_code == errors.InvalidRequest.code
        assert (answer.name, answer.topic_id) == ("a", topic_id)
    assert names(broker) == {"a"}


@pytest.mark.parametrize(
    ("version", "fault"),
    [(1, errors.InvalidRequest), (3, errors.TopicDeletionDisabled)],
)
def test_delete_topics_is_refused_if_disabled(broker, version, fault):
    broker.restart(**{"delete.topic.enable": "false"})
    broker.create("a")
    assert [answer.error_code for answer in delete(broker, "a", version=version)] == [fault.code]
    assert names(broker) == {"a"}


def test_delete_topics_by_id_without_describe_hides_the_name(broker):
    topic_id = broker.create("a")
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    (answer,) = delete(broker, topic_id)
    assert (answer.error_code, answer.name) == (errors.UnknownTopicId.code, None)
    (answer,) = delete(broker, "a")
    assert answer.error_code == errors.TopicAuthorizationFailed.code
    assert names(broker) == {"a"}


def test_delete_topics_without_permission_returns_authorization_failed(broker):
    topic_id = broker.create("a")
    broker.node.authorizer = Denying(AclOperation.DELETE)
    for topic in ("a", topic_id):
        (answer,) = delete(broker, topic)
        assert answer.error_code == errors.TopicAuthorizationFailed.code
    assert names(broker) == {"a"}


# -- CreatePartitions ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_of_every_version_grows_a_topic(broker, version):
    broker.create("a", 1)
    assert grow(broker, ("a", 3), version=version) == {"a": 0}
    broker.append("a", [1], partition=2)
    broker.restart()
    assert len(broker.node.image.topics["a"].partitions) == 3


def test_create_partitions_with_validate_only_changes_nothing(broker):
    broker.create("a", 1)
    assert grow(broker, ("a", 3), validate_only=True) == {"a": 0}
    assert len(broker.node.image.topics["a"].partitions) == 1


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        (("gone", 2), errors.UnknownTopicOrPartition),
        (("a", 2), errors.InvalidPartitions),
        (("a", 1), errors.InvalidPartitions),
        (("a", -1), errors.InvalidPartitions),
        (("a", 2**31 - 1), errors.PolicyViolation),
        (("a", 3, []), errors.InvalidReplicaAssignment),
        (("a", 3, [[7]]), errors.InvalidReplicaAssignment),
        (("a", 3, [[0, 0]]), errors.InvalidReplicaAssignment),
    ],
    ids=repr,
)
def test_invalid_create_partitions_is_refused(broker, asked, fault):
    broker.create("a", 2)
    assert grow(broker, asked) == {asked[0]: fault.code}
    assert len(broker.node.image.topics["a"].partitions) == 2


def test_create_partitions_refuses_a_repeated_topic(broker):
    broker.create("a")
    assert grow(broker, ("a", 2), ("a", 3)) == {"a": errors.InvalidRequest.code}


def test_create_partitions_without_permission_is_refused(broker):
    broker.create("a")
    broker.node.authorizer = Denying(AclOperation.ALTER)
    assert grow(broker, ("a", 2)) == {"a": errors.TopicAuthorizationFailed.code}


# -- log directories -----------------------------------------------------------------------------


def sizes(broker, wanted, version=5):
    """Return the size of each (topic, partition) in the one log directory."""
    (directory,) = broker.request(DESCRIBE_LOG_DIRS, version, topics=wanted).results
    assert directory.error_code == 0
    assert directory.log_dir == str(broker.directory)
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_describe_log_dirs_of_every_version_returns_log_sizes(broker, version):
    broker.create("a", 2)
    broker.append("a", [1, 2], partition=1)
    size = broker.node.replicas.leader("a", 1).log.size
    assert size > 0
    assert sizes(broker, None, version) == {("a", 0): 0, ("a", 1): size}
    (directory,) = broker.request(DESCRIBE_LOG_DIRS, version, topics=None).results
    for partition in directory.topics[0].partitions:
        assert (partition.offset_lag, partition.is_future_key) == (0, False)


def test_describe_log_dirs_returns_disk_size_from_version_4(broker):
    (before,) = broker.request(DESCRIBE_LOG_DIRS, 3, topics=[]).results
    (since,) = broker.request(DESCRIBE_LOG_DIRS, 4, topics=[]).results
    assert (before.total_bytes, before.usable_bytes) == (-1, -1)
    assert since.total_bytes == shutil.disk_usage(broker.directory).total
    assert 0 < since.usable_bytes < since.total_bytes


def test_describe_log_dirs_returns_only_requested_existing_logs(broker):
    broker.create("a", 3)
    broker.create("b")
    wanted = [
        {"topic": "a", "partitions": [2, 1, 9, -1]},
        {"topic": "b", "partitions": []},
        {"topic": "../a", "partitions": [0]},
        {"topic": "__cluster_metadata", "partitions": [0]},
    ]
    assert set(sizes(broker, wanted)) == {("a", 1), ("a", 2)}
    assert sizes(broker, []) == {}


@pytest.mark.parametrize(("version", "code"), [(2, 0), (3, errors.ClusterAuthorizationFailed.code)])
def test_describe_log_dirs_without_permission_returns_no_directory(broker, version, code):
    broker.node.authorizer = Denying(AclOperation.DESCRIBE)
    answer = broker.request(DESCRIBE_LOG_DIRS, version, topics=None)
    assert not answer.results
    assert (answer.error_code if version >= 3 else 0) == code


# -- elections -----------------------------------------------------------------------------------


def elected(broker, asked, version=2, **fields):
    """Elect leaders; return the code of each (topic, partition), and of the whole request."""
    wanted = asked and [{"topic": topic, "partitions": indexes} for topic, indexes in asked]
    answer = broker.request(ELECT_LEADERS, version, topic_partitions=wanted, **fields)
    codes = {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in answer.replica_election_results
        for partition in topic.partition_result
    }
    return codes, answer.error_code if version >= 1 else 0


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_of_led_partition_returns_election_not_needed(broker, version):
    broker.create("a", 2)
    codes, fault = elected(broker, [("a", [0, 1, 2, -1]), ("gone", [0]), ("../x", [0])], version)
    not_needed, unknown = errors.ElectionNotNeeded.code, errors.UnknownTopicOrPartition.code
    assert fault == 0
    assert codes == {
        ("a", 0): not_needed, ("a", 1): not_needed, ("a", 2): unknown, ("a", -1): unknown,
        ("gone", 0): unknown, ("../x", 0): unknown,
    }  # fmt: skip


def test_elect_leaders_of_all_returns_partitions_without_leader(broker):
    topic_id = broker.create("a", 2)
    assert elected(broker, None) == ({}, 0)
    fault = errors.KafkaStorageError()
    broker.node.replicas.remove(broker.node.replicas.leader("a", 1))
    broker.node.replicas.take_offline("a", topic_id, 1, fault)
    preferred, eligible = errors.PreferredLeaderNotAvailable, errors.EligibleLeadersNotAvailable
    assert elected(broker, None) == ({("a", 1): preferred.code}, 0)
    assert elected(broker, None, election_type=1) == ({("a", 1): eligible.code}, 0)


def test_elect_leaders_of_unknown_type_or_without_permission_is_refused(broker):
    broker.create("a")
    invalid, denied = errors.InvalidRequest.code, errors.ClusterAuthorizationFailed.code
    asked = [("a", [0])]
    assert elected(broker, asked, election_type=2) == ({("a", 0): invalid}, invalid)
    broker.node.authorizer = Denying(AclOperation.ALTER)
    assert elected(broker, asked, version=0) == ({("a", 0): denied}, 0)
    assert elected(broker, None) == ({}, denied)


# -- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def full(broker):
    """Return a node with the topic `a`, whose disk is full."""
    broker.create("a")
    space = broker.node.controller.log._space
    space.kept_free, space.room = 1 << 60, 0
    return broker


def test_topic_requests_on_a_full_disk_change_nothing(full):
    code = errors.KafkaStorageError.code
    assert create(full, {"name": "b"}, {"name": "c"})["c"].error_code == code
    assert [answer.error_code for answer in delete(full, "a", "gone")] == [
        errors.UnknownTopicOrPartition.code,
        code,
    ]
    assert grow(full, ("a", 2)) == {"a": code}
    asked = full.request(METADATA, 12, topics=[{"name": "new"}, {"name": "a"}])
    assert [topic.error_code for topic in asked.topics] == [code, 0]
    assert names(full) == {"a"}


def test_create_topics_succeeds_when_the_disk_has_space_again(full):
    assert create(full, {"name": "b"})["b"].error_code == errors.KafkaStorageError.code
    full.node.controller.log._space.kept_free = 0
    assert create(full, {"name": "b"})["b"].error_code == 0


def test_delete_topics_succeeds_on_a_disk_too_full_for_records(broker):
    broker.restart(**{"storage.min.free.bytes": str(1 << 60)})
    broker.create("a")
    with pytest.raises(errors.KafkaStorageError):
        broker.append("a", [1])
    assert [answer.error_code for answer in delete(broker, "a")] == [0]


def test_topic_ids_never_begin_with_a_dash():
    texts = {base64.urlsafe_b64encode(new_id()) for _ in range(500)}
    assert len(texts) == 500
    assert not [text for text in texts if text.startswith(b"-")]
