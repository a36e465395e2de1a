"""ReadReplicas: the replicas of this node that a consumer may read besides those that it leads.

    Fetch >= 11 at a follower      up to its high watermark, if it is in sync
    a debugging consumer there     the same, in sync or not: it compares replicas

As in Kafka, a follower serves every Fetch of these versions, whatever selects the replica.  Unlike
Kafka's, it serves consumers only while it is in the ISR: others may be far behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalite.errors import KafkaError, NotLeaderOrFollower

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache, Topic
    from kafkalite.broker.replica.followed_partition import FollowedPartition
    from kafkalite.broker.replica.followed_partitions import FollowedPartitions
    from kafkalite.broker.replica.readable_partition import ReadablePartition
    from kafkalite.broker.replica.replica_manager import ReplicaManager

CONSUMER, DEBUGGING_CONSUMER = -1, -2
"""The replica ids of clients: of a consumer, and of one that may read any replica."""


class ReadReplicas:
    """Finds the replicas that consumers read; see the module."""

    def __init__(
        self, metadata: MetadataCache, replicas: ReplicaManager, followed: FollowedPartitions
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._followed = followed

    def followed(
        self, topic: Topic, index: int, *, is_debugging: bool = False
    ) -> FollowedPartition | None:
        """Return a partition that a consumer may read although this node follows it, or None."""
        image = self._metadata.topic(topic)
        if image is None:
            return None
        partition = self._followed.of_topic(image.topic_id).get(index)
        if partition is None or not (partition.is_in_sync or is_debugging):
            return None
        partition.traffic = self._replicas.traffic_of(image.name)
        return partition

    def any(self, topic: Topic, index: int) -> ReadablePartition:
        """Return a partition that this node leads or follows, for a debugging consumer.

        Raises as ReplicaManager.leader.
        """
        try:
            return self._replicas.leader(topic, index)
        except NotLeaderOrFollower as error:
            refused: KafkaError = error
        partition = self.followed(topic, index, is_debugging=True)
        if partition is None:
            raise refused
        return partition
