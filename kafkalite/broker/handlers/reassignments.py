"""Replica reassignment by clients.

AlterPartitionReassignments   v0–v1
ListPartitionReassignments    v0
AlterReplicaLogDirs           v1–v2

A reassignment to the current replicas changes nothing and succeeds, as in Kafka.  For a partition
with one replica while there are workers, so does one to node 0, which stands for any worker as in
CreateTopics.  `kafkalite node` moves such a partition, with its directory, to another node.  A node
has one log directory, so each replica is already in the only one possible.

Left out: reassignment to other replicas at a client's request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import entry_responses
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_NAME, DESCRIBE
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.errors import (
    InvalidReplicaAssignment,
    LogDirNotFound,
    NoReassignmentInProgress,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    LIST_PARTITION_REASSIGNMENTS,
)
from kafkalite.storage.manager.log_manager import LogManager


class ReassignmentsNode(HandlerNode, Protocol):
    """The components that reassignment requests use."""

    logs: LogManager


@serves(ALTER_PARTITION_REASSIGNMENTS, versions="0-1", at=ServingNode.CONTROLLER)
def alter_partition_reassignments(
    node: ReassignmentsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Accept assignments that change nothing, and refuse the others."""
    client.must(ALTER, CLUSTER, CLUSTER_NAME)

    def respond(name: str, entry: Any) -> Response:
        topic = node.image.topics.get(name)
        image = topic.partitions.get(entry.partition_index) if topic is not None else None
        if image is None:
            raise UnknownTopicOrPartition()
        if entry.replicas is None:
            raise NoReassignmentInProgress()
        _check_unchanged(f"{name}-{entry.partition_index}", image, entry.replicas)
        return {"error_message": None}

    responses: list[Response] = []
    for topic in request.topics:
        partitions: list[Response] = []
        responses.append({"name": topic.name, "partitions": partitions})
        for entry in topic.partitions:
            partitions += entry_responses([entry], "partition_index", partial(respond, topic.name))
            yield
        yield
    return {
        "allow_replication_factor_change": getattr(
            request, "allow_replication_factor_change", True
        ),
        "error_message": None,
        "responses": responses,
    }


def _check_unchanged(name: str, partition: PartitionImage, target: Sequence[int]) -> None:
    """Raise InvalidReplicaAssignment if a partition is to have other replicas."""
    if tuple(target) == partition.replicas:
        return
    if partition.is_replicated:
        raise InvalidReplicaAssignment(
            f"Partition {name} has replicas on brokers {[*partition.replicas]}; a reassignment to"
            " others is not supported in this version."
        )
    if [*target] != [SUPERVISOR_ID]:
        accepted = f"[{partition.leader}]"
        if partition.leader != SUPERVISOR_ID:
            accepted += f", or [{SUPERVISOR_ID}] for any broker"
        raise InvalidReplicaAssignment(
            f"Partition {name} has one replica, on broker {partition.leader}: its replicas can be"
            f" {accepted}. To move it, use `kafkalite node`."
        )


@serves(LIST_PARTITION_REASSIGNMENTS, versions="0", at=ServingNode.CONTROLLER)
def list_partition_reassignments(
    node: ReassignmentsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return the reassignments in progress: all, or those of the requested partitions."""
    client.must(DESCRIBE, CLUSTER, CLUSTER_NAME)
    wanted: list[tuple[str, Sequence[int] | None]]
    if request.topics is None:
        wanted = [(name, None) for name in node.image.topics]
    else:
        wanted = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics: list[Response] = []
    for name, indexes in wanted:
        topic = node.image.topics.get(name)
        known = topic.partitions if topic is not None else {}
        partitions: list[Response] = []
        for index in dict.fromkeys([*known] if indexes is None else indexes):
            partition = known.get(index)
            if partition is not None and (partition.adding or partition.removing):
                partitions.append(
                    {
                        "partition_index": index,
                        "replicas": partition.replicas,
                        "adding_replicas": partition.adding,
                        "removing_replicas": partition.removing,
                    }
                )
            yield
        if partitions:
            topics.append({"name": name, "partitions": partitions})
        yield
    return {"error_message": None, "topics": topics}


@serves(ALTER_REPLICA_LOG_DIRS, versions="1-2", at=ServingNode.ANY)
def alter_replica_log_dirs(
    node: ReassignmentsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Accept this node's log directory for the replicas that are in it."""
    own_directory = str(node.logs.data)
    results: dict[str, list[Response]] = {}

    def respond(path: str, name: str, index: int) -> Response:
        client.must(ALTER, CLUSTER, CLUSTER_NAME)
        if path != own_directory:
            raise LogDirNotFound()
        if (name, index) not in node.logs.logs:
            raise ReplicaNotAvailable()
        return {}

    for directory in request.dirs:
        for topic in directory.topics:
            responses = results.setdefault(topic.name, [])
            respond_to = partial(respond, directory.path, topic.name)
            for index in topic.partitions:
                responses += entry_responses([index], "partition_index", respond_to, messages=False)
                yield
            yield
        yield
    return {
        "results": [
            {"topic_name": name, "partitions": responses} for name, responses in results.items()
        ]
    }
