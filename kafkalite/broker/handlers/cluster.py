"""Cluster metadata: API versions, nodes, topics, partition leaders and the quorum.

ApiVersions               v0–v5    v3 names the client; v5 names the intended node (KIP-1242)
Metadata                  v0–v13   v4 may create topics, v12 looks topics up by id
DescribeCluster           v0–v2
DescribeTopicPartitions   v0       in the order of names, in pages (KIP-966)
DescribeQuorum            v0–v2    v1 has a voter's last fetch time, v2 its listeners

A node reports its own address as the one the client connected to, and other nodes at the same host
with their ports, unless advertised.listeners is set.  A topic that Metadata creates is included in
the same response; Kafka responds with UNKNOWN_TOPIC_OR_PARTITION first and lets the client retry.

The features are those of coordination/features.py.  The epoch of the finalized ones is the offset
of the image, so it grows, and is the same at all nodes that have the same image.

A replica is offline if its node is fenced, has no listener, or is this node and cannot read the
log.  The only replica of a partition is not offline while its node is fenced: no other could lead,
and the node is restarted within a second.

Left out: node lists without fenced nodes, whose listeners stay open; REBOOTSTRAP_REQUIRED at the
top of Metadata v13 (a node cannot know that its cluster was replaced).  Node 0 is the only voter of
the quorum; the workers read the metadata log's files, do not fetch, and so are not observers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.client_telemetry import ClientTelemetry
from kafkalite.broker.error_responses import error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handlers import telemetry
from kafkalite.broker.handlers.topics import TopicsNode
from kafkalite.broker.security import CLUSTER, CLUSTER_NAME, CREATE, DESCRIBE, TOPIC
from kafkalite.broker.served_apis import SERVED, EncodedResponse, Response, ServingNode, serves
from kafkalite.broker.stepping import ENTRIES_AT_ONCE, PAUSE, Work, in_steps
from kafkalite.config.broker import AUTO_CREATE_TOPICS_ENABLE, MAX_REQUEST_PARTITION_SIZE_LIMIT
from kafkalite.coordination import topic_names
from kafkalite.coordination.features import SUPPORTED_LEVELS, finalized_levels, is_finalized
from kafkalite.coordination.image import TopicImage
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage
from kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    MismatchedEndpointType,
    RebootstrapRequired,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedEndpointType,
    UnsupportedVersion,
)
from kafkalite.ids import METADATA_TOPIC, NO_ID
from kafkalite.protocol.schemas.cluster import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    METADATA_TOPICS,
)
from kafkalite.protocol.schemas.produce import PRODUCE

BROKERS, CONTROLLERS = 1, 2
FEATURES_FROM_0_SINCE = 4
"""The version of ApiVersions since which a supported feature may have minimum 0."""
LISTENER_NAME = "PLAINTEXT"
SOFTWARE = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


class ClusterNode(TopicsNode, Protocol):
    """The components that cluster requests use; Metadata may create topics."""

    cluster_id: str
    telemetry: ClientTelemetry


# -- ApiVersions ---------------------------------------------------------------------------------


@serves(API_VERSIONS, versions="0-5", at=ServingNode.ANY)
def api_versions(node: ClusterNode, request: Any, client: ClientContext) -> Response:
    """Return the served APIs and their versions; usually the first request of a connection."""
    if client.version >= 3:
        for words in (request.client_software_name, request.client_software_version):
            if not SOFTWARE.fullmatch(words):
                raise InvalidRequest()
        node.telemetry.set_software(
            client.peer, request.client_software_name, request.client_software_version
        )
    intended = request.cluster_id, request.node_id
    if intended != (None, -1):
        if None in intended or -1 in intended:
            raise InvalidRequest()
        if intended != (node.cluster_id, node.node_id):
            raise RebootstrapRequired()
    return {"api_keys": _api_keys(node), **_features(node, client.version)}


def _features(node: ClusterNode, version: int) -> Response:
    # Clients of version 3 refuse a minimum of 0 (KAFKA-17011).
    named = SUPPORTED_LEVELS.items() if version >= FEATURES_FROM_0_SINCE else ()
    finalized = finalized_levels(node.image)
    return {
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level} for name, level in named
        ],
        "finalized_features_epoch": node.controller.offset,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in finalized.items()
        ],
    }


def api_versions_unsupported(node: ClusterNode) -> Response:
    """Return the v0 response to an ApiVersions request of an unsupported version (KIP-511)."""
    return {"error_code": UnsupportedVersion.code, "api_keys": _api_keys(node)}


def _api_keys(node: ClusterNode) -> list[dict[str, int]]:
    hidden: tuple[int, ...] = () if telemetry.wanted(node) else telemetry.KEYS
    return [
        {
            "api_key": key,
            # librdkafka infers the message format from Produce's versions, which must begin at 0.
            "min_version": 0 if handler.api is PRODUCE else handler.low,
            "max_version": handler.highest(node.settings),
        }
        for key, handler in sorted(SERVED.items())
        if key not in hidden
        and is_finalized(node.image, handler.feature)
    ]


# -- Metadata ------------------------------------------------------------------------------------


@serves(METADATA, versions="0-13", at=ServingNode.ANY)
def metadata(
    node: ClusterNode, request: Any, client: ClientContext
) -> Work[Response | EncodedResponse | Future[EncodedResponse]]:
    """Return the nodes and the requested topics; null (in v0 an empty list) requests all topics."""
    requested = request.topics
    if requested is None or (client.version == 0 and not requested):
        every = _all_topics(node, request, client)
        return (yield from _encode_topics(node, request, client, every))
    try:
        names, ids = yield from _requested_topics(requested, client.version)
    except InvalidRequest as error:
        return _invalid_metadata(requested, error)
    errors: dict[str, KafkaError] = {}
    missing = yield from _to_create(node, request, client, names, errors)

    def encode() -> Work[EncodedResponse]:
        topics = _describe_requested(node, request, client, names, ids, errors)
        return _encode_topics(node, request, client, topics)

    if not missing:
        return (yield from encode())
    response: Future[EncodedResponse] = Future()

    def created(outcomes: Mapping[str, TopicImage | KafkaError | None] | None, _: Any) -> None:
        assert outcomes is not None, "errors are per topic"
        for name, outcome in outcomes.items():
            if isinstance(outcome, KafkaError):
                errors[name] = outcome
        response.follow(in_steps(node.reactor, encode()))

    node.controller.auto_create_topics(missing, client.client_id).then(created)
    return response


def _encode_topics(
    node: ClusterNode, request: Any, client: ClientContext, topics: Iterator[Response]
) -> Work[EncodedResponse]:
    """Encode these topics one by one; return the response."""
    encoded: list[bytes] = []
    errors: list[Response] = []
    for topic in topics:
        encoded.append(METADATA_TOPICS.write_element(client.version, topic))
        if "error_code" in topic or [each for each in topic["partitions"] if "error_code" in each]:
            errors.append(topic)
        yield
    body = METADATA_TOPICS.write(client.version, encoded, _metadata(node, request, client))
    return EncodedResponse(body, {"topics": errors})


def _requested_topics(
    requested: Sequence[Any], version: int
) -> Work[tuple[list[str], list[bytes]]]:
    """Return the names and the ids of the requested topics, without duplicates."""
    for topic in requested:
        if version < 12 and (topic.name is None or topic.topic_id != NO_ID):
            raise InvalidRequest("Topic ids require Metadata version 12 or later; send names.")
        if topic.name is None and topic.topic_id == NO_ID:
            raise InvalidRequest("A requested topic has neither a name nor an id.")
        yield
    ids = dict.fromkeys(topic.topic_id for topic in requested if topic.topic_id != NO_ID)
    names = dict.fromkeys(topic.name for topic in requested if topic.topic_id == NO_ID)
    return [*names], [*ids]


def _to_create(
    node: ClusterNode,
    request: Any,
    client: ClientContext,
    names: Iterable[str],
    errors: dict[str, KafkaError],
) -> Work[list[str]]:
    """Return the topics to create for this request; authorization errors are put into `errors`."""
    if not (request.allow_auto_topic_creation and node.settings[AUTO_CREATE_TOPICS_ENABLE]):
        return []
    missing = []
    for name in names:
        yield
        if name in node.image.topics or name in topic_names.INTERNAL_TOPICS:
            continue
        if not client.may(DESCRIBE, TOPIC, name):
            continue
        if client.may(CREATE, CLUSTER, CLUSTER_NAME) or client.may(CREATE, TOPIC, name):
            missing.append(name)
        else:
            errors[name] = TopicAuthorizationFailed()
    return missing


def _all_topics(node: ClusterNode, request: Any, client: ClientContext) -> Iterator[Response]:
    for topic in list(node.image.topics.values()):
        if client.may(DESCRIBE, TOPIC, topic.name):
            yield _topic(node, topic, request, client)


def _describe_requested(
    node: ClusterNode,
    request: Any,
    client: ClientContext,
    names: Iterable[str],
    ids: Iterable[bytes],
    errors: Mapping[str, KafkaError],
) -> Iterator[Response]:
    """Yield the requested topics; `errors` has the errors of topics that could not be created."""
    for topic_id in ids:
        by_id = node.image.topics_by_id.get(topic_id)
        if by_id is None or not client.may(DESCRIBE, TOPIC, by_id.name):
            yield {"error_code": UnknownTopicId.code, "name": None, "topic_id": topic_id}
        else:
            yield _topic(node, by_id, request, client)
    for name in names:
        try:
            topic = _describable_topic(node, client, name, errors)
        except KafkaError as error:
            yield {"error_code": error.code, "name": name}
        else:
            yield _topic(node, topic, request, client)


def _describable_topic(
    node: ClusterNode, client: ClientContext, name: str, errors: Mapping[str, KafkaError]
) -> TopicImage:
    if not client.may(DESCRIBE, TOPIC, name):
        raise TopicAuthorizationFailed()
    if name not in node.image.topics:
        topic_names.check(name)
        if name in errors:
            raise errors[name].copy()
    return node.image.topic(name)


def _topic(node: ClusterNode, topic: TopicImage, request: Any, client: ClientContext) -> Response:
    response = {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": _partitions(node, topic),
    }
    if request.include_topic_authorized_operations:
        response["topic_authorized_operations"] = client.allowed_bits(TOPIC, topic.name)
    return response


def _partitions(node: ClusterNode, topic: TopicImage) -> list[Response]:
    """Return the topic's partitions with their leaders; the list is cached and rarely changes."""
    partitions: list[Response]
    node_ids: set[int]
    if topic.cached_partitions is None:
        images = topic.partitions
        partitions = [_partition(index, partition) for index, partition in images.items()]
        node_ids = {node_id for partition in images.values() for node_id in partition.replicas}
        node_ids |= {partition.leader for partition in images.values()}
        topic.cached_partitions = partitions, node_ids
    partitions, node_ids = topic.cached_partitions
    nodes = node.image.nodes
    away = {node_id for node_id in node_ids if node_id not in nodes or not nodes[node_id].port}
    fenced = {node_id for node_id in node_ids if node_id in nodes and nodes[node_id].fenced}
    offline = node.replicas.offline(topic.name)
    if not away and not fenced and not offline:
        return partitions
    described = []
    for response in partitions:
        # The only replica of a partition keeps its leadership while its process is restarted.
        gone = away | fenced if len(response["replica_nodes"]) > 1 else away
        if response["partition_index"] in offline:
            gone = gone | {node.node_id}
        described.append(_with_offline_replicas(response, gone))
    return described


