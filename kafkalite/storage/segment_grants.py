"""Loans: stretches of segment files for readers in other processes of this host.

    ask again from end_offset ──▶ lend ──▶ Loan(segment, position, size, end_offset)
                                              │ whole batches of one segment, below the bound
                                              ▼
                                   the reader's own descriptor of that file

A slice that is sent over a socket may end within a batch; a loan never does, so that its end is an
offset to go on from.  The reader's descriptor shows the whole file; to read no further than it was
lent is the reader's duty, and so a loan is for who could open the file anyway.

A segment that was lent may be removed meanwhile.  Its bytes stay for file.delete.delay.ms; then
they are cut off (doomed.py), and a short read tells the reader to ask again.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite._ext.segment_walk import STORAGE_ERROR
from kafkalite.errors import KafkaStorageError

if TYPE_CHECKING:
    from kafkalite.storage.log import Log
    from kafkalite.storage.segment import LogSegment


class Loan(NamedTuple):
    """What may be read; see the module."""

    segment: LogSegment
    position: int
    size: int
    end_offset: int


def lend(log: Log, offset: int, size_max: int, upper_offset: int) -> Loan | None:
    """The batches from the one that holds `offset` on, of one segment and below `upper_offset`;
    None when there is nothing there yet.

    The first batch is lent even if it is larger than `size_max`, and of the others those that fit,
    to within a stretch between two index entries.
    """
    found = log.locate(offset, upper_offset)
    if found is None:
        return None
    segment, position, first_size, end = found
    if end - position > size_max:
        end = max(position + first_size, _batch_at(segment, position + size_max))
    log.doomed.lend(segment.file)
    return Loan(segment, position, end - position, _offset_at(log, segment, end))


def _batch_at(segment: LogSegment, position: int) -> int:
    """Where the last batch begins that the index knows up to a position; 0 for none."""
    relative, begin = segment.offset_index.last_at(position)
    if relative < 0:
        return 0
    head = _header(segment, begin)
    # An index is a cache; what it says counts if the batch says so, too.
    whole = len(head) == HEADER_SIZE
    true = whole and _last_offset(head) == segment.base_offset + relative
    return begin if true else 0


def _offset_at(log: Log, segment: LogSegment, position: int) -> int:
    """The offset with which what stands there, or would, begins."""
    if position == segment.size:
        if segment is log.active:
            return log.end_offset
        later = bisect_right(log.segments, segment.base_offset, key=lambda each: each.base_offset)
        return log.segments[later].base_offset
    head = _header(segment, position)
    if len(head) < HEADER_SIZE:
        raise KafkaStorageError(f"{segment.path} ends before its byte {position}")
    return header(head)[0]


def _header(segment: LogSegment, position: int) -> bytes:
    try:
        return os.pread(segment.descriptor, HEADER_SIZE, position)
    except OSError as error:
        raise KafkaStorageError(segment.fault(STORAGE_ERROR, position)) from error


def _last_offset(head: bytes) -> int:
    fields = header(head)
    return fields[0] + fields[6]
