"""IsrProposals: the changes of ISRs that this node, as leader, requests from the controller.

    partition changed, or CHECK ─▶ InSyncReplicas.propose ─▶ AlterPartition ─▶ the controller
    decided    the response, or the image, has the new partition epoch
    refused    certainly not applied: the partition may propose again

All proposals of a tick are sent together; the next message follows the response.  A proposal is
sent to a controller process once: of two copies the first could be refused and the second be
applied.  If that process has ended without a response, the next one gets it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalite.broker.replica.isr import LogEnds
from kafkalite.coordination.replication.alter_partition import AlteredPartition, PartitionProposal
from kafkalite.errors import (
    FencedLeaderEpoch,
    InvalidUpdateVersion,
    KafkaError,
    NewLeaderElected,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from kafkalite.broker.future import Future
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.broker.scheduler import Scheduler
    from kafkalite.coordination.replication.alter_partition import IsrProposal

log = logging.getLogger("kafkalite.broker")

CHECKED_PER_TICK = 500
"""Maximum number of partitions whose followers are checked for their lag in one tick."""

UNDECIDED = (
    FencedLeaderEpoch, InvalidUpdateVersion, NewLeaderElected, NotController, StaleBrokerEpoch,
    UnknownTopicId, UnknownTopicOrPartition,
)  # fmt: skip
"""Errors after which the image of this node is older than the controller's: it ends the proposal.
After any other one it was certainly not applied."""

REFUSED_PAUSE_MS = 200
"""Delay before a partition whose proposal was refused proposes again."""


class IsrController(Protocol):
    """The controller as the leaders of partitions use it (ControllerClient)."""

    @property
    def node_epoch(self) -> int | None:
        """The node epoch of this process; None while it is not registered."""

    def alter_partitions(
        self, node_epoch: int, proposals: Sequence[PartitionProposal]
    ) -> Future[list[AlteredPartition]]:
        """Propose other in-sync replicas."""

    def report_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        """Report replicas whose logs have failed."""


class SizedProposal(NamedTuple):
    """A proposal, and by how many members it makes the ISR larger."""

    proposal: IsrProposal
    growth: int


class IsrProposals:
    """The proposals of one node; see the module."""

    def __init__(
        self,
        controller: IsrController,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        now_ms: Callable[[], int],
        check_ms: Callable[[], int],
    ) -> None:
        """`check_ms` returns the interval at which the lag of all followers is checked."""
        self._controller = controller
        self._replicas = replicas
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._check_ms = check_ms
        self._unsent: dict[Partition, SizedProposal] = {}
        self._paused: set[Partition] = set()
        self._is_in_flight = False
        self.shrinks = self.expands = self.failures = 0
        """Numbers of proposals that the controller has applied, by kind, and of refused ones."""

    def open(self) -> None:
        """Begin the periodic checks."""
        self._check_all()

    def check(self, partition: Partition) -> None:
        """Propose another ISR of a partition that has changed, if that is due."""
        replication = partition.replication
        if replication is None or partition.error is not None:
            return
        isr, found = replication.isr, partition.log
        if isr.pending is not None or partition in self._paused:
            return
        proposal = isr.propose(LogEnds(found.end_offset, found.durable_offset), self._now_ms())
        if proposal is not None:
            growth = len(proposal.isr) - len(isr.partition.isr)
            self._queue(partition, SizedProposal(proposal, growth))

    def _count(self, proposed: SizedProposal, outcome: AlteredPartition) -> None:
        if outcome.error is not None:
            self.failures += 1
        elif proposed.growth < 0:
            self.shrinks += 1
        elif proposed.growth > 0:
            self.expands += 1

    def _check_all(self) -> None:
        self._check_next(iter([each for each in self._replicas if each.replication is not None]))

    def _check_next(self, partitions: Iterator[Partition]) -> None:
        some = [*islice(partitions, CHECKED_PER_TICK)]
        for partition in some:
            replication = partition.replication
            if partition.error is not None or replication is None:
                continue  # it is led here no longer, or has no followers
            if not replication.isr.is_settled(partition.log.end_offset):
                # A follower that does not fetch must not hold the high watermark for ever.
                self._replicas.mark_dirty(partition)
        if len(some) < CHECKED_PER_TICK:
            self._scheduler.call_later(self._check_ms(), self._check_all)
        else:
            self._scheduler.call_later(0, lambda: self._check_next(partitions))

    def _queue(self, partition: Partition, proposal: SizedProposal) -> None:
        if not self._unsent and not self._is_in_flight:
            self._scheduler.call_later(0, self._send)
        self._unsent[partition] = proposal

    def _send(self) -> None:
        node_epoch = self._controller.node_epoch
        unsent, self._unsent = self._unsent, {}
        sent = [
            (partition, proposed)
            for partition, proposed in unsent.items()
            if _is_pending(partition, proposed.proposal)
        ]
        if not sent or node_epoch is None:
            return  # a node that is not registered leads nothing with followers
        self._is_in_flight = True
        self._controller.alter_partitions(
            node_epoch,
            [PartitionProposal(each.topic_id, each.index, made.proposal) for each, made in sent],
        ).then(lambda altered, error: self._responded(sent, altered, error))

    def _responded(
        self,
        sent: Sequence[tuple[Partition, SizedProposal]],
        altered: Sequence[AlteredPartition] | None,
        error: KafkaError | None,
    ) -> None:
        self._is_in_flight = False
        if altered is not None:
            for (partition, proposed), outcome in zip(sent, altered, strict=True):
                self._count(proposed, outcome)
                if _is_pending(partition, proposed.proposal):
                    self._apply(partition, outcome)
        elif isinstance(error, RequestTimedOut):
            for partition, proposed in sent:
                self._queue(partition, proposed)
        else:
            assert error is not None
            log.warning("Changes of in-sync replicas were refused. error=%r", str(error))
            for partition, proposed in sent:
                if _is_pending(partition, proposed.proposal):
                    self._apply(partition, AlteredPartition(error, -1))
        if self._unsent:
            self._scheduler.call_later(0, self._send)

    def _apply(self, partition: Partition, outcome: AlteredPartition) -> None:
        """Apply the response to the pending proposal of a partition."""
        assert partition.replication is not None, "it has a pending proposal"
        isr = partition.replication.isr
        if outcome.error is None:
            if outcome.partition_epoch == isr.partition.partition_epoch:
                isr.not_applied()  # there was nothing to change
        else:
            self.failures += 1
            if not isinstance(outcome.error, UNDECIDED):
                isr.not_applied()
                self._pause(partition)
        if partition.error is None:
            self._replicas.mark_dirty(partition)

    def _pause(self, partition: Partition) -> None:
        """Propose nothing for a partition until REFUSED_PAUSE_MS have passed."""

        def resume() -> None:
            self._paused.discard(partition)
            if partition.error is None:
                self._replicas.mark_dirty(partition)

        self._paused.add(partition)
        self._scheduler.call_later(REFUSED_PAUSE_MS, resume)


def _is_pending(partition: Partition, proposal: IsrProposal) -> bool:
    """Return whether a proposal is still the pending one of its partition."""
    replication = partition.replication
    return (
        replication is not None
        and partition.error is None
        and replication.isr.pending is proposal
    )