def _partition(index: int, partition: PartitionImage) -> Response:
    return {
        "partition_index": index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
    }


def _with_offline_replicas(response: Response, gone: Set[int]) -> Response:
    """Return a partition as it is while these nodes have none of its replicas online."""
    replicas, leader = response["replica_nodes"], response["leader_id"]
    offline = tuple(node_id for node_id in replicas if node_id in gone)
    if leader != NO_LEADER and leader not in gone:
        return response | {"offline_replicas": offline} if offline else response
    # No node leads it: clients retry after LEADER_NOT_AVAILABLE and report it, where they would
    # otherwise send requests that fail.
    return response | {
        "error_code": LeaderNotAvailable.code,
        "leader_id": NO_LEADER,
        "isr_nodes": response["isr_nodes"] if len(replicas) > 1 else (),
        "offline_replicas": offline,
    }


def _metadata(node: ClusterNode, request: Any, client: ClientContext) -> Response:
    """Return the fields of the response that are not about topics."""
    response = {
        "brokers": _brokers(node, client, "node_id"),
        "cluster_id": node.cluster_id,
        "controller_id": node.image.controller_id,
    }
    if request.include_cluster_authorized_operations:
        response["cluster_authorized_operations"] = _cluster_operations(client)
    return response


def _invalid_metadata(requested: Sequence[Any], error: InvalidRequest) -> Response:
    # Before version 13 the response has no error field outside its topics.
    topics = [
        {"error_code": error.code, "name": topic.name or "", "topic_id": topic.topic_id}
        for topic in requested
    ]
    return {"topics": topics, "error_code": error.code}


