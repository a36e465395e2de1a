"""NodeSessions: session timeouts of the workers.

A session belongs to one incarnation of a node, a number that increases with every process started
for it.  Messages of older incarnations are ignored.  A session expires when no message came for
BROKER_SESSION_TIMEOUT_MS and its process is stopped or dead, or when none came for
BROKER_TICK_TIMEOUT_MS; its process is then ended before the next one is started, whether it hangs
or only cannot send.

Before its first message a node is starting and its session cannot expire: it may recover logs for
minutes.  If its listener responds earlier, as checked by the launcher, `extend` is called for it.

Time is monotonic and passed in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class NodeSession:
    """The session of one incarnation: the time of its last message, and if it has expired."""

    incarnation: int
    last_heartbeat_ms: int | None = None  # None while it is starting
    is_expired: bool = False


class NodeSessions:
    """The workers' sessions."""

    def __init__(self, session_timeout_ms: int, tick_timeout_ms: int = 0) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.tick_timeout_ms = tick_timeout_ms
        self._sessions: dict[int, NodeSession] = {}

    @property
    def alive(self) -> set[int]:
        """The nodes whose current incarnation has sent a message and has not expired."""
        return {
            node_id
            for node_id, session in self._sessions.items()
            if session.last_heartbeat_ms is not None and not session.is_expired
        }

    def begin(self, node_id: int, incarnation: int) -> None:
        """Begin the session of a new process; it replaces the session of an older one."""
        session = self._sessions.get(node_id)
        if session is None or session.incarnation < incarnation:
            self._sessions[node_id] = NodeSession(incarnation)

    def end(self, node_id: int, incarnation: int) -> None:
        """End the session of this incarnation; a newer one is not affected."""
        session = self._sessions.get(node_id)
        if session is not None and session.incarnation == incarnation:
            del self._sessions[node_id]

    def extend(self, node_id: int, incarnation: int, now_ms: int) -> bool:
        """Extend a session; return False if the incarnation is not current or has expired."""
        session = self._sessions.get(node_id)
        if session is None or session.incarnation != incarnation or session.is_expired:
            return False
        session.last_heartbeat_ms = now_ms
        return True

    def expire(
        self, now_ms: int, is_busy: Callable[[int], bool] = lambda node_id: False
    ) -> list[tuple[int, int]]:
        """Expire sessions and return them as (node id, incarnation), each once.

        A node that missed its heartbeats does not expire while it `is_busy`, up to the tick
        timeout.
        """
        expired = []
        for node_id, session in self._sessions.items():
            if session.last_heartbeat_ms is None or session.is_expired:
                continue
            # `extend_all` may have set a time in the future, which would extend the timeout.
            session.last_heartbeat_ms = min(session.last_heartbeat_ms, now_ms)
            elapsed_ms = now_ms - session.last_heartbeat_ms
            if elapsed_ms > self.session_timeout_ms and (
                elapsed_ms > self.tick_timeout_ms or not is_busy(node_id)
            ):
                session.is_expired = True
                expired.append((node_id, session.incarnation))
        return expired

    def extend_all(self, pause_ms: int) -> None:
        """Extend all sessions by the time in which this process itself did not run."""
        for session in self._sessions.values():
            if session.last_heartbeat_ms is not None:
                session.last_heartbeat_ms += pause_ms
