"""One decision of a group coordinator in the making: what it knows, and what comes of it.

A Turn lasts from a question, or a moment at which something is due, to the Result for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.group_records import GroupRecord

NOBODY = None
"""In place of a token: nobody waits."""
GONE: Any = object()
"""In place of a token: the connection that waited is gone, and its member may come back."""


class Reply(NamedTuple):
    """The response to whoever waits under a token."""

    token: Any
    response: dict[str, Any]


class GroupLimits(NamedTuple):
    """What the broker's keys allow."""

    min_session_ms: int
    max_session_ms: int
    initial_rebalance_delay_ms: int
    max_size: int
    metadata_size_max: int
    retention_ms: int
    retention_check_ms: int


class Asker(NamedTuple):
    """Who sends a request, as a description of the group shows it."""

    client_id: str
    host: str


class Due(NamedTuple):
    """What a deadline is for: a group's member, or the group when there is none."""

    kind: str
    group_id: str = ""
    member_id: str = ""


SESSION, JOIN, SYNC, RETENTION, REFUSED = "session", "join", "sync", "retention", "refused"


class Turn:
    """See the module."""

    __slots__ = ("deadlines", "limits", "now_ms", "records", "replies", "waiting", "wall_ms")

    def __init__(
        self,
        now_ms: int,
        wall_ms: int,
        limits: GroupLimits,
        deadlines: Deadlines[Due],
        waiting: dict[Any, Any],
    ) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.limits = limits
        self.deadlines = deadlines
        self.waiting = waiting
        self.replies: list[Reply] = []
        self.records: list[GroupRecord] = []

    def answer(self, token: Any, response: dict[str, Any]) -> None:
        """The response, if anybody is there to hear it."""
        if token is not NOBODY and token is not GONE:
            self.waiting.pop(token, None)
            self.replies.append(Reply(token, response))

    def refuse(self, token: Any, fault: type[KafkaError], **response: Any) -> None:
        """An error in place of what was asked for."""
        self.answer(token, {"error_code": fault.code, **response})

    def put_off(self, due: Due, wait_ms: int) -> None:
        """Have something due so long from now, and not before."""
        self.deadlines.set(due, self.now_ms + wait_ms)