def _brokers(node: ClusterNode, client: ClientContext, id_field: str) -> list[Response]:
    brokers = []
    for known in node.image.nodes.values():
        if known.port:  # otherwise its process has not started yet
            host, port = node.metadata.advertised(client, known)
            brokers.append(
                {id_field: known.node_id, "host": host, "port": port, "rack": known.rack}
            )
    return brokers


def _cluster_operations(client: ClientContext) -> int:
    if not client.may(DESCRIBE, CLUSTER, CLUSTER_NAME):
        return 0
    return client.allowed_bits(CLUSTER, CLUSTER_NAME)


# -- DescribeCluster -----------------------------------------------------------------------------


@serves(DESCRIBE_CLUSTER, versions="0-2", at=ServingNode.ANY)
def describe_cluster(node: ClusterNode, request: Any, client: ClientContext) -> Response:
    """Return the cluster id and the nodes."""
    if request.endpoint_type == CONTROLLERS:
        raise MismatchedEndpointType("A broker describes brokers, not controllers.")
    if request.endpoint_type != BROKERS:
        raise UnsupportedEndpointType(f"Unsupported endpoint type {request.endpoint_type}.")
    response = {
        "cluster_id": node.cluster_id,
        "controller_id": node.image.controller_id,
        "brokers": [
            response | {"is_fenced": node.image.nodes[response["broker_id"]].fenced}
            for response in _brokers(node, client, "broker_id")
        ],
    }
    if request.include_cluster_authorized_operations:
        response["cluster_authorized_operations"] = _cluster_operations(client)
    return response


