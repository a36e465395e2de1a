"""Produce: appends record batches to partitions.

Produce   v3–v13   v8 returns errors per record (KIP-467), v10 the current leader of a partition
                   that this node does not lead (KIP-951); v13 uses topic ids

Versions 0–2 are advertised, because librdkafka infers the message format from them (KAFKA-18659),
and refused when used, as in Kafka 4.

The transaction coordinator verifies the first records of a transaction in a partition, unless
transaction.partition.verification.enable is false; from v12 on they add the partition to the
transaction (KIP-890).  v11 may return TRANSACTION_ABORTABLE.

Left out: with acks=0 a batch that is refused only after it has waited, for its decompression or for
the coordinator, is counted; the connection is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kafkalite._ext import wire
from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.replica_manager import (
    ACKS_ALL,
    ACKS_NONE,
    ReplicaManager,
    append_result,
)
from kafkalite.broker.replica.transaction_verifier import RequestTransaction, produce_transaction
from kafkalite.broker.replica.verification_queue import names_one_producer
from kafkalite.broker.security import TRANSACTIONAL_ID, WRITE
from kafkalite.broker.served_apis import ApiCodec, ServingNode, serves
from kafkalite.coordination.groups.offsets.commit_records import is_storable
from kafkalite.errors import (
    InvalidProducerIdMapping,
    KafkaError,
    NotLeaderOrFollower,
    TransactionalIdAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.results import PartitionAppendResult, ProduceResponse, Topic
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.transport.connection import Disconnect

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log.log import LogAppendResult

PENDING = PartitionAppendResult(-1, 0, -1, -1, -1)
"""Takes the place of a result until its batch is decompressed and appended."""


def _encode(version: int, correlation_id: int, response: ProduceResponse) -> list[Any]:
    return [
        wire.encode_produce(version, correlation_id, response.topics, 0, response.node_endpoints)
    ]


class ProduceNode(HandlerNode, Protocol):
    """The components that Produce uses."""

    replicas: ReplicaManager


@serves(
    PRODUCE, versions="3-13", at=ServingNode.LEADER, codec=ApiCodec(wire.decode_produce, _encode)
)
def produce(
    node: ProduceNode, request: Any, client: ClientContext
) -> ProduceResponse | Future[ProduceResponse] | None:
    """Append each partition's batch; respond once the acks condition holds."""
    transactional_id, required_acks, timeout_ms, topics, is_transactional = request
    builder = ProduceResponseBuilder(node, client, required_acks, timeout_ms)
    append = node.replicas.append
    refusal: KafkaError | None = None
    transaction: RequestTransaction | None = None
    if transactional_id is not None:
        refusal = _refusal(client, transactional_id, topics)
        if refusal is None:
            transaction = produce_transaction(transactional_id, client.version)
    elif is_transactional:
        refusal = TransactionalIdAuthorizationFailed(
            "The request has records of a transaction, but no transactional id."
        )
    for topic, partitions in topics:
        results: list[PartitionAppendResult] = []
        builder.topics.append((topic, results))
        for index, batch in partitions:
            try:
                if refusal is not None:
                    raise refusal.copy()  # the traceback of the raised one has this frame
                partition, appended = append(
                    client, required_acks, topic, index, batch, transaction
                )
            except KafkaError as error:
                results.append(builder.failed(topic, index, len(batch or b""), error))
            else:
                if isinstance(appended, Future):
                    builder.wait_for(topic, len(batch), partition, appended, results)
                else:
                    builder.appended(partition, appended, results)
    return builder.finished()


def _refusal(client: ClientContext, transactional_id: str, topics: Any) -> KafkaError | None:
    """Return the error of a whole request with a transactional id, or None."""
    if not client.may(WRITE, TRANSACTIONAL_ID, transactional_id):
        return TransactionalIdAuthorizationFailed()
    if not is_storable(transactional_id):
        return InvalidProducerIdMapping("No producer can have this transactional id.")
    is_single = len(topics) == 1 and len(topics[0][1]) == 1
    if not is_single and not names_one_producer(
        batch for _, partitions in topics for _, batch in partitions
    ):
        return InvalidProducerIdMapping("The request has records of several producers.")
    return None


