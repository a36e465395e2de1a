"""Partition reassignments, with one replica of each partition on one host."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    LIST_PARTITION_REASSIGNMENTS,
)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("topic", "replicas", "code"),
    [
        ("a", [0], 0),
        ("a", [1], errors.InvalidReplicaAssignment.code),
        ("a", [0, 1], errors.InvalidReplicaAssignment.code),
        ("a", None, errors.NoReassignmentInProgress.code),
        ("b", [0], errors.UnknownTopicOrPartition.code),
    ],
)
def test_reassignment_succeeds_only_to_the_current_replica(broker, version, topic, replicas, code):
    broker.create("a")
    asked = {"name": topic, "partitions": [{"partition_index": 0, "replicas": replicas}]}
    answer = broker.request(ALTER_PARTITION_REASSIGNMENTS, version, timeout_ms=1, topics=[asked])
    assert answer.error_code == 0
    assert answer.responses[0].partitions[0].error_code == code


def test_list_reassignments_returns_none(broker):
    answer = broker.request(LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=1, topics=None)
    assert (answer.error_code, answer.topics) == (0, [])


@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs_accepts_only_the_current_directory(broker, version):
    broker.create("a")

    def code(path, topic):
        asked = {"path": path, "topics": [{"name": topic, "partitions": [0]}]}
        (result,) = broker.request(ALTER_REPLICA_LOG_DIRS, version, dirs=[asked]).results
        return result.partitions[0].error_code

    here = str(broker.node.logs.data)
    assert code(here, "a") == 0
    assert code(here, "b") == errors.ReplicaNotAvailable.code
    assert code("/elsewhere", "a") == errors.LogDirNotFound.code
