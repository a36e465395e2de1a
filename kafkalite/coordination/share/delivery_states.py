"""Delivery states of the records of a share group, and their merging.

The state of records is written as batches of consecutive offsets with one state and one delivery
count.  The batches that a share partition's leader writes are merged with those that are stored:
where they overlap, the higher delivery count is valid, then the higher state.  So a write may be
repeated, and writes may overlap in any way.

Source: KIP-932, KIP-1191.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from kafkalite.protocol.schemas.share_records import DeliveryState, StateBatch

TERMINAL = frozenset((DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED))
"""The states that a record never leaves."""


_first_offset = attrgetter("first_offset")
_last_offset = attrgetter("last_offset")


def merge_batches(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return batches in the order of their offsets, without overlaps and from `start_offset` on."""
    ordered = sorted(
        (batch for batch in batches if batch.last_offset >= start_offset), key=_first_offset
    )
    apart = _apart(ordered)
    if apart is not None:
        return _from_start(apart, start_offset)
    waiting = ordered[::-1]
    merged: list[StateBatch] = []
    valid: list[tuple[int, int, int]] = []
    """The batches that hold the current offset, the valid one first."""
    offset = start_offset
    while waiting or valid:
        if not valid:
            offset = max(offset, waiting[-1].first_offset)
        while waiting and waiting[-1].first_offset <= offset:
            batch = waiting.pop()
            heapq.heappush(valid, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
        while valid and valid[0][2] < offset:
            heapq.heappop(valid)
        if not valid:
            continue
        count, state, last_offset = valid[0]
        if waiting:
            last_offset = min(last_offset, waiting[-1].first_offset - 1)
        add_batch(merged, StateBatch(offset, last_offset, -state, -count))
        offset = last_offset + 1
    return tuple(merged)


def merge_into(
    stored: Sequence[StateBatch], changed: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the batches as `merge_batches` does, if `stored` are in order and without overlaps.

    Only stored batches between the bounds of the changed ones are merged with them: a state may
    have thousands of batches, of which a change has one.
    """
    begin = bisect_left(stored, start_offset, key=_last_offset)
    at = end = len(stored)
    merged: tuple[StateBatch, ...] = ()
    if changed:
        first_offset = min(batch.first_offset for batch in changed)
        last_offset = max(batch.last_offset for batch in changed)
        # Neighbours take part, since they may be joined.
        at = max(begin, bisect_left(stored, first_offset - 1, key=_last_offset))
        end = max(at, bisect_right(stored, last_offset + 1, key=_first_offset))
        merged = merge_batches((*stored[at:end], *changed), start_offset)
    return _from_start((*stored[begin:at], *merged, *stored[end:]), start_offset)


def _apart(ordered: Iterable[StateBatch]) -> list[StateBatch] | None:
    """Return the merged batches if no two of them overlap but by the same offsets; otherwise None.

    So it is with batches of one record each, of which there may be thousands.
    """
    chosen: list[StateBatch] = []
    end = -1
    for batch in ordered:
        if batch.first_offset > end:
            chosen.append(batch)
            end = batch.last_offset
        elif batch[:2] != chosen[-1][:2]:
            return None
        elif (batch.delivery_count, batch.delivery_state) > chosen[-1][:1:-1]:
            chosen[-1] = batch
    merged: list[StateBatch] = []
    for batch in chosen:
        add_batch(merged, batch)
    return merged


def _from_start(merged: Sequence[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return batches whose first one may begin before `start_offset`, without that part."""
    if merged and merged[0].first_offset < start_offset:
        return (merged[0]._replace(first_offset=start_offset), *merged[1:])
    return tuple(merged)


def add_batch(merged: list[StateBatch], batch: StateBatch) -> None:
    """Append a batch, or join it to the last one."""
    last = merged[-1] if merged else None
    if last is not None and last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
        merged[-1] = last._replace(last_offset=batch.last_offset)
    else:
        merged.append(batch)
