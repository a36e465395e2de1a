"""Node: a broker that leads partitions of a producer, and the transports to it."""

from __future__ import annotations

from kafkalite.client.net.deadline import Backoff
from kafkalite.client.producer.partition_queue import Batch, PartitionQueue
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.client.producer.tcp_transport import TcpTransport
from kafkalite.ids import NO_ID

RING_RETRY_MS = 1_000
RING_RETRY_MAX_MS = 30_000


class ProducerNode:
    """A broker, its ring if there is one, and its connection."""

    def __init__(self, node_id: int, reconnect_ms: int, reconnect_max_ms: int) -> None:
        self.node_id = node_id
        self.ring: RingTransport | None = None
        self.tcp: TcpTransport | None = None
        self.ring_tried = False
        """True once it is known whether there is a ring; nothing is sent before."""
        self.ring_backoff = Backoff(RING_RETRY_MS, RING_RETRY_MAX_MS)
        self.tcp_backoff = Backoff(reconnect_ms, reconnect_max_ms)

    def __repr__(self) -> str:
        return f"<node {self.node_id}: {self.ring}, {self.tcp}>"

    def transport_for(self, batch: Batch) -> RingTransport | TcpTransport | None:
        """Return the transport for a batch; None while there is none."""
        ring = self.ring_for(batch.queue)
        return self.tcp if ring is None or batch.by_tcp else ring

    def ring_for(self, queue: PartitionQueue) -> RingTransport | None:
        """Return the ring, or None if the topic has no id (old brokers), which ring frames need."""
        return None if queue.topic.topic_id == NO_ID else self.ring
