"""Produce: appends record batches to partitions.

Produce   v3–v13   v8 returns errors per record (KIP-467), v10 the current leader of a partition
                   that this node does not lead (KIP-951); v13 uses topic ids

Versions 0–2 are advertised, because librdkafka infers the message format from them (KAFKA-18659),
and refused when used, as in Kafka 4.

Left out: transactions; a transactional produce is refused with INVALID_TXN_STATE.  With acks=0 a
batch that is refused only after a thread has decompressed it is counted; the connection is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kafkalite._ext import wire
from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.later import Later
from kafkalite.broker.replica.appending import Appending
from kafkalite.broker.replica.purgatory import DelayedProduce, OpenEntry
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import TOPIC, WRITE
from kafkalite.broker.served_apis import ApiCodec, ServingNode, serves
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import (
    InvalidRecord,
    InvalidRequiredAcks,
    InvalidTopicException,
    InvalidTxnState,
    KafkaError,
    NotLeaderOrFollower,
    TopicAuthorizationFailed,
)
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.transport.connection import Disconnect

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.storage.log import Appended

ALL = -1
LEADER = 1
NOBODY = 0
ADMIN_CLIENT_ID = "__admin_client"
"""As in Kafka, a client with this client id may write to internal topics."""


def _encode(version: int, correlation_id: int, response: dict[str, Any]) -> list[Any]:
    return [
        wire.encode_produce(
            version, correlation_id, response["topics"], 0, response.get("node_endpoints", ())
        )
    ]


class ProduceNode(HandlerNode, Protocol):
    """The components that Produce uses."""

    appending: Appending
    replicas: ReplicaManager


@serves(
    PRODUCE, versions="3-13", at=ServingNode.LEADER, codec=ApiCodec(wire.decode_produce, _encode)
)
def produce(
    node: ProduceNode, request: Any, client: ClientContext
) -> dict[str, Any] | Later[Any] | None:
    """Append each partition's batch; respond once the acks condition holds."""
    transactional_id, acks, timeout_ms, topics = request
    answers = ProduceAnswers(node, client, acks, timeout_ms)
    for topic, partitions in topics:
        entries: list[Any] = []
        answers.topics.append((topic, entries))
        for index, batch in partitions:
            try:
                if transactional_id is not None:
                    raise InvalidTxnState("transactions are not served yet")
                partition, appended = append(node, client, acks, topic, index, batch)
            except KafkaError as fault:
                answers.refused(topic, index, len(batch or b""), fault, entries)
            else:
                answers.appended(topic, index, len(batch), partition, appended, entries)
    return answers.finished()


class ProduceAnswers:
    """The response to one Produce request, sent once every batch was appended or refused."""

    def __init__(
        self, node: ProduceNode, client: ClientContext, acks: int, timeout_ms: int
    ) -> None:
        self._node = node
        self._client = client
        self._acks = acks
        self._timeout_ms = timeout_ms
        self.topics: list[Any] = []
        self._open_entries: list[OpenEntry] = []
        self._leaders: list[tuple[int, int] | None] = []
        self._any_fault = False
        self._opening = 0
        self._later: Later[Any] | None = None

    def appended(
        self,
        topic: str | bytes,
        index: int,
        size: int,
        partition: Partition,
        appended: Appended | Later[Appended],
        entries: list[Any],
    ) -> None:
        """Add the entry of a batch that was appended, or will be after decompression."""
        place = len(entries)
        if not isinstance(appended, Later):
            entries.append(self._entry(index, partition, appended, entries, place))
            return
        entries.append(None)
        self._opening += 1

        def came(appended: Appended | None, fault: KafkaError | None) -> None:
            self._opening -= 1
            if appended is not None:
                entries[place] = self._entry(index, partition, appended, entries, place)
            else:
                assert fault is not None
                self.refused(topic, index, size, fault, entries, place)
            if not self._opening and self._later is not None:
                self._later.follow(self._response())

        appended.then(came)

    def refused(
        self,
        topic: str | bytes,
        index: int,
        size: int,
        fault: KafkaError,
        entries: list[Any],
        place: int | None = None,
    ) -> None:
        """Add the entry of a batch that was refused."""
        self._any_fault = True
        self._node.replicas.traffic_of(topic).refused_batch(fault.code, size)
        leader = None
        if fault.code == NotLeaderOrFollower.code:
            leader = self._node.metadata.leader_of(topic, index)
            self._leaders.append(leader)
        entry = _refused(index, fault, leader)
        if place is None:
            entries.append(entry)
        else:
            entries[place] = entry

    def _entry(
        self, index: int, partition: Partition, appended: Appended, entries: list[Any], place: int
    ) -> tuple[Any, ...]:
        if self._acks == ALL and partition.high_watermark <= appended.last_offset:
            self._open_entries.append(OpenEntry(partition, appended.last_offset, entries, place))
        return (
            index, 0, appended.base_offset, appended.append_time_ms, appended.log_start_offset,
            (), None, None,
        )  # fmt: skip

    def finished(self) -> dict[str, Any] | Later[Any] | None:
        """Return the response, or a Later of it; call it after the last batch of the request."""
        if self._acks == NOBODY:
            if self._any_fault:
                # With acks=0 a closed connection is the only sign of an error, as in Kafka.
                raise Disconnect("a produce with acks=0 failed")
            return None
        if self._opening:
            self._later = Later()
            return self._later
        return self._response()

    def _response(self) -> dict[str, Any] | Later[Any]:
        response: dict[str, Any] = {"topics": self.topics, "any_fault": self._any_fault}
        if self._leaders:
            response["node_endpoints"] = self._node.metadata.endpoints(self._client, self._leaders)
        if self._open_entries:
            delayed = DelayedProduce(response, self._open_entries)
            return self._node.replicas.purgatory.park(delayed, max(0, self._timeout_ms))
        return response


def append(
    node: ProduceNode,
    client: ClientContext,
    acks: int,
    topic: str | bytes,
    index: int,
    batch: memoryview | bytes | None,
) -> tuple[Partition, Appended | Later[Appended]]:
    """Append one batch to its partition, now or after decompression.

    Raises a KafkaError if the request is invalid or not authorized.
    """
    if acks not in (ALL, LEADER, NOBODY):
        raise InvalidRequiredAcks()
    partition = node.replicas.leader(topic, index)
    _check_may_write(client, partition.topic)
    if not batch:
        raise InvalidRecord("a produce request holds exactly one batch a partition")
    return partition, node.appending.append(partition, batch)


def _check_may_write(client: ClientContext, topic: str) -> None:
    if not client.may(WRITE, TOPIC, topic):
        raise TopicAuthorizationFailed()
    if topic in INTERNAL_TOPICS and client.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicException("What stands in an internal topic only the broker writes.")


def _refused(index: int, fault: KafkaError, leader: tuple[int, int] | None) -> tuple[Any, ...]:
    return (index, fault.code, -1, -1, -1, fault.record_errors, str(fault), leader)
