"""Deadlines: what is due when, for many that are put off again and again.

A member's session is put off by every heartbeat and ends once in its life.  So putting off is two
entries in dicts; the queue is told only of what is due earlier than it knew, and finds out about
the rest when it comes to it.  It is made anew when most of what it holds has been put off.

Time is monotonic and comes in as an argument.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")

SLACK = 100


class Deadlines(Generic[K]):
    """One deadline a key; see the module."""

    def __init__(self) -> None:
        self._due_ms: dict[K, int] = {}
        self._queued_ms: dict[K, int] = {}
        self._queue: list[tuple[int, int, K]] = []
        self._count = 0  # so that keys are never compared

    def __len__(self) -> int:
        return len(self._due_ms)

    def __contains__(self, key: K) -> bool:
        return key in self._due_ms

    def set(self, key: K, due_ms: int) -> None:
        """Have this deadline, and no earlier one of the key's."""
        self._due_ms[key] = due_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or due_ms < queued_ms:
            self._enqueue(key, due_ms)

    def drop(self, key: K) -> None:
        """Have none, if there is one."""
        self._due_ms.pop(key, None)

    @property
    def next_ms(self) -> int | None:
        """When something may be due; nothing is before."""
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
        """Take what is due, the earliest first; what is set meanwhile counts as well."""
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
