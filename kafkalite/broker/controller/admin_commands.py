"""Node commands over the bus: list, add, remove, drain, undrain and rebalance.

The response to a command is a report of the current cluster, with the moves that were planned and
the number that is left; a client that waits for completion requests further reports.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkalite.broker.controller.reassigner import Reassigner, sizes_on_disk
from kafkalite.broker.controller.worker_manager import READY, STARTING, ProcessReport
from kafkalite.broker.error_responses import outcome_fields
from kafkalite.broker.future import Future
from kafkalite.broker.node_settings import placement_limits
from kafkalite.config.key import quoted
from kafkalite.coordination.image import SUPERVISOR_ID, NodeImage
from kafkalite.coordination.placement import (
    PartitionMove,
    PlacementLimits,
    drain_moves,
    leading,
    rebalance_moves,
)
from kafkalite.errors import InvalidRequest, KafkaError
from kafkalite.protocol.schemas import bus

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.controller.worker_manager import WorkerManager
    from kafkalite.config.settings import Settings
    from kafkalite.protocol.schemas.bus import TypedRecord


log = logging.getLogger("kafkalite.broker")


class AdminCommands:
    """Executes node commands."""

    def __init__(
        self,
        controller: LocalController,
        settings: Callable[[], Settings],
        workers: WorkerManager,
        reassigner: Reassigner,
        root: Path,
    ) -> None:
        self._controller = controller
        self._settings = settings
        self._workers = workers
        self._reassigner = reassigner
        self._root = root
        self._verbs: dict[str, Callable[[int, bool], Future[list[PartitionMove]]]] = {
            "list": lambda node_id, dry_run: self._no_moves(),
            "add": lambda node_id, dry_run: self._add(),
            "remove": lambda node_id, dry_run: self._remove(node_id),
            "drain": self._drain,
            "undrain": lambda node_id, dry_run: self._undrain(node_id),
            "rebalance": lambda node_id, dry_run: self._rebalance(dry_run),
        }

    def execute(self, command: TypedRecord, respond: Callable[[TypedRecord], object]) -> None:
        """Execute a command and respond with a report."""
        fields = command.fields
        request_id = fields["request_id"]

        def report(moves: list[PartitionMove] | None, error: KafkaError | None) -> None:
            respond(self._report(request_id, moves or [], error))

        verb = self._verbs.get(fields["verb"])
        if fields["verb"] != "list":
            log.info("Node command. verb=%.20s node=%d", fields["verb"], fields["node_id"])
        try:
            if verb is None:
                raise InvalidRequest(
                    f"Unknown node command {quoted(fields['verb'])}; use one of"
                    f" {', '.join(self._verbs)}."
                )
            verb(fields["node_id"], fields["dry_run"]).then(report)
        except KafkaError as error:
            report(None, error)

    # -- commands ----------------------------------------------------------------------------

    def _no_moves(self) -> Future[list[PartitionMove]]:
        future: Future[list[PartitionMove]] = Future()
        future.resolve([])
        return future

    def _add(self) -> Future[list[PartitionMove]]:
        return self._controller.decide(lambda controller: controller.add_node()).map(lambda _: [])

    def _remove(self, node_id: int) -> Future[list[PartitionMove]]:
        removed = self._controller.decide(lambda controller: controller.remove_node(node_id))
        return removed.map(lambda _: [])

    def _drain(self, node_id: int, dry_run: bool) -> Future[list[PartitionMove]]:
        image = self._controller.image
        sizes = sizes_on_disk(self._root, image)
        if node_id in image.nodes and dry_run:
            return self._no_moves().map(lambda _: drain_moves(image, node_id, sizes, self._limits))

        def begin(_: None) -> list[PartitionMove]:
            moves: list[PartitionMove] = []
            # A command executed meanwhile may have removed the node.
            if node_id in image.nodes:
                moves = drain_moves(image, node_id, sizes, self._limits)
            self._reassigner.advance()
            return moves

        drained = self._controller.decide(lambda machine: machine.set_draining(node_id, True))
        return drained.map(begin)

    def _undrain(self, node_id: int) -> Future[list[PartitionMove]]:
        decided = self._controller.decide(lambda machine: machine.set_draining(node_id, False))
        return decided.map(lambda _: [])

    def _rebalance(self, dry_run: bool) -> Future[list[PartitionMove]]:
        image = self._controller.image
        moves = rebalance_moves(image, sizes_on_disk(self._root, image), self._limits)
        if not dry_run:
            self._reassigner.plan(moves)
        return self._no_moves().map(lambda _: moves)

    # -- report ------------------------------------------------------------------------------

    def _report(
        self, request_id: int, moves: Sequence[PartitionMove], error: KafkaError | None
    ) -> TypedRecord:
        topics = self._controller.image.topics_by_id
        return bus.NODE_REPORT(
            request_id=request_id,
            **outcome_fields(error),
            nodes=[self._described(node) for node in self._controller.image.nodes.values()],
            moves=[
                {
                    "topic": topics[move.topic_id].name,
                    "partition": move.partition,
                    "from_node": move.from_node,
                    "to_node": move.to_node,
                }
                for move in moves
                if move.topic_id in topics
            ],
            moves_left=self._reassigner.remaining_count,
        )

    def _described(self, node: NodeImage) -> dict[str, Any]:
        worker = self._workers.workers.get(node.node_id)
        here = node.node_id == SUPERVISOR_ID
        process = self._workers.processes.get(
            node.node_id,
            ProcessReport(-1, os.getpid(), node.host, node.port, READY)
            if here
            else ProcessReport(-1, -1, node.host, node.port, STARTING),
        )
        return {
            "node_id": node.node_id,
            "role": self._role(node),
            "host": process.host,
            "port": process.port,
            "pid": process.pid,
            "state": process.state,
            "led_count": self._controller.image.led_count(node.node_id),
            "size": worker.size if worker is not None else 0,
            "draining": node.draining,
            "replica_count": self._controller.image.replica_count(node.node_id),
        }

    def _role(self, node: NodeImage) -> str:
        if node.node_id == SUPERVISOR_ID:
            return "supervisor"
        if node.dedicated:
            return "dedicated"
        image = self._controller.image
        leads = node.draining or image.led_count(node.node_id) > 0
        return "worker" if leads or node.node_id in self._leading() else "standby"

    def _leading(self) -> Sequence[int]:
        image = self._controller.image
        return leading(image, image.placeable, self._limits)

    @property
    def _limits(self) -> PlacementLimits:
        return placement_limits(self._settings())
