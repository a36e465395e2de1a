"""TCP sender: sends batches to nodes without a ring, and reads their responses.

The background thread runs it: connections are used without the producer's lock, which is held only
to choose batches and to handle responses.
"""

from __future__ import annotations

import logging
import time

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.transaction_requests import TransactionVersion
from kafkalite.client.producer.partition_queue import Batch, BatchResponse
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.sender import Sender
from kafkalite.client.producer.tcp_transport import TcpTransport
from kafkalite.config.client import MAX_REQUEST_SIZE, TRANSACTIONAL_ID
from kafkalite.errors import KafkaError, NetworkException

ADDED_VERSION_MAX = 11
"""Last Produce version for partitions that were added to the transaction before (KIP-890)."""

log = logging.getLogger(__name__)


class TcpSender:
    """The Produce requests of a producer."""

    def __init__(self, sender: Sender, cluster: Cluster) -> None:
        self._state = sender.state
        self._nodes = sender.nodes
        self._locked = sender.locked
        self._cluster = cluster
        self._transactional_id = sender.state.settings[TRANSACTIONAL_ID]

    @property
    def _version_max(self) -> int | None:
        """The newest Produce version that does not add partitions, if another request does."""
        transaction = self._state.transaction
        if transaction is None or transaction.version is TransactionVersion.IMPLICIT:
            return None
        return ADDED_VERSION_MAX

    def exchange(self) -> None:
        """Read the responses that have arrived, and send the batches that are ready."""
        for node in list(self._nodes.values()):
            while node.tcp is not None:
                transport = node.tcp
                try:
                    responses = transport.responses()
                    self._locked(self._handle_responses, transport, responses)
                    batches = self._locked(self._next_request, node, transport)
                    if not batches:
                        break
                    responses = transport.send(batches, self._transactional_id, self._version_max)
                    self._locked(self._handle_responses, transport, responses)
                except KafkaError as error:
                    self._locked(self._close, node, error)
                except Exception:
                    # The gathered batches count as in flight, and would get no response.
                    self._locked(
                        self._close, node, NetworkException("The request could not be sent.")
                    )
                    raise

    def _handle_responses(self, transport: TcpTransport, responses: list[BatchResponse]) -> None:
        for batch, leader, endpoints in transport.leader_changes:
            self._cluster.update_leader(
                batch.queue.topic.name, batch.queue.index, leader, endpoints
            )
        transport.leader_changes.clear()
        self._state.handle_responses(responses, time.monotonic())

    def _next_request(
        self, node: ProducerNode, transport: TcpTransport
    ) -> list[tuple[Batch, bytearray]]:
        """Return the batches of the next request with their bytes, at most one per partition."""
        state = self._state
        now_s = time.monotonic()
        size_left = state.settings[MAX_REQUEST_SIZE]
        batches: list[tuple[Batch, bytearray]] = []
        if not transport.can_send or not node.ring_tried:
            return batches
        for queue in list(state.active_queues):
            if queue.leader != node.node_id:
                continue
            batch = queue.next_batch(now_s)
            if batch is None or node.transport_for(batch) is not transport:
                continue
            if queue.in_flight and queue.transport is not transport:
                continue
            if not state.may_send(queue):
                continue
            content = state.prepare(batch)
            if batches and content.size > size_left:
                continue
            records = bytearray(content.size)
            if state.write(batch, memoryview(records)):
                size_left -= content.size
                queue.mark_sent(batch, transport)
                batches.append((batch, records))
        state.counts["tcp_batches"] += len(batches)
        return batches

    def _close(self, node: ProducerNode, error: KafkaError) -> None:
        """Close a node's connection after an error, and retry the batches in flight on it."""
        transport, node.tcp = node.tcp, None
        if transport is None:
            return
        log.debug(
            "Connection closed; its batches are retried.  node=%d error=%s", node.node_id, error
        )
        transport.close()
        self._state.retry_in_flight(transport)
        if not self._state.acks:
            # With acks=0 a broker closes the connection on an error.
            self._state.refused_unacked(node.node_id)
