"""Topics: creation, deletion, partition counts, log directories and leader elections.

CreateTopics       v2–v7   v5 returns the effective configs, v7 the topic's id
DeleteTopics       v1–v6   v6 accepts topic ids as well
CreatePartitions   v0–v3
DescribeLogDirs    v1–v5   v3 has a top-level error, v4 the size of the disk (KIP-827)
ElectLeaders       v0–v2   v1 distinguishes preferred from unclean elections (KIP-460)

Each topic of a request succeeds or fails on its own.  A response is sent once the changes are on
the disk, so `timeout_ms` is not needed and is ignored.

ElectLeaders elects the leaders of partitions with several replicas.  Of one with one replica the
leader is the preferred one or there is none, and no election is possible: the response reports
which of the two applies.  Each node describes the directory of its own logs, without the metadata
log, as in Kafka.

Left out: future replicas, since a node has one log directory; cordoned directories; the offset lag
of a follower's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.controller import topic_creation
from kafkalite.broker.controller.controller_client import ControllerClient
from kafkalite.broker.controller.decisions import DecisionSequence
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.node_settings import placement_limits
from kafkalite.broker.replica.node_replication import NodeReplication
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import (
    ALTER,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    TOPIC,
)
from kafkalite.broker.served_apis import EncodedResponse, Response, ServingNode, serves
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.config.broker import (
    DELETE_TOPIC_ENABLE,
)
from kafkalite.config.settings import value_text
from kafkalite.config.topic import TOPIC as TOPIC_SCOPE
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.replication.election import ElectionType
from kafkalite.coordination.replication.partition_change import PartitionRules
from kafkalite.coordination.topics import NewTopic, PartitionGrowth
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    KafkaError,
    PreferredLeaderNotAvailable,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.ids import METADATA_TOPIC, NO_ID
from kafkalite.protocol.schemas.topics import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    CREATED_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
)
from kafkalite.storage.manager.log_manager import LogManager

PREFERRED, UNCLEAN = 0, 1
ELECTION_TYPES = {PREFERRED: ElectionType.PREFERRED, UNCLEAN: ElectionType.UNCLEAN}

TopicPartition = tuple[str, int]
"""The name of a topic and the index of a partition."""


class TopicsNode(HandlerNode, Protocol):
    """The components that topic requests use."""

    controller: ControllerClient
    logs: LogManager
    replicas: ReplicaManager
    replication: NodeReplication

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node."""


# -- CreateTopics --------------------------------------------------------------------------------


@serves(CREATE_TOPICS, versions="2-7", at=ServingNode.CONTROLLER, is_cancellable=False)
def create_topics(
    node: TopicsNode, request: Any, client: ClientContext
) -> Work[Future[EncodedResponse]]:
    """Create topics; with `validate_only`, only validate."""
    names = [topic.name for topic in request.topics]
    errors: dict[str, KafkaError] = _repeated(names)
    for name in names:
        if not (client.may(CREATE, CLUSTER, CLUSTER_NAME) or client.may(CREATE, TOPIC, name)):
            errors.setdefault(name, TopicAuthorizationFailed())
            yield
    wanted = []
    for topic in request.topics:
        if topic.name not in errors:
            wanted.append(_new_topic(topic))
            yield
    results = CreatedTopics(node, client)
    for name, error in errors.items():
        results.add({name: error})
        yield
    return topic_creation.create_topics(
        node.local_controller,
        node.settings,
        wanted,
        validate_only=request.validate_only,
        on_created=results.add,
    ).map(lambda _: results.encoded(names))


