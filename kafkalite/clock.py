"""The time, handed in: whatever needs it is given a Clock, so that a test can own it.

Two times that are never mixed.  Wall time is milliseconds since 1970 as records carry it; it can
jump.  Monotonic time only goes forward; every timeout uses it.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the two times."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as records carry them; may jump either way."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never goes back."""
        ...

    def monotonic_ns(self) -> int:
        """The same in nanoseconds, to measure how long something takes."""
        ...


class SystemClock:
    """The machine's own time."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    monotonic_ns = staticmethod(time.monotonic_ns)  # each request asks it twice


class ManualClock:
    """A time that stands still until it is told to move."""

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
        """Let time pass."""
        assert ms >= 0, "time does not go back; jump_wall sets the wall clock"
        self._wall_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator or NTP may."""
        self._wall_ms += ms
