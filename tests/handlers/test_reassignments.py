"""Partition reassignments, with one replica of each partition on one host."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafkalite import errors
from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.handlers.reassignments import alter_partition_reassignments
from kafkalite.broker.security import Authorizer
from kafkalite.coordination.topics import NewTopic
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    LIST_PARTITION_REASSIGNMENTS,
)
from tests.coordination.factories import cluster_of, create


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


@pytest.mark.parametrize(
    ("workers", "replicas", "accepted"),
    [
        (0, [1], "can be [0]. "),
        (2, [0], None),
        (2, [1], None),
        (2, [2], "can be [1], or [0] for any broker. "),
        (2, [7], "can be [1], or [0] for any broker. "),
        (2, [0, 1], "can be [1], or [0] for any broker. "),
        (2, [], "can be [1], or [0] for any broker. "),
    ],
)
def test_reassignment_to_node_0_means_any_worker(workers, replicas, accepted):
    controller = cluster_of(workers)
    create(controller, NewTopic("a", assignments=[(0, [min(workers, 1)])]))
    request = ALTER_PARTITION_REASSIGNMENTS.request.read(
        1,
        ALTER_PARTITION_REASSIGNMENTS.request.write(
            1,
            {
                "topics": [
                    {"name": "a", "partitions": [{"partition_index": 0, "replicas": replicas}]}
                ]
            },
        ),
    )
    node = SimpleNamespace(image=controller.image)
    work = alter_partition_reassignments(node, request, ClientContext(Authorizer(), version=1))
    answer = result_of(work)
    (told,) = answer["responses"][0]["partitions"]
    assert told.get("error_code", 0) == (errors.InvalidReplicaAssignment.code if accepted else 0)
    assert (accepted or "") in (told["error_message"] or "")


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


def result_of(work):
    """Return the response of a handler that is a generator."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value
