"""Reassigner: moves partitions to other workers, a few at a time.

    plan ─▶ controller.move (leader, epoch + 1) ─▶ partition transfer from old to new leader
        ◀─ the new leader's heartbeat no longer lists it as unserved ─ next

A partition has no leader for the milliseconds of its transfer, so few move at once.  A partition is
moved only away from a worker that has applied all decisions and leads it, to one that is running:
two moves of a partition never overlap, and none begins before its directory was created.

Partitions are transferred by a rename, which needs one file system.  A move between log directories
is a reassignment instead, which copies the partition's records and then removes the first replica.

A draining worker is emptied for as long as it is marked so, also after a restart of the supervisor.
Its replicas of replicated partitions are replaced by reassignments, as many at once as moves.
A plan of `rebalance` is lost when this process ends, and can be requested again.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.partition_image import NO_LEADER
from kafkalite.coordination.placement import PartitionMove, PlacementLimits, drain_moves
from kafkalite.coordination.replication import reassignment
from kafkalite.storage.files import layout

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.controller.worker_manager import WorkerManager
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.coordination.replication.reassignment import TopicPartition
    from kafkalite.errors import KafkaError
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

MOVING_MAX = 8
"""Maximum number of partitions that move at once."""
SIZES_MAX_AGE_MS = 10_000
"""Time for which measured partition sizes are reused."""
CHECK_MS = 500
"""Interval between checks if no heartbeat arrives."""


class PendingMove(NamedTuple):
    """A move that was decided, and the metadata log end offset after the decision."""

    move: PartitionMove
    end_offset: int


class Reassigner:
    """Plans and tracks partition moves."""

    def __init__(
        self,
        controller: LocalController,
        workers: WorkerManager,
        reactor: Reactor,
        root: Path,
        limits: Callable[[], PlacementLimits],
        rules_of: RulesOf,
    ) -> None:
        self._controller = controller
        self._workers = workers
        self._reactor = reactor
        self._root = root
        self._limits = limits
        self._rules_of = rules_of
        self._reassigned_offset = -1
        """The end of the metadata log when replicas of draining workers were last considered."""
        self._plan: deque[PartitionMove] = deque()
        self._moving: dict[tuple[bytes, int], PendingMove] = {}
        self._copying: dict[tuple[bytes, int], PartitionMove] = {}
        """Moves between log directories, which are reassignments."""
        self._deciding = False
        self._sizes: dict[tuple[bytes, int], int] = {}
        self._measure_at_ms = 0
        workers.heartbeat_listeners.append(self.advance)
        self._check()

    @property
    def remaining_count(self) -> int:
        """Number of partitions that are still to move or are moving."""
        image = self._controller.image
        draining = sum(
            image.replica_count(node.node_id)
            for node in image.nodes.values()
            if node.draining
        )
        copying = sum(
            not image.nodes[move.from_node].draining
            for move in self._copying.values()
            if move.from_node in image.nodes
        )
        return len(self._moving) + copying + len(self._plan) + draining

    def plan(self, moves: Iterable[PartitionMove]) -> None:
        """Execute these moves, in place of earlier planned ones."""
        self._plan = deque(moves)
        self.advance()

    def advance(self) -> None:
        """Drop the moves that are complete and begin the next ones."""
        for partition_id, pending in list(self._moving.items()):
            move, end_offset = pending
            topic = self._controller.image.topics_by_id.get(move.topic_id)
            if topic is None or self._workers.has_applied(move.to_node, *partition_id, end_offset):
                del self._moving[partition_id]
        for topic_id, index in list(self._copying):
            topic = self._controller.image.topics_by_id.get(topic_id)
            if topic is None or not topic.partitions[index].is_reassigned:
                del self._copying[topic_id, index]
        self._replace_replicas()
        if self._deciding or len(self._moving) + len(self._copying) >= MOVING_MAX:
            return
        moves = self._next(MOVING_MAX - len(self._moving) - len(self._copying))
        copies = [move for move in moves if self._is_between_directories(move)]
        if copies:
            self._copy(copies)
        if len(copies) < len(moves):
            self._decide([move for move in moves if move not in copies])

    def _is_between_directories(self, move: PartitionMove) -> bool:
        nodes = self._controller.image.nodes
        return nodes[move.from_node].log_directory != nodes[move.to_node].log_directory

    def _copy(self, moves: Sequence[PartitionMove]) -> None:
        """Move partitions by reassignments, which copy them."""
        topics = self._controller.image.topics_by_id
        for from_node, some in groupby(moves, key=lambda move: move.from_node):
            self._reassign(
                from_node,
                {(topics[m.topic_id].name, m.partition): (m.to_node,) for m in some},
            )
        self._copying |= {move[:2]: move for move in moves}

    def _replace_replicas(self) -> None:
        """Begin reassignments of replicated partitions of draining workers, a few at a time."""
        image, end_offset = self._controller.image, self._controller.log.end_offset
        draining = [node.node_id for node in image.nodes.values() if node.draining]
        if not draining or end_offset == self._reassigned_offset:
            return
        self._reassigned_offset = end_offset
        for node_id in draining:
            free = MOVING_MAX - reassignment.in_progress_count(image)
            targets = reassignment.replacements(image, node_id, free)
            if targets:
                self._reassign(node_id, targets)
                return  # the next ones when this is decided, which is a change

    def _reassign(self, node_id: int, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        def decided(_: object, error: KafkaError | None) -> None:
            if error is not None:
                log.error("Replicas were not reassigned. node=%d error=%r", node_id, str(error))

        log.info(
            "Node %d is draining; reassigning its replicas. node=%d partitions=%d",
            node_id, node_id, len(targets),
        )  # fmt: skip
        self._controller.decide(
            lambda machine: reassignment.reassign_all(machine.image, targets, self._rules_of)
        ).then(decided)

    def _next(self, count_max: int) -> list[PartitionMove]:
        """Return the next possible moves; drop planned moves that are no longer valid."""
        image = self._controller.image
        chosen: list[PartitionMove] = []
        deferred: deque[PartitionMove] = deque()
        while self._plan and len(chosen) < count_max:
            move = self._plan.popleft()
            topic = image.topics_by_id.get(move.topic_id)
            if topic is None or topic.partitions[move.partition].leader != move.from_node:
                continue
            if move.to_node not in image.placeable:
                continue
            (chosen if self._can_move(move) else deferred).append(move)
        self._plan.extendleft(reversed(deferred))
        for node in list(image.nodes.values()):
            if node.draining and len(chosen) < count_max:
                wanted = drain_moves(
                    image, node.node_id, self._sizes_for(node.node_id), self._limits()
                )
                chosen_ids = {move[:2] for move in chosen}
                can = [m for m in wanted if m[:2] not in chosen_ids and self._can_move(m)]
                chosen += can[: count_max - len(chosen)]
        return chosen

    def _sizes_for(self, node_id: int) -> dict[tuple[bytes, int], int]:
        # Measuring all files takes longer than the few moves that are decided with the sizes.
        image = self._controller.image
        now_ms = self._reactor.clock.monotonic_ms()
        if image.led_count(node_id) and now_ms >= self._measure_at_ms:
            self._sizes = sizes_on_disk(self._root, image)
            self._measure_at_ms = now_ms + SIZES_MAX_AGE_MS
        return self._sizes

    def _can_move(self, move: PartitionMove) -> bool:
        partition_id = (move.topic_id, move.partition)
        end_offset = self._controller.log.end_offset
        worker = self._workers.workers.get(move.to_node)
        return (
            partition_id not in self._moving
            and worker is not None
            and worker.reconciled_offset >= 0
            and self._workers.has_applied(move.from_node, *partition_id, end_offset)
        )

    def _decide(self, moves: list[PartitionMove]) -> None:
        self._deciding = True

        def decided(granted: list[PartitionMove] | None, error: KafkaError | None) -> None:
            self._deciding = False
            for move in moves:
                if granted is None or move not in granted:
                    self._moving.pop(move[:2], None)
            if granted is None:
                log.error(
                    "Partitions were not moved. partitions=%d error=%r",
                    len(moves), str(error),
                )  # fmt: skip
                return
            for move in granted:
                topic = self._controller.image.topics_by_id.get(move.topic_id)
                if topic is not None:
                    log.info(
                        "Partition %s-%d is moving to node %d. partition=%s-%d from_node=%d"
                        " to_node=%d",
                        topic.name, move.partition, move.to_node,
                        topic.name, *move[1:],
                    )  # fmt: skip
            self.advance()

        decision = self._controller.decide(lambda controller: controller.move(moves))
        end_offset = self._controller.log.end_offset
        for move in moves:
            self._moving[move.topic_id, move.partition] = PendingMove(move, end_offset)
        decision.then(decided)

    def _check(self) -> None:
        self.advance()
        self._reactor.call_later(CHECK_MS, self._check)


def sizes_on_disk(root: Path, image: ClusterImage) -> dict[tuple[bytes, int], int]:
    """Return the size of each partition's segments in bytes; missing directories are omitted.

    The size is that of one replica: the leader's, or without a leader the first.
    """
    sizes = {}
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            name = layout.directory_name(topic.name, index)
            node_id = partition.replicas[0] if partition.leader == NO_LEADER else partition.leader
            directory = layout.node_directory(root, node_id) / name
            try:
                with os.scandir(directory) as entries:
                    sizes[topic.topic_id, index] = sum(
                        entry.stat().st_size for entry in entries if entry.name.endswith(layout.LOG)
                    )
            except OSError:
                continue  # it is being transferred, or was not created yet
    return sizes
