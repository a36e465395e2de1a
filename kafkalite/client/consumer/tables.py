"""Bounded reads: the records between two bounds as one pyarrow.Table.

    start ≤ offset < end        bounds are resolved first; then each partition is read to its end

A table is complete or an error: records deleted or topics recreated during the read are raised.
The read has its own assignment reader, so no position of the consumer moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkalite.client.consumer.assignment_reader import AssignmentReader
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.fetch_buffer import FetchBuffer
from kafkalite.client.consumer.record_range import ShortRead
from kafkalite.client.decoding.arrow_batches import ColumnReader, rows_below
from kafkalite.client.net import offset_requests
from kafkalite.client.net.arguments import checked_integer, checked_partition
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.topology import TopicPartition, partition_name
from kafkalite.errors import OffsetOutOfRange, RequestTimedOut
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

Bound: TypeAlias = int | datetime | None
Bounds: TypeAlias = Bound | Mapping[TopicPartition, Bound]
Span: TypeAlias = tuple[int, int]

STEP_SIZE = 16 << 20
"""Approximate size of the columns that are decoded at once, in bytes."""

_purposes = itertools.count(1)


def read_table(
    buffer: FetchBuffer,
    spans: Mapping[TopicPartition, Span],
    reader: ColumnReader,
    timeout_s: float | None,
) -> pa.Table:
    """Return the records of these offset ranges; the reader's columns must include `offset`.

    Raises ClientClosed when the consumer is closed or the call was cancelled.
    """
    import pyarrow as pa

    deadline = Deadline(math.inf if timeout_s is None else timeout_s)
    ends = {partition: end for partition, (start, end) in spans.items() if start < end}
    found: dict[TopicPartition, list[pa.RecordBatch]] = {partition: [] for partition in spans}
    settings = buffer.settings
    purpose = f"table {next(_purposes)}"
    assignment_reader = AssignmentReader(
        buffer.cluster, settings, purpose, buffer.waker, strict=True
    )
    try:
        assignment_reader.assign(ends)
        for position in assignment_reader.assignment:
            position.seek(spans[position.partition][0])
        while ends:
            partition, batches = next_columns(
                buffer, assignment_reader, reader, deadline.within(settings.call_timeout_s)
            )
            position = assignment_reader.assignment[partition]
            found[partition] += rows_below(batches, ends[partition])
            if position.offset is not None and position.offset >= ends[partition]:
                del ends[partition]
                position.paused = True
                position.start_epoch()
    finally:
        assignment_reader.close()
    return pa.Table.from_batches(itertools.chain(*found.values()), reader.schema)


def next_columns(
    buffer: FetchBuffer,
    assignment_reader: AssignmentReader,
    reader: ColumnReader,
    deadline: Deadline,
) -> tuple[TopicPartition, list[pa.RecordBatch]]:
    """Return the next decoded columns of any partition, and advance its position past them."""
    while not deadline.passed:
        buffer.polled()
        record_range = assignment_reader.next_range(deadline)
        if buffer.closed or buffer.call.is_cancelled:
            raise ClientClosed
        if record_range is None:
            buffer.waker.clear()  # set for another call
            continue
        position = record_range.position
        try:
            more = decode(record_range, reader.builder, STEP_SIZE)
        except ShortRead:
            assignment_reader.refetch(record_range)
            continue
        position.offset = record_range.first_offset
        if not more:
            assignment_reader.release(record_range)
        return position.partition, reader.take(*position.partition)
    raise RequestTimedOut(
        "The table was not complete before the timeout; pass a longer timeout, or bounds."
    )


# Bounds.


def spans_of(
    buffer: FetchBuffer,
    partitions: Sequence[TopicPartition],
    bounds: tuple[Bounds, Bounds],
    timeout_s: float,
) -> dict[TopicPartition, Span]:
    """Return the offset range that the bounds stand for, by partition."""
    deadline = Deadline(timeout_s)
    level = buffer.assignment_reader.transports.isolation_level

    def found(sought: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        if not sought:
            return {}
        found_offsets = offset_requests.list_offsets(buffer.cluster, sought, level, deadline.left_s)
        return {partition: at.offset for partition, at in found_offsets.items()}

    starts, ends = (bounds_of(each, partitions) for each in bounds)
    lows = found(dict.fromkeys(partitions, EARLIEST))
    highs = found(dict.fromkeys(partitions, LATEST))
    at_start, at_end = (
        found({p: timestamp_ms(b) for p, b in them.items() if isinstance(b, datetime)})
        for them in (starts, ends)
    )
    return {
        partition: (
            start_of(partition, starts[partition], lows, highs, at_start),
            end_of(partition, ends[partition], highs, at_end),
        )
        for partition in partitions
    }


def bounds_of(bounds: Bounds, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bound]:
    """Return the bound of each partition."""
    if isinstance(bounds, Mapping):
        given = {checked_partition(place): checked_bound(bound) for place, bound in bounds.items()}
        unknown = given.keys() - set(partitions)
        if unknown:
            raise ValueError(f"{partition_name(unknown.pop())} is not read by this consumer")
        return {partition: given.get(partition) for partition in partitions}
    return dict.fromkeys(partitions, checked_bound(bounds))


def checked_bound(bound: Any) -> Bound:
    """Return a bound; raise TypeError if it is not one."""
    if bound is None or isinstance(bound, datetime):
        return bound
    return checked_integer(bound, "a bound must be an offset, a datetime or None")


def start_of(
    partition: TopicPartition,
    bound: Bound,
    lows: Mapping[TopicPartition, int],
    highs: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int],
) -> int:
    low, high = lows[partition], highs[partition]
    if bound is None:
        return low
    if isinstance(bound, datetime):
        return found[partition] if found[partition] >= 0 else high
    if bound < 0:
        return max(low, high + bound)
    if 0 < bound < low:
        raise OffsetOutOfRange(
            f"{partition_name(partition)}: offset {bound} is out of range; the log begins at {low}."
        )
    return max(low, bound)


def end_of(
    partition: TopicPartition,
    bound: Bound,
    highs: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int],
) -> int:
    high = highs[partition]
    if bound is None:
        return high
    if isinstance(bound, datetime):
        return found[partition] if found[partition] >= 0 else high
    return min(bound, high) if bound >= 0 else high + bound


def timestamp_ms(when: datetime | int) -> int:
    """Return milliseconds since 1970, rounded up to the first that is not before this time."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(
                f"{when!r} has no time zone; give one, for example datetime.timezone.utc"
            )
        since = when - datetime.fromtimestamp(0, UTC)
        return max(0, -(-since // timedelta(milliseconds=1)))  # a negative one is a bound
    expected = "a time must be a datetime or an integer of milliseconds since 1970"
    timestamp = checked_integer(when, expected)
    if timestamp < 0:
        raise ValueError(f"{expected}, not {when!r}")
    return timestamp
