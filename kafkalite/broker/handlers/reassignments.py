"""Replica reassignment by clients.

AlterPartitionReassignments   v0–v1
ListPartitionReassignments    v0
AlterReplicaLogDirs           v1–v2

The controller decides (coordination/replication/reassignment.py).  A reassignment to the current
replicas changes nothing and succeeds, as in Kafka.  For a partition with one replica while there
are workers, so does one to node 0, which stands for any worker as in CreateTopics.

AlterReplicaLogDirs moves nothing: a node has one log directory, in which its replicas are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller.decisions import DecisionSequence
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.error_responses import entry_responses, outcome_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.security import ALTER, CLUSTER, CLUSTER_NAME, DESCRIBE
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import SUPERVISOR_ID, TopicImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.replication.partition_change import PartitionRules
from kafkalite.coordination.replication.reassignment import TopicPartition, reassign_all
from kafkalite.errors import KafkaError, LogDirNotFound, ReplicaNotAvailable
from kafkalite.protocol.schemas.topics import (
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    LIST_PARTITION_REASSIGNMENTS,
)
from kafkalite.storage.manager.log_manager import LogManager


class ReassignmentsNode(HandlerNode, Protocol):
    """The components that reassignment requests use."""

    logs: LogManager

    @property
    def local_controller(self) -> LocalController:
        """The controller, at its node only."""

    def partition_rules(self, topic: TopicImage) -> PartitionRules:
        """Return the settings of a topic that decisions about its partitions depend on."""


@serves(ALTER_PARTITION_REASSIGNMENTS, versions="0-1", at=ServingNode.CONTROLLER)
def alter_partition_reassignments(
    node: ReassignmentsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Begin, replace and cancel reassignments."""
    client.must(ALTER, CLUSTER, CLUSTER_NAME)
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    targets: dict[TopicPartition, Sequence[int] | None] = {}
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    left: dict[TopicPartition, None] = {}
    for topic in request.topics:
        for entry in topic.partitions:
            name = topic.name, entry.partition_index
            targets[name] = entry.replicas
            if _changes_nothing(node, name, entry.replicas):
                outcomes[name] = None
                left.pop(name, None)
            else:
                outcomes.pop(name, None)
                left[name] = None
            yield
        yield
    responses = _responses(request, outcomes, may_change_factor)
    if not left:
        return (yield from responses)
    decisions = DecisionSequence(
        node.local_controller,
        [*left],
        partial(_decide, node, targets, may_change_factor),
        name_of=lambda partition: partition,
        on_decided=outcomes.update,
    )
    responded: Future[Response] = Future()

    def respond(_: object, error: KafkaError | None) -> None:
        if error is not None:
            responded.fail(error)
        else:
            responded.follow(in_steps(node.reactor, responses))

    decisions.begin().then(respond)
    return responded


def _responses(
    request: Any, outcomes: Mapping[TopicPartition, KafkaError | None], may_change_factor: bool
) -> Work[Response]:
    responses = []
    for topic in request.topics:
        partitions = []
        for entry in topic.partitions:
            outcome = outcome_fields(outcomes[topic.name, entry.partition_index])
            partitions.append({"partition_index": entry.partition_index, **outcome})
            yield
        responses.append({"name": topic.name, "partitions": partitions})
        yield
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_message": None,
        "responses": responses,
    }


def _decide(
    node: ReassignmentsNode,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    may_change_factor: bool,
    controller: Controller,
    partitions: Sequence[TopicPartition],
) -> DecisionResult[dict[TopicPartition, None | KafkaError]]:
    wanted = {partition: targets[partition] for partition in partitions}
    return reassign_all(
        controller.image, wanted, node.partition_rules, may_change_factor=may_change_factor
    )


def _changes_nothing(
    node: ReassignmentsNode, name: TopicPartition, target: Sequence[int] | None
) -> bool:
    """Return whether a partition has these replicas, or one, which node 0 stands for."""
    topic = node.image.topics.get(name[0])
    partition = topic.partitions.get(name[1]) if topic is not None else None
    if partition is None or target is None or partition.is_reassigned:
        return False
    replicas = tuple(target)
    return replicas == partition.replicas or (partition.is_alone and replicas == (SUPERVISOR_ID,))


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
            if partition is not None and partition.is_reassigned:
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
    """Accept this node's log directory for the replicas that are in it.

    A node keeps its logs in one directory: a replica moves to another one by a reassignment to a
    node there.
    """
    own_directory = str(node.logs.own_directory)
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
