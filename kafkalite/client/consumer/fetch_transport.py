"""Fetch transport: common interface of TCP (tcp_fetcher.py) and direct reads (direct_reader.py).

    transport.fetch(positions) request their next records, where no request is in flight
    transport.receive()        return what has arrived, by partition, once fileno() is readable

Neither blocks.  A transport that fails raises NetworkException and is closed by its owner, and its
requests in flight are sent over another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import RecordRange

NEVER = float("inf")


class FetchOutcome(NamedTuple):
    """Result of a fetch for one partition."""

    position: Position
    epoch: int
    """Epoch of the position when the request was sent."""
    error_code: int = 0
    message: str | None = None
    record_range: RecordRange | None = None
    log_start_offset: int = -1

    @property
    def is_stale(self) -> bool:
        """True if it was requested in an earlier position epoch, and must be dropped."""
        return self.epoch != self.position.epoch


class FetchTransport(Protocol):
    """Fetch transport to one node."""

    node_id: int
    due_s: float
    """Deadline of the response, by the monotonic clock."""
    wants_write: bool
    """True if more is to be sent as soon as fileno() is writable."""

    def fileno(self) -> int: ...

    def fetch(self, positions: Iterable[Position]) -> None: ...

    def receive(self) -> list[FetchOutcome]: ...

    def close(self) -> None: ...
