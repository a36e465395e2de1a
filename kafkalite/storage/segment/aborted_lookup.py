"""AbortedLookup: finds the aborted transactions with records in a range of offsets.

    entries of the transaction indexes, in the order of their markers:

    [ markers in the range ][ markers behind the range, of transactions that may begin in it   …
    ▲                        ▲                                                                 ▲
    offset             upper offset                   the last stable offset passes the upper offset

While a long transaction is open, the last stable offset stays where it begins, and millions of
short ones may be aborted, in many segments.  So behind the range, a lookup skips each block of
entries whose lowest first offset is behind it, too.  An index keeps the lowest first offset of a
block once it was computed; its last block may have few entries.  A lookup computes a bounded number
of them; then it is not complete, and the next one continues.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.transaction_index import (
    BLOCK_COUNT,
    READ_COUNT,
    AbortedTransaction,
    IndexBlock,
    TransactionIndex,
)

BLOCKS_MAX = 128
"""Maximum number of blocks of which a lookup computes the lowest first offset: about 3 ms."""


def aborted_between(
    aborting: Sequence[LogSegment],
    offset: int,
    upper_offset: int,
    count_max: int = sys.maxsize,
    counted_from: int = 0,
) -> list[tuple[int, int]] | None:
    """Return (producer id, first offset) of the aborted transactions with records from `offset` to
    `upper_offset`, in the order of their markers; None if the lookup is to be repeated.

    They end after `count_max` that began at `counted_from` or later.
    """
    lookup = AbortedLookup(offset, upper_offset, count_max, counted_from)
    for segment in aborting:
        if not lookup.search(segment):
            break
    return lookup.found if lookup.is_complete else None


class AbortedLookup:
    """One lookup, over the indexes of a log's segments; see the module."""

    def __init__(self, offset: int, upper_offset: int, count_max: int, counted_from: int) -> None:
        self.found: list[tuple[int, int]] = []
        self.is_complete = True
        self._offset = offset
        self._upper_offset = upper_offset
        self._counted_from = counted_from
        self._left = count_max
        self._blocks_left = BLOCKS_MAX

    def search(self, segment: LogSegment) -> bool:
        """Add the transactions of a segment; return whether those of later ones may follow."""
        index = segment.transaction_index
        assert index is not None
        is_behind = segment.base_offset >= self._upper_offset
        slot = 0 if is_behind else index.count_before(self._offset)
        while slot < index.count:
            number, skipped = divmod(slot, BLOCK_COUNT)
            if is_behind and not skipped:
                block = index.block(number) or self._computed(index, number)
                if block is None:
                    return False
                if block.first_offset >= self._upper_offset:
                    if block.last_stable_offset >= self._upper_offset:
                        return False
                    slot += BLOCK_COUNT
                    continue
            entries = index.read(slot, min(READ_COUNT, BLOCK_COUNT - skipped))
            for entry in entries:
                if entry.first_offset < self._upper_offset and not self._add(entry):
                    return False
                if entry.last_stable_offset >= self._upper_offset:
                    return False  # all later ones begin at or after it
            is_behind = entries[-1].last_offset >= self._upper_offset
            slot += len(entries)
        return True

    def _computed(self, index: TransactionIndex, number: int) -> IndexBlock | None:
        """Return a block that is not known yet; None if this lookup may compute no more."""
        if not self._blocks_left:
            self.is_complete = False
            return None
        self._blocks_left -= 1
        return index.compute_block(number)

    def _add(self, entry: AbortedTransaction) -> bool:
        """Add a transaction; return False if it is one too many."""
        if entry.first_offset >= self._counted_from:
            if not self._left:
                return False
            self._left -= 1
        self.found.append((entry.producer_id, entry.first_offset))
        return True
