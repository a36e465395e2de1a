"""Finding records by their time, in the segments of a log.

A time index leads near the batch; the batch is then opened, since its header knows the greatest
of its timestamps only.

A header that claims a later time than its records bear hides the rest of its segment from the
search.  To go on would have whoever wrote such batches decide how many are opened for one request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kafkalite.records.batch import RecordBatch
from kafkalite.storage.segment import LogSegment


class TimestampOffset(NamedTuple):
    """A record, by its time."""

    timestamp: int
    offset: int
    leader_epoch: int


def first_since(
    segments: Sequence[LogSegment], timestamp: int, log_start_offset: int
) -> TimestampOffset | None:
    """The first record at this time or later."""
    for segment in segments:
        if segment.largest_timestamp < timestamp:
            continue
        found = segment.find_timestamp(timestamp, log_start_offset)
        while found is not None:
            batch = RecordBatch(segment.read(found))
            header = batch.header
            for record in batch.records():
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    return TimestampOffset(record.timestamp, record.offset, header.leader_epoch)
            found = None
            if header.base_offset < log_start_offset:
                # The record its header means is deleted; of such batches there is only one.
                found = segment.find_timestamp(timestamp, header.last_offset + 1)
    return None


def newest(segments: Sequence[LogSegment]) -> TimestampOffset | None:
    """The first record of those with the greatest timestamp."""
    for segment in segments:
        segment.load_timestamps()
    holder = max(segments, key=lambda segment: segment.max_timestamp)
    found = holder.find(holder.offset_of_max) if holder.max_timestamp >= 0 else None
    if found is None:
        return None
    batch = RecordBatch(holder.read(found))
    for record in batch.records():
        if record.timestamp == holder.max_timestamp:
            return TimestampOffset(record.timestamp, record.offset, batch.header.leader_epoch)
    return None
