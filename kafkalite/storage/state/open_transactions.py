"""OpenTransactions: the transactions of one log that hold back its last stable offset.

    open     began in the log, and no marker has ended it
    ended    its marker is in the log, at or above the high watermark

The last stable offset is the lowest first offset of these, or the high watermark if there are none:
below it, the outcome of every transaction is known and committed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    last_stable_offset: int
    """The last stable offset once the marker is committed."""
    is_commit: bool


class EndedTransaction(NamedTuple):
    """A transaction whose marker may not be committed yet."""

    first_offset: int
    last_offset: int


class OpenTransactions:
    """The open and ended transactions of a log."""

    __slots__ = ("_ended", "_first_offsets", "_holding", "uncertain_below")

    def __init__(self) -> None:
        # In the order of their first offsets, since a transaction begins at the log end.  Of a dict
        # whose first entries were removed, the next one is found by a search.
        self._first_offsets: OrderedDict[int, int] = OrderedDict()
        self._ended: deque[EndedTransaction] = deque()
        self._holding: deque[EndedTransaction] = deque()
        """The ended transactions that began before all that ended later: the first one is the
        oldest, since there may be thousands until a flush."""
        self.uncertain_below = 0
        """Offset below which a transaction began before an unclean end of the host, after which its
        coordinator may not know it."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Return (producer id, first offset) of the open transactions, the oldest first."""
        return iter(self._first_offsets.items())

    def __len__(self) -> int:
        return len(self._first_offsets) + len(self._ended)

    def __contains__(self, producer_id: int) -> bool:
        """Return whether a producer has an open transaction."""
        return producer_id in self._first_offsets

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Add a transaction that begins at the log end."""
        self._first_offsets[producer_id] = first_offset

    def end(
        self, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> CompletedTransaction | None:
        """End the open transaction of a producer; return None if it has none."""
        first_offset = self._first_offsets.pop(producer_id, None)
        if first_offset is None:
            return None
        self._add_ended(EndedTransaction(first_offset, marker_offset))
        stable = next(iter(self._first_offsets.values()), marker_offset + 1)
        return CompletedTransaction(producer_id, first_offset, marker_offset, stable, is_commit)

    def _add_ended(self, ended: EndedTransaction) -> None:
        holding = self._holding
        while holding and holding[-1].first_offset > ended.first_offset:
            holding.pop()
        holding.append(ended)
        self._ended.append(ended)

    def forget_committed(self, high_watermark: int) -> None:
        """Forget the ended transactions whose markers are committed."""
        for ended in (self._ended, self._holding):
            while ended and ended[0].last_offset < high_watermark:
                ended.popleft()

    def last_stable_offset(self, high_watermark: int, log_start_offset: int) -> int:
        """Return the last stable offset; it never moves back as the high watermark advances."""
        self.forget_committed(high_watermark)
        stable = min(
            next(iter(self._first_offsets.values()), high_watermark),
            self._holding[0].first_offset if self._holding else high_watermark,
            high_watermark,
        )
        return max(stable, min(log_start_offset, high_watermark))

    def keep_ended(self, earlier: OpenTransactions, end_offset: int) -> None:
        """Add the ended transactions of an earlier state whose markers are before an offset: after
        a truncation they are in the log, and may not be committed yet."""
        kept = {each for each in earlier._ended if each.last_offset < end_offset}
        ended = sorted(kept.union(self._ended), key=lambda each: each.last_offset)
        self._ended.clear()
        self._holding.clear()
        for each in ended:
            self._add_ended(each)

    def restore(self, first_offsets: dict[int, int]) -> None:
        """Replace everything by these open transactions, given by producer id."""
        self._first_offsets = OrderedDict(sorted(first_offsets.items(), key=lambda each: each[1]))
        self._ended.clear()
        self._holding.clear()