class ProduceResponseBuilder:
    """The response to one Produce request, sent once every batch was appended or rejected."""

    def __init__(
        self, node: ProduceNode, client: ClientContext, required_acks: int, timeout_ms: int
    ) -> None:
        self._node = node
        self._client = client
        self._required_acks = required_acks
        self._timeout_ms = timeout_ms
        self.topics: list[tuple[Topic, list[PartitionAppendResult]]] = []
        self._uncommitted: list[UncommittedAppend] = []
        self._leaders: list[tuple[int, int] | None] = []
        self._has_errors = False
        self._waiting = 0
        """Number of batches that are being decompressed or verified."""
        self._future: Future[ProduceResponse] | None = None

    def appended(
        self, partition: Partition, appended: LogAppendResult, results: list[PartitionAppendResult]
    ) -> None:
        """Add the result of a batch that was appended."""
        if self._required_acks == ACKS_ALL and partition.high_watermark <= appended.last_offset:
            self._uncommitted.append(
                UncommittedAppend(partition, appended.last_offset, results, len(results))
            )
        results.append(append_result(partition, appended))

    def wait_for(
        self,
        topic: Topic,
        size: int,
        partition: Partition,
        appended: Future[LogAppendResult],
        results: list[PartitionAppendResult],
    ) -> None:
        """Add the result of a batch that will be appended after decompression or verification."""
        position = len(results)
        results.append(PENDING)
        self._waiting += 1

        def on_appended(appended: LogAppendResult | None, error: KafkaError | None) -> None:
            self._waiting -= 1
            if appended is not None:
                self._note_uncommitted(partition, appended, results, position)
                results[position] = append_result(partition, appended)
            else:
                assert error is not None
                if isinstance(error, UnknownTopicId) and isinstance(topic, str):
                    error = UnknownTopicOrPartition()  # deleted, and the client knows no topic ids
                results[position] = self.failed(topic, partition.index, size, error)
            if not self._waiting and self._future is not None:
                self._future.follow(self._response())

        appended.then(on_appended)

    def failed(
        self, topic: Topic, index: int, size: int, error: KafkaError
    ) -> PartitionAppendResult:
        """Count a batch that was rejected, and return its result."""
        self._has_errors = True
        self._node.replicas.traffic_of(topic).batch_rejected(error, size)
        leader = None
        if error.code == NotLeaderOrFollower.code:
            leader = self._node.metadata.leader_of(topic, index)
            self._leaders.append(leader)
        return PartitionAppendResult.failed(index, error, leader)

    def _note_uncommitted(
        self,
        partition: Partition,
        appended: LogAppendResult,
        results: list[PartitionAppendResult],
        position: int,
    ) -> None:
        if self._required_acks == ACKS_ALL and partition.high_watermark <= appended.last_offset:
            self._uncommitted.append(
                UncommittedAppend(partition, appended.last_offset, results, position)
            )

    def finished(self) -> ProduceResponse | Future[ProduceResponse] | None:
        """Return the response, or a Future of it; call it after the last batch of the request."""
        if self._required_acks == ACKS_NONE:
            if self._has_errors:
                # With acks=0 a closed connection is the only sign of an error, as in Kafka.
                raise Disconnect("a produce with acks=0 failed")
            return None
        if self._waiting:
            self._future = Future()
            return self._future
        return self._response()

    def _response(self) -> ProduceResponse | Future[ProduceResponse]:
        response = ProduceResponse(self.topics)
        response.has_errors = self._has_errors
        if self._leaders:
            response.node_endpoints = self._node.metadata.endpoints(self._client, self._leaders)
        if self._uncommitted:
            delayed = DelayedProduce(self._uncommitted, response)
            # The first batches may have been committed while the last one was opened.
            if self._future is not None and delayed.check_all():
                return response
            return self._node.replicas.purgatory.watch(delayed, max(0, self._timeout_ms))
        return response
