"""DecisionDraft: a decision of a group coordinator while it is made, with its inputs.

It lasts from a request or an expired deadline to the DecisionResult.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.group_limits import GroupLimits
from kafkalite.coordination.machine import Reply, TransactionalRecord
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.group_records import GroupRecord

NO_TOKEN = None
"""In place of a token: no request is pending."""
CLOSED_TOKEN: Any = object()
"""In place of a token: the connection with the pending request has closed; the member may come
back."""


class GroupClient(NamedTuple):
    """The client of a request, as a description of the group shows it."""

    client_id: str
    host: str


class DeadlineKey(NamedTuple):
    """The subject of a deadline: a member, or the group if the member id is empty."""

    kind: str
    group_id: str = ""
    member_id: str = ""


SESSION, JOIN, SYNC, RETENTION, REFUSED = "session", "join", "sync", "retention", "refused"
REBALANCE, TARGET = "rebalance", "target"
"""Of consumer groups: a member has to revoke partitions; a target assignment has to be computed."""


class DecisionDraft:
    """One decision in progress."""

    __slots__ = ("deadlines", "limits", "now_ms", "records", "replies", "waiting", "wall_ms")

    def __init__(
        self,
        now_ms: int,
        wall_ms: int,
        limits: GroupLimits,
        deadlines: Deadlines[DeadlineKey],
        waiting: dict[Any, Any],
    ) -> None:
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.limits = limits
        self.deadlines = deadlines
        self.waiting = waiting
        self.replies: list[Reply] = []
        self.records: list[GroupRecord | TransactionalRecord] = []

    def complete(self, token: Any, response: dict[str, Any]) -> None:
        """Complete a pending request, unless there is none or its connection has closed."""
        if token is not NO_TOKEN and token is not CLOSED_TOKEN:
            self.waiting.pop(token, None)
            self.replies.append(Reply(token, response))

    def fail(self, token: Any, error: type[KafkaError], **response: Any) -> None:
        """Complete a pending request with an error."""
        self.complete(token, {"error_code": error.code, **response})

    def set_deadline(self, due: DeadlineKey, wait_ms: int) -> None:
        """Set a deadline relative to now, replacing the previous one."""
        self.deadlines.set(due, self.now_ms + wait_ms)
