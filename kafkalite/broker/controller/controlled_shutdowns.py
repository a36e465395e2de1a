"""ControlledShutdowns: nodes that are about to end, and whose partitions others are to lead first.

    ShutDownNode ─▶ other replicas are in sync ─▶ shutting down, out of its ISRs, others lead
                 ─▶ every running node has applied that ─▶ NodeShutDown

Nodes are shut down one at a time: a node waits until the replicas of the one before are in sync
again, so that `min.insync.replicas` of them stay.  That wait is bounded, since a replica may be
unable to catch up.  Nothing moves while the whole broker ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.replication import leadership

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.controller.node_lifecycle import NodeLifecycle
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.transport.bus import Peer

SYNC_CHECKS_MAX = 500
"""Maximum number of checks whether other replicas are in sync."""
CHECK_MS = 20


@dataclass(slots=True, eq=False)
class PendingShutdown:
    """A process that waits for other leaders."""

    peer: Peer
    respond: Callable[[], object]
    checks: int = 0
    is_leaving: bool = False


class ControlledShutdowns:
    """The controller's side of these shutdowns; see the module."""

    def __init__(
        self, controller: LocalController, lifecycle: NodeLifecycle, timers: Scheduler
    ) -> None:
        self._controller = controller
        self._lifecycle = lifecycle
        self._timers = timers
        self._pending: list[PendingShutdown] = []
        self._running: Collection[tuple[int, int]] = ()
        self._broker_ends = False
        self._is_checking = False

    def update_processes(self, running: Collection[tuple[int, int]]) -> None:
        """Note the processes, by node id and incarnation, and forget those that have ended."""
        self._running = running
        self._pending = [each for each in self._pending if tuple(each.peer) in running]

    def end_broker(self) -> None:
        """Let all nodes end: the whole broker does."""
        self._broker_ends = True
        pending, self._pending = self._pending, []
        for each in pending:
            each.respond()

    def begin(self, peer: Peer, respond: Callable[[], object]) -> None:
        """Move the leaders away from a running process, and call `respond`."""
        if self._broker_ends:
            respond()
            return
        self._pending.append(PendingShutdown(peer, respond))
        if not self._is_checking:
            self._check()

    def _check(self) -> None:
        self._is_checking = bool(self._pending)
        if not self._pending:
            return
        self._timers.call_later(CHECK_MS, self._check)
        first = self._pending[0]
        if first.is_leaving:
            return
        first.checks += 1
        node_ids = {SUPERVISOR_ID, *(node_id for node_id, _ in self._running)}
        needed = leadership.is_needed(self._controller.image, first.peer.node_id, node_ids)
        if needed and first.checks < SYNC_CHECKS_MAX:
            return
        first.is_leaving = True
        self._lifecycle.shut_down(*first.peer).then(lambda *_: self._decided(first))

    def _decided(self, shutdown: PendingShutdown) -> None:
        """Respond when all nodes know the leaders; the wait is bounded."""
        assert self._controller.applied_everywhere is not None
        applied = self._controller.applied_everywhere(self._controller.log.end_offset)
        applied.then(lambda *_: self._left(shutdown))

    def _left(self, shutdown: PendingShutdown) -> None:
        """Respond; the next one waits until this process has ended, and has returned."""
        if shutdown in self._pending:
            shutdown.respond()
