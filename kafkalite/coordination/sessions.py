"""NodeSessions: which workers are alive, as far as words from them tell.

A session is one incarnation of a node: a number that grows with every process started for it.
Words of an older incarnation are those of a process that is dead, or should be, and count for
nothing.  A session is silent when nothing was heard for BROKER_SESSION_TIMEOUT_MS and its process
is stopped or dead, or when nothing was heard for BROKER_TICK_TIMEOUT_MS; its process is then ended
before it gets a successor, whether it hangs or only cannot be heard.

Before its first word a node is not silent but starting: it may be recovering logs for minutes.
Whoever sees it serve otherwise (the launcher tries its listener) says so by `heard`.

Time is monotonic and comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    """One incarnation of a node: when it was heard last, and whether that was too long ago."""

    incarnation: int
    heard_ms: int | None = None  # while it is starting
    over: bool = False


class NodeSessions:
    """The workers' sessions; see the module."""

    def __init__(self, session_timeout_ms: int, tick_timeout_ms: int = 0) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.tick_timeout_ms = tick_timeout_ms
        self._sessions: dict[int, Session] = {}

    @property
    def alive(self) -> set[int]:
        """The nodes heard from in the incarnation that runs now."""
        return {
            node_id
            for node_id, session in self._sessions.items()
            if session.heard_ms is not None and not session.over
        }

    def started(self, node_id: int, incarnation: int) -> None:
        """A process was started for a node; the one before it counts no more."""
        session = self._sessions.get(node_id)
        if session is None or session.incarnation < incarnation:
            self._sessions[node_id] = Session(incarnation)

    def ended(self, node_id: int, incarnation: int) -> None:
        """A process has ended; it says nothing of the one that was started since."""
        session = self._sessions.get(node_id)
        if session is not None and session.incarnation == incarnation:
            del self._sessions[node_id]

    def heard(self, node_id: int, incarnation: int, now_ms: int) -> bool:
        """Take a sign of life; False when it is not of the session that runs now."""
        session = self._sessions.get(node_id)
        if session is None or session.incarnation != incarnation or session.over:
            return False
        session.heard_ms = now_ms
        return True

    def silent(
        self, now_ms: int, is_busy: Callable[[int], bool] = lambda node_id: False
    ) -> list[tuple[int, int]]:
        """The sessions, as (node id, incarnation), that are over for their silence; each once.

        A node that missed its heartbeats is not over while it `is_busy`, up to the tick timeout.
        """
        silent = []
        for node_id, session in self._sessions.items():
            if session.heard_ms is None or session.over:
                continue
            # An excuse that reaches past now would be credit for silence to come.
            session.heard_ms = min(session.heard_ms, now_ms)
            silent_ms = now_ms - session.heard_ms
            if silent_ms > self.session_timeout_ms and (
                silent_ms > self.tick_timeout_ms or not is_busy(node_id)
            ):
                session.over = True
                silent.append((node_id, session.incarnation))
        return silent

    def excuse(self, away_ms: int) -> None:
        """Blame nobody for what was not heard while the listener itself was away."""
        for session in self._sessions.values():
            if session.heard_ms is not None:
                session.heard_ms += away_ms
