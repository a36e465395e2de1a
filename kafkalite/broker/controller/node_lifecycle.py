"""NodeLifecycle: fences and registers the processes of nodes (coordination/replication).

    launcher's list: a registered process has ended ─▶ fence ─╮ one after another for each node,
    RegisterNode of the next process ─▶ register ─────────────┤ a bounded number of partitions each
    ShutDownNode of a process        ─▶ shut down ────────────╯

Each step is a decision; the next one is made when it is durable.  A step that was not made before
the supervisor ends is made by the next one, from the launcher's list and the processes' messages.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.broker.future import Future
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.replication import leadership, registration
from kafkalite.coordination.replication.leadership import CHANGED_MAX
from kafkalite.coordination.replication.recovery_elections import RecoveryElections

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.coordination.replication.registration import RegisteredLog
    from kafkalite.errors import KafkaError

log = logging.getLogger("kafkalite.broker")

RETRY_MS = 500
"""Delay before a decision that could not be written is retried."""

RECOVERY_WAIT_MS = 30_000
"""Time for which partitions wait for the ends of logs, after another boot of the host."""

Decision = Callable[[Controller], DecisionResult[Any]]
Steps = Generator[Decision, Any, None]
"""Decisions; each is sent the response of the one before."""


class NodeLifecycle:
    """The processes of a cluster's nodes; see the module."""

    def __init__(self, controller: LocalController, rules_of: RulesOf) -> None:
        self._controller = controller
        self._rules_of = rules_of
        self._queues: dict[int, deque[Steps]] = {}
        """The steps of each node that are not done; the first ones are being made."""
        self._recovery = RecoveryElections(controller.image)
        self._is_waiting = False
        """True while the end of the wait for the ends of logs is scheduled."""
        self._running: Collection[tuple[int, int]] = ()
        self._is_first_update = True

    def update_processes(self, running: Collection[tuple[int, int]]) -> None:
        """Fence the registered processes that are not among these, by node id and incarnation."""
        self._running = running
        is_first, self._is_first_update = self._is_first_update, False
        for node in list(self._controller.image.nodes.values()):
            if node.node_id == SUPERVISOR_ID or node.fenced:
                continue
            if (node.node_id, node.incarnation) not in running:
                self._queue(node.node_id, self._fence(node.node_id, node.incarnation))
            elif is_first:
                # The supervisor before may have ended between the registration and the elections.
                self._queue(node.node_id, self._elect(node.node_id))

    def register(
        self, node_id: int, incarnation: int, logs: Sequence[RegisteredLog]
    ) -> None:
        """Register the running process of a node."""
        self._queue(node_id, self._register(node_id, incarnation, logs))

    def recover(self, node_id: int, logs: Sequence[RegisteredLog]) -> None:
        """Elect leaders by the ends of the logs of a node that is registered."""
        self._queue(node_id, self._recover(node_id, logs))

    def replicas_failed(
        self, node_id: int, node_epoch: int, failed: Collection[tuple[bytes, int]]
    ) -> None:
        """Remove replicas whose logs have failed from ISR and ELR, and elect other leaders."""
        self._queue(node_id, self._remove_failed(node_id, node_epoch, failed))


    def shut_down(self, node_id: int, incarnation: int) -> Future[None]:
        """Have others lead what a running process leads; complete when that is decided."""
        done: Future[None] = Future()
        self._queue(node_id, self._shut_down(node_id, incarnation, done))
        return done

    # -- steps -------------------------------------------------------------------------------

    def _fence(self, node_id: int, incarnation: int) -> Steps:
        node = self._controller.image.nodes.get(node_id)
        if node is None or node.fenced or node.incarnation != incarnation:
            return
        yield from self._leave(node_id)
        log.info("Node %d is fenced: its process has ended. node=%d", node_id, node_id)

    def _leave(self, node_id: int) -> Steps:
        self._recovery.forget(node_id)
        while True:
            count = yield lambda machine: registration.leave(
                machine.image, node_id, self._rules_of
            )
            if count < CHANGED_MAX:
                break

    def _shut_down(self, node_id: int, incarnation: int, done: Future[None]) -> Steps:
        if registration.is_registered(self._controller.image, node_id, incarnation):
            yield lambda machine: registration.begin_shutdown(machine.image, node_id)
            while True:
                count = yield lambda machine: leadership.remove_from_isrs(
                    machine.image, node_id, self._rules_of
                )
                if count < CHANGED_MAX:
                    break
            log.info(
                "Node %d is shutting down; its partitions have other leaders. node=%d",
                node_id, node_id,
            )  # fmt: skip
        done.resolve(None)

    def _register(self, node_id: int, incarnation: int, logs: Sequence[RegisteredLog]) -> Steps:
        image = self._controller.image
        if node_id not in image.nodes or registration.is_registered(image, node_id, incarnation):
            return
        if (node_id, incarnation) not in self._running:
            return  # it has ended while another step was made
        if not image.nodes[node_id].fenced:
            yield from self._leave(node_id)
        yield from self._remove(node_id, registration.lost_replicas(image, node_id, logs))
        yield lambda machine: registration.register(machine.image, node_id, incarnation)
        log.info("Node %d is registered. node=%d incarnation=%d", node_id, node_id, incarnation)
        if (node_id, incarnation) not in self._running:
            yield from self._fence(node_id, incarnation)
            return
        yield from self._elect(node_id)
        yield from self._recover(node_id, logs)

    def _recover(self, node_id: int, logs: Sequence[RegisteredLog]) -> Steps:
        """Elect leaders of partitions that wait for the ends of their logs, as far as these and
        those of other nodes allow."""
        self._recovery.add(node_id, logs)
        while self._recovery.has_more(node_id):
            yield lambda machine: self._recovery.elect(node_id)
        if self._recovery.is_waiting and not self._is_waiting:
            self._is_waiting = True
            self._controller.call_later(RECOVERY_WAIT_MS, self._end_wait)

    def _end_wait(self) -> None:
        """Elect leaders without the ends of logs that have not been reported, where that loses
        nothing that was promised; report the partitions that go on waiting."""
        self._controller.decide(
            lambda machine: self._recovery.elect_overdue(self._rules_of)
        ).then(self._wait_ended)

    def _wait_ended(self, left: int | None, error: KafkaError | None) -> None:
        self._is_waiting = bool(left)
        if left:
            log.warning(
                "Partitions have no leader after a restart of the host: the log of a replica that"
                " may have their last records is missing.  Restore its node, or accept the loss:"
                " kafka-leader-election --election-type UNCLEAN. partitions=%d", left,
            )  # fmt: skip
            self._controller.call_later(RECOVERY_WAIT_MS, self._end_wait)

    def _remove_failed(
        self, node_id: int, node_epoch: int, failed: Collection[tuple[bytes, int]]
    ) -> Steps:
        node = self._controller.image.nodes.get(node_id)
        if node is not None and node.node_epoch == node_epoch and not node.fenced:
            log.warning(
                "Replicas of node %d have failed. node=%d partitions=%d",
                node_id, node_id, len(failed),
            )  # fmt: skip
            yield from self._remove(node_id, failed)

    def _remove(self, node_id: int, lost: Collection[tuple[bytes, int]]) -> Steps:
        """Remove lost replicas of a node from ISR and ELR."""
        while lost:
            count = yield lambda machine: leadership.remove_after_loss(
                machine.image, node_id, self._rules_of, lost
            )
            if count < CHANGED_MAX:
                return

    def _elect(self, node_id: int) -> Steps:
        """Elect leaders of the partitions without one that have a replica on this node."""
        while True:
            count = yield lambda machine: leadership.elect_missing(
                machine.image, node_id, self._rules_of
            )
            if count < CHANGED_MAX:
                return

    # -- the queues --------------------------------------------------------------------------

    def _queue(self, node_id: int, steps: Steps) -> None:
        queue = self._queues.setdefault(node_id, deque())
        queue.append(steps)
        if len(queue) == 1:
            self._continue(node_id, None)

    def _continue(self, node_id: int, response: Any) -> None:
        """Make the next decision about a node."""
        queue = self._queues[node_id]
        while queue:
            try:
                decision = queue[0].send(response)
            except StopIteration:
                queue.popleft()
                response = None
                continue
            self._decide(node_id, decision)
            return
        del self._queues[node_id]

    def _decide(self, node_id: int, decision: Decision) -> None:
        """Make a decision; repeat it later if it could not be written, as on a full disk."""

        def decided(response: Any, error: KafkaError | None) -> None:
            if error is None:
                self._continue(node_id, response)
                return
            log.error(
                "Change of a node could not be written; retrying. node=%d retry_ms=%d error=%r",
                node_id, RETRY_MS, str(error),
            )  # fmt: skip
            self._controller.call_later(RETRY_MS, lambda: self._decide(node_id, decision))

        self._controller.decide(decision).then(decided)
