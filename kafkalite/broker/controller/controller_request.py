"""ControllerRequest: a request to the supervisor without a response yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.scheduler import ScheduledCall
    from kafkalite.protocol.record_kinds import TypedRecord


@dataclass(slots=True)
class ControllerRequest:
    """A request of a worker."""

    message: TypedRecord
    future: Future[Any]
    timer: ScheduledCall | None
    size: int
    """Size of the client's frame."""
    sent: bool = False
