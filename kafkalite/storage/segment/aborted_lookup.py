"""AbortedLookup: finds the aborted transactions with records in a range of offsets.

    entries of the transaction indexes, in the order of their markers:

    [ markers in the range ][ markers behind the range, of transactions that may begin in it   …
    ▲                        ▲                                                                 ▲
    offset             upper offset                   the last stable offset passes the upper offset

While a long transaction is open, the last stable offset stays where it begins, and millions of
short ones may be aborted, in many segments.  So a lookup skips each block of entries whose lowest
first offset is behind the range; an index keeps the offsets of the blocks that were read.

It takes steps: each reads as many entries as a LookupBudget has left, which the lookups of a tick
share.  The segments must not change between two steps (`Log.generation`).  Transactions that end
meanwhile begin behind the range, which ends before the last stable offset.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kafkalite._ext.aborted_scan import find_aborted
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.transaction_index import BLOCK_COUNT, IndexBlock, TransactionIndex

BUDGET = 300_000
"""Number of index entries that lookups may read in a tick: about 3 ms."""
READ_COST, SKIP_COST = 500, 30
"""Costs of reading a block and of skipping one, in entries."""
FIRST_COUNT = 64
"""Number of entries that a lookup reads first: most need no more."""


class LookupBudget:
    """The number of index entries that the lookups of a tick may still read."""

    __slots__ = ("left",)

    def __init__(self, left: int | None = None) -> None:
        self.left = BUDGET if left is None else left


class AbortedLookup:
    """One lookup, over the indexes of a log's segments; see the module."""

    __slots__ = ("_count_max", "_number", "_offset", "_producer_ids", "_read_count", "_segments",
                 "_slot", "_upper_offset", "found")  # fmt: skip

    def __init__(
        self,
        aborting: Sequence[LogSegment],
        offset: int,
        upper_offset: int,
        count_max: int = sys.maxsize,
        producer_ids: bytes | None = None,
    ) -> None:
        """Begin a lookup from `offset` to `upper_offset` that ends after `count_max`; with
        `producer_ids` (aborted_scan.walk_transactions), only of these producers."""
        self.found: list[tuple[int, int]] = []
        """(producer id, first offset), in the order of their markers."""
        self._segments = aborting
        self._offset = offset
        self._upper_offset = upper_offset
        self._count_max = count_max
        self._producer_ids = producer_ids
        self._number, self._slot = 0, -1
        self._read_count = FIRST_COUNT

    def step(self, budget: LookupBudget) -> bool:
        """Read entries within a budget; return whether the lookup is complete."""
        while self._number < len(self._segments):
            index = self._segments[self._number].transaction_index
            assert index is not None
            if self._slot < 0:
                self._slot = 0 if self._number else index.count_before(self._offset)
            while self._slot < index.count:
                if budget.left <= 0:
                    return False
                if not self._search(index, budget):
                    self._segments = ()
                    return True
            self._number, self._slot = self._number + 1, -1
        return True

    def _search(self, index: TransactionIndex, budget: LookupBudget) -> bool:
        """Search a block, or its rest; return whether later entries may be needed."""
        number, skipped = divmod(self._slot, BLOCK_COUNT)
        end = BLOCK_COUNT * (number + 1)
        block = index.block(number)
        if block is not None and block.first_offset >= self._upper_offset:
            budget.left -= SKIP_COST
            self._slot = end
            return block.last_stable_offset < self._upper_offset
        entries = index.entries_between(self._slot, min(end, self._slot + self._read_count))
        found, count, may_follow, first_offset, stable_offset = find_aborted(
            entries, self._upper_offset, self._count_max - len(self.found), self._producer_ids
        )
        budget.left -= READ_COST + count
        self.found += found
        self._slot += count
        self._read_count = BLOCK_COUNT
        if not skipped and self._slot == min(end, index.count):
            index.keep_block(number, IndexBlock(first_offset, stable_offset))
        return may_follow