class CreatedTopics:
    """The response to one CreateTopics, encoded as the controller decides on its topics."""

    def __init__(self, node: TopicsNode, client: ClientContext) -> None:
        self._node = node
        self._client = client
        self._results: dict[str, bytes] = {}
        self._errors: list[Response] = []
        self._shared_configs: dict[tuple[tuple[str, str], ...], list[Response]] = {}

    def add(self, outcomes: Mapping[str, TopicImage | KafkaError]) -> None:
        """Encode the results of some topics."""
        for name, topic in outcomes.items():
            result = self._result(name, topic)
            if result.get("error_code"):
                self._errors.append(result)
            self._results[name] = CREATED_TOPICS.write_element(self._client.version, result)

    def encoded(self, names: Iterable[str]) -> EncodedResponse:
        """Return the whole response, in the order of the request."""
        results = [self._results[name] for name in dict.fromkeys(names)]
        errors: Response = {"topics": self._errors}
        return EncodedResponse(CREATED_TOPICS.write(self._client.version, results), errors)

    def _result(self, name: str, outcome: TopicImage | KafkaError) -> Response:
        if isinstance(outcome, KafkaError):
            return {"name": name, **error_fields(outcome)}
        response: Response = {"name": name, "topic_id": outcome.topic_id, "error_message": None}
        if not self._client.may(DESCRIBE_CONFIGS, TOPIC, name):
            return {**response, "topic_config_error_code": TopicAuthorizationFailed.code}
        return {
            **response,
            "num_partitions": len(outcome.partitions),
            "replication_factor": outcome.replication_factor,
            "configs": self._configs(outcome.config),
        }

    def _configs(self, overrides: Mapping[str, str]) -> list[Response]:
        """Return a topic's configs with their sources; topics with equal overrides share them."""
        overrides_key = tuple(overrides.items())
        if overrides_key not in self._shared_configs:
            settings = self._node.metadata.settings_of(overrides)
            self._shared_configs[overrides_key] = [
                {
                    "name": key.name,
                    "value": value_text(key, settings[key]),
                    "read_only": not key.dynamic,
                    "config_source": settings.source(key),
                    "is_sensitive": key.sensitive,
                }
                for key in TOPIC_SCOPE.values()
            ]
        return self._shared_configs[overrides_key]


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assigned.partition_index, assigned.broker_ids) for assigned in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


# -- DeleteTopics --------------------------------------------------------------------------------


