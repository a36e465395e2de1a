"""Offsets of a partition's log: by time, by leader epoch, and the moving of its start.

ListOffsets            v1–v11   v2 isolation, v4 leader epochs; v7, v8, v9 and v11 each brought one
                                of the special timestamps
OffsetForLeaderEpoch   v2–v4    where an epoch's records end (KIP-320)
DeleteRecords          v0–v2

Left out: tiered storage, so the earliest local offset is the earliest, and what was tiered last or
waits to be is nothing (-1); followers, so `replica_id` is not looked at and everybody reads as a
consumer.  No request here ever waits, so their time-outs mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kafkalite.broker.handlers import At, Caller, Response, each, serves
from kafkalite.broker.partition import READ_COMMITTED, Partition
from kafkalite.broker.security import DELETE, DESCRIBE, TOPIC
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.errors import (
    InvalidRequest,
    InvalidTopicException,
    OffsetOutOfRange,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    OFFSET_FOR_LEADER_EPOCH,
)

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.storage.log import Log

READ_UNCOMMITTED = 0

SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version from which a client may ask for each special timestamp."""

NO_EPOCH = -1
NOTHING: Response = {"timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}

HIGH_WATERMARK = -1
"""In DeleteRecords: everything that consumers can read."""


# -- ListOffsets ---------------------------------------------------------------------------------


@serves(LIST_OFFSETS, versions="1-11", at=At.LEADER)
def list_offsets(node: Node, request: Any, caller: Caller) -> Response:
    """The offset of the first record at or after a time, or of a special place."""
    times = Counter(
        (topic.name, entry.partition_index)
        for topic in request.topics
        for entry in topic.partitions
    )

    def answer(name: str, entry: Any) -> Response:
        caller.must(DESCRIBE, TOPIC, name)
        if times[name, entry.partition_index] > 1:
            raise InvalidRequest()
        if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise InvalidRequest()
        since = SPECIAL_SINCE.get(entry.timestamp)
        if entry.timestamp < 0 and (since is None or caller.version < since):
            raise UnsupportedVersion()
        partition = node.replicas.leader(name, entry.partition_index)
        partition.check_epoch(entry.current_leader_epoch)
        return _offset(partition, entry.timestamp, request.isolation_level)

    return {"topics": _by_partition(request.topics, answer)}


def _offset(partition: Partition, timestamp: int, isolation_level: int) -> Response:
    log = partition.log
    upper = partition.upper_offset(isolation_level)
    if timestamp == LATEST:
        return {"timestamp": -1, "offset": upper, "leader_epoch": partition.leader_epoch}
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return {"timestamp": -1, "offset": log.log_start_offset, "leader_epoch": _first_epoch(log)}
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return NOTHING
    if timestamp == MAX_TIMESTAMP:
        found = log.offset_of_max_timestamp()
    else:
        found = log.offset_for_timestamp(timestamp)
    return NOTHING if found is None or found.offset >= upper else found._asdict()


def _first_epoch(log: Log) -> int:
    epochs = log.leader_epochs
    begun = bool(epochs.starts) and epochs.starts[0] <= log.log_start_offset
    return epochs.epochs[0] if begun else NO_EPOCH


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------


@serves(OFFSET_FOR_LEADER_EPOCH, versions="2-4", at=At.LEADER)
def offset_for_leader_epoch(node: Node, request: Any, caller: Caller) -> Response:
    """Where the records of an epoch end; a reader who is past that must go back there."""

    def answer(name: str, entry: Any) -> Response:
        caller.must(DESCRIBE, TOPIC, name)
        partition = node.replicas.leader(name, entry.partition)
        partition.check_epoch(entry.current_leader_epoch)
        leader_epoch, end_offset = partition.log.end_of_epoch(entry.leader_epoch)
        return {"leader_epoch": leader_epoch, "end_offset": end_offset}

    return {"topics": _by_partition(request.topics, answer, topic="topic", index="partition")}


# -- DeleteRecords -------------------------------------------------------------------------------


@serves(DELETE_RECORDS, versions="0-2", at=At.LEADER)
def delete_records(node: Node, request: Any, caller: Caller) -> Response:
    """Let logs begin at later offsets; what is before is gone for readers at once."""

    def answer(name: str, entry: Any) -> Response:
        caller.must(DELETE, TOPIC, name)
        if name in INTERNAL_TOPICS:
            raise InvalidTopicException()
        partition = node.replicas.leader(name, entry.partition_index)
        offset = entry.offset
        if offset == HIGH_WATERMARK:
            offset = partition.high_watermark
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange()
        low_watermark = partition.log.delete_records(offset)
        node.replicas.touched(partition)
        return {"low_watermark": low_watermark}

    return {"topics": _by_partition(request.topics, answer, refused={"low_watermark": -1})}


def _by_partition(
    topics: Iterable[Any],
    answer: Callable[[str, Any], Response],
    *,
    topic: str = "name",
    index: str = "partition_index",
    refused: Mapping[str, int] = {},
) -> list[Response]:
    """Answer topic by topic and partition by partition.

    `topic` and `index` are what the schema calls the topic's name and the partition's number;
    `refused` is what it says of a partition that has an error.
    """

    def partitions(asked: Any) -> list[Response]:
        answered = each(
            asked.partitions,
            named=index,
            answer=partial(answer, getattr(asked, topic)),
            messages=False,
        )
        return [{**refused, **entry} for entry in answered] if refused else answered

    return [{topic: getattr(asked, topic), "partitions": partitions(asked)} for asked in topics]
