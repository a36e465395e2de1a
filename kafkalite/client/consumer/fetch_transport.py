"""What a way to a node is: over TCP (fetching.py) or through its local socket (direct.py).

    lane.ask(positions)     ask for their next records, where nothing is outstanding
    lane.receive()          what has arrived, partition by partition, once fileno() is readable

Neither waits.  A lane that fails raises NetworkException and is closed by its owner; what was
asked over it is asked again over another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import Stretch

NEVER = float("inf")


class Outcome(NamedTuple):
    """What a node answered for one partition."""

    position: Position
    turn: int
    """Of the position when it was asked for."""
    error_code: int = 0
    message: str | None = None
    stretch: Stretch | None = None
    log_start_offset: int = -1

    @property
    def stale(self) -> bool:
        """Whether it was asked for in an earlier turn, and is nobody's."""
        return self.turn != self.position.turn


class Lane(Protocol):
    """One way to one node."""

    node_id: int
    due_s: float
    """By the monotonic clock, when what was asked must have been answered."""
    wants_room: bool
    """Whether there is more to ask than went out: as soon as fileno() is writable."""

    def fileno(self) -> int: ...

    def ask(self, positions: Iterable[Position]) -> None: ...

    def receive(self) -> list[Outcome]: ...

    def close(self) -> None: ...
