"""Scheduler: the part of the event loop that schedules calls."""

from __future__ import annotations

from typing import Any, Protocol


class ScheduledCall(Protocol):
    """A call that the event loop makes later."""

    def cancel(self) -> None:
        """Cancel the call."""


class Scheduler(Protocol):
    """The part of the reactor that schedules calls."""

    def call_later(self, ms: int, callback: Any) -> ScheduledCall:
        """Call `callback()` in `ms` milliseconds."""
