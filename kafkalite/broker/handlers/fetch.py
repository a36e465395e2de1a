"""Fetch: returns records as slices of segment files.

Fetch   v4–v18   v7 adds sessions (KIP-227), v9 leader epochs (KIP-320), v12 diverging epochs
                 (KIP-595), v13 topic ids (KIP-516), v16 the current leader of partitions that
                 this node does not lead (KIP-951); v11 reads from followers (KIP-392)

A follower fetches through the peer listener; a client that claims to be one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kafkalite._ext import wire
from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.delayed_fetch import (
    DelayedFetch,
    FetchItem,
    FetchLimits,
    read,
)
from kafkalite.broker.replica.fetch_sessions import CONSUMER_FIELDS, FetchSessions
from kafkalite.broker.replica.follower_sessions import (
    FollowerSessions,
    PeerFetch,
    ResponseLimits,
)
from kafkalite.broker.replica.purgatory import SLICE
from kafkalite.broker.replica.read_replicas import DEBUGGING_CONSUMER, NO_REPLICA, ReadReplicas
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.request_metrics import EXPECTED
from kafkalite.broker.security import READ, TOPIC
from kafkalite.broker.served_apis import ApiCodec, ServingNode, serves
from kafkalite.config.broker import FETCH_MAX_BYTES
from kafkalite.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    KafkaError,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
)
from kafkalite.protocol.results import FetchResponse, PartitionFetchResult, new_tuple
from kafkalite.protocol.schemas.fetch import FETCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalite.broker.replica.fetch_sessions import FetchKey, FetchPartition, FetchSession
    from kafkalite.broker.replica.readable_partition import ReadablePartition

TOPIC_IDS_SINCE = 13
FOLLOWERS_SINCE = 11
"""The version from which followers serve consumers."""

STALE = (NotLeaderOrFollower.code, FencedLeaderEpoch.code)


def _encode(version: int, correlation_id: int, response: FetchResponse) -> list[Any]:
    return wire.encode_fetch(
        version,
        correlation_id,
        0,
        response.error_code,
        response.session_id,
        response.topics,
        response.node_endpoints,
    )


class FetchNode(HandlerNode, Protocol):
    """The components that Fetch uses."""

    fetch_sessions: FetchSessions
    follower_sessions: FollowerSessions
    replicas: ReplicaManager
    read_replicas: ReadReplicas


@serves(
    FETCH,
    versions="4-18",
    at=ServingNode.LEADER,
    codec=ApiCodec(wire.decode_fetch, _encode, FetchResponse.failed),
)
def fetch(
    node: FetchNode, request: Any, client: ClientContext
) -> FetchResponse | Future[FetchResponse]:
    """Read every requested partition; wait while together they hold less than `min_bytes`."""
    (replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch,
     topics, forgotten_topics, rack, replica_epoch) = request  # fmt: skip
    if topics is None:
        raise InvalidRequest(
            f"A Fetch request names more than {wire.FETCH_NAMES_MAX} topics and partitions;"
            " send several requests."
        )
    assert client.connection is not None, "a fetch has a connection"
    max_bytes = min(max_bytes, node.settings[FETCH_MAX_BYTES])
    # Waiting for more than the response may hold is useless.
    min_bytes = min(min_bytes, max_bytes)
    try:
        if client.is_peer:
            fetched = PeerFetch(
                replica_id, replica_epoch, session_id, session_epoch, topics, forgotten_topics,
                ResponseLimits(max_wait_ms, min_bytes, max_bytes),
            )  # fmt: skip
            return node.follower_sessions.fetch(fetched, client.connection)
        session = node.fetch_sessions.open(
            session_id,
            session_epoch,
            topics,
            forgotten_topics,
            client.connection,
            by_id=client.version >= TOPIC_IDS_SINCE,
        )
    except KafkaError as error:
        return FetchResponse.failed(error)
    wanted = session.wanted if session is not None else _named(topics)
    everything = session is None or session_epoch <= 0
    builder = FetchResponseBuilder(node, client, session, everything, replica_id)
    if rack and node.read_replicas.selects_by_rack:
        builder.rack = rack
    limits = FetchLimits(min_bytes, max_bytes, isolation_level, max_wait_ms > 0)
    if len(wanted) > SLICE:
        delayed = DelayedFetch(list(wanted.items()), builder, limits)
    else:
        items = builder.find(wanted.items())
        outcome = results, size, failed, unfinished = read(items, limits)
        has_enough = size >= min_bytes or failed or max_wait_ms <= 0 or not items
        if has_enough and unfinished is None:
            builder.add(items, results)
            return builder.response()
        delayed = DelayedFetch((), builder, limits)
        delayed.add_read(items, outcome)
    response: FetchResponse | Future[FetchResponse] = node.replicas.purgatory.begin(
        delayed, max_wait_ms
    )
    return response


def _named(topics: list[Any]) -> dict[FetchKey, FetchPartition]:
    # A partition named twice is read once, with its last entry: as in Kafka.
    return {(topic, wanted[0]): wanted for topic, partitions in topics for wanted in partitions}


class FetchResponseBuilder:
    """One Fetch request: looks up its partitions and builds its response."""

    def __init__(
        self,
        node: FetchNode,
        client: ClientContext,
        session: FetchSession | None,
        everything: bool,
        replica_id: int,
    ) -> None:
        """`replica_id` is a node of this broker that the client claims to be, or negative."""
        self._node = node
        self._client = client
        self._claims_replica = replica_id >= 0
        self._replica_id = replica_id
        self.rack = ""
        """The consumer's rack, if replicas are selected by it."""
        self._session = session
        self._everything = everything
        self._topics: dict[str | bytes, list[PartitionFetchResult]] = {}
        self._leaders: list[tuple[int, int] | None] = []
        self._has_errors = False

    def find(self, wanted: Iterable[tuple[FetchKey, FetchPartition]]) -> list[FetchItem]:
        """Return these partitions of the request, each with its Partition or an error."""
        leader = self._node.replicas.leader
        allowed: str | bytes | None = None
        partition: ReadablePartition | None
        error: KafkaError | None
        rack, preferred = self.rack, NO_REPLICA
        items = []
        for (topic, index), fields in wanted:
            if len(fields) > CONSUMER_FIELDS:
                fields = fields[:CONSUMER_FIELDS]
            _, leader_epoch, offset, fetched_epoch, _, size_max = fields
            partition, error = None, None
            try:
                partition = leader(topic, index)
                if self._claims_replica:
                    raise NotLeaderOrFollower()
                partition.traffic.fetches += 1
                if topic != allowed:
                    if not self._client.may(READ, TOPIC, partition.topic):
                        raise TopicAuthorizationFailed()
                    allowed = topic
                if rack:
                    preferred = self._node.read_replicas.preferred(partition, rack, offset)
            except KafkaError as raised:
                # Drop the traceback: its frames reference this request.
                partition, error, preferred = None, raised.with_traceback(None), NO_REPLICA
                if error.code == NotLeaderOrFollower.code:
                    partition, error = self._followed(topic, index, error)
            items.append(
                new_tuple(
                    FetchItem,
                    (topic, index, partition, error, leader_epoch, offset, fetched_epoch,
                     size_max, preferred),
                )
            )  # fmt: skip
        return items

    def _followed(
        self, topic: str | bytes, index: int, error: KafkaError
    ) -> tuple[ReadablePartition | None, KafkaError | None]:
        """Return a partition that is followed here, or the error for it; `error` if it is none that
        the client may read."""
        if self._claims_replica or self._client.version < FOLLOWERS_SINCE:
            return None, error
        is_debugging = self._replica_id == DEBUGGING_CONSUMER
        partition = self._node.read_replicas.followed(topic, index, is_debugging=is_debugging)
        if partition is None:
            return None, error
        partition.traffic.fetches += 1
        if not self._client.may(READ, TOPIC, partition.topic):
            return None, TopicAuthorizationFailed()
        return partition, None

    def add(self, items: Sequence[FetchItem], results: Sequence[PartitionFetchResult]) -> None:
        """Add these results to the response; a fetch session omits the unchanged ones."""
        session, everything = self._session, self._everything
        last_topic: str | bytes | None = None
        included: list[PartitionFetchResult] = []
        for item, result in zip(items, results, strict=True):
            topic, records = item.topic, result.records
            if records is not None and item.partition is not None:
                item.partition.traffic.bytes_out += records.size
            if session is not None and not session.must_include(topic, result, everything):
                continue
            if result.error_code:
                result = self._failed(topic, result)
            if topic != last_topic:
                last_topic, included = topic, self._topics.setdefault(topic, [])
            included.append(result)

    def _failed(self, topic: str | bytes, result: PartitionFetchResult) -> PartitionFetchResult:
        """Count an error; add the current leader if the client's metadata is stale (KIP-951)."""
        self._has_errors = True
        if result.error_code not in EXPECTED:
            self._node.replicas.traffic_of(topic).failed_fetches += 1
        if result.error_code not in STALE:
            return result
        leader = self._node.metadata.leader_of(topic, result.partition_index)
        self._leaders.append(leader)
        return result._replace(current_leader=leader)

    def response(self) -> FetchResponse:
        """Return the response with every result that was added."""
        session_id = self._session.session_id if self._session is not None else 0
        response = FetchResponse(list(self._topics.items()), session_id)
        if self._has_errors:
            response.has_errors = True
            response.node_endpoints = self._node.metadata.endpoints(self._client, self._leaders)
        return response
