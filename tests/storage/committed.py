"""Reads of aborted transactions, completed step by step."""

from __future__ import annotations

from collections.abc import Sequence

from kafkalite.records.file_slice import FileSlice
from kafkalite.storage.log.committed_read import CommittedRead
from kafkalite.storage.log.log import Log
from kafkalite.storage.segment.aborted_lookup import BUDGET, AbortedLookup, LookupBudget
from kafkalite.storage.segment.segment import LogSegment

STEPS_MAX = 1_000


def steps_of(work: AbortedLookup | CommittedRead, budget: int = BUDGET) -> int:
    """Complete a lookup or a read; return the number of steps."""
    for count in range(1, STEPS_MAX):
        if work.step(LookupBudget(budget)):
            return count
    raise AssertionError("the lookup never ends")


def aborted_between(
    aborting: Sequence[LogSegment], offset: int, upper_offset: int
) -> list[tuple[int, int]]:
    """Return (producer id, first offset) of the aborted transactions in a range."""
    lookup = AbortedLookup(aborting, offset, upper_offset)
    steps_of(lookup)
    return lookup.found


def read_committed(
    log: Log, offset: int, size_max: int, upper_offset: int, aborted_max: int = 1 << 30
) -> tuple[FileSlice | None, list[tuple[int, int]]]:
    """Return the records and aborted transactions of a read."""
    found = CommittedRead(log, offset, size_max, upper_offset, aborted_max)
    steps_of(found)
    return found.records, found.aborted
