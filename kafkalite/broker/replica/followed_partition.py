"""FollowedPartition: a partition whose log follows that of its leader on another node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.broker.replica.readable_partition import ReadablePartition
from kafkalite.broker.replica.replica_fetch import FollowerReplication
from kafkalite.broker.replica.replication_quota import throttles
from kafkalite.broker.request_metrics import TopicTraffic
from kafkalite.config.topic import FOLLOWER_REPLICATION_THROTTLED_REPLICAS
from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.errors import NotLeaderOrFollower

if TYPE_CHECKING:
    from kafkalite.broker.replica.delayed_operation import DelayedOperation
    from kafkalite.config.settings import Settings
    from kafkalite.coordination.partition_image import PartitionImage
    from kafkalite.errors import KafkaError
    from kafkalite.storage.log.log import Log


class FollowedPartition(ReadablePartition):
    """One partition that this node follows, in one leader epoch."""

    __slots__ = ("_node_id", "error", "flush_timer", "flushes_always", "flushing",
                 "is_flush_awaited", "is_in_sync", "is_throttled", "leader", "leader_epoch", "log",
                 "replication", "retry_ms", "topic", "traffic", "waiting")  # fmt: skip

    is_loading = False
    """No coordinator loads the records of a partition that is followed."""

    def __init__(
        self,
        log: Log,
        image: PartitionImage,
        settings: Settings,
        node: tuple[int, int],
        high_watermark: int,
    ) -> None:
        """`node` is the id and the epoch of this node."""
        self.log = log
        self._node_id = node[0]
        self.topic = log.topic
        self.leader = image.leader
        """The node to fetch from; NO_LEADER while there is none."""
        self.leader_epoch = image.leader_epoch
        self.is_in_sync = node[0] in image.isr
        """True if it is in the ISR, by the image of this node, in the leader epoch."""
        self.waiting: dict[DelayedOperation, int | None] = {}
        self.traffic = TopicTraffic()
        self.replication = FollowerReplication(log, image.leader_epoch, *node, high_watermark)
        self.error: KafkaError | None = None
        """The reason why it is not followed any more, and cannot be read."""
        self.flushing = False
        self.flush_timer: object | None = None
        self.retry_ms = 0
        """Delay before the last retry of a fetch that failed; 0 after a success."""
        log.committed_limit = lambda: self.high_watermark
        self.reconfigure(settings)

    def __repr__(self) -> str:
        return f"FollowedPartition({self.log.topic}-{self.log.partition})"

    @property
    def key(self) -> tuple[bytes, int]:
        """Topic id and index."""
        return self.log.topic_id, self.log.partition

    @property
    def high_watermark(self) -> int:
        """The high watermark as far as this node knows it."""
        return self.replication.high_watermark

    @property
    def lag(self) -> int:
        """Number of records below the leader's high watermark that this node does not have."""
        return max(0, self.replication.leader_high_watermark - self.log.end_offset)

    @property
    def has_all_committed(self) -> bool:
        """True if the leader has responded, and it had no committed record that is missing here."""
        return 0 <= self.replication.leader_high_watermark <= self.log.end_offset

    def check_epoch(self, current_leader_epoch: int) -> None:
        super().check_epoch(current_leader_epoch)
        if self.log.is_truncating:  # its files are in use by a thread
            raise NotLeaderOrFollower()

    def reconfigure(self, settings: Settings) -> None:
        """Apply new topic settings."""
        copies = DurableCopies.of(settings)
        self.flushes_always = copies is not None
        self.is_flush_awaited = copies not in (None, DurableCopies.LEADER)
        """True if records are committed once this node has flushed them, too."""
        self.is_throttled = throttles(
            settings[FOLLOWER_REPLICATION_THROTTLED_REPLICAS], self._node_id, self.log.partition
        )
        """True if its records count for the node's quota as a follower (replication_quota.py)."""
