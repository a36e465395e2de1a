"""How long a call waits, and how long it rests before it tries again.

A Deadline is a moment by the monotonic clock, made where a caller says how long.  Rests grow:
each is twice the one before up to a bound, and varied by a fifth, so that the clients of a broker
that went away do not all come back at once.
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
    """Return the time limit that a caller's `timeout` stands for; None: no limit.

    A negative one is refused: in some clients it means no limit, in others none is left.
    """
    if timeout is None:
        return FOREVER
    if type(timeout) not in (int, float) and not is_number(timeout):
        raise TypeError(f"timeout is a number of seconds, or None; not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(
            f"timeout is a number of seconds from 0 on, or None to wait without limit; not"
            f" {timeout!r}"
        )
    return timeout


def is_number(value: object) -> bool:
    """Return whether a value is a real number; those of numpy are."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Deadline:
    """The moment at which a call gives up."""

    __slots__ = ("at_s",)

    def __init__(self, timeout_s: float) -> None:
        self.at_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """The time until then; 0 when it has passed."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def within(self, timeout_s: float) -> Deadline:
        """This moment, or so long from now when that is sooner."""
        sooner = Deadline(timeout_s)
        return sooner if sooner.at_s < self.at_s else self


def rest_s(failures: int, first_ms: float, longest_ms: float) -> float:
    """How long to rest after so many failures in a row."""
    rest_ms = min(first_ms * (1 << min(max(failures - 1, 0), DOUBLINGS_MAX)), longest_ms)
    return rest_ms * random.uniform(1 - JITTER, 1 + JITTER) / 1000


class Backoff:
    """Counts failures in a row, and knows when to try again and what went wrong the last time."""

    __slots__ = ("_again_at_s", "_fault", "_first_ms", "_longest_ms", "failures")

    def __init__(self, first_ms: float, longest_ms: float) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self.failures = 0
        self._fault: KafkaError | None = None
        self._again_at_s = 0.0

    def failed(self, fault: KafkaError) -> None:
        self.failures += 1
        self._fault = fault.again()
        self._again_at_s = time.monotonic() + rest_s(
            self.failures, self._first_ms, self._longest_ms
        )

    def fault(self) -> KafkaError:
        """What went wrong, to be raised once more."""
        assert self._fault is not None, "nothing has failed"
        return self._fault.again()

    def succeeded(self) -> None:
        self.failures = 0
        self._fault = None
        self._again_at_s = 0.0

    @property
    def rest_left_s(self) -> float:
        """How long to rest yet; 0 when it may be tried."""
        return max(0.0, self._again_at_s - time.monotonic())
