"""RateLimitedLog: log lines about peers, at most one in ten seconds for each peer and kind.

A hostile peer can neither fill the disk nor hide what other peers do: each line tells how many of
its kind were suppressed before it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.clock import Clock

log = logging.getLogger("kafkalite.transport")

INTERVAL_MS = 10_000
KINDS_MAX = 1_000
"""Maximum number of pairs of peer and kind that are remembered."""


class RateLimitedLog:
    """Writes warnings about peers; see the module."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._suppressed: dict[tuple[str, str], tuple[int, int]] = {}
        """By peer and kind: the end of the interval, and the number of lines suppressed in it."""

    def warn(self, peer: str, sentence: str, *, kind: str, error: Exception | None = None) -> None:
        """Log a sentence about a peer, unless a line of this kind was logged a moment ago."""
        now_ms = self._clock.monotonic_ms()
        end_ms, suppressed = self._suppressed.get((peer, kind), (now_ms, 0))
        if now_ms < end_ms:
            self._suppressed[peer, kind] = (end_ms, suppressed + 1)
            return
        if len(self._suppressed) >= KINDS_MAX:
            self._suppressed.clear()
        self._suppressed[peer, kind] = (now_ms + INTERVAL_MS, 0)
        log.warning(
            "%s. peer=%s suppressed=%d",
            sentence.rstrip("."), peer or "local", suppressed, exc_info=error,
        )  # fmt: skip


def raised_at(error: Exception) -> str:
    """Return the line of code that raised the error, as a kind for RateLimitedLog."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
