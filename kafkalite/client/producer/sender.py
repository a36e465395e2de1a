"""Sender: the producer's send loop, run in locked sections by any thread that needs progress.

    send()      fills batches, and commits a full one to the ring itself
    result()    and flush(), and threads that wait for memory: commit, read responses, sleep on the
                ring
    background  linger, TCP, retries, metadata, timeouts, and responses that no thread waits for

A section in `locked` never waits.  Threads that wait do the work themselves (batch_waiter.py): a
round trip through a ring needs no other thread.

After an exception inside a locked section the next one drops every transport, and batches in
flight are sent again with their sequences.

The batches are in state.py, the background thread in background.py, TCP in tcp_sender.py.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Iterable

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.topology import TopicMetadata
from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP
from kafkalite.client.producer.locked_section import LockedSection
from kafkalite.client.producer.partition_queue import (
    Batch,
    BatchResponse,
    PartitionQueue,
    ProducerTopic,
)
from kafkalite.client.producer.payload import BatchContent
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.client.producer.state import ProducerState
from kafkalite.config.client import RECONNECT_BACKOFF_MAX_MS, RECONNECT_BACKOFF_MS
from kafkalite.errors import KafkaError, NetworkException

log = logging.getLogger(__name__)


class Sender:
    """Gathers batches, and sends them over the rings of their leaders."""

    def __init__(self, state: ProducerState) -> None:
        self.state = state
        self.nodes: dict[int, ProducerNode] = {}
        self.epoll = select.epoll()
        """The background thread polls it."""
        self.background_id = 0
        """Ident of the background thread."""
        self.section = LockedSection(self._recover, state.wakeup.set)
        self.locked = self.section.run

    def _recover(self) -> None:
        """Drop the transports after an interrupted locked section, and requeue all batches."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()  # the background thread drops it
        self.state.recover()

    # Gathering: the steps of send() that are needed about once per batch.

    def open_batch_in(
        self, queue: PartitionQueue, seen: Batch | None, size: int, transaction_number: int
    ) -> bool:
        """Open a batch of `size` bytes in place of `seen`; return False if there is no memory."""
        state = self.state
        accumulator = state.accumulator
        now_s = time.monotonic()
        state.check_open(queue, transaction_number)
        if seen is not None and queue.in_flight:
            self.read_unleased_ring(queue, now_s)
        if queue.open_batch is not seen:
            return True  # another thread opened one, or the batch was sent
        if seen is not None and queue.must_wait(seen) and accumulator.widen(seen, size):
            return True
        if not accumulator.reserve(size):
            return False
        if queue.open_batch is not None:
            self.close_open_batch(queue, now_s)
        state.open_batch(queue, size, now_s)
        return True

    def close_open_batch(self, queue: PartitionQueue, now_s: float) -> None:
        """Close the open batch and send the batches that are ready; drop an empty one."""
        if self.state.close_batch(queue):
            self.send_ready(queue, now_s)

    def add_batch(
        self, queue: PartitionQueue, content: BatchContent, size: int, transaction_number: int
    ) -> Batch | None:
        """Queue a complete batch; return None if there is no memory."""
        state = self.state
        state.check_open(queue, transaction_number)
        if not state.accumulator.reserve(size):
            return None
        now_s = time.monotonic()
        if queue.open_batch is not None:
            self.close_open_batch(queue, now_s)
        batch = state.append_batch(queue, content, size, now_s)
        self.send_ready(queue, now_s)
        return batch

    def flush_lingering(self) -> list[Batch]:
        """Stop lingering for all batches; return those without an outcome."""
        now_s = time.monotonic()
        batches = []
        for queue in list(self.state.active_queues):
            batches += self.state.stop_lingering(queue)
            self.send_ready(queue, now_s)
        self.wake_nodes()
        return batches

    def send_now(self, batch: Batch) -> None:
        """Stop lingering for a batch."""
        if not batch.done:
            batch.send_immediately = True  # its parts are, if it was split
            self.send_ready(batch.queue, time.monotonic())
            self.wake_nodes()

    def wake_nodes(self) -> None:
        """Wake the nodes for the batches in their rings, because a thread waits."""
        for node in self.nodes.values():
            if node.ring is not None and node.ring.unwoken_size:
                try:
                    node.ring.wake()
                except NetworkException as error:
                    self.abandon_ring(node, error)

    def end_batch(self, queue: PartitionQueue) -> None:
        """Close the queue's open batch, if there is one."""
        if queue.open_batch is not None:
            self.close_open_batch(queue, time.monotonic())

    # Sending.

    def send_ready_now(self, queue: PartitionQueue) -> None:
        """Send the batches of a partition queue that are ready now."""
        self.send_ready(queue, time.monotonic())

    def send_ready(self, queue: PartitionQueue, now_s: float) -> None:
        """Send ready batches over a ring; leave those for TCP to the background thread."""
        state = self.state
        while (batch := queue.next_batch(now_s)) is not None:
            node = self.nodes.get(queue.leader)
            transport = None if node is None else node.transport_for(batch)
            if transport is None or not state.may_send(queue):
                state.wakeup.set()
                return
            if queue.in_flight and queue.transport is not transport:
                return
            if not isinstance(transport, RingTransport):
                state.wakeup.set()
                return
            if transport.full:
                return
            try:
                if not self._write_to_ring(queue, batch, transport, now_s):
                    return
            except NetworkException as error:
                self.abandon_ring(node, error)
                return

    def _write_to_ring(
        self, queue: PartitionQueue, batch: Batch, transport: RingTransport, now_s: float
    ) -> bool:
        """Put a batch into a ring; return False if the ring is full or the batch too large."""
        state = self.state
        content = state.prepare(batch)
        if content.size > transport.batch_size_max:
            batch.by_tcp = True
            state.wakeup.set()
            return False
        space = transport.reserve(content.size)
        if space is None:
            return False
        if state.write(batch, space):
            self.commit(batch, transport, content.size, now_s)
        return True

    def commit(self, batch: Batch, transport: RingTransport, size: int, now_s: float) -> None:
        """Commit the batch that was written to the ring."""
        state, queue = self.state, batch.queue
        queue.mark_sent(batch, transport)
        wake_now = (
            batch.send_immediately or now_s >= batch.due_s or not queue.may_send(queue.in_flight)
        )
        transport.commit(batch, size, state.acks, now_s, wake_now)
        state.counts["ring_batches"] += 1
        if not state.acks:
            state.handle_response(BatchResponse(batch, 0, NO_OFFSET, NO_TIMESTAMP), now_s)
        elif batch.has_callbacks:
            transport.is_watched = True
            self.arm_wakeup(transport)

    def arm_wakeup(self, transport: RingTransport) -> None:
        """Arm the ring's wake-up for the background thread, unless a thread has its lease."""
        if time.monotonic() < transport.leased_until_s:
            return
        try:
            if not transport.arm_wakeup():
                self.state.wakeup.set()
        except NetworkException as error:
            self.abandon_ring(
                next((n for n in self.nodes.values() if n.ring is transport), None), error
            )

    def listen(self, batch: Batch) -> None:
        """Have the background thread read the response for a batch that has callbacks."""
        with LockGuard(self.section.lock):
            transport = batch.transport
            if isinstance(transport, RingTransport):
                transport.is_watched = True
                if not self.section.is_entered:
                    self.locked(self.arm_wakeup, transport)

    # Responses.

    def read_ring(self, node: ProducerNode, now_s: float) -> None:
        """Handle a ring's responses, and send the batches that were waiting for them."""
        transport = node.ring
        if transport is None:
            return
        try:
            responses = transport.responses()
        except NetworkException as error:
            self.abandon_ring(node, error)
            return
        queues: Iterable[PartitionQueue] = self.state.handle_responses(responses, now_s)
        if transport.full:
            transport.full = False
            active = self.state.active_queues
            queues = [queue for queue in active if queue.leader == node.node_id]
        for queue in queues:
            self.send_ready(queue, now_s)

    def read_unleased_ring(self, queue: PartitionQueue, now_s: float) -> None:
        """Read the responses of the queue's ring, unless another thread holds its lease."""
        node = self.nodes.get(queue.leader)
        if node is not None and node.ring is not None and now_s >= node.ring.leased_until_s:
            self.read_ring(node, now_s)

    def request_outcome(self, batch: Batch) -> None:
        """Register that the batch's outcome was requested."""
        with LockGuard(self.section.lock):
            self.state.callbacks.request_outcome(batch)

    def notify_progress(self) -> None:
        """Wake the threads that wait for progress."""
        self.locked(self.state.callbacks.open_gates)

    # Transports that end.

    def abandon_ring(self, node: ProducerNode | None, error: KafkaError) -> None:
        """Drop a ring after an error; its batches in flight are sent again, over TCP for now."""
        if node is None or node.ring is None:
            return
        log.debug("Ring closed; its batches are retried.  node=%d error=%s", node.node_id, error)
        transport = node.ring
        with contextlib.suppress(NetworkException):
            self.state.handle_responses(transport.responses(), time.monotonic())
        self.drop_ring(node)
        self.state.counts["rings_lost"] += 1
        node.ring_backoff.failed(error)
        self.state.retry_in_flight(transport)

    def drop_ring(self, node: ProducerNode) -> None:
        """Unregister and close the node's ring."""
        transport, node.ring = node.ring, None
        if transport is not None:
            for descriptor in (transport.ring, transport.local):
                with contextlib.suppress(OSError, ValueError):
                    self.epoll.unregister(descriptor)
            transport.close()

    # Topics.

    def update_metadata(self, topic: ProducerTopic, metadata: TopicMetadata) -> None:
        """Update the leaders of a topic's partitions, and add new partitions and nodes."""
        self.state.update_metadata(topic, metadata)
        settings = self.state.settings
        for queue in topic.queues:
            if queue.leader >= 0 and queue.leader not in self.nodes:
                self.nodes[queue.leader] = ProducerNode(
                    queue.leader,
                    settings[RECONNECT_BACKOFF_MS],
                    settings[RECONNECT_BACKOFF_MAX_MS],
                )
                self.state.wakeup.set()

    # Close.

    def close(self) -> None:
        """Close the transports and descriptors; the background thread has ended."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()
                node.tcp = None
        self.state.accumulator.close()
        self.epoll.close()
        self.state.wakeup.close()
