"""The twin of wire.pyx: decodes Produce and Fetch by their schemas, as other APIs are decoded."""

from __future__ import annotations

from typing import Any

from kafkalite._ext.record_batch import TRANSACTIONAL
from kafkalite._ext.wire import FETCH_NAMES_MAX
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.storage.log.batch_validator import ATTRIBUTES_LOW


def topic_of(struct: dict[str, Any], version: int, name: str) -> str | bytes:
    return struct["topic_id"] if version >= 13 else struct[name]


def decode_produce(version: int, frame: bytes, position: int) -> Any:
    try:
        request = PRODUCE.request.read(version, frame, position)
    except InvalidRequest as fault:
        return fault.code
    topics = [
        (
            topic_of(topic, version, "name"),
            [(one.index, one.records) for one in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    is_transactional = any(
        len(records or b"") > ATTRIBUTES_LOW and records[ATTRIBUTES_LOW] & TRANSACTIONAL
        for _, partitions in topics
        for _, records in partitions
    )
    return (request.transactional_id, request.acks, request.timeout_ms, topics, is_transactional)


FETCHED = (
    "partition",
    "current_leader_epoch",
    "fetch_offset",
    "last_fetched_epoch",
    "log_start_offset",
    "partition_max_bytes",
)


def partition_of(one: dict[str, Any], version: int) -> tuple[int, ...]:
    """Return a partition of a Fetch, with the fields of a follower if it has sent them."""
    fields = tuple(one[name] for name in FETCHED)
    follower = (one["high_watermark"], one["durable_offset"])
    return fields if follower == (0x7FFFFFFFFFFFFFFF, -1) else fields + follower


def decode_fetch(version: int, frame: bytes, position: int) -> Any:
    try:
        request = FETCH.request.read(version, frame, position)
    except InvalidRequest as fault:
        return fault.code
    topics = [
        (
            topic_of(topic, version, "topic"),
            [partition_of(one, version) for one in topic.partitions],
        )
        for topic in request.topics
    ]
    forgotten = [
        (topic_of(topic, version, "topic"), topic.partitions)
        for topic in request.forgotten_topics_data
    ]
    named = sum(1 + len(indexes) for _, indexes in [*topics, *forgotten])
    if named > FETCH_NAMES_MAX:
        topics, forgotten = None, []
    return (
        request.replica_state.replica_id if version >= 15 else request.replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        topics,
        forgotten,
        request.rack_id if named <= FETCH_NAMES_MAX else "",
        request.replica_state.replica_epoch if version >= 15 and named <= FETCH_NAMES_MAX else -1,
    )
