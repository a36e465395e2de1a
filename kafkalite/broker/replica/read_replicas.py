"""ReadReplicas: which replica a consumer reads (KIP-392): the leader or a follower.

    Fetch >= 11 at a follower      up to its high watermark, if it is in sync
    a debugging consumer there     the same, in sync or not: it compares replicas
    at the leader, with a rack     the follower of that rack to read from instead, if
                                   `replica.selector.class` is set

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
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.readable_partition import ReadablePartition
    from kafkalite.broker.replica.replica_manager import ReplicaManager

CONSUMER, DEBUGGING_CONSUMER = -1, -2
"""The replica ids of clients: of a consumer, and of one that may read any replica."""

NO_REPLICA = -1
"""In a response to a consumer: no other replica is preferred."""


class ReadReplicas:
    """Finds the replicas that consumers read; see the module."""

    def __init__(
        self, metadata: MetadataCache, replicas: ReplicaManager, followed: FollowedPartitions
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._followed = followed
        self.selects_by_rack = False
        """True if `preferred` is to be called, for a consumer with a rack."""

    def preferred(self, partition: Partition, rack: str, offset: int) -> int:
        """Return the follower that a consumer of a rack reads from an offset on, or NO_REPLICA.

        It is one of the rack that is in sync and has the offset: the one with the most records, and
        of these the one that was caught up last.  NO_REPLICA if the leader is in the rack, too.
        """
        replication = partition.replication
        if replication is None or offset < partition.log.log_start_offset:
            return NO_REPLICA
        nodes = self._metadata.image.nodes
        leader = nodes.get(self._metadata.node_id)
        if leader is None or leader.rack == rack:
            return NO_REPLICA
        found = max(
            (
                follower
                for follower in replication.isr.in_sync_with(offset)
                if (node := nodes.get(follower[2])) is not None
                and node.rack == rack
                and node.is_active
                and node.port
            ),
            default=None,
        )
        return NO_REPLICA if found is None else found[2]

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
