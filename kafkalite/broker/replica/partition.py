"""Partition: a log led by this node, its leader epoch, high watermark and waiting requests.

    log start ──────────── last stable offset ──── high watermark ──── log end
                            read_committed ends     consumers end       followers end

If the leader is the only replica, a record is committed as soon as it has the configured
durability: in `fsync` mode when a flush has covered it, otherwise when the write call has returned.
With followers, LeaderReplication decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkalite.broker.replica.isr import InSyncReplicas, IsrRules
from kafkalite.broker.replica.leader_replication import LeaderReplication
from kafkalite.broker.replica.readable_partition import ReadablePartition
from kafkalite.broker.replica.replication_quota import throttles
from kafkalite.broker.request_metrics import TopicTraffic
from kafkalite.config.topic import LEADER_REPLICATION_THROTTLED_REPLICAS
from kafkalite.coordination.topic_names import INTERNAL_TOPICS
from kafkalite.storage.state.durability import Durability

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalite.broker.replica.delayed_operation import DelayedOperation
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.partition_image import PartitionImage
    from kafkalite.errors import KafkaError
    from kafkalite.records.control import TransactionMarker
    from kafkalite.records.decode_steps import DecodeSteps
    from kafkalite.storage.log.log import Log, LogAppendResult
    from kafkalite.storage.state.verification import VerificationGuard


def needs_cleaner(log: Log) -> bool:
    """Return whether the log cleaner must run for a log: of an internal topic, once a segment is
    closed."""
    is_small = log.topic in INTERNAL_TOPICS and len(log.segments) == 1
    return log.config.compacts and not is_small


class MarkerListener(Protocol):
    """A coordinator whose records in a partition can be part of transactions."""

    def check_marker(self) -> None:
        """Raise NotLeaderOrFollower if the coordinator cannot take a marker yet."""

    def marker_appended(self, marker: TransactionMarker) -> None:
        """Replay a marker that was appended."""


class ReplicationEnvironment(NamedTuple):
    """The parts of a node that the leader of a partition with followers uses."""

    node_epoch_of: Callable[[int], int | None]
    """Returns the epoch of a node that may join the ISR, or None."""
    now_ms: Callable[[], int]
    on_progress: Callable[[Partition], object]
    """Called when a fetch may have changed the high watermark or the ISR."""


class Partition(ReadablePartition):
    """One partition led by this node."""

    __slots__ = ("error", "flush_timer", "flushes_always", "flushing", "high_watermark", "index",
                 "commits_at_append", "is_loading", "is_throttled", "leader_epoch", "log",
                 "marker_listener", "replication", "topic", "topic_id", "traffic",
                 "waiting", "write_error")  # fmt: skip

    high_watermark: int

    def __init__(
        self,
        log: Log,
        leader_epoch: int,
        settings: Settings,
        traffic: TopicTraffic | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """Lead a partition; without other replicas if no high watermark is given, otherwise
        `lead_with_followers` is the next call."""
        self.log = log
        self.traffic = traffic or TopicTraffic()
        self.topic = log.topic
        self.index = log.partition
        self.topic_id = log.topic_id
        self.flushes_always = Durability.of(settings).flushes_each_append
        self.commits_at_append = high_watermark is None and not self.flushes_always
        if high_watermark is None:
            # After a partition transfer, the log end offset may be above the durable offset.
            high_watermark = log.end_offset
            if self.flushes_always:
                high_watermark = min(log.end_offset, log.durable_offset)
        self.high_watermark = high_watermark
        self.replication: LeaderReplication | None = None
        """The followers; None if this is the only replica."""
        log.committed_limit = None
        self.lead(leader_epoch)
        self.waiting: dict[DelayedOperation, int | None] = {}
        self.marker_listener: MarkerListener | None = None
        self.is_loading = False
        """True while a coordinator loads its records.  No pass of the log cleaner begins then: a
        second one could remove markers and tombstones of records that were already read."""
        self.is_throttled = False
        """True if what is sent to followers counts for the node's quota (replication_quota.py)."""
        self.error: KafkaError | None = None
        self.write_error = ""
        """The last error of an append that was logged, after which the log may still go on."""
        self.flushing = False
        self.flush_timer: object | None = None
        self._forget_transactions()

    def __repr__(self) -> str:
        return f"Partition({self.topic}-{self.index})"

    def lead(self, leader_epoch: int) -> None:
        """Lead the partition in this epoch from now on."""
        self.leader_epoch = leader_epoch
        if leader_epoch > self.log.leader_epochs.latest:
            self.log.leader_epochs.assign(leader_epoch, self.log.end_offset)

    def lead_with_followers(
        self,
        image: PartitionImage,
        rules: IsrRules,
        environment: ReplicationEnvironment,
    ) -> None:
        """Lead the partition in its epoch, with all replicas of `image`."""
        self.lead(image.leader_epoch)
        epochs = self.log.leader_epochs
        is_known = epochs.latest == image.leader_epoch
        isr = InSyncReplicas(
            image,
            rules,
            environment.node_epoch_of,
            # Not the log end if the followers are added within this epoch.
            epoch_start=epochs.starts[-1] if is_known else self.log.end_offset,
            high_watermark=self.high_watermark,
            now_ms=environment.now_ms(),
        )
        self.replication = LeaderReplication(
            isr,
            self.log,
            environment.now_ms,
            on_progress=lambda: environment.on_progress(self),
        )
        self.log.is_replicated = True
        self.log.committed_limit = lambda: self.high_watermark
        self.commits_at_append = False
        self._set_throttled(self.log.config.settings)

    def lead_alone(self, leader_epoch: int) -> None:
        """Lead the partition without followers: they were removed from it."""
        self.lead(leader_epoch)
        self.replication = None
        self.log.is_replicated = False
        self.log.committed_limit = None
        self.commits_at_append = not self.flushes_always

    def reconfigure(self, settings: Settings) -> None:
        """Apply new topic settings."""
        self.flushes_always = Durability.of(settings).flushes_each_append
        self.commits_at_append = not self.flushes_always and self.replication is None
        self._set_throttled(settings)
        self.advance()

    def _set_throttled(self, settings: Settings) -> None:
        replication = self.replication
        self.is_throttled = replication is not None and throttles(
            settings[LEADER_REPLICATION_THROTTLED_REPLICAS],
            replication.isr.partition.leader,
            self.index,
        )

    def begin_validation(self, batch: memoryview | bytes) -> DecodeSteps[bytes] | None:
        """Return the steps that open a client's batch for `append`, or None if it needs none."""
        if self.error is not None:
            raise self.error.copy()
        return self.log.begin_validation(batch)

    def append(
        self,
        batch: memoryview | bytes,
        *,
        from_client: bool = True,
        validated: bool = False,
        guard: VerificationGuard | None = None,
    ) -> LogAppendResult:
        """Append a batch to the log; see Log.append.

        Raises KafkaError if the log rejects the batch or the partition has failed.
        """
        if self.error is not None:
            raise self.error.copy()
        appended = self.log.append(
            batch,
            self.leader_epoch,
            from_client=from_client,
            validated=validated,
            guard=guard,
        )
        if self.commits_at_append:
            self.high_watermark = self.log.end_offset
        traffic = self.traffic
        traffic.messages_in += appended.last_offset - appended.base_offset + 1
        traffic.bytes_in += len(batch)
        return appended

    def append_marker(self, marker: TransactionMarker) -> LogAppendResult:
        """Append the marker that ends a producer's transaction; raise as `append`."""
        if self.error is not None:
            raise self.error.copy()
        listener = self.marker_listener
        if listener is not None:
            listener.check_marker()
        appended = self.log.append_marker(marker, self.leader_epoch)
        if listener is not None:
            listener.marker_appended(marker)
        if self.commits_at_append:
            self.high_watermark = self.log.end_offset
        self._forget_transactions()
        return appended

    def _forget_transactions(self) -> None:
        # Without readers there is no query of the last stable offset.
        self.log.producers.transactions.forget_committed(self.high_watermark)

    @property
    def needs_cleaner(self) -> bool:
        """True if the log cleaner must run for this log."""
        return needs_cleaner(self.log)

    def advance(self) -> bool:
        """Advance the high watermark to what is committed; return whether it moved."""
        if self.replication is not None:
            reached = self.replication.advance()
        else:
            reached = self.log.durable_offset if self.flushes_always else self.log.end_offset
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True