# -- DescribeTopicPartitions ---------------------------------------------------------------------


@serves(DESCRIBE_TOPIC_PARTITIONS, versions="0", at=ServingNode.ANY)
def describe_topic_partitions(
    node: ClusterNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return topics in the order of their names, up to the partition limit, and the next cursor."""
    if len(request.topics) > ENTRIES_AT_ONCE:
        yield PAUSE  # sorting 65,000 names takes 30 ms, and decoding them was in this tick
    try:
        names, first_partition = _page_begin(node, request)
    except InvalidRequest as error:
        # The response has no error field outside its topics.
        return {
            "topics": [{"error_code": error.code, "name": topic.name} for topic in request.topics]
        }
    yield
    described = []
    for name in names:
        if client.may(DESCRIBE, TOPIC, name):
            described.append(name)
        yield
    left = node.settings[MAX_REQUEST_PARTITION_SIZE_LIMIT]
    left = max(1, min(left, request.response_partition_limit))
    topics: list[Response] = []
    cursor = None
    for name in described:
        if left == 0:
            cursor = {"topic_name": name, "partition_index": 0}
            break
        response, next_index = _topic_page(node, client, name, first_partition, left)
        topics.append(response)
        left -= len(response.get("partitions", ()))
        first_partition = 0
        if next_index is not None:
            cursor = {"topic_name": name, "partition_index": next_index}
            break
        yield
    if request.topics:
        failed = sorted(set(names) - set(described))
        code = TopicAuthorizationFailed.code
        topics += [{"error_code": code, "name": name} for name in failed]
    return {"topics": topics, "next_cursor": cursor}


def _page_begin(node: ClusterNode, request: Any) -> tuple[list[str], int]:
    """Return the names from the cursor on, in order, and the first partition of the first topic."""
    cursor = request.cursor
    requested = {topic.name for topic in request.topics} or node.image.topics
    names = sorted(requested)
    if cursor is None:
        return names, 0
    if cursor.partition_index < 0:
        raise InvalidRequest("The partition index of the cursor is negative.")
    if request.topics and cursor.topic_name not in requested:
        raise InvalidRequest("The topic of the cursor is not among the requested topics.")
    names = names[bisect_left(names, cursor.topic_name) :]
    is_found = names[:1] == [cursor.topic_name]
    return names, cursor.partition_index if is_found else 0


def _topic_page(
    node: ClusterNode, client: ClientContext, name: str, first: int, count_max: int
) -> tuple[Response, int | None]:
    """Return one topic's entry from partition `first` on, and the next partition, or None."""
    try:
        topic = _describable_topic(node, client, name, errors={})
    except KafkaError as error:
        return {**error_fields(error, messages=False), "name": name}, None
    end = min(first + count_max, len(topic.partitions))
    response = {
        "name": name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            _with_eligible(response, topic.partitions[response["partition_index"]])
            for response in _partitions(node, topic)[first:end]
        ],
        "topic_authorized_operations": client.allowed_bits(TOPIC, name),
    }
    return response, end if end < len(topic.partitions) else None


