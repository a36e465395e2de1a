"""A simulated node with replicas: the product's decisions over logs in memory.

The leader uses InSyncReplicas and `find_divergence`, the follower `truncation_offset`, and both the
product's LeaderEpochCache and ClusterImage.  Messages and the log are lists.  A replica's record is
(leader epoch, value).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafkalite.broker.replica.divergence import LogRange, find_divergence, truncation_offset
from kafkalite.broker.replica.isr import FollowerFetch, InSyncReplicas, IsrRules, LogEnds
from kafkalite.coordination.image import ClusterImage
from kafkalite.coordination.partition_image import PartitionImage
from kafkalite.coordination.replication.alter_partition import IsrDecision, PartitionProposal
from kafkalite.errors import IneligibleReplica, OffsetOutOfRange
from kafkalite.storage.state.leader_epochs import NO_EPOCH, EpochEnd, LeaderEpochCache

PartitionId = tuple[bytes, int]
Record = tuple[int, int]


class ReplicaLog:
    """The log of one replica, in memory."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.records: list[Record] = []
        self.epochs = LeaderEpochCache()
        self.high_watermark = 0
        self.durable_offset = 0
        self.durable_epochs: set[int] = set()

    @property
    def ends(self) -> LogEnds:
        """The end offset, and the offset to which records and their leader epochs are flushed."""
        flushed = self.durable_offset
        if self.epochs.epochs and self.epochs.latest not in self.durable_epochs:
            flushed = min(flushed, self.epochs.starts[-1] - 1)
        return LogEnds(self.end_offset, flushed)

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.records)

    @property
    def last_epoch(self) -> int:
        return self.epochs.latest if self.epochs.epochs else NO_EPOCH

    def append(self, records: Sequence[Record]) -> None:
        for record in records:
            if record[0] != self.epochs.latest:
                self.epochs.assign(record[0], self.end_offset)
            self.records.append(record)

    def read(self, offset: int, count: int) -> list[Record]:
        return self.records[offset - self.start_offset :][:count]

    def truncate(self, offset: int) -> None:
        assert offset >= self.high_watermark, "a follower truncates what it knows as committed"
        self.cut(offset)

    def cut(self, offset: int) -> None:
        del self.records[max(0, offset - self.start_offset) :]
        self.epochs.truncate_from_end(offset)
        self.durable_offset = min(self.durable_offset, offset)

    def flush(self) -> None:
        self.durable_offset = self.end_offset
        self.durable_epochs = {*self.epochs.epochs}

    def lose_power(self, offset: int) -> None:
        """Keep the records before an offset, and an epoch that was flushed without records."""
        latest = self.epochs.latest
        has_latest = latest in self.durable_epochs and self.epochs.starts[-1] == offset
        self.cut(offset)
        if has_latest:
            self.epochs.assign(latest, offset)
        self.flush()

    def restart_at(self, offset: int) -> None:
        self.start_offset, self.records, self.high_watermark = offset, [], offset
        self.durable_offset = offset
        self.epochs = LeaderEpochCache()

    def delete_to(self, offset: int) -> None:
        if offset > self.start_offset:
            del self.records[: offset - self.start_offset]
            self.start_offset = offset
            self.epochs.truncate_from_start(offset)
            self.high_watermark = max(self.high_watermark, offset)
            self.durable_offset = max(self.durable_offset, offset)


class Fetch(NamedTuple):
    """A fetch of a follower."""

    partition: PartitionId
    fetch: FollowerFetch
    leader_epoch: int
    last_epoch: int


class FetchResponse(NamedTuple):
    """The response to a fetch: records, or where the logs diverge, or the leader's range."""

    partition: PartitionId
    leader_epoch: int
    offset: int
    last_epoch: int
    records: Sequence[Record]
    high_watermark: int
    epoch_start: int
    log: LogRange
    diverging: EpochEnd | None = None
    is_out_of_range: bool = False


@dataclass
class PendingProduce:
    """A record that waits until it is committed."""

    offset: int
    value: int


