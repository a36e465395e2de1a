"""NodeReplication: the parts of a node that replicate partitions, put together.

    image ─▶ ReplicaRoles ─▶ led with followers   followers' fetches ─▶ IsrProposals ─▶ controller
                          ─▶ FollowedPartitions   a ReplicaFetcher for each leader node
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkalite.broker.node_settings import ReplicaFetchSettings
from kafkalite.broker.replica.followed_partitions import FollowedPartitions
from kafkalite.broker.replica.follower_sessions import FollowerSessions
from kafkalite.broker.replica.isr_proposals import IsrProposals
from kafkalite.broker.replica.partition import ReplicationEnvironment
from kafkalite.broker.replica.replica_fetcher import FollowerThrottle
from kafkalite.broker.replica.replica_roles import ReplicaRoles
from kafkalite.broker.replica.replication_quota import SECOND_MS, ReplicationQuota
from kafkalite.config.replication import (
    FOLLOWER_REPLICATION_THROTTLED_RATE,
    LEADER_REPLICATION_THROTTLED_RATE,
    RATE_MAX,
    REPLICA_LAG_TIME_MAX_MS,
    REPLICATION_QUOTA_WINDOW_NUM,
    REPLICATION_QUOTA_WINDOW_SIZE_SECONDS,
)

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.isr_proposals import IsrController
    from kafkalite.broker.replica.replica_fetcher import Connect
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.config.settings import Settings
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.manager.log_manager import LogManager
    from kafkalite.transport.reactor import Reactor

REPLACE_MS = 1_000
"""Delay before a log that has failed is replaced: the controller gets the report first."""


class NodeReplication:
    """The components of one node that replicate its partitions."""

    def __init__(
        self,
        metadata: MetadataCache,
        controller: IsrController,
        logs: LogManager,
        replicas: ReplicaManager,
        reactor: Reactor,
        flusher: Flusher,
        settings: Callable[[], Settings],
        connect_to: Callable[[int], Connect],
    ) -> None:
        """`connect_to(node_id)` returns what opens connections to a node."""
        self._controller = controller
        self._scheduler = reactor
        self.replace_log: Callable[[bytes, int], object] = lambda topic_id, index: None
        """Sets a failed log aside and follows with an empty one; set by the node."""
        self._registered_epoch: int | None = None
        now_ms = reactor.clock.monotonic_ms
        self.leader_quota, self.follower_quota = (
            ReplicationQuota(
                now_ms, settings()[REPLICATION_QUOTA_WINDOW_NUM],
                settings()[REPLICATION_QUOTA_WINDOW_SIZE_SECONDS] * SECOND_MS,
            )
            for _ in range(2)
        )  # fmt: skip
        self.follower_sessions = FollowerSessions(
            replicas, reactor, reactor.clock, self.leader_quota
        )

        def is_in_sync(topic_id: bytes, index: int) -> bool:
            topic = metadata.image.topics_by_id.get(topic_id)
            partition = topic.partitions.get(index) if topic is not None else None
            return partition is not None and metadata.node_id in partition.isr

        self.followed = FollowedPartitions(
            metadata.node_id, connect_to, lambda: ReplicaFetchSettings.of(settings()), reactor,
            flusher, replicas.purgatory, self._failed,
            FollowerThrottle(self.follower_quota, is_in_sync),
        )  # fmt: skip
        self.roles = ReplicaRoles(
            metadata, logs, replicas, self.followed, lambda: controller.node_epoch
        )
        self.proposals = IsrProposals(
            controller, replicas, reactor, now_ms,
            check_ms=lambda: max(1, settings()[REPLICA_LAG_TIME_MAX_MS] // 2),
        )  # fmt: skip

        logs.high_watermarks.source = self.roles.high_watermarks

        def node_epoch_of(node_id: int) -> int | None:
            node = metadata.image.nodes.get(node_id)
            return node.node_epoch if node is not None and node.is_active else None

        replicas.replication = ReplicationEnvironment(node_epoch_of, now_ms, replicas.mark_dirty)
        replicas.on_replicated_change = self.proposals.check
        replicas.on_replica_failed = self._failed

    def _failed(self, topic_id: bytes, index: int) -> None:
        """Have another node lead a partition whose log here has failed, and replace the log."""
        self._controller.report_failed([(topic_id, index)])
        self._scheduler.call_later(REPLACE_MS, lambda: self.replace_log(topic_id, index))

    def apply_settings(self, settings: Settings) -> None:
        """Apply the rates of throttled replication."""
        for quota, key in (
            (self.leader_quota, LEADER_REPLICATION_THROTTLED_RATE),
            (self.follower_quota, FOLLOWER_REPLICATION_THROTTLED_RATE),
        ):
            rate = settings[key]
            quota.set_rate_max(rate if rate < RATE_MAX else None)

    def open(self) -> None:
        """Begin the periodic checks of followers."""
        self.proposals.open()

    def was_registered(self) -> bool:
        """Return whether this process has been registered since the last call."""
        before, self._registered_epoch = self._registered_epoch, self._controller.node_epoch
        return self._registered_epoch not in (None, before)

    def settle(self) -> None:
        """Finish the tick's appends to followed partitions."""
        self.followed.settle()

    def close(self) -> None:
        """Close the connections to leaders."""
        self.followed.close()
