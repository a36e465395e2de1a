"""Sender: the producer's send loop, run in locked sections by any thread that needs progress.

    send()      fills batches, and commits a full one to the ring itself
    result()    and flush(), and threads that wait for memory: commit, read responses, sleep on the
                ring
    background  linger, TCP, retries, metadata, timeouts, and responses that no thread waits for

A section in `locked` never waits.  Threads that wait do the work themselves (batch_waiter.py): a
round trip through a ring needs no other thread.

After an exception inside a locked section the next one drops every transport, and batches in
flight are sent again with their sequences.

The background thread is in background.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import time
from collections.abc import Iterable
from typing import Any

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import rest_s
from kafkalite.client.net.settings import ClientSettings, compression_level, required_acks
from kafkalite.client.net.topology import TopicMetadata
from kafkalite.client.producer.accumulator import Accumulator
from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP
from kafkalite.client.producer.delivery_callbacks import DeliveryCallbacks
from kafkalite.client.producer.delivery_outcome import BatchResponse, DeliveryOutcome, outcome_of
from kafkalite.client.producer.locked_section import LockedSection
from kafkalite.client.producer.partition_queue import (
    NO_IDENTITY,
    Batch,
    PartitionQueue,
    ProducerIdentity,
    ProducerTopic,
)
from kafkalite.client.producer.payload import BatchContent
from kafkalite.client.producer.producer_node import ProducerNode
from kafkalite.client.producer.ring_transport import RingTransport
from kafkalite.config.client import (
    COMPRESSION_TYPE,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION,
    RECONNECT_BACKOFF_MAX_MS,
    RECONNECT_BACKOFF_MS,
    REQUEST_TIMEOUT_MS,
    RETRIES,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
)
from kafkalite.errors import (
    InvalidRecord,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    StaleMetadata,
    UnknownTopicOrPartition,
)
from kafkalite.records.compression import Codec

TICK_S = 0.005
"""Interval in which the background thread polls while other threads are sending."""

log = logging.getLogger(__name__)


class Sender:
    """The batches of a producer, and the transports that send them."""

    def __init__(
        self,
        settings: ClientSettings,
        cluster: Cluster,
        accumulator: Accumulator,
        topics: dict[str, ProducerTopic],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.accumulator = accumulator
        self.topics = topics
        self.acks = required_acks(settings)
        self.idempotent = settings[ENABLE_IDEMPOTENCE]
        self.in_flight_max = settings[MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self.codec = Codec[settings[COMPRESSION_TYPE].upper()]
        self.level = compression_level(settings, self.codec)
        self._delivery_timeout_s = settings[DELIVERY_TIMEOUT_MS] / 1000
        self._retries = settings[RETRIES]

        self.section = LockedSection(self._recover, self.wake_background)
        self.locked = self.section.run
        self.nodes: dict[int, ProducerNode] = {}
        self.active_queues: dict[PartitionQueue, None] = {}
        """Partition queues with batches."""
        self.identity: ProducerIdentity = NO_IDENTITY
        self.stale_topics: set[str] = set()
        """Topics whose metadata must be refreshed."""
        self.ended: KafkaError | None = None
        """The error that new batches are refused with, once the producer was closed."""
        self.opened_count = 0
        """Number of batches opened."""
        self.counts = dict.fromkeys(
            ("records", "batches", "failed_records", "sent_again", "ring_batches", "tcp_batches",
             "rings_lost", "identities"), 0,
        )  # fmt: skip
        self.wakeup_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wakes_at_s = 0.0
        """Monotonic time at which the background thread next runs by itself."""
        self.epoll = select.epoll()
        self.background_id = 0
        self._wakeup_pending = False
        self.callbacks = DeliveryCallbacks(self.wake_background)

    # Recovery.

    def _recover(self) -> None:
        """Requeue all batches without an outcome after an interrupted locked section."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()  # the background thread drops it
        queues = [queue for topic in self.topics.values() for queue in topic.queues]
        for queue in queues:
            for batch in queue.recover():
                self.callbacks.completed(batch)
        self.active_queues = {queue: None for queue in queues if queue.batches}
        waiting = [batch for queue in self.active_queues for batch in queue.batches]
        taken = sum(batch.memory_size for batch in waiting)
        self.accumulator.memory_left = self.accumulator.memory_size - taken
        self.wake_background()

    def wake_background(self) -> None:
        """Wake the background thread."""
        if not self._wakeup_pending:
            self._wakeup_pending = True
            os.eventfd_write(self.wakeup_event, 1)

    def clear_wakeup(self) -> None:
        """Clear the wake-up; called by the background thread."""
        if self._wakeup_pending:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wakeup_event)
            self._wakeup_pending = False

    # Gathering: the steps of send() that are needed about once per batch.

    def open_batch_in(self, queue: PartitionQueue, seen: Batch | None, size: int) -> bool:
        """Open a batch of `size` bytes in place of `seen`; return False if there is no memory."""
        accumulator = self.accumulator
        now_s = time.monotonic()
        self.check_open(queue)
        if seen is not None and queue.in_flight:
            self.take_unwatched(queue, now_s)
        if queue.open_batch is not seen:
            return True  # another thread opened one, or the batch was sent
        if seen is not None and queue.waits(seen) and accumulator.widen(seen, size):
            return True
        if not accumulator.take(size):
            return False
        if queue.open_batch is not None:
            self.close_open(queue, now_s)
        batch = accumulator.begin(queue, size, now_s)
        self._register_batch(queue, max(batch.due_s, now_s + TICK_S))
        return True

    def _register_batch(self, queue: PartitionQueue, look_s: float) -> None:
        """Register a new batch, and have the background thread run by `look_s`."""
        self.active_queues[queue] = None
        self.opened_count += 1
        if look_s < self.wakes_at_s:
            self.wake_background()

    def take_unwatched(self, queue: PartitionQueue, now_s: float) -> None:
        """Read the responses of the queue's ring, unless another thread holds its lease."""
        node = self.nodes.get(queue.leader)
        if node is not None and node.ring is not None and now_s >= node.ring.leased_until_s:
            self.take(node, now_s)

    def close_open(self, queue: PartitionQueue, now_s: float) -> None:
        """Close the open batch and send the batches that are ready; drop an empty one."""
        batch = queue.close_batch()
        assert batch is not None
        if batch.count:
            self.pump(queue, now_s)
        else:
            queue.batches.remove(batch)
            self.accumulator.give_back(batch)

    def add(self, queue: PartitionQueue, content: BatchContent, size: int) -> Batch | None:
        """Queue a complete batch; return None if there is no memory."""
        self.check_open(queue)
        if not self.accumulator.take(size):
            return None
        now_s = time.monotonic()
        if queue.open_batch is not None:
            self.close_open(queue, now_s)
        batch = self.enter(queue, content, size, now_s)
        self.pump(queue, now_s)
        return batch

    def enter(self, queue: PartitionQueue, content: BatchContent, size: int, now_s: float) -> Batch:
        """Append a batch with this content to the partition queue, and return it."""
        batch = Batch(queue, content, now_s, now_s, size)
        batch.count = content.count
        queue.batches.append(batch)
        self._register_batch(queue, now_s + TICK_S)
        return batch

    def flush_lingering(self) -> list[Batch]:
        """Stop lingering for all batches; return those without an outcome."""
        now_s = time.monotonic()
        found = []
        for queue in list(self.active_queues):
            for batch in queue.batches:
                if batch is queue.open_batch and batch.content and not batch.content.count:
                    continue
                batch.send_immediately = True
                found.append(batch)
            self.pump(queue, now_s)
        self.wake_nodes()
        return found

    def send_now(self, batch: Batch) -> None:
        """Stop lingering for a batch."""
        if not batch.done:
            batch.send_immediately = True  # its parts are, if it was split
            self.pump(batch.queue, time.monotonic())
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
            self.close_open(queue, time.monotonic())

    def push(self, queue: PartitionQueue) -> None:
        """Send the batches of a partition queue that are ready."""
        self.pump(queue, time.monotonic())

    # Sending.

    def pump(self, queue: PartitionQueue, now_s: float) -> None:
        """Send ready batches into a ring; leave those for TCP to the background thread."""
        while (batch := queue.next_batch(now_s)) is not None:
            node = self.nodes.get(queue.leader)
            transport = None if node is None else node.transport_for(batch)
            if transport is None or (self.idempotent and self.identity == NO_IDENTITY):
                self.wake_background()
                return
            if queue.in_flight and queue.transport is not transport:
                return
            if not isinstance(transport, RingTransport):
                self.wake_background()
                return
            if transport.full:
                return
            try:
                if not self._commit(queue, batch, transport, now_s):
                    return
            except NetworkException as error:
                self.abandon_ring(node, error)
                return

    def _commit(
        self, queue: PartitionQueue, batch: Batch, transport: RingTransport, now_s: float
    ) -> bool:
        """Put a batch into a ring; return False if the ring is full or the batch too large."""
        content = self.prepared(batch)
        if content.size > transport.batch_size_max:
            batch.by_tcp = True
            self.wake_background()
            return False
        room = transport.reserve(content.size)
        if room is None:
            return False
        if self.write(batch, room):
            self.go(batch, transport, content.size, now_s)
        return True

    def write(self, batch: Batch, room: memoryview) -> bool:
        """Write a batch with its sequence to `room`; return False if it failed to encode."""
        batch.queue.assign_sequence(batch, self.identity)
        assert batch.content is not None
        try:
            size = batch.content.write(room, *batch.identity, batch.sequence)
        except InvalidRecord as error:
            self.fail(batch, error, unwritten=not batch.maybe_written)
            self.wake_background()  # the batches behind it may be ready
            return False
        assert size == batch.content.size, "a batch is as large as it said"
        return True

    def go(self, batch: Batch, transport: RingTransport, size: int, now_s: float) -> None:
        """Commit the batch that was written to the ring."""
        queue = batch.queue
        queue.mark_sent(batch, transport)
        hurry = (
            batch.send_immediately or now_s >= batch.due_s or not queue.may_send(queue.in_flight)
        )
        transport.commit(batch, size, self.acks, now_s, hurry)
        self.counts["ring_batches"] += 1
        if not self.acks:
            self.handle_response(BatchResponse(batch, 0, NO_OFFSET, NO_TIMESTAMP), now_s)
        elif batch.has_callbacks:
            transport.is_watched = True
            self.arm(transport)

    def prepared(self, batch: Batch) -> Any:
        """Return a batch's content ready to send: closed, and compressed."""
        if batch is batch.queue.open_batch:
            batch.queue.close_batch()
        assert batch.content is not None
        if self.codec is not Codec.NONE and not batch.attempts:
            batch.content = batch.content.packed(self.codec, self.level)
        return batch.content

    def arm(self, transport: RingTransport) -> None:
        """Arm the ring's wake-up for the background thread, unless a thread has its lease."""
        if time.monotonic() < transport.leased_until_s:
            return
        try:
            if not transport.rest():
                self.wake_background()
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
                    self.locked(self.arm, transport)

    # Responses.

    def take(self, node: ProducerNode, now_s: float) -> None:
        """Handle a ring's responses, and send the batches that were waiting for them."""
        transport = node.ring
        if transport is None:
            return
        try:
            found = transport.responses()
        except NetworkException as error:
            self.abandon_ring(node, error)
            return
        queues = self.complete_all(found, now_s)
        if transport.full:
            transport.full = False
            queues = {queue: None for queue in self.active_queues if queue.leader == node.node_id}
        for queue in queues:
            self.pump(queue, now_s)

    def complete_all(
        self, responses: Iterable[BatchResponse], now_s: float
    ) -> dict[PartitionQueue, None]:
        """Handle responses; return the partition queues that they were for."""
        queues: dict[PartitionQueue, None] = {}
        for response in responses:
            if not response.batch.done:
                self.handle_response(response, now_s)
            queues[response.batch.queue] = None
        return queues

    def handle_response(self, response: BatchResponse, now_s: float) -> None:
        """Apply a response to its batch: complete, fail, retry, renumber or split it."""
        batch, queue = response.batch, response.batch.queue
        verdict, error, unwritten = outcome_of(response, self._retries)
        if verdict is DeliveryOutcome.WRITTEN:
            batch.complete(None, response.base_offset, response.append_time_ms)
            self.callbacks.completed(batch)
            queue.mark_written(batch)
            self.counts["records"] += batch.count
            self.counts["batches"] += 1
            self._leave(batch)
            return
        assert error is not None
        if verdict is DeliveryOutcome.FAILED:
            self.fail(batch, error, unwritten=unwritten)
            return
        self.counts["sent_again"] += 1
        not_before_s = now_s
        if isinstance(error, StaleMetadata):
            self.stale_topics.add(queue.topic.name)
        if verdict is DeliveryOutcome.RETRY and not queue.stalled:
            not_before_s += self._rest_s(batch)
        queue.retry(batch, not_before_s, unwritten=unwritten)
        if verdict is DeliveryOutcome.NEW_PRODUCER_ID:
            self.forget_producer_id_of(queue)
        elif verdict is DeliveryOutcome.SPLIT:
            self._split(batch)
        self.wake_background()

    def forget_producer_id_of(self, queue: PartitionQueue) -> None:
        """Continue this partition queue with a new producer id; the other queues keep theirs."""
        if queue.identity == self.identity:
            self.identity = NO_IDENTITY
        queue.forget_producer_id()

    def _rest_s(self, batch: Batch) -> float:
        settings = self.settings
        return rest_s(batch.attempts, settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS])

    def _split(self, batch: Batch) -> None:
        """Split a batch that is too large for the topic into two halves."""
        queue = batch.queue
        assert batch.content is not None
        try:
            halves = batch.content.halves()
        except InvalidRecord as error:
            self.fail(batch, error, unwritten=not batch.maybe_written)
            return
        parts = []
        for content in halves:
            part = Batch(queue, content, batch.created_s, batch.due_s, 0)
            part.count = content.count
            part.send_immediately = True
            part.parent = batch
            # Not 0: `prepared` compresses at the first attempt, and the parts are compressed.
            part.attempts = batch.attempts
            parts.append(part)
        parts[0].memory_size, batch.memory_size = batch.memory_size, 0
        batch.parts = [(0, parts[0]), (parts[0].count, parts[1])]
        queue.split(batch, parts)

    def fail(self, batch: Batch, error: KafkaError, *, unwritten: bool) -> None:
        """Fail a batch with an error; `unwritten`: the broker has certainly not written it."""
        queue = batch.queue
        if batch is queue.open_batch:
            queue.close_batch()
        was = queue.identity
        batch.complete(error, NO_OFFSET, NO_TIMESTAMP)
        self.callbacks.completed(batch)
        queue.mark_failed(batch, unwritten=unwritten)
        if was != NO_IDENTITY and queue.identity == NO_IDENTITY and was == self.identity:
            self.identity = NO_IDENTITY
        self.counts["failed_records"] += batch.count
        self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        """Release the memory of a completed batch."""
        self.accumulator.give_back(batch)
        if not batch.queue.batches:
            self.active_queues.pop(batch.queue, None)

    def request_outcome(self, batch: Batch) -> None:
        """Register that the batch's outcome was requested."""
        with LockGuard(self.section.lock):
            self.callbacks.request_outcome(batch)

    def changed(self) -> None:
        """Wake the threads that wait for progress."""
        self.locked(self.callbacks.open_gates)

    # Transports that end.

    def abandon_ring(self, node: ProducerNode | None, error: KafkaError) -> None:
        """Drop a ring after an error; its batches in flight are sent again, over TCP for now."""
        if node is None or node.ring is None:
            return
        log.debug("Ring closed; its batches are retried.  node=%d error=%s", node.node_id, error)
        with contextlib.suppress(NetworkException):
            self.complete_all(node.ring.responses(), time.monotonic())
        batches = list(node.ring.in_flight.values())
        self.drop_ring(node)
        self.counts["rings_lost"] += 1
        node.ring_backoff.failed(error)
        self.retry_all(batches, node.node_id)

    def drop_ring(self, node: ProducerNode) -> None:
        """Unregister and close the node's ring."""
        transport, node.ring = node.ring, None
        if transport is not None:
            for descriptor in (transport.ring, transport.local):
                with contextlib.suppress(OSError, ValueError):
                    self.epoll.unregister(descriptor)
            transport.close()

    def retry_all(self, batches: Iterable[Batch], node_id: int) -> None:
        """Retry batches that were in flight to a node; whether they were written is not known."""
        now_s = time.monotonic()
        for batch in batches:
            if batch.done or batch.transport is None:
                continue
            if batch.attempts > self._retries:
                error = NetworkException(
                    f"Connection to node {node_id} lost before a response."
                )
                self.fail(batch, error, unwritten=False)
            else:
                self.counts["sent_again"] += 1
                batch.queue.retry(batch, now_s, unwritten=False)
                self.stale_topics.add(batch.queue.topic.name)
        self.wake_background()

    def expire(self, now_s: float) -> None:
        """Fail batches older than delivery.timeout.ms."""
        oldest_s = now_s - self._delivery_timeout_s
        for queue in list(self.active_queues):
            for batch in list(queue.batches):
                if batch.created_s > oldest_s:
                    break
                partition = f"partition {queue.index} of topic {queue.topic.name!r}"
                error = RequestTimedOut(
                    f"{partition}: not delivered within delivery.timeout.ms"
                    f" ({self._delivery_timeout_s:g} s)."
                )
                self.fail(batch, error, unwritten=False)

    # Topics.

    def update_metadata(self, topic: ProducerTopic, metadata: TopicMetadata) -> None:
        """Update the leaders of a topic's partitions, and add new partitions."""
        if topic.topic_id != metadata.topic_id:
            topic.topic_id = metadata.topic_id
            for queue in topic.queues:
                queue.known = False  # another log, which accepts any first sequence
            self._drop_lines(topic, len(metadata.partitions))
        for index in range(len(topic.queues), len(metadata.partitions)):
            topic.queues.append(PartitionQueue(topic, index, self.in_flight_max, self.idempotent))
        for queue in topic.queues:
            partition = metadata.partitions.get(queue.index)
            if partition is not None:
                queue.leader, queue.leader_epoch = partition
                if queue.leader >= 0 and queue.leader not in self.nodes:
                    self.nodes[queue.leader] = ProducerNode(
                        queue.leader,
                        self.settings[RECONNECT_BACKOFF_MS],
                        self.settings[RECONNECT_BACKOFF_MAX_MS],
                    )
                    self.wake_background()

    def _drop_lines(self, topic: ProducerTopic, count: int) -> None:
        """Drop the partition queues of a topic that was recreated with only `count` partitions.

        Their batches fail: whether a record was sent to this very partition or hashed to it by its
        key is not known any more.
        """
        for queue in topic.drop_queues(count):
            for batch in list(queue.batches):
                self.fail(batch, self._dropped_error(queue), unwritten=not batch.attempts)

    @staticmethod
    def _dropped_error(queue: PartitionQueue) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(
            f"Partition {queue.index} of topic {queue.topic.name!r} does not exist: the topic was"
            " deleted and created again with fewer partitions.  Send the record again to reach"
            " another."
        )

    def check_open(self, queue: PartitionQueue) -> None:
        """Raise the error with which the queue refuses batches, if it does."""
        if self.ended is not None:
            raise self.ended.again()
        if queue.dropped:
            raise self._dropped_error(queue)

    # Close.

    def abandon(self, error: KafkaError) -> None:
        """Fail all batches without an outcome, and refuse new ones."""
        self.ended = error
        for queue in list(self.active_queues):
            for batch in list(queue.batches):
                self.fail(batch, error.again(), unwritten=False)

    def close(self) -> None:
        """Close the transports and descriptors; the background thread has ended."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()
                node.tcp = None
        self.accumulator.close()
        self.epoll.close()
        self._wakeup_pending = True  # wake_background() then writes to no closed descriptor
        os.close(self.wakeup_event)
