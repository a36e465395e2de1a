"""Throttle: limits the bytes that all cleaner threads read and write in a second, and cancels.

Time is divided into windows of 300 ms, as in Kafka: after a window in which too much was read and
written, a thread sleeps until the average is back at the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

WINDOW_S = 0.3


class Throttle:
    """The rate limit of all threads; `bytes_per_second` may change at any time."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.bytes_per_second = float("inf")
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        self._window_start = now()
        self._size = 0

    def spend(self, size: int) -> None:
        """Count bytes; sleep if there were too many in this window."""
        with self._lock:
            self._size += size
            elapsed = self._now() - self._window_start
            if elapsed < WINDOW_S and self._size <= self.bytes_per_second * WINDOW_S:
                return
            wait = self._size / self.bytes_per_second - elapsed
            # Later windows start after the sleep; other threads add to the next window.
            self._window_start = self._now() + max(0.0, wait)
            self._size = 0
        if wait > 0:
            self._sleep(wait)
