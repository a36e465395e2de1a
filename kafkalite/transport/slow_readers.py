"""SlowReaders: keeps the responses that clients do not read within `queued.max.response.bytes`.

    up to half of it    a connection may hold its own maximum (ReactorLimits.queued_size_max)
    above half          connections with 64 KiB or more in memory are not read (ext/net/loop.pyx)
    above all of it     the connections that make the least progress are closed, until it is kept

Connections that read their responses are always served: their responses are sent in the same tick.
Closing is the last resort, against many connections of which each holds little.  Only connections
that hold at least half of the mean are considered, which together hold at least half of the sum; of
these, the ones whose last byte was sent longest ago are closed first.  A client that reads is not
among them while others do not.  A limited number is closed in each tick.

The sum may exceed the limit by the responses of one tick.  Responses that are slices of files
(Fetch) take no memory and are not counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite._ext.loop import Loop
    from kafkalite.transport.connection import Connection

CLOSED_AT_ONCE = 64
"""Limit for one tick: closing a connection takes tens of microseconds."""


class SlowReaders:
    """Closes connections whose peers do not read; see the module.

    Args:
        loop: The loop whose connections these are.
        size_max: Maximum bytes of responses in memory; 0 or below sets no bound.
        call_soon: Calls a function in the next tick.
        warn: Logs a sentence about a connection.
    """

    def __init__(
        self,
        loop: Loop,
        size_max: int,
        call_soon: Callable[[Callable[[], object]], object],
        warn: Callable[[Connection, str], object],
    ) -> None:
        self.closed = 0
        self.size_max = size_max
        self._loop = loop
        self._call_soon = call_soon
        self._warn = warn
        self._called = False

    def close_soon(self) -> None:
        """Close some connections in the next tick if the sum is above the bound."""
        if not self._called and 0 < self.size_max < self._loop.queued_size:
            self._called = True
            self._call_soon(self._close_some)

    def _close_some(self) -> None:
        self._called = False
        holding = [each for each in self._loop.channels() if each.queued_size]
        enough = self._loop.queued_size // (2 * max(1, len(holding)))
        slowest = heapq.nsmallest(
            CLOSED_AT_ONCE,
            (each for each in holding if each.queued_size >= enough),
            key=lambda each: each.sent_ns,
        )
        for connection in slowest:
            if self._loop.queued_size <= self.size_max:
                break
            self._warn(
                connection,
                f"Connection is closed: it did not read {connection.queued_size} bytes of responses"
                " while all clients left more unread than"
                f" queued.max.response.bytes={self.size_max}",
            )
            self.closed += 1
            connection.close()
