"""Segments: the ordered set of a log's segments, the last of which is active.

    [segment 0   ][segment 4096   ][segment 9120  (active)   ]

The active segment is rolled (closed, and a new one created) before an append that would exceed
segment.bytes, the capacity of an index (segment.index.bytes), the largest relative offset of an
index entry, or segment.ms.

Not thread-safe: used on the event loop of the worker that owns the log.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import overload

from kafkalite.storage.files.open_segments import OpenSegments
from kafkalite.storage.segment.index import OffsetIndex, TimeIndex
from kafkalite.storage.segment.segment import (
    PREALLOCATED_FIRST,
    RELATIVE_OFFSET_MAX,
    BatchPosition,
    LogSegment,
)
from kafkalite.storage.segment.transaction_index import TransactionIndex
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.open_transactions import CompletedTransaction


class Segments(Sequence[LogSegment]):
    """The segments of one log, in the order of their offsets; there is always at least one."""

    __slots__ = ("_aborting", "_age_ms_max", "_base_offsets", "_clock", "_disk", "_flush_state",
                 "_offset_entries_max", "_open_segments", "_segments", "_shared_open_segments",
                 "_time_entries_max",
                 "active", "config", "created_count", "directory",
                 "preallocated_from")  # fmt: skip

    def __init__(
        self,
        found: list[LogSegment],
        config: LogConfig,
        environment: LogEnvironment,
        flush_state: FlushState,
        created_count: int,
    ) -> None:
        self._segments = found
        self._base_offsets = [segment.base_offset for segment in found]
        self._clock = environment.clock
        self._disk = environment.disk
        self._open_segments = self._shared_open_segments = environment.open_segments
        self._flush_state = flush_state
        self.active = found[-1]
        self.directory = self.active.directory
        self.created_count = created_count
        """Number of segments created by this process, whose names may not be flushed."""
        self._aborting = _with_entries(found)
        """The segments in which a transaction was aborted."""
        for segment in found[:-1]:
            segment.share(self._open_segments)
        self.active.share(self._open_segments, flush_state)
        self.reconfigure(config)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply new settings."""
        self.config = config
        # Writing into preallocated space is 1.6 times as fast; small logs do not need it.
        self.preallocated_from = 0 if config.durability.flushes_each_append else PREALLOCATED_FIRST
        self._offset_entries_max = config.segment_index_bytes // OffsetIndex.entry_size
        # The time index keeps room for the entry that is added when the segment is closed.
        self._time_entries_max = config.segment_index_bytes // TimeIndex.entry_size - 1
        for segment in self._segments:
            segment.index_interval = config.index_interval_bytes
        self._age_ms_max = self._drawn_age_ms()

    def _drawn_age_ms(self) -> int:
        """Return the maximum age of the next segment, with jitter so that many logs do not roll at
        once."""
        age_ms = self.config.segment_ms
        jitter_ms = min(self.config.segment_jitter_ms, age_ms)
        return age_ms - (random.randrange(jitter_ms) if jitter_ms > 0 else 0)

    # -- the sequence ------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        """Iterate over the segments as they are now, and those that are added meanwhile."""
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> LogSegment: ...

    @overload
    def __getitem__(self, index: slice) -> list[LogSegment]: ...

    def __getitem__(self, index: int | slice) -> LogSegment | list[LogSegment]:
        return self._segments[index]

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    def has_base_offset(self, offset: int) -> bool:
        """Return whether a segment begins at this offset."""
        return offset in self._base_offsets

    def number_of(self, offset: int) -> int:
        """Return the index of the last segment that begins at or before an offset."""
        if offset >= self.active.base_offset:
            return len(self._segments) - 1
        return bisect_right(self._base_offsets, offset) - 1

    def end_offset_of(self, number: int) -> int:
        """Return the offset after a closed segment."""
        return self._base_offsets[number + 1]

    def closed_from(self, offset: int) -> list[tuple[LogSegment, int]]:
        """Return the closed segments that end at or after an offset, with their end offsets.

        A segment that ends at a durable offset was truncated when it was closed, maybe since.
        """
        first = max(0, bisect_left(self._base_offsets, offset) - 1)
        return [(segment, later.base_offset) for segment, later in pairwise(self._segments[first:])]

    # -- rolling -----------------------------------------------------------------------------

    def preallocate(self, size: int) -> None:
        """Preallocate file space for the next `size` bytes, if there is none and it is worth it."""
        active = self.active
        if active.size + size > active.allocated and active.size >= self.preallocated_from:
            active.preallocate(size, self.config.segment_bytes)

    def is_roll_due(self, size: int, last_offset: int, max_timestamp: int) -> bool:
        """Return whether the active segment must be rolled before a batch is appended."""
        active = self.active
        if last_offset - active.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if active.size == 0:
            return False
        return (
            active.size + size > self.config.segment_bytes
            or active.offset_index.count >= self._offset_entries_max
            or active.time_index.count >= self._time_entries_max
            or active.age_ms(max_timestamp, self._clock) > self._age_ms_max
        )

    def count_fitting(self, batches: Sequence[BatchPosition], first: int) -> int:
        """Return how many of these batches, from index `first` on, can be appended before a roll
        may be due; the first one always can."""
        active = self.active
        size = active.size + batches[first].size
        entries_max = min(
            self._offset_entries_max - active.offset_index.count,
            self._time_entries_max - active.time_index.count,
        )
        begun = active.timestamp_of_first_batch() if active.size else batches[first].max_timestamp
        for number in range(first + 1, min(len(batches), first + max(1, entries_max))):
            _, added, _, last_offset, timestamp = batches[number]
            size += added
            age_ms = timestamp - begun if min(timestamp, begun) >= 0 else -1
            if (
                size > self.config.segment_bytes
                or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
                or age_ms > self._age_ms_max
            ):
                return number - first
        return max(1, min(len(batches) - first, entries_max))

    def roll(self, end_offset: int) -> None:
        """Make a new active segment, which begins at the log end offset; the last one, if any is
        left, is closed.

        Raises OSError if it cannot be created, and then nothing has changed.
        """
        created = LogSegment.create(
            self.directory, end_offset, self._disk, self.config.index_interval_bytes,
            self._clock.wall_ms(),
        )  # fmt: skip
        if self._segments:
            self._segments[-1].share(self._open_segments)
            self._open_segments.used(self._segments[-1])
        created.share(self._open_segments, self._flush_state)
        self._segments.append(created)
        self._base_offsets.append(end_offset)
        self.active = created
        self.created_count += 1
        self._age_ms_max = self._drawn_age_ms()

    # -- aborted transactions ----------------------------------------------------------------

    def note_completed(self, completed: CompletedTransaction) -> None:
        """Add a transaction whose marker was appended to the index, if it was aborted."""
        active = self.active
        if completed.is_commit:
            return
        if active.transaction_index is None:
            self.created_count += 1  # the name of its file is flushed as well
        active.note_completed(completed)
        if not self._aborting or self._aborting[-1] is not active:
            self._aborting.append(active)

    def transaction_indexes(self) -> list[TransactionIndex]:
        """Return the transaction indexes that have entries."""
        indexes = [segment.transaction_index for segment in self._aborting]
        return [index for index in indexes if index is not None]

    def with_aborted(self, offset: int) -> list[LogSegment]:
        """Return the segments in which a transaction was aborted, from the one that holds an
        offset on."""
        if not self._aborting:
            return []
        begin = self._base_offsets[max(0, self.number_of(offset))]
        first = bisect_left(self._aborting, begin, key=lambda segment: segment.base_offset)
        return self._aborting[first:]

    # -- removing ----------------------------------------------------------------------------

    def remove_first(self, count: int) -> list[Path]:
        """Remove the first `count` segments; return the paths of their files, to be deleted."""
        # A search may iterate over the earlier list (timestamps.py).
        removed, self._segments = self._segments[:count], self._segments[count:]
        del self._base_offsets[:count]
        first_offset = self._base_offsets[0]
        self._aborting = [each for each in self._aborting if each.base_offset >= first_offset]
        return [path for segment in removed for path in segment.mark_deleted()]

    def remove_last(self, count: int) -> list[LogSegment]:
        """Remove the last `count` segments; return them, their files unchanged.  If none is left
        the log needs `roll` next."""
        kept = len(self._segments) - count
        removed, self._segments = self._segments[kept:], self._segments[:kept]
        del self._base_offsets[kept:]
        self._aborting = _with_entries(self._segments)
        return removed

    def replace(self, first: int, count: int, cleaned: list[LogSegment]) -> None:
        """Replace `count` closed segments from index `first` on by others that cover the same
        offsets."""
        after = first + count
        assert 0 <= first < after < len(self._segments), "the active segment is never replaced"
        for segment in cleaned:
            segment.share(self._open_segments)
        # A search may iterate over the earlier list (timestamps.py).
        self._segments = [*self._segments[:first], *cleaned, *self._segments[after:]]
        self._base_offsets = [segment.base_offset for segment in self._segments]
        self._aborting = _with_entries(self._segments)
        self.created_count += 1

    def detach(self) -> None:
        """Let no other log release files of these segments, so that a thread may use them."""
        self._limit_with(OpenSegments())

    def attach(self) -> None:
        """End what `detach` began."""
        self._limit_with(self._shared_open_segments)

    def _limit_with(self, open_segments: OpenSegments) -> None:
        before, self._open_segments = self._open_segments, open_segments
        for segment in self._segments:
            before.released(segment)
            segment.share(open_segments, segment.flush_state)
            if segment.is_open:
                open_segments.used(segment)

    def release(self) -> None:
        """Release the files; readers that hold slices keep theirs."""
        for segment in self._segments:
            segment.release()


def _with_entries(segments: list[LogSegment]) -> list[LogSegment]:
    return [
        segment
        for segment in segments
        if segment.transaction_index is not None and segment.transaction_index.count
    ]
