"""Groups of neighbouring segments that one cleaned segment can replace.

A group's files together stay within the topic's limits, its offsets within an index entry, and a
swap within a tick of the event loop.  An empty segment joins any group.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kafkalite.storage.compaction.cleaning_job import CleaningJob, SourceSegment
from kafkalite.storage.files import layout
from kafkalite.storage.segment.segment import RELATIVE_OFFSET_MAX

GROUP_SEGMENTS_MAX = 64
"""Maximum number of segments that are replaced at once: each is renamed, in 10 µs a file."""


class SegmentSizes(NamedTuple):
    """Sizes of a segment's files, or of several together."""

    log: int
    offset_index: int
    time_index: int

    def plus(self, other: SegmentSizes) -> SegmentSizes:
        return SegmentSizes(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def groups_of(job: CleaningJob, end_offset: int) -> list[list[SourceSegment]]:
    """Return the groups of the sources that begin below `end_offset`, in their order."""
    groups: list[list[SourceSegment]] = []
    sizes = SegmentSizes(0, 0, 0)
    for source, next_base in job.spans():
        if source.base_offset >= end_offset:
            break
        own = _sizes(job, source)
        joined = sizes.plus(own)
        if groups and _is_joined(job, groups[-1], source, next_base, joined):
            groups[-1].append(source)
            sizes = joined
        else:
            groups.append([source])
            sizes = own
    return [group for group in groups if any(source.size for source in group)]


def _is_joined(
    job: CleaningJob,
    group: list[SourceSegment],
    source: SourceSegment,
    next_base: int,
    joined: SegmentSizes,
) -> bool:
    if len(group) >= GROUP_SEGMENTS_MAX:
        return False
    if next_base - 1 - group[0].base_offset > RELATIVE_OFFSET_MAX:
        return False
    return source.size == 0 or (
        joined.log <= job.segment_bytes
        and joined.offset_index <= job.segment_index_bytes
        and joined.time_index <= job.segment_index_bytes
    )


def _sizes(job: CleaningJob, source: SourceSegment) -> SegmentSizes:
    indexes = []
    for suffix in (layout.OFFSET_INDEX, layout.TIME_INDEX):
        path = Path(job.directory) / layout.file_name(source.base_offset, suffix)
        try:
            indexes.append(os.stat(path).st_size)
        except FileNotFoundError:
            indexes.append(0)
    return SegmentSizes(source.size, *indexes)
