"""Produce: batches in, at the end of their partitions.

Produce   v3–v13   v8 says which records of a batch were refused (KIP-467), v10 who leads a
                   partition that this node does not (KIP-951); v13 names topics by id

Versions 0–2 are advertised, because librdkafka reads the message format from them (KAFKA-18659),
and refused when used, as Kafka 4 does.

Left out: transactions; a transactional produce is refused with INVALID_TXN_STATE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafkalite._ext import wire
from kafkalite.broker.handlers import At, Caller, Codec, endpoints, leader_of, serves
from kafkalite.broker.later import Later
from kafkalite.broker.purgatory import DelayedProduce, OpenEntry
from kafkalite.broker.security import TOPIC, WRITE
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
    from kafkalite.broker.node import Node
    from kafkalite.broker.partition import Partition
    from kafkalite.storage.log import Appended

ALL = -1
LEADER = 1
NOBODY = 0
ADMIN_CLIENT_ID = "__admin_client"
"""Who calls itself so may write to internal topics, as in Kafka."""


def _encode(version: int, correlation_id: int, response: dict[str, Any]) -> list[Any]:
    return [
        wire.encode_produce(
            version, correlation_id, response["topics"], 0, response.get("node_endpoints", ())
        )
    ]


@serves(PRODUCE, versions="3-13", at=At.LEADER, codec=Codec(wire.decode_produce, _encode))
def produce(node: Node, request: Any, caller: Caller) -> dict[str, Any] | Later[Any] | None:
    """Append each partition's batch; answer now, or once what the client waits for is so."""
    transactional_id, acks, timeout_ms, topics = request
    open_entries: list[OpenEntry] = []
    any_fault = False
    answers: list[Any] = []
    leaders: list[tuple[int, int] | None] = []
    for topic, partitions in topics:
        entries: list[Any] = []
        answers.append((topic, entries))
        for index, batch in partitions:
            try:
                if transactional_id is not None:
                    raise InvalidTxnState("transactions are not served yet")
                partition, appended = append(node, caller, acks, topic, index, batch)
            except KafkaError as fault:
                any_fault = True
                node.replicas.traffic_of(topic).refused_batch(fault.code, len(batch or b""))
                leader = None
                if fault.code == NotLeaderOrFollower.code:
                    leader = leader_of(node, topic, index)
                    leaders.append(leader)
                entries.append(_refused(index, fault, leader))
                continue
            if acks == ALL and partition.high_watermark <= appended.last_offset:
                open_entries.append(
                    OpenEntry(partition, appended.last_offset, entries, len(entries))
                )
            entries.append(
                (index, 0, appended.base_offset, appended.append_time_ms,
                 appended.log_start_offset, (), None, None)
            )  # fmt: skip
    if acks == NOBODY:
        if any_fault:
            # The client hears of a fault only by losing the connection: as Kafka does.
            raise Disconnect("a produce with acks=0 failed")
        return None
    response: dict[str, Any] = {"topics": answers, "any_fault": any_fault}
    if leaders:
        response["node_endpoints"] = endpoints(node, caller, leaders)
    if open_entries:
        delayed = DelayedProduce(response, open_entries)
        return node.replicas.purgatory.park(delayed, max(0, timeout_ms))
    return response


def append(
    node: Node,
    caller: Caller,
    acks: int,
    topic: str | bytes,
    index: int,
    batch: memoryview | bytes | None,
) -> tuple[Partition, Appended]:
    """One batch to the end of its partition, by whichever road it came; raises why not."""
    if acks not in (ALL, LEADER, NOBODY):
        raise InvalidRequiredAcks()
    partition = node.replicas.leader(topic, index)
    _check_may_write(caller, partition.topic)
    if not batch:
        raise InvalidRecord("a produce request holds exactly one batch a partition")
    appended = partition.append(batch)
    partition.traffic.produces += 1
    node.replicas.touched(partition)
    return partition, appended


def _check_may_write(caller: Caller, topic: str) -> None:
    if not caller.may(WRITE, TOPIC, topic):
        raise TopicAuthorizationFailed()
    if topic in INTERNAL_TOPICS and caller.client_id != ADMIN_CLIENT_ID:
        raise InvalidTopicException("What stands in an internal topic only the broker writes.")


def _refused(index: int, fault: KafkaError, leader: tuple[int, int] | None) -> tuple[Any, ...]:
    return (index, fault.code, -1, -1, -1, fault.record_errors, str(fault), leader)
