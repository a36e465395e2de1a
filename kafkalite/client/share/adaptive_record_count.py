"""AdaptiveRecordCount: the number of records that a fetch for columns acquires.

    counter.given(records, now_s)   the program gets a batch
    counter.finished(now_s)         it asks for records, and none are left
    counter.count                   the number of the next fetch

Records that one member holds are not delivered to others.  The number doubles while a fetch
acquires as many, and the program is done with them within QUICK_S, so that others wait for a short
time only; slower work sets it back to the initial number.
"""

from __future__ import annotations

QUICK_S = 0.02
COUNT_MAX = 10_000


class AdaptiveRecordCount:
    """The number; a fixed one remains the initial one."""

    def __init__(self, initial: int, *, is_fixed: bool) -> None:
        self.count = initial
        self._initial = initial
        self._is_fixed = is_fixed
        self._given = 0
        """Number of records given since the last fetch."""
        self._given_s = 0.0
        """Time at which the first of them was given."""

    def given(self, records: int, now_s: float) -> None:
        """Note that the program is given records."""
        if not self._given:
            self._given_s = now_s
        self._given += records

    def finished(self, now_s: float) -> None:
        """Note that the program is done with all that it was given."""
        given, self._given = self._given, 0
        if not given or self._is_fixed:
            return
        if now_s - self._given_s > QUICK_S:
            self.count = self._initial
        elif given >= self.count:
            self.count = max(self._initial, min(2 * self.count, COUNT_MAX))
