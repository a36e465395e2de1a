"""InFlightRanges: the records of a share partition from its start offset to its end, as ranges.

A range has consecutive offsets with the same state, delivery count, member and lock.  The ranges
cover the window without gaps, and are split where a request begins or ends within one.  The window
is bounded (share.partition.max.record.locks), and with it the cost of inserting into a list.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kafkalite.coordination.share.delivery_states import TERMINAL
from kafkalite.protocol.schemas.share_records import DeliveryState

NO_MEMBER = ""
NO_DEADLINE = 0
NO_WRITE = 0

WHOLE_JOIN_MAX = 8
"""Number of ranges for each span up to which all of them are joined in one pass: a list of
thousands of ranges would be copied for each span otherwise."""

RangeKey: TypeAlias = tuple[DeliveryState, int, str, int, DeliveryState | None, int, bool]
"""The fields of a range besides its offsets; neighbours with equal keys are joined."""


class InFlightRange:
    """Consecutive offsets, both bounds included, of records in the same state."""

    __slots__ = ("deadline_ms", "delivery_count", "first_offset", "is_rejected", "last_offset",
                 "member_id", "state", "target", "write_id")  # fmt: skip

    def __init__(
        self, first_offset: int, last_offset: int, state: DeliveryState, delivery_count: int
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = NO_MEMBER
        self.deadline_ms = NO_DEADLINE
        self.target: DeliveryState | None = None
        """The next state, while the transition to it is not written yet."""
        self.write_id = NO_WRITE
        self.is_rejected = False
        """True if a member has rejected the records, and their dead letter is not written."""

    def __len__(self) -> int:
        return self.last_offset - self.first_offset + 1

    def __repr__(self) -> str:
        return f"InFlightRange({self.first_offset}-{self.last_offset} {self.state.name})"

    @property
    def key(self) -> RangeKey:
        """The fields besides the offsets."""
        return (self.state, self.delivery_count, self.member_id, self.deadline_ms, self.target,
                self.write_id, self.is_rejected)  # fmt: skip

    @property
    def is_available(self) -> bool:
        """True if a member may acquire the records."""
        return self.state is DeliveryState.AVAILABLE

    @property
    def is_held(self) -> bool:
        """True if a member has the records and has not acknowledged them."""
        return self.state is DeliveryState.ACQUIRED and self.target is None

    @property
    def is_terminal(self) -> bool:
        """True if the records will not change again."""
        return self.state in TERMINAL

    def state_after(self, write_id: int) -> DeliveryState:
        """Return the state once this write is stored, and no other one."""
        is_written = write_id != NO_WRITE and self.write_id == write_id
        return self.target if is_written and self.target is not None else self.state

    def move_to(self, state: DeliveryState) -> None:
        """Change the state; the lock and the transition end."""
        self.state = state
        self.member_id = NO_MEMBER
        self.deadline_ms = NO_DEADLINE
        self.target = None
        self.write_id = NO_WRITE
        self.is_rejected = self.is_rejected and state is DeliveryState.ARCHIVING

    def tail_from(self, offset: int) -> InFlightRange:
        """Cut the range before `offset`; return the rest."""
        tail = InFlightRange(offset, self.last_offset, self.state, self.delivery_count)
        tail.member_id, tail.deadline_ms = self.member_id, self.deadline_ms
        tail.target, tail.write_id = self.target, self.write_id
        tail.is_rejected = self.is_rejected
        self.last_offset = offset - 1
        return tail


class InFlightRanges:
    """The ranges of a window, in the order of their offsets."""

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.done_count = 0
        """The number of records in the window that are done."""
        self._ranges: list[InFlightRange] = []
        self._first_offsets: list[int] = []
        self._available_from = start_offset
        """No record before this offset is available."""
        self.archiving: deque[tuple[int, int]] = deque()
        """Bounds of the records that became Archiving; some may have left the window since."""

    def __iter__(self) -> Iterator[InFlightRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    @property
    def end_offset(self) -> int:
        """The offset after the last record in the window."""
        return self._ranges[-1].last_offset + 1 if self._ranges else self.start_offset

    @property
    def count(self) -> int:
        """The number of offsets in the window."""
        return self.end_offset - self.start_offset

    def first_available(self) -> int | None:
        """Return the first offset that is available, or None."""
        position = max(0, bisect_right(self._first_offsets, self._available_from) - 1)
        while position < len(self._ranges):
            if self._ranges[position].is_available:
                self._available_from = self._ranges[position].first_offset
                return self._available_from
            position += 1
        self._available_from = self.end_offset
        return None

    def move(self, each: InFlightRange, state: DeliveryState) -> None:
        """Change the state of one range; its lock and its transition end."""
        self.done_count -= len(each) if each.is_terminal else 0
        each.move_to(state)
        self.done_count += len(each) if each.is_terminal else 0
        if each.is_available:
            self._available_from = min(self._available_from, each.first_offset)
        elif state is DeliveryState.ARCHIVING:
            self._add_archiving(each)

    def extend(self, last_offset: int, state: DeliveryState, delivery_count: int = 0) -> None:
        """Add a range from the end of the window to `last_offset`."""
        first_offset = self.end_offset
        if last_offset >= first_offset:
            added = InFlightRange(first_offset, last_offset, state, delivery_count)
            self._ranges.append(added)
            self._first_offsets.append(first_offset)
            self.done_count += len(added) if added.is_terminal else 0
            if state is DeliveryState.ARCHIVING:
                self._add_archiving(added)

    def acquire_next(self, last_offset: int, member_id: str, deadline_ms: int) -> None:
        """Add records from the end of the window to `last_offset`, in their first delivery."""
        last = self._ranges[-1] if self._ranges else None
        if last is None or last.key != (
            DeliveryState.ACQUIRED, 1, member_id, deadline_ms, None, NO_WRITE, False
        ):  # fmt: skip
            self.extend(last_offset, DeliveryState.ACQUIRED, 1)
            last = self._ranges[-1]
            last.member_id, last.deadline_ms = member_id, deadline_ms
        last.last_offset = last_offset

    def _add_archiving(self, each: InFlightRange) -> None:
        first_offset = each.first_offset
        if self.archiving and self.archiving[-1][1] + 1 == first_offset:
            first_offset = self.archiving.pop()[0]
        self.archiving.append((first_offset, each.last_offset))

    def overlapping(self, first_offset: int, last_offset: int) -> list[InFlightRange]:
        """Return the ranges with any of these offsets."""
        if last_offset < first_offset:
            return []
        begin = max(0, bisect_right(self._first_offsets, first_offset) - 1)
        end = bisect_right(self._first_offsets, last_offset)
        found = self._ranges[begin:end]
        if found and found[0].last_offset < first_offset:
            del found[0]
        return found

    def between(self, first_offset: int, last_offset: int) -> list[InFlightRange]:
        """Return the ranges with exactly these offsets of the window, split at the bounds."""
        self._split(first_offset)
        self._split(last_offset + 1)
        return self.overlapping(first_offset, last_offset)

    def _split(self, offset: int) -> None:
        """Have a range begin at an offset, if the offset is in the window."""
        position = bisect_right(self._first_offsets, offset) - 1
        if position < 0:
            return
        found = self._ranges[position]
        if found.first_offset < offset <= found.last_offset:
            self._ranges.insert(position + 1, found.tail_from(offset))
            self._first_offsets.insert(position + 1, offset)

    def join(self, first_offset: int, last_offset: int) -> None:
        """Join the equal neighbours among these offsets and beside them."""
        begin = max(0, bisect_right(self._first_offsets, first_offset) - 2)
        end = bisect_right(self._first_offsets, last_offset) + 1
        joined: list[InFlightRange] = []
        for each in self._ranges[begin:end]:
            if joined and joined[-1].key == each.key:
                joined[-1].last_offset = each.last_offset
            else:
                joined.append(each)
        self._ranges[begin:end] = joined
        self._first_offsets[begin:end] = [each.first_offset for each in joined]

    def join_spans(self, spans: Sequence[tuple[int, int]]) -> None:
        """Join the equal neighbours in and beside ascending spans of offsets."""
        if not spans:
            return
        first_offset, last_offset = spans[0][0], spans[-1][1]
        first_offsets = self._first_offsets
        count = bisect_right(first_offsets, last_offset) - bisect_right(first_offsets, first_offset)
        if count < WHOLE_JOIN_MAX * len(spans):
            self.join(first_offset, last_offset)
            return
        for span in spans:
            self.join(*span)

    def start_at(self, offset: int) -> None:
        """Move the start of the window to an offset; drop the ranges before it."""
        self._split(offset)
        position = bisect_right(self._first_offsets, offset - 1)
        self.done_count -= sum(len(each) for each in self._ranges[:position] if each.is_terminal)
        del self._ranges[:position], self._first_offsets[:position]
        self.start_offset = offset
