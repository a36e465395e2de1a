"""InitialRebalanceDelay: the wait for more members in the first rebalance of an empty group.

Together the members need one generation; one by one they would need a heartbeat interval each.  The
wait consists of pauses of `group.initial.rebalance.delay.ms`.  Each pause in which a member has
joined is followed by another one, up to the rebalance timeout.
"""

from __future__ import annotations

GATHER_MS = 200
"""Time that the first member of an empty group waits for others that are about to join, if no delay
is configured."""

STATIC_GATHER_MS = 50
"""A static first member stops waiting after this long without another one, within `GATHER_MS`.  No
member id request announces a static member, as it does a dynamic one."""


class InitialRebalanceDelay:
    """The pauses of one wait; see the module."""

    def __init__(self) -> None:
        self._is_waiting = False
        self._pause_ms = 0
        self._left_ms = 0
        """Time left for further pauses."""
        self._has_grown = False
        """True if a member has joined since the last pause began."""

    @property
    def is_paused(self) -> bool:
        """True if the rebalance must not complete before the pause ends."""
        return self._is_waiting and self._pause_ms > 0

    def begin(self, timeout_ms: int, delay_ms: int, has_static: bool) -> int:
        """Begin the wait of a group's first members; return the first pause, 0 without one."""
        if not delay_ms and has_static:
            delay_ms, timeout_ms = STATIC_GATHER_MS, min(timeout_ms, GATHER_MS)
        self._is_waiting = True
        self._pause_ms = delay_ms
        self._left_ms = max(timeout_ms - delay_ms, 0)
        self._has_grown = False
        return delay_ms

    def add_member(self) -> None:
        """Note that a member has joined."""
        self._has_grown = True

    def extend(self) -> int:
        """Return the next pause at the end of one; 0 if the wait is over."""
        if not (self._is_waiting and self._has_grown and self._pause_ms):
            return 0
        pause_ms = min(self._pause_ms, self._left_ms)
        self._left_ms -= pause_ms
        self._has_grown = False
        return pause_ms

    def end(self) -> None:
        """End the wait: a generation begins."""
        self._is_waiting = False
