"""Clock: the time, passed to all code that needs it, so that a test can control it.

Two times that are never mixed.  Wall time is milliseconds since 1970 as in records; it can jump.
Monotonic time never goes back; every timeout uses it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of wall time and monotonic time."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, as in records; may jump either way."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary moment; never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """Return the monotonic time in nanoseconds, to measure durations."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # called twice for each request


class ManualClock:
    """A clock that moves only when `advance` is called."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ms * 1_000_000

    def advance(self, ms: int) -> None:
        """Advance both times."""
        assert ms >= 0, "time does not go back; jump_wall sets the wall clock"
        self._wall_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP may."""
        self._wall_ms += ms
