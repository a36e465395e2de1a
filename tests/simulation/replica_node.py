"""A simulated node with replicas: the product's decisions over logs in memory.

The leader's side is LeaderReplication, the follower's FollowerReplication, and metadata is in the
product's ClusterImage.  Messages and the log are lists.  A replica's record is (leader epoch,
value), and the size of a read is a number of records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafkalite.broker.replica.isr import InSyncReplicas, IsrRules, LogEnds
from kafkalite.broker.replica.leader_replication import LeaderReplication
from kafkalite.broker.replica.replica_fetch import (
    FollowerReplication,
    ReplicaFetch,
    ReplicaFetchResponse,
)
from kafkalite.coordination.image import ClusterImage, TopicImage
from kafkalite.coordination.partition_image import NO_LEADER, PartitionImage
from kafkalite.coordination.replication.alter_partition import IsrDecision, PartitionProposal
from kafkalite.errors import IneligibleReplica, StaleMetadata
from kafkalite.storage.state.leader_epochs import LeaderEpochCache

PartitionId = tuple[bytes, int]
Record = tuple[int, int]


class ReplicaLog:
    """The log of one replica, in memory."""

    def __init__(self) -> None:
        self.log_start_offset = 0
        self.records: list[Record] = []
        self.leader_epochs = LeaderEpochCache()
        self.flushed_offset = 0
        self.flushed_epochs: set[int] = set()

    @property
    def durable_offset(self) -> int:
        """The offset to which records and their leader epochs are flushed."""
        epochs = self.leader_epochs
        if len(epochs) and epochs.latest not in self.flushed_epochs:
            return min(self.flushed_offset, epochs.starts[-1] - 1)
        return self.flushed_offset

    @property
    def end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    def append_replicated(self, batches: Sequence[Record]) -> None:
        for record in batches:
            if record[0] != self.leader_epochs.latest:
                self.leader_epochs.assign(record[0], self.end_offset)
            self.records.append(record)

    def read(
        self, offset: int, size_max: int, upper_offset: int, *, whole_first: bool
    ) -> list[Record]:
        return self.records[offset - self.log_start_offset : upper_offset][:size_max]

    def truncate_to(self, offset: int) -> int:
        del self.records[max(0, offset - self.log_start_offset) :]
        self.leader_epochs.truncate_from_end(offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        return self.end_offset

    def truncate_fully_and_start_at(self, offset: int) -> int:
        self.log_start_offset, self.records = offset, []
        self.flushed_offset = offset
        self.leader_epochs = LeaderEpochCache()
        return offset

    def delete_records(self, offset: int) -> int:
        if offset > self.log_start_offset:
            del self.records[: offset - self.log_start_offset]
            self.log_start_offset = offset
            self.leader_epochs.truncate_from_start(offset)
            self.flushed_offset = max(self.flushed_offset, offset)
        return self.log_start_offset

    def flush(self) -> None:
        self.flushed_offset = self.end_offset
        self.flushed_epochs = {*self.leader_epochs.epochs}

    def lose_power(self, offset: int) -> None:
        """Keep the records before an offset, and an epoch that was flushed without records."""
        epochs = self.leader_epochs
        latest = epochs.latest
        has_latest = latest in self.flushed_epochs and epochs.starts[-1] == offset
        self.truncate_to(offset)
        if has_latest:
            epochs.assign(latest, offset)
        self.flush()


class Fetch(NamedTuple):
    """A fetch of a follower, as a message."""

    partition: PartitionId
    fetch: ReplicaFetch


class FetchResponse(NamedTuple):
    """The response to a fetch, as a message."""

    partition: PartitionId
    fetch: ReplicaFetch
    response: ReplicaFetchResponse


@dataclass
class PendingProduce:
    """A record that waits until it is committed."""

    offset: int
    value: int


@dataclass
class Replica:
    """One replica: its log, and its state as leader or follower."""

    log: ReplicaLog = field(default_factory=ReplicaLog)
    partition: PartitionImage | None = None
    leading: LeaderReplication | None = None
    following: FollowerReplication | None = None
    pending: list[PendingProduce] = field(default_factory=list)

    @property
    def isr(self) -> InSyncReplicas | None:
        return self.leading.isr if self.leading is not None else None

    @property
    def high_watermark(self) -> int:
        if self.leading is not None:
            return max(self.leading.isr.high_watermark, self.log.log_start_offset)
        if self.following is not None:
            return max(self.following.high_watermark, self.log.log_start_offset)
        return self.log.log_start_offset

    def stop(self) -> None:
        self.partition, self.leading, self.following, self.pending = None, None, None, []


class ReplicaNode:
    """One node: its image of the cluster and its replicas."""

    def __init__(
        self,
        node_id: int,
        rules_of: Callable[[TopicImage], IsrRules],
        now_ms: Callable[[], int],
    ) -> None:
        self.node_id = node_id
        self.node_epoch = 0
        self.is_running = False
        self.image = ClusterImage()
        self.image_offset = 0
        self.replicas: dict[PartitionId, Replica] = {}
        self.acknowledged: Callable[[PartitionId, int, int], None] = lambda *_: None
        self.became_leader: Callable[[PartitionId, Replica], None] = lambda *_: None
        self._rules_of = rules_of
        self._now_ms = now_ms

    def stop(self) -> None:
        """Kill the process: logs stay, and all that was in memory is gone."""
        self.is_running = False
        self.image, self.image_offset = ClusterImage(), 0
        for replica in self.replicas.values():
            replica.stop()

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
                rules = self._rules_of(topic)
                self._apply_partition((topic.topic_id, index), partition, rules)

    def _apply_partition(
        self, at: PartitionId, partition: PartitionImage, rules: IsrRules
    ) -> None:
        if self.node_id not in partition.replicas:
            self.replicas.pop(at, None)
            return
        replica = self.replicas.setdefault(at, Replica())
        before, replica.partition = replica.partition, partition
        is_same_epoch = before is not None and before.leader_epoch == partition.leader_epoch
        high_watermark = replica.high_watermark
        if partition.leader != self.node_id:
            if not is_same_epoch or replica.following is None:
                replica.leading, replica.pending = None, []
                replica.following = FollowerReplication(
                    replica.log, partition.leader_epoch, self.node_id, self.node_epoch,
                    high_watermark,
                )  # fmt: skip
            return
        if is_same_epoch and replica.isr is not None:
            replica.isr.rules = rules
            if replica.isr.update(partition):
                self.advance(at, replica)
            return
        log = replica.log
        replica.following, replica.pending = None, []
        log.leader_epochs.assign(partition.leader_epoch, log.end_offset)
        isr = InSyncReplicas(
            partition,
            rules,
            self._node_epoch_of,
            epoch_start=log.end_offset,
            high_watermark=high_watermark,
            now_ms=self._now_ms(),
        )
        replica.leading = LeaderReplication(isr, log, self._now_ms, ReplicaLog.read)
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
        replica.log.append_replicated([(replica.partition.leader_epoch, value)])
        self.advance(at, replica)

    def advance(self, at: PartitionId, replica: Replica) -> None:
        """Advance the high watermark and acknowledge what it covers."""
        assert replica.leading is not None
        high_watermark = replica.leading.advance()
        while replica.pending and replica.pending[0].offset < high_watermark:
            produce = replica.pending.pop(0)
            self.acknowledged(at, produce.offset, produce.value)

    def proposal(self, at: PartitionId) -> PartitionProposal | None:
        """Return the proposal to send now: a new one, or the one without a response."""
        replica = self.replicas.get(at)
        if replica is None or replica.isr is None:
            return None
        ends = LogEnds(replica.log.end_offset, replica.log.durable_offset)
        isr = replica.isr.pending or replica.isr.propose(ends, self._now_ms())
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
        changed = decision.partition
        is_same = changed is not None and changed.partition_epoch == isr.partition.partition_epoch
        if is_same or isinstance(decision.error, IneligibleReplica):
            isr.not_applied()
            self.advance(at, replica)

    def fetched(self, message: Fetch, count_max: int) -> FetchResponse | None:
        """Handle a follower's fetch; None for an error after which it waits for its image."""
        at, fetch = message
        replica = self.replicas.get(at)
        if replica is None or replica.leading is None:
            return None
        try:
            response = replica.leading.read(fetch, count_max, whole_first=True)
        except StaleMetadata:
            return None
        self.advance(at, replica)
        return FetchResponse(at, fetch, response)

    def flush(self, at: PartitionId) -> None:
        """Flush a log."""
        replica = self.replicas.get(at)
        if replica is not None:
            replica.log.flush()
            if replica.leading is not None:
                self.advance(at, replica)

    # -- follower ----------------------------------------------------------------------------

    def fetch(self, at: PartitionId) -> tuple[int, Fetch] | None:
        """Return the leader and the fetch that a follower sends now."""
        replica = self.replicas.get(at)
        if replica is None or replica.partition is None or replica.following is None:
            return None
        if replica.partition.leader == NO_LEADER:
            return None
        return replica.partition.leader, Fetch(at, replica.following.next_fetch())

    def received(self, message: FetchResponse) -> None:
        """Handle the leader's response."""
        replica = self.replicas.get(message.partition)
        if replica is not None and replica.following is not None:
            replica.following.apply(message.fetch, message.response)