def _with_eligible(response: Response, partition: PartitionImage) -> Response:
    return response | {
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": partition.last_known_elr,
    }


# -- DescribeQuorum ------------------------------------------------------------------------------


@serves(DESCRIBE_QUORUM, versions="0-2", at=ServingNode.CONTROLLER)
def describe_quorum(node: ClusterNode, request: Any, client: ClientContext) -> Work[Response]:
    """Describe the quorum of the metadata log: node 0 is its only voter."""
    client.must(DESCRIBE, CLUSTER, CLUSTER_NAME)
    requested = [(t.topic_name, p.partition_index) for t in request.topics for p in t.partitions]
    if requested != [(METADATA_TOPIC, 0)]:
        unknown = error_fields(UnknownTopicOrPartition())
        topics: list[Response] = []
        for topic in request.topics:
            partitions: list[Response] = []
            topics.append({"topic_name": topic.topic_name, "partitions": partitions})
            for partition in topic.partitions:
                partitions.append({"partition_index": partition.partition_index, **unknown})
                yield
            yield
        return {"topics": topics}
    log, now_ms = node.local_controller.log, node.clock.wall_ms()
    voter = {
        "replica_id": node.node_id,
        "log_end_offset": log.end_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "leader_id": node.node_id,
        "leader_epoch": log.leader_epochs.latest,
        "high_watermark": log.durable_offset,
        "current_voters": [voter],
    }
    host, port = node.metadata.advertised(client, node.image.nodes[node.node_id])
    return {
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        "nodes": [
            {
                "node_id": node.node_id,
                "listeners": [{"name": LISTENER_NAME, "host": host, "port": port}],
            }
        ],
    }
