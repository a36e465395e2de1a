"""Deadlines: one deadline per key, cheap to postpone.

A member's session deadline is postponed by every heartbeat and expires once.  So postponing only
updates two dict entries; the heap gets an entry only for an earlier deadline, and other changes are
found when an entry comes up.  The heap is rebuilt when most of its entries are stale.

Time is monotonic and passed in as an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")

SLACK = 100


class Deadlines(Generic[K]):
    """A heap of deadlines with one deadline per key."""

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._queued_ms: dict[K, int] = {}
        self._queue: list[tuple[int, int, K]] = []
        self._count = 0  # tie-breaker, so that keys are never compared

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, key: K) -> bool:
        return key in self._due_ms

    def set(self, key: K, due_ms: int) -> None:
        """Set the deadline of a key, replacing an earlier one."""
        self._due_ms[key] = due_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or due_ms < queued_ms:
            self._enqueue(key, due_ms)

    def drop(self, key: K) -> None:
        """Remove the deadline of a key, if there is one."""
        self._due_ms.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        """Time of the next heap entry; no deadline is earlier."""
        while self._queue:
            queued_ms, _, key = self._queue[0]
            due_ms = self._due_ms.get(key)
            if due_ms is not None and due_ms <= queued_ms:
                return queued_ms
            heapq.heappop(self._queue)
            if self._queued_ms.get(key) == queued_ms:
                del self._queued_ms[key]
                if due_ms is not None:
                    self._enqueue(key, due_ms)
        return None

    def due(self, now_ms: int) -> Iterator[K]:
        """Remove and yield the keys that are due, earliest first, including any set meanwhile."""
        while (next_ms := self.next_ms) is not None and next_ms <= now_ms:
            _, _, key = heapq.heappop(self._queue)
            self._queued_ms.pop(key, None)
            del self._due_ms[key]
            yield key

    def _enqueue(self, key: K, due_ms: int) -> None:
        self._count += 1
        self._queued_ms[key] = due_ms
        heapq.heappush(self._queue, (due_ms, self._count, key))
        if len(self._queue) > 2 * len(self._due_ms) + SLACK:
            self._queued_ms = dict(self._due_ms)
            entries = enumerate(self._due_ms.items())
            self._queue = [(due_ms, at, key) for at, (key, due_ms) in entries]
            heapq.heapify(self._queue)
