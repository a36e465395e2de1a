"""Deadline and Backoff: time limits of calls, and pauses between retries.

A Deadline is a point of the monotonic clock, set when a call begins.  Pauses double up to a bound,
with a jitter of 20 %, so that the clients of a broker that failed do not all return at once.
"""

from __future__ import annotations

import math
import random
import time
from numbers import Real

from kafkalite.errors import KafkaError

FOREVER = math.inf

JITTER = 0.2
DOUBLINGS_MAX = 30


def limit_s(timeout: float | None) -> float:
    """Return the time limit for a user's `timeout`; None: no limit.

    Negative values are refused: some clients read them as no limit, others as no time left.
    """
    if timeout is None:
        return FOREVER
    if type(timeout) not in (int, float) and not is_number(timeout):
        raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(
            f"timeout must be a number of seconds from 0 on, or None to wait without limit, not"
            f" {timeout!r}"
        )
    return timeout


def is_number(value: object) -> bool:
    """Return whether a value is a real number, including numpy's."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Deadline:
    """The time at which a call times out."""

    __slots__ = ("at_s",)

    def __init__(self, timeout_s: float) -> None:
        self.at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; 0 if it has passed."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def within(self, timeout_s: float) -> Deadline:
        """Return this deadline, or one `timeout_s` from now if that is sooner."""
        sooner = Deadline(timeout_s)
        return sooner if sooner.at_s < self.at_s else self

    def at_least(self, timeout_s: float) -> Deadline:
        """Return this deadline, or one `timeout_s` from now if that is later."""
        later = Deadline(timeout_s)
        return later if later.at_s > self.at_s else self


def backoff_s(failures: int, first_ms: float, max_ms: float) -> float:
    """Return the pause in seconds after this many failures in a row."""
    backoff_ms = min(first_ms * (1 << min(max(failures - 1, 0), DOUBLINGS_MAX)), max_ms)
    return backoff_ms * random.uniform(1 - JITTER, 1 + JITTER) / 1000


class Backoff:
    """Counts failures in a row; holds the last error, and the time of the next attempt."""

    __slots__ = ("_error", "_first_ms", "_max_ms", "_retry_at_s", "failures")

    def __init__(self, first_ms: float, max_ms: float) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self.failures = 0
        self._error: KafkaError | None = None
        self._retry_at_s = 0.0

    def failed(self, error: KafkaError) -> None:
        self.failures += 1
        self._error = error.copy()
        self._retry_at_s = time.monotonic() + backoff_s(self.failures, self._first_ms, self._max_ms)

    def last_error(self) -> KafkaError:
        """Return the last error, as a new exception."""
        assert self._error is not None, "nothing has failed"
        return self._error.copy()

    def succeeded(self) -> None:
        self.failures = 0
        self._error = None
        self._retry_at_s = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the next attempt; 0 if it may be made."""
        return max(0.0, self._retry_at_s - time.monotonic())
