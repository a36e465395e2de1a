"""OwnReplicas: the supervisor as a node that leads and follows: its replicas of internal topics.

    before the node opens   what its last process led has no leader; it is in no other ISR
    its logs are open       lost replicas leave ISR and ELR, the node is registered, leaders are
                            elected: itself, where it is in sync
    afterwards              as a worker, but its decisions need no message

The controller is in the same process, so nothing else is decided before the node is registered, and
no other leader was elected while it had no process.  The coordinators are on this node only: if it
had lost its replica, a worker leads until this one is in sync again, and is then replaced at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.replication import leadership, registration
from kafkalite.coordination.replication.alter_partition import AlteredPartition
from kafkalite.coordination.replication.alter_partition import alter_partitions as decide_proposals
from kafkalite.coordination.replication.leadership import CHANGED_MAX
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.protocol.schemas.internal import PARTITION_CHANGE

if TYPE_CHECKING:
    from kafkalite.broker.controller.local_controller import LocalController
    from kafkalite.broker.future import Future
    from kafkalite.coordination.controller import Controller
    from kafkalite.coordination.image import ClusterImage
    from kafkalite.coordination.machine import DecisionResult
    from kafkalite.coordination.replication.alter_partition import (
        IsrDecision,
        PartitionProposal,
    )
    from kafkalite.coordination.replication.leadership import LocatedPartition
    from kafkalite.coordination.replication.partition_change import RulesOf
    from kafkalite.coordination.replication.registration import RegisteredLog
    from kafkalite.protocol.record_kinds import TypedRecord

ReplicasFailed = Callable[[int, int, Collection[tuple[bytes, int]]], object]
"""`replicas_failed(node_id, node_epoch, partitions)`, of NodeLifecycle."""

log = logging.getLogger("kafkalite.broker")


class OwnReplicas:
    """The controller's decisions about the node that hosts it; see the module."""

    def __init__(
        self, controller: LocalController, incarnation: int, rules_of: RulesOf
    ) -> None:
        """`incarnation` is the launcher's number of this process."""
        self._controller = controller
        self._incarnation = incarnation
        self._rules_of = rules_of
        self._logs: Sequence[RegisteredLog] = ()
        self._replicas_failed: ReplicasFailed | None = None
        self._is_electing = False

    def take_over(self) -> None:
        """Take the partitions from the process before; called before the node opens."""
        self._repeat(
            lambda machine: registration.take_over(machine.image, SUPERVISOR_ID, self._rules_of)
        )

    def register(self, logs: Sequence[RegisteredLog]) -> None:
        """Register this process, whose logs are open, and elect leaders of its partitions."""
        self._logs = logs
        image, rules_of = self._controller.image, self._rules_of
        lost = registration.lost_replicas(image, SUPERVISOR_ID, logs)
        if lost:
            log.warning(
                "Replicas of internal topics are missing or damaged; they are fetched again from"
                " other nodes. partitions=%d", len(lost),
            )  # fmt: skip
        self._repeat(
            lambda machine: leadership.remove_after_loss(
                machine.image, SUPERVISOR_ID, rules_of, lost
            )
        )
        self._controller.decide_at_start(
            lambda machine: registration.register(machine.image, SUPERVISOR_ID, self._incarnation)
        )
        self._repeat(
            lambda machine: leadership.elect_missing(machine.image, SUPERVISOR_ID, rules_of)
        )

    def _repeat(self, decide: Callable[[Controller], DecisionResult[int]]) -> None:
        while self._controller.decide_at_start(decide) == CHANGED_MAX:
            pass

    def attach(
        self,
        *,
        recover: Callable[[int, Sequence[RegisteredLog]], object],
        replicas_failed: ReplicasFailed,
    ) -> None:
        """Begin with the decisions that follow the registration (NodeLifecycle)."""
        self._replicas_failed = replicas_failed
        recover(SUPERVISOR_ID, self._logs)
        self._logs = ()
        self._controller.on_change(self._changed)
        self._elect()

    @property
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None before it is registered."""
        image = self._controller.image
        if registration.is_registered(image, SUPERVISOR_ID, self._incarnation):
            return image.nodes[SUPERVISOR_ID].node_epoch
        return None

    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Decide about other in-sync replicas of partitions that this node leads."""

        def altered(decisions: Sequence[IsrDecision]) -> list[AlteredPartition]:
            return [
                AlteredPartition(
                    each.error,
                    each.partition.partition_epoch if each.partition is not None else -1,
                )
                for each in decisions
            ]

        return self._controller.decide(
            lambda machine: decide_proposals(
                machine.image, SUPERVISOR_ID, node_epoch, proposals, self._rules_of
            )
        ).map(altered)

    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Have other nodes lead partitions whose logs here have failed."""
        node_epoch = self.node_epoch
        if self._replicas_failed is not None and node_epoch is not None:
            self._replicas_failed(SUPERVISOR_ID, node_epoch, {*partitions})

    # -- leaders of internal topics ----------------------------------------------------------

    def _changed(self, records: Sequence[TypedRecord], end_offset: int) -> None:
        if any(record.kind is PARTITION_CHANGE for record in records):
            self._elect()

    def _elect(self) -> None:
        """Elect this node for internal partitions in which it is in sync again."""
        if self._is_electing or not _led_elsewhere(self._controller.image):
            return
        self._is_electing = True

        def decided(count: int | None, _: object) -> None:
            self._is_electing = False
            if count:
                log.info("Node 0 leads internal partitions again. partitions=%d", count)

        self._controller.decide(
            lambda machine: leadership.elect_preferred(
                machine.image, _led_elsewhere(machine.image), self._rules_of
            )
        ).then(decided)


def _led_elsewhere(image: ClusterImage) -> list[LocatedPartition]:
    """Return the internal partitions that a worker leads, although node 0 is in sync."""
    topics = (image.topics[name] for name in INTERNAL_TOPICS if name in image.topics)
    return [
        (topic, index, partition)
        for topic in topics
        for index, partition in topic.partitions.items()
        if partition.leader != SUPERVISOR_ID and SUPERVISOR_ID in partition.isr
    ]