@serves(DELETE_TOPICS, versions="1-6", at=ServingNode.CONTROLLER, is_cancellable=False)
def delete_topics(
    node: TopicsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Delete topics by name or, from version 6 on, by id."""
    wanted = _requested(request, client.version)
    responses: list[Response] = []
    if not node.settings[DELETE_TOPIC_ENABLE]:
        # Clients before version 3 do not know TOPIC_DELETION_DISABLED.
        error = TopicDeletionDisabled() if client.version >= 3 else InvalidRequest()
        for name, topic_id in wanted:
            responses.append(_deletion_result(name, topic_id, error))
            yield
        return {"responses": responses}
    found = yield from _to_delete(node, client, wanted, responses)
    ids = {name: topic_id for topic_id, name in found.items()}

    def on_decided(outcomes: Mapping[str, None | KafkaError]) -> None:
        responses.extend(
            _deletion_result(name, ids[name], error) for name, error in outcomes.items()
        )

    return (
        DecisionSequence(
            node.local_controller,
            [*found.items()],
            lambda controller, some: controller.delete_topics(dict(some)),
            name_of=lambda item: item[1],
            on_decided=on_decided,
        )
        .begin()
        .map(lambda _: {"responses": responses})
    )


def _requested(request: Any, version: int) -> list[tuple[str | None, bytes]]:
    if version >= 6:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, NO_ID) for name in request.topic_names]


def _to_delete(
    node: TopicsNode,
    client: ClientContext,
    wanted: Sequence[tuple[str | None, bytes]],
    failed: list[Response],
) -> Work[dict[bytes, str]]:
    """Return the topics to delete, name by id; append the errors of the others to `failed`."""
    topics: list[TopicImage] = []
    repeated = _repeated(wanted)
    for name, topic_id in dict.fromkeys(wanted):
        try:
            if (name, topic_id) in repeated:
                raise repeated[name, topic_id].copy()
            topics.append(_topic_to_delete(node, client, name, topic_id))
        except KafkaError as error:
            failed.append(_deletion_result(name, topic_id, error))
        yield
    names = {topic.topic_id: topic.name for topic in topics}
    for topic_id, repetition in _repeated(topic.topic_id for topic in topics).items():
        # Named once by name and once by id.
        failed.append(_deletion_result(names.pop(topic_id), topic_id, repetition))
        yield
    return names


def _topic_to_delete(
    node: TopicsNode, client: ClientContext, name: str | None, topic_id: bytes
) -> TopicImage:
    """Return the topic by name or id if the principal may delete it; hide it without DESCRIBE."""
    if name is None and topic_id == NO_ID:
        raise InvalidRequest("A topic to delete has neither a name nor an id.")
    if name is not None and topic_id != NO_ID:
        raise InvalidRequest("A topic to delete has both a name and an id; send one of them.")
    if name is None:
        topic = node.image.topic_by_id(topic_id)
        if not client.may(DESCRIBE, TOPIC, topic.name):
            raise UnknownTopicId()
        client.must(DELETE, TOPIC, topic.name)
        return topic
    client.must(DESCRIBE, TOPIC, name)
    client.must(DELETE, TOPIC, name)
    return node.image.topic(name)


def _deletion_result(name: str | None, topic_id: bytes, error: KafkaError | None) -> Response:
    response: Response = {"name": name, "topic_id": topic_id}
    return response if error is None else {**response, **error_fields(error)}


# -- CreatePartitions ----------------------------------------------------------------------------


@serves(CREATE_PARTITIONS, versions="0-3", at=ServingNode.CONTROLLER, is_cancellable=False)
def create_partitions(
    node: TopicsNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Increase the partition counts of topics; with `validate_only`, only validate."""
    names = [topic.name for topic in request.topics]
    errors: dict[str, KafkaError] = _repeated(names)
    for name in names:
        if not client.may(ALTER, TOPIC, name):
            errors.setdefault(name, TopicAuthorizationFailed())
            yield
    wanted = []
    for topic in request.topics:
        if topic.name not in errors:
            wanted.append(_new_partitions(topic))
            yield
    results: dict[str, Response] = {}
    for name, error in errors.items():
        results[name] = {"name": name, **error_fields(error)}
        yield

    def on_decided(grown: Mapping[str, None | KafkaError]) -> None:
        for name, error in grown.items():
            results[name] = {"name": name, **_result_fields(error)}

    added_count = 0

    def decide(
        controller: Controller, some: Sequence[PartitionGrowth]
    ) -> DecisionResult[dict[str, None | KafkaError]]:
        nonlocal added_count
        topics = controller.image.topics
        present = {name: len(topics[name].partitions) for name, *_ in some if name in topics}
        decision = controller.create_partitions(
            some,
            limits=placement_limits(node.settings),
            validate_only=request.validate_only,
            created_count=added_count,
        )
        added_count += sum(
            growth.partition_count - present[growth.name]
            for growth in some
            if decision.response[growth.name] is None
        )
        return decision

    return (
        DecisionSequence(
            node.local_controller,
            wanted,
            decide,
            name_of=lambda growth: growth.name,
            on_decided=on_decided,
        )
        .begin()
        .map(lambda _: {"results": [results[name] for name in dict.fromkeys(names)]})
    )


def _new_partitions(topic: Any) -> PartitionGrowth:
    assignments = topic.assignments
    if assignments is not None:
        assignments = [assigned.broker_ids for assigned in assignments]
    return PartitionGrowth(topic.name, topic.count, assignments)


def _result_fields(error: KafkaError | None) -> Response:
    return {"error_code": 0} if error is None else error_fields(error)


def _repeated(names: Iterable[Any]) -> dict[Any, KafkaError]:
    """Return an InvalidRequest for each name that a request has more than once."""
    return {
        name: InvalidRequest("The request has this topic more than once.")
        for name, times in Counter(names).items()
        if times > 1
    }


# -- DescribeLogDirs -----------------------------------------------------------------------------


@serves(DESCRIBE_LOG_DIRS, versions="1-5", at=ServingNode.ANY)
def describe_log_dirs(node: TopicsNode, request: Any, client: ClientContext) -> Work[Response]:
    """Describe this node's log directory and the sizes of the requested logs in it.

    Null requests all logs; requested partitions that are not on this node are left out of the
    response.
    """
    if not client.may(DESCRIBE, CLUSTER, CLUSTER_NAME):
        return {"error_code": ClusterAuthorizationFailed.code}
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    topics: dict[str, list[Response]] = {}
    for (name, index), log in sorted(node.logs.logs.items()):
        if name != METADATA_TOPIC and (wanted is None or (name, index) in wanted):
            topics.setdefault(name, []).append(
                {
                    "partition_index": index,
                    "partition_size": log.size,
                    "offset_lag": node.replication.followed.lag_of(log.topic_id, index),
                }
            )
        yield
    total, usable = node.logs.disk_size()
    directory = {
        "log_dir": str(node.logs.own_directory),
        "topics": [{"name": name, "partitions": logs} for name, logs in topics.items()],
        "total_bytes": total,
        "usable_bytes": usable,
    }
    return {"results": [directory]}


# -- ElectLeaders --------------------------------------------------------------------------------


@serves(ELECT_LEADERS, versions="0-2", at=ServingNode.CONTROLLER)
def elect_leaders(
    node: TopicsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Elect leaders; return for each partition why an election is not needed or not possible.

    Null requests all partitions; then those that need no election are omitted.
    """
    requested = request.topic_partitions
    try:
        client.must(ALTER, CLUSTER, CLUSTER_NAME)
        if request.election_type not in ELECTION_TYPES:
            raise InvalidRequest(f"Unsupported election type {request.election_type}.")
    except KafkaError as error:
        failed = error_fields(error)
        # Version 0 has an error field in the partitions only.
        return {
            "error_code": error.code,
            "replica_election_results": [
                _election_results(topic.topic, dict.fromkeys(topic.partitions, failed))
                for topic in requested or ()
            ],
        }
    every = requested is None
    wanted = [(name, [*topic.partitions]) for name, topic in node.image.topics.items()]
    if not every:
        wanted = [(topic.topic, topic.partitions) for topic in requested]
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    to_elect = yield from _replicated(node, wanted)

    def results() -> Work[Response]:
        responses: list[Response] = []
        for name, indexes in wanted:
            errors: dict[int, Response] = {}
            for index in indexes:
                if (name, index) in to_elect:
                    error = outcomes[name, index]
                else:
                    error = _election(node, name, index, request.election_type)
                if not (every and isinstance(error, ElectionNotNeeded)):
                    errors[index] = _result_fields(error)
                yield
            responses.append(_election_results(name, errors))
            yield
        return {"replica_election_results": responses}

    if not to_elect:
        return (yield from results())
    response: Future[Response] = Future()
    DecisionSequence(
        node.local_controller,
        [*to_elect],
        partial(_decide_elections, node, ELECTION_TYPES[request.election_type]),
        name_of=lambda partition: partition,
        on_decided=outcomes.update,
    ).begin().then(lambda *_: response.follow(in_steps(node.reactor, results())))
    return response


def _replicated(
    node: TopicsNode, wanted: Iterable[tuple[str, Iterable[int]]]
) -> Work[dict[TopicPartition, None]]:
    """Return the partitions that have several replicas."""
    found: dict[TopicPartition, None] = {}
    for name, indexes in wanted:
        topic = node.image.topics.get(name)
        for index in indexes:
            partition = topic.partitions.get(index) if topic is not None else None
            if partition is not None and partition.is_replicated:
                found[name, index] = None
            yield
        yield
    return found


def _decide_elections(
    node: TopicsNode,
    kind: ElectionType,
    controller: Controller,
    partitions: Sequence[TopicPartition],
) -> DecisionResult[dict[TopicPartition, None | KafkaError]]:
    wanted: dict[str, list[int]] = {}
    for name, index in partitions:
        wanted.setdefault(name, []).append(index)
    decision = controller.elect_leaders(
        kind,
        wanted,
        lambda topic: PartitionRules.of(node.metadata.settings_of(topic.config)),
    )
    outcomes = {(each.topic, each.partition): each.error for each in decision.response}
    return DecisionResult(outcomes, decision.records)


def _election(node: TopicsNode, name: str, index: int, election_type: int) -> KafkaError:
    """Return the error that explains why no leader is elected for this partition."""
    topic = node.image.topics.get(name)
    if topic is None:
        return UnknownTopicOrPartition(f"Topic {name} does not exist.")
    partition = topic.partitions.get(index)
    if partition is None:
        return UnknownTopicOrPartition(f"Partition {name}-{index} does not exist.")
    leader = node.image.nodes.get(partition.leader)
    if leader is not None and leader.port and not node.replicas.is_offline(name, index):
        return ElectionNotNeeded()
    if election_type == PREFERRED:
        return PreferredLeaderNotAvailable()
    return EligibleLeadersNotAvailable()


def _election_results(name: str, partitions: dict[int, Response]) -> Response:
    return {
        "topic": name,
        "partition_result": [{"partition_id": i, **response} for i, response in partitions.items()],
    }
