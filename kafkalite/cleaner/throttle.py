"""Throttle: limits the bytes that all cleaner threads read and write in a second.

Time is divided into windows of 300 ms, as in Kafka: after a window in which too much was read and
written, a thread has to wait until the average is back at the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WINDOW_S = 0.3


class Throttle:
    """The rate limit of all threads; `bytes_per_second` may change at any time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_second = float("inf")
        self._now = now
        self._lock = threading.Lock()
        self._window_start = now()
        self._size = 0

    def spend(self, size: int) -> float:
        """Count bytes that were read or written; return the seconds to wait before more."""
        with self._lock:
            self._size += size
            elapsed = self._now() - self._window_start
            if elapsed < WINDOW_S and self._size <= self.bytes_per_second * WINDOW_S:
                return 0.0
            wait = max(0.0, self._size / self.bytes_per_second - elapsed)
            self._window_start = self._now() + wait
            self._size = 0
            return wait
