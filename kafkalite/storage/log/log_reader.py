"""Log reads: find the part of a segment file that holds a range of offsets, as a file slice.

A read begins with the batch that holds its offset, stays within one segment, and ends before the
batch that holds the upper offset given by the caller: the high watermark for consumers.

A read_committed reader gets the aborted transactions of its range as well (committed_read.py).
"""

from __future__ import annotations

from kafkalite.errors import KafkaStorageError, OffsetOutOfRange
from kafkalite.records.file_slice import FileSlice
from kafkalite.storage.log.log import Log
from kafkalite.storage.segment.segment import LogSegment


def read(
    log: Log, offset: int, size_max: int, upper_offset: int, *, whole_first: bool = True
) -> FileSlice | None:
    """Return a slice from the batch that holds `offset` on, within one segment and below
    `upper_offset`; None if there are no records there yet.

    If the first batch is larger than `size_max` it is returned whole, or, without `whole_first`,
    nothing is.
    """
    found = locate(log, offset, upper_offset)
    if found is None:
        return None
    segment, position, size, end = found
    if size > size_max:
        return FileSlice(segment.file, position, size) if whole_first else None
    return FileSlice(segment.file, position, min(size_max, end - position))


def available(log: Log, offset: int, upper_offset: int, size_max: int) -> int:
    """Return the number of bytes such a read would return; `size_max` if it ends in a closed
    segment, since waiting would not add to it."""
    found = locate(log, offset, upper_offset)
    if found is None:
        return 0
    segment, position, _, end = found
    return size_max if segment is not log.segments.active else min(size_max, end - position)


def locate(log: Log, offset: int, upper_offset: int) -> tuple[LogSegment, int, int, int] | None:
    """Return the start of such a read as (segment, position, size of the first batch, end position
    in this segment); None if there are no records there yet."""
    if log.failure is not None:
        raise KafkaStorageError(log.failure)
    end_offset = log.end_offset
    if not log.log_start_offset <= offset <= end_offset:
        raise OffsetOutOfRange(
            f"Offset {offset} is out of range: the log has {log.log_start_offset} to {end_offset}."
        )
    if offset >= upper_offset or offset == end_offset:
        return None
    segments = log.segments
    if offset >= log.last_batch_offset:
        if log.last_batch_offset >= upper_offset:
            return None
        active = segments.active
        return active, log.last_batch_position, active.size - log.last_batch_position, active.size
    number = segments.number_of(offset)
    segment = segments[number]
    found = segment.find(offset)
    while found is None and number + 1 < len(segments):
        number += 1
        segment = segments[number]
        found = segment.find(offset)
    if found is None or found.base_offset >= upper_offset:
        return None
    return segment, found.position, found.size, _end_in(log, segment, number, upper_offset)


def _end_in(log: Log, segment: LogSegment, number: int, upper_offset: int) -> int:
    """Return the position in this segment at which the batches before `upper_offset` end."""
    if segment is not log.segments.active:
        if upper_offset >= log.segments.end_offset_of(number):
            return segment.size
    elif upper_offset >= log.end_offset:
        return segment.size
    elif upper_offset == log.flush_state.durable_offset:
        return log.flush_state.durable_position
    beyond = segment.find(upper_offset)
    return segment.size if beyond is None else beyond.position
