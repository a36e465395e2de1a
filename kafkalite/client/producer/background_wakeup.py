"""Background wake-up: ends the sleep of a producer's background thread.

Other threads set it in locked sections; `drain` (background.py) sets it without the lock.
"""

from __future__ import annotations

import contextlib
import os


class BackgroundWakeup:
    """An event descriptor that the background thread polls, and the time until which it sleeps."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_set = False
        self.sleeps_until_s = 0.0
        """Monotonic time at which the background thread next runs by itself."""

    def fileno(self) -> int:
        return self._descriptor

    def set(self) -> None:
        """Wake the background thread."""
        if not self._is_set:
            self._is_set = True
            os.eventfd_write(self._descriptor, 1)

    def set_by(self, time_s: float) -> None:
        """Wake the background thread if it would sleep past this monotonic time."""
        if time_s < self.sleeps_until_s:
            self.set()

    def clear(self) -> None:
        """Clear it; called by the background thread."""
        if self._is_set:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)
            self._is_set = False

    def close(self) -> None:
        """Close the descriptor; `set` then does nothing."""
        self._is_set = True
        os.close(self._descriptor)
