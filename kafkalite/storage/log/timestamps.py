"""Timestamp lookups: finds records by timestamp in the segments of a log.

The time index leads near the batch.  The batch is then opened, since its header has only its
maximum timestamp.  That is expensive, so a search is a generator: it yields the steps that open a
batch, which may run on any thread, and is sent their result.  The search itself runs on the log's
event loop, and restarts if segments were removed or replaced meanwhile.

A header whose maximum timestamp is later than that of all its records ends the search in its
segment: continuing would let a client that writes such batches choose how many are opened for one
request.  For a batch that decompresses to more than `output_size_max` the result is its base offset
and its maximum timestamp.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple, TypeAlias

from kafkalite.config.topic import LONG_MAX
from kafkalite.errors import KafkaStorageError, MessageTooLarge
from kafkalite.records.batch import RecordBatch, TimestampType
from kafkalite.records.decode_steps import DecodeSteps, scan_of, walk
from kafkalite.storage.log.log import Log


class TimestampOffset(NamedTuple):
    """The result of a lookup: a record's timestamp, offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


Search: TypeAlias = Generator[
    DecodeSteps[TimestampOffset | None], TimestampOffset | None, TimestampOffset | None
]


def search_timestamp(log: Log, timestamp: int) -> Search:
    """Search for the first record at or after a timestamp."""
    generation = log.generation
    for segment in log.segments:
        if segment.largest_timestamp < timestamp:
            continue
        start = log.log_start_offset
        found = segment.find_timestamp(timestamp, start)
        while found is not None:
            batch = RecordBatch(segment.read(found))
            record = yield _first_record(batch, timestamp, LONG_MAX, start)
            if record is not None:
                return record
            if log.failure is not None:
                raise KafkaStorageError(log.failure)
            if log.generation != generation:  # segments were removed or replaced meanwhile
                return (yield from search_timestamp(log, timestamp))
            found = None
            if batch.header.base_offset < start:
                # Its latest record was deleted; at most one batch crosses the log start offset.
                found = segment.find_timestamp(timestamp, batch.header.last_offset + 1)
    return None


def search_max_timestamp(log: Log) -> Search:
    """Search for the first record with the log's maximum timestamp."""
    for segment in log.segments:
        segment.load_timestamps()
    holder = max(log.segments, key=lambda segment: segment.max_timestamp)
    found = holder.find(holder.offset_of_max) if holder.max_timestamp >= 0 else None
    if found is None:
        return None
    batch = RecordBatch(holder.read(found))
    if not batch.header.count:  # emptied by another broker, whose time index still has it
        holder.rebuild()
        return (yield from search_max_timestamp(log))
    return (yield _first_record(batch, holder.max_timestamp, holder.max_timestamp, 0))


def _first_record(
    batch: RecordBatch, oldest: int, newest: int, start_offset: int
) -> DecodeSteps[TimestampOffset | None]:
    """Return the batch's first record at or after `start_offset` with a timestamp from `oldest` to
    `newest`."""
    header = batch.header
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if stamped and not oldest <= header.max_timestamp <= newest:
        return None
    scan = scan_of(batch)
    scan.collect(
        -LONG_MAX - 1 if stamped else oldest,
        LONG_MAX if stamped else newest,
        inside=True,
        offset_delta_min=start_offset - header.base_offset,
        hits_max=1,
    )
    try:
        yield from walk(batch, scan, until_hit=True)
    except MessageTooLarge:
        if header.base_offset < start_offset:
            return None
        return TimestampOffset(header.max_timestamp, header.base_offset, header.leader_epoch)
    for offset_delta, timestamp in scan.hits:
        when = header.max_timestamp if stamped else timestamp
        return TimestampOffset(when, header.base_offset + offset_delta, header.leader_epoch)
    return None
