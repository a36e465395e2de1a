"""Fetch transport: common interface of TCP (tcp_fetcher.py) and direct reads (direct_reader.py).

    lane.ask(positions)     request their next records, where no request is in flight
    lane.receive()          return what has arrived, by partition, once fileno() is readable

Neither blocks.  A transport that fails raises NetworkException and is closed by its owner, and its
requests in flight are sent over another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import Stretch

NEVER = float("inf")


class Outcome(NamedTuple):
    """Result of a fetch for one partition."""

    position: Position
    turn: int
    """Epoch of the position when the request was sent."""
    error_code: int = 0
    message: str | None = None
    stretch: Stretch | None = None
    log_start_offset: int = -1

    @property
    def stale(self) -> bool:
        """True if it was requested in an earlier position epoch, and must be dropped."""
        return self.turn != self.position.turn


class Lane(Protocol):
    """Fetch transport to one node."""

    node_id: int
    due_s: float
    """Deadline of the response, by the monotonic clock."""
    wants_room: bool
    """True if more is to be sent as soon as fileno() is writable."""

    def fileno(self) -> int: ...

    def ask(self, positions: Iterable[Position]) -> None: ...

    def receive(self) -> list[Outcome]: ...

    def close(self) -> None: ...
