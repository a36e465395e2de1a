"""Cleaning files: a cleaning job and its result as bytes, in a file that two processes share.

The log's owner writes the job into an anonymous file in memory and sends its descriptor; the
cleaner reads it there, and writes the result in its place.  So neither is bounded by the size of a
packet: a log may have tens of thousands of producers and aborted transactions.

    job       u32 size of the JSON, u32 number of producers, JSON,
              producers of i64 id, i64 last data offset, i16 epoch each,
              aborted transactions of 4 × i64 each
    result    JSON
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from typing import Any

from kafkalite.errors import CorruptMessage
from kafkalite.storage.compaction.cleaning_job import (
    CleanedGroup,
    CleanedSegment,
    CleaningCounts,
    CleaningJob,
    CleaningResult,
    LiveProducer,
    SourceSegment,
)
from kafkalite.storage.segment.transaction_index import AbortedTransaction

_SIZES = struct.Struct("<II")
_PRODUCER = struct.Struct("<qqh")
_ABORTED = struct.Struct("<4q")
RESULT_SIZE_MAX = 16 << 20


def packed(aborted: Iterable[AbortedTransaction]) -> bytes:
    """Return aborted transactions as bytes, which may be joined."""
    return b"".join(_ABORTED.pack(*each) for each in aborted)


def packed_producers(producers: Iterable[tuple[int, LiveProducer]]) -> bytes:
    """Return producers as bytes, which may be joined."""
    return b"".join(_PRODUCER.pack(producer_id, *each) for producer_id, each in producers)


def write_job(
    descriptor: int, job: CleaningJob, producers: bytes | bytearray, aborted: bytes | bytearray
) -> None:
    """Write a job to an empty file, with the producers and aborted transactions as packed."""
    text = json.dumps(job._asdict()).encode()
    sizes = _SIZES.pack(len(text), len(producers) // _PRODUCER.size)
    content = b"".join((sizes, text, producers, aborted))
    if os.pwrite(descriptor, content, 0) != len(content):
        raise OSError("the job was written in part")


def read_job(descriptor: int) -> CleaningJob:
    """Read a job."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    size, producer_count = _SIZES.unpack_from(content)
    producers_at = _SIZES.size + size
    aborted_at = producers_at + producer_count * _PRODUCER.size
    fields = json.loads(content[_SIZES.size : producers_at])
    fields["sources"] = tuple(SourceSegment(*each) for each in fields["sources"])
    fields["producers"] = {
        producer_id: LiveProducer(*each)
        for producer_id, *each in _PRODUCER.iter_unpack(content[producers_at:aborted_at])
    }
    fields["aborted"] = tuple(
        AbortedTransaction(*each) for each in _ABORTED.iter_unpack(content[aborted_at:])
    )
    return CleaningJob(**fields)


def write_result(descriptor: int, result: CleaningResult) -> None:
    """Write a result in place of the job."""
    content = json.dumps(result._asdict()).encode()
    os.ftruncate(descriptor, 0)
    if os.pwrite(descriptor, content, 0) != len(content):
        raise OSError("the result was written in part")


def read_result(descriptor: int) -> CleaningResult:
    """Read a result; raise CorruptMessage if it is not valid."""
    if os.fstat(descriptor).st_size > RESULT_SIZE_MAX:
        raise CorruptMessage("The result of a cleaning is too large.")
    try:
        fields = json.loads(os.pread(descriptor, RESULT_SIZE_MAX, 0))
        return CleaningResult(
            end_offset=_integer(fields["end_offset"]),
            groups=tuple(_group(*each) for each in fields["groups"]),
            counts=_counts(*fields["counts"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptMessage(f"The result of a cleaning is not valid: {error!r}.") from None


def _group(sources: list[Any], segments: list[Any]) -> CleanedGroup:
    group = CleanedGroup(
        tuple(SourceSegment(*map(_integer, each)) for each in sources),
        tuple(CleanedSegment(*map(_integer, each)) for each in segments),
    )
    if not group.sources or not group.segments:
        raise ValueError("an empty group")
    return group


def _counts(*values: Any) -> CleaningCounts:
    counts = CleaningCounts(*values)
    for total in counts[:-1]:
        _integer(total)
    share = counts.map_utilization
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ValueError(f"{share!r} is not a share")
    return counts


def _integer(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not an offset or size")
    return value
