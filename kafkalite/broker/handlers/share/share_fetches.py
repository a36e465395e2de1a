"""Records of share groups, at the leaders of partitions.

ShareFetch         v1–v2   v2 has the acquire mode and renewals (KIP-1222)
ShareAcknowledge   v1–v2   v2 has renewals

Records are acquired by offsets and sent as whole batches; the response has the ranges of offsets
that the member has acquired.  Membership in the group is not checked: a record is protected by its
lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import outcome_fields
from kafkalite.broker.future import Future, all_of
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.handlers.share.share_fetch_response import (
    ShareFetchResponse,
    ShareFetchResult,
    encode,
)
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import GROUP, READ, TOPIC
from kafkalite.broker.served_apis import ApiCodec, Response, ServingNode, serves
from kafkalite.broker.share.delayed_share_fetch import (
    DelayedShareFetch,
    FetchedSharePartition,
    ShareFetchLimits,
)
from kafkalite.broker.share.led_share_partition import LedSharePartition
from kafkalite.broker.share.share_partition_manager import SharePartitionManager
from kafkalite.broker.share.share_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareSession,
    TopicIdPartition,
)
from kafkalite.broker.stepping import Work
from kafkalite.config.broker import FETCH_MAX_BYTES
from kafkalite.config.share_group import GROUP_SHARE_MAX_SHARE_SESSIONS
from kafkalite.coordination.features import SHARE_VERSION, check_finalized
from kafkalite.coordination.groups.request_checks import check_share_member_id
from kafkalite.coordination.share.acquisition import AcquireLimits
from kafkalite.coordination.share.share_partition import (
    AcknowledgementBatch,
    AcknowledgeType,
)
from kafkalite.errors import (
    GroupAuthorizationFailed,
    InvalidRequest,
    InvalidShareSessionEpoch,
    KafkaError,
    NotLeaderOrFollower,
    ShareSessionLimitReached,
    TopicAuthorizationFailed,
    UnknownServerError,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH

RENEWS_SINCE = 2
"""The version that knows renewals."""
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1
"""The acquire modes: whole record batches, and exactly the number of records."""

Acknowledged: TypeAlias = dict[TopicIdPartition, KafkaError | None]


class ShareNode(HandlerNode, Protocol):
    """The components that requests for records of share groups use."""

    replicas: ReplicaManager
    share_partitions: SharePartitionManager


class ShareRequest:
    """The common part of ShareFetch and ShareAcknowledge."""

    def __init__(self, node: ShareNode, request: Any, client: ClientContext) -> None:
        self.node = node
        self.request = request
        self.client = client
        check_finalized(node.image, SHARE_VERSION)
        if request.group_id is None or request.member_id is None:
            raise InvalidRequest("GroupId and MemberId must not be null.")
        check_share_member_id(request.member_id)
        if not client.may(READ, GROUP, request.group_id):
            raise GroupAuthorizationFailed()
        self.key = (request.group_id, request.member_id)

    @property
    def has_acknowledgements(self) -> bool:
        """True if the request acknowledges any record."""
        return any(
            entry.acknowledgement_batches
            for topic in self.request.topics
            for entry in topic.partitions
        )

    @cached_property
    def lock_timeout_ms(self) -> int:
        """The time for which records are acquired."""
        return self.node.share_partitions.settings_of(self.request.group_id).limits.lock_ms

    def acknowledge(self) -> Work[Future[Acknowledged]]:
        """Acknowledge what the request says; return the outcome of each partition."""
        futures: dict[TopicIdPartition, Future[KafkaError | None]] = {}
        for topic in self.request.topics:
            for entry in topic.partitions:
                if entry.acknowledgement_batches:
                    partition = topic.topic_id, entry.partition_index
                    futures[partition] = self._acknowledge(partition, entry)
                    yield
        return all_of([*futures.values()]).map(
            lambda outcomes: dict(zip(futures, outcomes, strict=True))
        )

    def _acknowledge(self, partition: TopicIdPartition, entry: Any) -> Future[KafkaError | None]:
        try:
            batches = [*self._batches(entry.acknowledgement_batches)]
            led = self.node.replicas.leader(*partition)
            if not self.client.may(READ, TOPIC, led.topic):
                raise TopicAuthorizationFailed()
            share = self.node.share_partitions.led.find(self.key[0], *partition)
            if share is None:
                raise UnknownTopicOrPartition("The share partition is not loaded here.")
            return share.acknowledge(self.key[1], batches)
        except KafkaError as error:
            return Future.of(error.with_traceback(None))

    def _batches(self, batches: Sequence[Any]) -> Iterator[AcknowledgementBatch]:
        """Yield the batches of a partition; raise InvalidRequest if one is not valid."""
        is_renewal = self.client.version >= RENEWS_SINCE and self.request.is_renew_ack
        type_max = AcknowledgeType.RENEW if is_renewal else AcknowledgeType.REJECT
        previous = -1
        for batch in batches:
            first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
            if not 0 <= first <= last or first < previous:
                raise InvalidRequest("The offsets of acknowledgement batches are not in order.")
            if len(types) not in (1, last - first + 1):
                raise InvalidRequest("AcknowledgeTypes has one type, or one for each offset.")
            if not all(AcknowledgeType.GAP <= each <= type_max for each in types):
                raise InvalidRequest("AcknowledgeTypes has a type that is not valid here.")
            previous = last
            yield AcknowledgementBatch(first, last, types)


# -- ShareFetch ----------------------------------------------------------------------------------


def _decode(version: int, frame: memoryview, position: int) -> Any:
    return SHARE_FETCH.request.read(version, frame, position)


@serves(
    SHARE_FETCH,
    versions="1-2",
    at=ServingNode.LEADER,
    codec=ApiCodec(_decode, encode, ShareFetchResponse.failed),
    feature=SHARE_VERSION,
)
def share_fetch(
    node: ShareNode, request: Any, client: ClientContext
) -> Work[ShareFetchResponse | Future[ShareFetchResponse]]:
    """Acknowledge records; then acquire others, and wait while there are none."""
    fetch = ShareFetch(node, request, client)
    try:
        session = fetch.session()
    except ShareSessionLimitReached as error:
        # Held back, so that the client does not repeat the request at once.
        refused: Future[ShareFetchResponse] = Future()
        reason = error.copy()
        wait_ms = max(0, request.max_wait_ms)
        timer = node.reactor.call_later(wait_ms, lambda: refused.fail(reason))
        refused.abandoned = timer.cancel
        return refused
    return (yield from fetch.work(session))


class ShareFetch(ShareRequest):
    """One ShareFetch request."""

    def __init__(self, node: ShareNode, request: Any, client: ClientContext) -> None:
        super().__init__(node, request, client)
        self._is_final = request.share_session_epoch == FINAL_EPOCH
        self._is_renewal = client.version >= RENEWS_SINCE and request.is_renew_ack
        if self._is_renewal and any(
            (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
        ):
            raise InvalidRequest("A ShareFetch that renews locks fetches nothing.")
        if request.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
            # Kafka has no better error for it.
            raise UnknownServerError(f"There is no acquire mode {request.share_acquire_mode}.")

    def session(self) -> ShareSession:
        """Return the session of the request, with the partitions that it adds and removes."""
        session = self._session()
        if not (self._is_final or self._is_renewal):
            self.node.share_partitions.sessions.change(
                session,
                (
                    (topic.topic_id, entry.partition_index)
                    for topic in self.request.topics
                    for entry in topic.partitions
                ),
                (
                    (topic.topic_id, index)
                    for topic in self.request.forgotten_topics_data
                    for index in topic.partitions
                ),
            )
        return session

    def work(self, session: ShareSession) -> Work[Future[ShareFetchResponse]]:
        """Process the request; return its response."""
        is_full = session.is_new
        acknowledged = yield from self.acknowledge()
        if self._is_final:
            acknowledged.then(lambda *_: self.node.share_partitions.sessions.end(session))
        if self._is_final or self._is_renewal:
            return acknowledged.map(lambda outcomes: self._response([], outcomes, is_full=False))
        response: Future[ShareFetchResponse] = Future(acknowledged.abandon)

        def fetch(outcomes: Acknowledged | None, error: KafkaError | None) -> None:
            if outcomes is None:
                response.fail(error or UnknownServerError())
                return
            fetched = self._fetch(session)
            if not isinstance(fetched, Future):
                response.resolve(self._response(fetched, outcomes, is_full=is_full))
                return
            response.follow(
                fetched.map(lambda found: self._response(found, outcomes, is_full=is_full))
            )

        # The response waits for their write in any case, after which they leave the window.
        acknowledged.then(fetch)
        return response

    def _session(self) -> ShareSession:
        epoch = self.request.share_session_epoch
        sessions = self.node.share_partitions.sessions
        if epoch != INITIAL_EPOCH:
            return sessions.next(self.key, epoch)
        if self.has_acknowledgements:
            raise InvalidRequest("The first request of a share session cannot acknowledge records.")
        assert self.client.connection is not None, "a fetch has a connection"
        count_max = self.node.settings[GROUP_SHARE_MAX_SHARE_SESSIONS]
        return sessions.begin(self.key, self.client.connection, count_max)

    def _fetch(
        self, session: ShareSession
    ) -> list[FetchedSharePartition] | Future[list[FetchedSharePartition]]:
        """Return what was fetched, and the errors of partitions that cannot be."""
        request = self.request
        partitions = [*session.partitions]
        # Rotated, so that no partition is always the first.
        begin = session.epoch % len(partitions) if partitions else 0
        is_exact = request.share_acquire_mode == RECORD_LIMIT
        limits = ShareFetchLimits(
            request.min_bytes,
            min(request.max_bytes, self.node.settings[FETCH_MAX_BYTES]),
            AcquireLimits(request.max_records, max(1, request.batch_size), is_exact),
            waits=request.max_wait_ms > 0,
        )
        delayed = DelayedShareFetch(
            session, partitions[begin:] + partitions[:begin], self._open, limits
        )
        wait_ms = max(0, request.max_wait_ms)
        fetched: list[FetchedSharePartition] | Future[list[FetchedSharePartition]]
        fetched = self.node.replicas.purgatory.begin(delayed, wait_ms)
        return fetched

    def _open(self, partition: TopicIdPartition) -> LedSharePartition:
        """Return a share partition; raise KafkaError if it cannot be fetched from here."""
        led = self.node.replicas.leader(*partition)
        if not self.client.may(READ, TOPIC, led.topic):
            raise TopicAuthorizationFailed()
        return self.node.share_partitions.led.open(self.key[0], led)

    def _response(
        self, fetched: Sequence[FetchedSharePartition], acknowledged: Acknowledged, *, is_full: bool
    ) -> ShareFetchResponse:
        """Return the response; unless it is full, partitions without records or errors are left
        out."""
        results: dict[TopicIdPartition, ShareFetchResult] = {
            partition: ShareFetchResult(partition[1], acknowledge_error=error)
            for partition, error in acknowledged.items()
        }
        for each in fetched:
            partition = each.partition
            before = results.get(partition)
            if each.records is None and each.error is None and before is None and not is_full:
                continue
            acknowledge_error = before.acknowledge_error if before is not None else None
            results[partition] = ShareFetchResult(
                partition[1], each.error, acknowledge_error, None, each.records, each.acquired
            )
        topics: dict[bytes, list[ShareFetchResult]] = {}
        leaders = []
        for (topic_id, index), result in results.items():
            if isinstance(result.error, NotLeaderOrFollower) or isinstance(
                result.acknowledge_error, NotLeaderOrFollower
            ):
                leader = self.node.metadata.leader_of(topic_id, index)
                leaders.append(leader)
                result = result._replace(current_leader=leader)
            topics.setdefault(topic_id, []).append(result)
        response = ShareFetchResponse(self.lock_timeout_ms, [*topics.items()])
        response.node_endpoints = self.node.metadata.endpoints(self.client, leaders)
        return response


# -- ShareAcknowledge ----------------------------------------------------------------------------


@serves(SHARE_ACKNOWLEDGE, versions="1-2", at=ServingNode.LEADER, feature=SHARE_VERSION)
def share_acknowledge(
    node: ShareNode, request: Any, client: ClientContext
) -> Work[Future[Response]]:
    """Acknowledge records."""
    acknowledgement = ShareRequest(node, request, client)
    epoch = request.share_session_epoch
    if epoch == INITIAL_EPOCH:
        raise InvalidShareSessionEpoch()
    sessions = node.share_partitions.sessions
    session = sessions.next(acknowledgement.key, epoch)
    acknowledged = yield from acknowledgement.acknowledge()
    if epoch == FINAL_EPOCH:
        acknowledged.then(lambda *_: sessions.end(session))

    def respond(outcomes: Acknowledged) -> Response:
        topics: dict[bytes, list[Response]] = {}
        leaders = []
        for (topic_id, index), error in outcomes.items():
            entry: Response = {"partition_index": index, **outcome_fields(error)}
            if isinstance(error, NotLeaderOrFollower):
                leader = node.metadata.leader_of(topic_id, index)
                leaders.append(leader)
                if leader is not None:
                    entry["current_leader"] = {"leader_id": leader[0], "leader_epoch": leader[1]}
            topics.setdefault(topic_id, []).append(entry)
        return {
            "error_code": 0,
            "acquisition_lock_timeout_ms": acknowledgement.lock_timeout_ms,
            "responses": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in topics.items()
            ],
            "node_endpoints": [
                {"node_id": node_id, "host": host, "port": port, "rack": rack}
                for node_id, host, port, rack in node.metadata.endpoints(client, leaders)
            ],
        }

    return acknowledged.map(respond)
