"""Segment grants: ranges of segment files that other processes of this host may read.

    request again from end_offset ──▶ grant ──▶ SegmentGrant(segment, position, size, end_offset)
                                               │ whole batches of one segment, below the bound
                                               ▼
                                    the reader's own descriptor of that file

A slice that is sent over a socket may end within a batch; a grant never does, so its end is an
offset to continue from.  The reader's descriptor gives access to the whole file, and the reader
itself must respect the bounds, so a grant is only for processes that could open the file anyway.

A segment with a grant may be removed meanwhile.  Its bytes stay for file.delete.delay.ms; then the
file is truncated (deferred_delete.py), and a short read makes the reader request again.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite._ext.segment_walk import STORAGE_ERROR
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import locate
from kafkalite.storage.segment.segment import LogSegment


class SegmentGrant(NamedTuple):
    """A segment grant: the range that may be read, and the offset after it."""

    segment: LogSegment
    position: int
    size: int
    end_offset: int


def grant(log: Log, offset: int, size_max: int, upper_offset: int) -> SegmentGrant | None:
    """Return a grant from the batch that holds `offset` on, within one segment and below
    `upper_offset`; None if there are no records there yet.

    The first batch is included even if it is larger than `size_max`, and of the others those that
    fit, to within the distance of two index entries.
    """
    found = locate(log, offset, upper_offset)
    if found is None:
        return None
    segment, position, first_size, end = found
    if end - position > size_max:
        end = max(position + first_size, _batch_at(segment, position + size_max))
    log.deferred_deletes.note_grant(segment.file)
    return SegmentGrant(segment, position, end - position, _offset_at(log, segment, end))


def _batch_at(segment: LogSegment, position: int) -> int:
    """Return the position of the last indexed batch at or before a position; 0 if there is none."""
    relative, begin = segment.offset_index.last_at(position)
    if relative < 0:
        return 0
    head = _header(segment, begin)
    # The index is a cache: its entry counts only if the batch agrees.
    whole = len(head) == HEADER_SIZE
    true = whole and _last_offset(head) == segment.base_offset + relative
    return begin if true else 0


def _offset_at(log: Log, segment: LogSegment, position: int) -> int:
    """Return the offset of the batch at a position, or after the last batch if it ends there."""
    if position == segment.size:
        if segment is log.active:
            return log.end_offset
        return log.segments.end_offset_of(log.segments.number_of(segment.base_offset))
    head = _header(segment, position)
    if len(head) < HEADER_SIZE:
        raise KafkaStorageError(f"{segment.path} ends before byte {position}")
    return header(head)[0]


def _header(segment: LogSegment, position: int) -> bytes:
    try:
        return os.pread(segment.descriptor, HEADER_SIZE, position)
    except OSError as error:
        raise KafkaStorageError(segment.error_text(STORAGE_ERROR, position)) from error


def _last_offset(head: bytes) -> int:
    fields = header(head)
    return fields[0] + fields[6]