@dataclass
class Replica:
    """One replica: its log, and its state as a leader."""

    log: ReplicaLog = field(default_factory=ReplicaLog)
    partition: PartitionImage | None = None
    isr: InSyncReplicas | None = None
    pending: list[PendingProduce] = field(default_factory=list)


class ReplicaNode:
    """One node: its image of the cluster and its replicas."""

    def __init__(self, node_id: int, rules: IsrRules, now_ms: Callable[[], int]) -> None:
        self.node_id = node_id
        self.node_epoch = 0
        self.is_running = False
        self.image = ClusterImage()
        self.image_offset = 0
        self.replicas: dict[PartitionId, Replica] = {}
        self.rules = rules
        self.acknowledged: Callable[[PartitionId, int, int], None] = lambda *_: None
        self.became_leader: Callable[[PartitionId, Replica], None] = lambda *_: None
        self._now_ms = now_ms

    def stop(self) -> None:
        """Kill the process: logs stay, and all that was in memory is gone."""
        self.is_running = False
        self.image, self.image_offset = ClusterImage(), 0
        for replica in self.replicas.values():
            replica.partition, replica.isr, replica.pending = None, None, []
            # Its checkpoint may be older.
            replica.log.high_watermark = replica.log.start_offset

    def apply(self, records: Sequence[Any]) -> None:
        """Apply the next records of the metadata log."""
        for record in records:
            self.image.replay(record)
        self.image_offset += len(records)
        known = self.image.nodes.get(self.node_id)
        if known is None or known.node_epoch != self.node_epoch:
            # What it led as an older process may have another leader, and its log may be gone.
            return
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                self._apply_partition((topic.topic_id, index), partition)

    def _apply_partition(self, at: PartitionId, partition: PartitionImage) -> None:
        if self.node_id not in partition.replicas:
            self.replicas.pop(at, None)
            return
        replica = self.replicas.setdefault(at, Replica())
        before, replica.partition = replica.partition, partition
        if partition.leader != self.node_id:
            replica.isr, replica.pending = None, []
            return
        if (
            replica.isr is not None
            and before is not None
            and before.leader_epoch == partition.leader_epoch
        ):
            if replica.isr.update(partition):
                self.advance(at, replica)
            return
        log = replica.log
        replica.pending = []
        log.epochs.assign(partition.leader_epoch, log.end_offset)
        replica.isr = InSyncReplicas(
            partition,
            self.rules,
            self._node_epoch_of,
            epoch_start=log.end_offset,
            high_watermark=log.high_watermark,
            now_ms=self._now_ms(),
        )
        self.became_leader(at, replica)

    def _node_epoch_of(self, node_id: int) -> int | None:
        node = self.image.nodes.get(node_id)
        return node.node_epoch if node is not None and node.is_active else None

    # -- leader ------------------------------------------------------------------------------

    def leads(self, at: PartitionId) -> bool:
        """Return whether this node leads a partition, according to its image."""
        replica = self.replicas.get(at)
        return replica is not None and replica.isr is not None

    def produce(self, at: PartitionId, value: int) -> None:
        """Append a record for a client that waits for acks=all, if this node leads."""
        replica = self.replicas.get(at)
        if replica is None or replica.isr is None or not replica.isr.has_min_isr:
            return
        assert replica.partition is not None
        replica.pending.append(PendingProduce(replica.log.end_offset, value))
        replica.log.append([(replica.partition.leader_epoch, value)])
        self.advance(at, replica)

    def advance(self, at: PartitionId, replica: Replica) -> None:
        """Advance the high watermark and acknowledge what it covers."""
        assert replica.isr is not None
        replica.isr.advance(replica.log.ends, self._now_ms())
        replica.log.high_watermark = replica.isr.high_watermark
        while replica.pending and replica.pending[0].offset < replica.log.high_watermark:
            produce = replica.pending.pop(0)
            self.acknowledged(at, produce.offset, produce.value)

    def proposal(self, at: PartitionId) -> PartitionProposal | None:
        """Return the proposal to send now: a new one, or the one without a response."""
        replica = self.replicas.get(at)
        if replica is None or replica.isr is None:
            return None
        isr = replica.isr.pending or replica.isr.propose(replica.log.ends, self._now_ms())
        return None if isr is None else PartitionProposal(*at, isr)

    def decided(self, decision: IsrDecision) -> None:
        """Handle the controller's response to a proposal."""
        at = decision.proposal[:2]
        replica = self.replicas.get(at)
        if replica is None or replica.isr is None:
            return
        isr, proposal = replica.isr, decision.proposal.isr
        if isr.pending != proposal:
            return
        if isinstance(decision.error, IneligibleReplica):
            isr.refused()
        changed = decision.partition
        if changed is not None and changed.leader_epoch == isr.partition.leader_epoch:
            isr.decided(changed)
            self.advance(at, replica)

    def fetched(self, message: Fetch, count_max: int) -> FetchResponse | None:
        """Handle a follower's fetch; None for an error after which it waits for its image."""
        at, fetch = message.partition, message.fetch
        replica = self.replicas.get(at)
        if replica is None or replica.isr is None or replica.partition is None:
            return None
        if message.leader_epoch != replica.partition.leader_epoch:
            return None
        if not replica.isr.has_follower(fetch.node_id):
            return None
        log = replica.log
        span = LogRange(log.start_offset, log.end_offset)
        response = FetchResponse(
            at, message.leader_epoch, fetch.offset, message.last_epoch, (), log.high_watermark,
            replica.isr.epoch_start, span,
        )  # fmt: skip
        try:
            divergence = find_divergence(log.epochs, span, fetch.offset, message.last_epoch)
        except OffsetOutOfRange:
            return response._replace(is_out_of_range=True)
        if divergence is not None:
            return response._replace(diverging=divergence)
        records = log.read(fetch.offset, count_max)
        if not replica.isr.fetched(fetch, span.end_offset, self._now_ms()):
            return None
        self.advance(at, replica)
        return response._replace(records=records, high_watermark=log.high_watermark)

    def flush(self, at: PartitionId) -> None:
        """Flush a log."""
        replica = self.replicas.get(at)
        if replica is not None:
            replica.log.flush()
            if replica.isr is not None:
                self.advance(at, replica)

    # -- follower ----------------------------------------------------------------------------

    def fetch(self, at: PartitionId) -> tuple[int, Fetch] | None:
        """Return the leader and the fetch that a follower sends now."""
        replica = self.replicas.get(at)
        if replica is None or replica.partition is None or replica.isr is not None:
            return None
        log, partition = replica.log, replica.partition
        if partition.leader < 0:
            return None
        fetch = FollowerFetch(self.node_id, self.node_epoch, *log.ends)
        return partition.leader, Fetch(at, fetch, partition.leader_epoch, log.last_epoch)

    def received(self, response: FetchResponse) -> None:
        """Handle the leader's response; one of an older state is ignored."""
        replica = self.replicas.get(response.partition)
        if replica is None or replica.partition is None or replica.isr is not None:
            return
        log = replica.log
        if self._is_outdated(replica, response):
            return
        if response.is_out_of_range:
            if response.log.start_offset > log.end_offset:
                log.restart_at(response.log.start_offset)
            elif response.log.end_offset < log.end_offset:
                log.truncate(response.log.end_offset)
            return
        if response.diverging is not None:
            log.truncate(truncation_offset(response.diverging, log.epochs, log.end_offset))
            return
        if log.end_offset == response.epoch_start and log.last_epoch < response.leader_epoch:
            log.epochs.assign(response.leader_epoch, log.end_offset)
        log.append(response.records)
        log.high_watermark = max(
            log.high_watermark, min(response.high_watermark, log.end_offset)
        )
        log.delete_to(min(response.log.start_offset, log.high_watermark))

    def _is_outdated(self, replica: Replica, response: FetchResponse) -> bool:
        assert replica.partition is not None
        return (
            response.leader_epoch != replica.partition.leader_epoch
            or response.offset != replica.log.end_offset
            or response.last_epoch != replica.log.last_epoch
        )
