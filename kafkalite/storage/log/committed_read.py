"""Reads of read_committed readers: a record range, and the aborted transactions in it.

    CommittedRead(...)    step(budget) ──▶ False: not complete, again in the next tick
                                │ True
                                ▼
                          records, aborted

A transaction index lists every transaction that overlaps the range: also those that are open
meanwhile, which may be a hundred thousand.  If there are more than fit a response, the headers of
the range tell which producers have batches in it.  A reader needs the transactions of these only,
and the range ends before there are too many of them.  So the length of the list depends on the
range alone.

Nothing but the present state of the log decides what is returned: if segments are removed or
replaced between two steps, the read begins again.
"""

from __future__ import annotations

import sys

from kafkalite._ext.aborted_scan import walk_transactions
from kafkalite._ext.segment_walk import AT_END, TORN, WHOLE
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import FileSlice
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import locate
from kafkalite.storage.segment.aborted_lookup import AbortedLookup, LookupBudget
from kafkalite.storage.segment.segment import LogSegment

WALK_SIZE = 8 << 20
"""Maximum size of a range whose headers are read, in bytes: about 2 ms."""
WALK_COST = 150_000
"""Cost of reading these headers, in index entries."""
SELECTIONS_MAX = 2
"""Maximum number of times that a range is cut."""


class CommittedRange:
    """The aborted transactions of a range of one segment, which is cut where it has too many."""

    __slots__ = ("_aborted_max", "_generation", "_log", "_lookup", "_offset", "_position",
                 "_segment", "_selections", "aborted", "end_offset", "size")  # fmt: skip

    def __init__(
        self,
        log: Log,
        segment: LogSegment,
        position: int,
        size: int,
        offset: int,
        end_offset: int,
        aborted_max: int,
    ) -> None:
        """Begin with the `size` bytes at `position`, which hold the batches from the one with
        `offset` on, before `end_offset`."""
        self._log = log
        self._generation = log.generation
        self._segment = segment
        self._position = position
        self._offset = offset
        self._aborted_max = aborted_max
        self._selections = 0
        self.size = size
        self.end_offset = end_offset
        self.aborted: list[tuple[int, int]] = []
        """(producer id, first offset) of the transactions, once the lookup is complete."""
        aborting = log.segments.with_aborted(offset)
        self._lookup = AbortedLookup(aborting, offset, end_offset, aborted_max + 1)

    @property
    def is_stale(self) -> bool:
        """True if the segments have changed since the range was found; it takes no more steps."""
        return self._generation != self._log.generation or self._log.failure is not None

    def step(self, budget: LookupBudget) -> bool:
        """Continue within a budget; return whether the lookup is complete."""
        if not self._lookup.step(budget):
            return False
        if len(self._lookup.found) > self._aborted_max and self._selections < SELECTIONS_MAX:
            if budget.left <= 0:
                return False
            self._select()
            budget.left -= WALK_COST
            return self.step(budget)
        self.aborted = self._lookup.found
        return True

    def _select(self) -> None:
        """Cut the range so that its batches are of few transactions; look up these only.

        Compaction removes the batches of aborted transactions and keeps their markers.  So a
        producer with a batch or marker in the range may have one transaction more, which begins in
        the range and ends behind it: at most twice as many in all.  The second selection is of half
        as many.
        """
        segment, begin = self._segment, self._position
        self._selections += 1
        count_max = self._aborted_max
        if self._selections == SELECTIONS_MAX:
            count_max = max(1, count_max // 2)
        code, position, end_offset, producer_ids = walk_transactions(
            segment.descriptor, begin, begin + self.size, WALK_SIZE, count_max
        )
        if code == WHOLE:
            self.size = position - begin
        elif code != AT_END and code != TORN:  # a fetched range may end within a batch
            raise KafkaStorageError(segment.error_text(code, position))
        self.end_offset = max(self._offset, end_offset)
        aborting = self._log.segments.with_aborted(self._offset) if self.size else ()
        found_max = self._aborted_max + 1
        if self._selections == SELECTIONS_MAX:
            found_max = sys.maxsize  # none may be missing
        self._lookup = AbortedLookup(
            aborting, self._offset, self.end_offset, found_max, producer_ids
        )


class CommittedRead:
    """One read of a read_committed reader; see the module."""

    __slots__ = ("_aborted_max", "_log", "_range", "_size_max", "_upper_offset", "_whole_first",
                 "aborted", "offset", "records")  # fmt: skip

    def __init__(
        self,
        log: Log,
        offset: int,
        size_max: int,
        upper_offset: int,
        aborted_max: int,
        *,
        whole_first: bool = True,
    ) -> None:
        """Begin a read as `log_reader.read`, with at most `aborted_max` aborted transactions.

        With `whole_first` the first batch is returned in any case, with at most one, or two after
        compaction.
        """
        self.records: FileSlice | None = None
        """The slice, once the read is complete; None if there are no records there yet."""
        self.aborted: list[tuple[int, int]] = []
        """(producer id, first offset) of aborted transactions: none is missing that has a batch in
        the slice, and there may be more, which its reader ignores."""
        self.offset = offset
        self._log = log
        self._size_max = size_max
        self._upper_offset = upper_offset
        self._aborted_max = max(1, aborted_max) if whole_first else aborted_max
        self._whole_first = whole_first
        self._range: CommittedRange | None = None
        self._begin()

    def _begin(self) -> None:
        log, offset, upper_offset = self._log, self.offset, self._upper_offset
        self.records = self._range = None
        found = locate(log, offset, upper_offset)
        if found is None:
            return
        segment, position, size, end = found
        if size <= self._size_max:
            size = min(self._size_max, end - position)
        elif not self._whole_first:
            return
        self.records = FileSlice(segment.file, position, size)
        if not log.segments.with_aborted(offset):
            return
        bound = segment.offset_bound(position + size)
        if bound is None and segment is not log.segments.active:
            bound = log.segments.end_offset_of(log.segments.number_of(segment.base_offset))
        if bound is not None:
            upper_offset = min(upper_offset, bound)
        self._range = CommittedRange(
            log, segment, position, size, offset, upper_offset, self._aborted_max
        )

    def step(self, budget: LookupBudget) -> bool:
        """Continue within a budget; return whether the read is complete.

        Raises KafkaError as a read does, also in a later step.
        """
        found = self._range
        if found is not None and found.is_stale:
            self._begin()
            found = self._range
        if found is None:
            return True
        if not found.step(budget):
            return False
        self.aborted = found.aborted
        records = self.records
        if records is not None and found.size < records.size:
            self.records = (
                FileSlice(records.file, records.position, found.size) if found.size else None
            )
        self._range = None
        return True
