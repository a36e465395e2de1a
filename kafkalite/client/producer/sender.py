"""Sender: the producer's send loop, run in locked sections by any thread that needs progress.

    send()      fills batches, and commits a full one to the ring itself
    result()    and flush(), and threads that wait for memory: commit, read responses, sleep on the
                ring
    background  linger, TCP, retries, metadata, timeouts, and responses that no thread waits for

A locked section (`turn`) never waits.  Threads that wait do the work themselves (batch_waiter.py):
a round trip through a ring needs no other thread.

An exception inside a locked section (KeyboardInterrupt, for example) leaves no partial state: the
next section drops every transport, and batches in flight are sent again with their sequences.

The background thread is in background.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import rest_s
from kafkalite.client.net.settings import ClientSettings, compression_level, required_acks
from kafkalite.client.net.topology import TopicMetadata
from kafkalite.client.producer.accumulator import Accumulator
from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP
from kafkalite.client.producer.delivery_callbacks import DeliveryCallbacks
from kafkalite.client.producer.delivery_outcome import BatchResponse, DeliveryOutcome, outcome_of
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

T = TypeVar("T")

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
        self.numbered = settings[ENABLE_IDEMPOTENCE]
        self.in_flight_max = settings[MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self.codec = Codec[settings[COMPRESSION_TYPE].upper()]
        self.level = compression_level(settings, self.codec)
        self._delivery_timeout_s = settings[DELIVERY_TIMEOUT_MS] / 1000
        self._retries = settings[RETRIES]

        self.lock = threading.RLock()
        self.nodes: dict[int, ProducerNode] = {}
        self.busy: dict[PartitionQueue, None] = {}
        """Partition queues with batches."""
        self.identity: ProducerIdentity = NO_IDENTITY
        self.stale: set[str] = set()
        """Topics whose metadata must be refreshed."""
        self.ended: KafkaError | None = None
        """The error that new batches are refused with, once the producer was closed."""
        self.begun = 0
        """Number of batches opened."""
        self.counts = dict.fromkeys(
            ("records", "batches", "failed_records", "sent_again", "ring_batches", "tcp_batches",
             "rings_lost", "identities"), 0,
        )  # fmt: skip
        self.kick_event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wakes_at_s = 0.0
        """Monotonic time at which the background thread next runs by itself."""
        self.epoll = select.epoll()
        self.background_id = 0
        self._kicked = False
        self.outcomes = DeliveryCallbacks(self.kick)
        self._in_turn = False
        self._shaken = False

    # Locked sections.

    def turn(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run a step in a locked section; after any error but a KafkaError, repair the state."""
        with LockGuard(self.lock):
            if self._in_turn:
                raise RuntimeError("The producer was interrupted at work and cannot be used here.")
            self._in_turn = True
            try:
                if self._shaken:
                    self._mend()
                    self._shaken = False
                return step(*arguments)
            except KafkaError:
                raise
            except BaseException:
                self._shaken = True
                self.kick()
                raise
            finally:
                self._in_turn = False

    def _mend(self) -> None:
        """Requeue all batches without an outcome after an interrupted locked section."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()  # the background thread drops it
        lines = [line for topic in self.topics.values() for line in topic.lines]
        for line in lines:
            for batch in line.mend():
                self.outcomes.decided(batch)
        self.busy = {line: None for line in lines if line.batches}
        waiting = [batch for line in self.busy for batch in line.batches]
        taken = sum(batch.memory_size for batch in waiting)
        self.accumulator.memory_left = self.accumulator.memory_size - taken
        self.kick()

    def kick(self) -> None:
        """Wake the background thread."""
        if not self._kicked:
            self._kicked = True
            os.eventfd_write(self.kick_event, 1)

    def kicked(self) -> None:
        """Clear the wake-up; called by the background thread."""
        if self._kicked:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.kick_event)
            self._kicked = False

    # Gathering: the steps of send() that are needed about once per batch.

    def open_line(self, line: PartitionQueue, seen: Batch | None, size: int) -> bool:
        """Open a batch of `size` bytes in place of `seen`; return False if there is no memory."""
        accumulator = self.accumulator
        now_s = time.monotonic()
        self.check_open(line)
        if seen is not None and line.under_way:
            self.take_unwatched(line, now_s)
        if line.open_batch is not seen:
            return True  # another thread opened one, or the batch was sent
        if seen is not None and line.waits(seen) and accumulator.widen(seen, size):
            return True
        if not accumulator.take(size):
            return False
        if line.open_batch is not None:
            self.close_open(line, now_s)
        batch = accumulator.begin(line, size, now_s)
        self._begun(line, max(batch.due_s, now_s + TICK_S))
        return True

    def _begun(self, line: PartitionQueue, look_s: float) -> None:
        """Register a new batch, and have the background thread run by `look_s`."""
        self.busy[line] = None
        self.begun += 1
        if look_s < self.wakes_at_s:
            self.kick()

    def take_unwatched(self, line: PartitionQueue, now_s: float) -> None:
        """Read the responses of the queue's ring, unless another thread holds its lease."""
        node = self.nodes.get(line.leader)
        if node is not None and node.ring is not None and now_s >= node.ring.watched_until_s:
            self.take(node, now_s)

    def close_open(self, line: PartitionQueue, now_s: float) -> None:
        """Close the open batch and send the batches that are ready; drop an empty one."""
        batch = line.close_batch()
        assert batch is not None
        if batch.count:
            self.pump(line, now_s)
        else:
            line.batches.remove(batch)
            self.accumulator.give_back(batch)

    def add(self, line: PartitionQueue, content: BatchContent, size: int) -> Batch | None:
        """Queue a complete batch; return None if there is no memory."""
        self.check_open(line)
        if not self.accumulator.take(size):
            return None
        now_s = time.monotonic()
        if line.open_batch is not None:
            self.close_open(line, now_s)
        batch = self.enter(line, content, size, now_s)
        self.pump(line, now_s)
        return batch

    def enter(self, line: PartitionQueue, content: BatchContent, size: int, now_s: float) -> Batch:
        """Append a batch with this content to the partition queue, and return it."""
        batch = Batch(line, content, now_s, now_s, size)
        batch.count = content.count
        line.batches.append(batch)
        self._begun(line, now_s + TICK_S)
        return batch

    def want_all(self) -> list[Batch]:
        """Stop lingering for all batches; return those without an outcome."""
        now_s = time.monotonic()
        found = []
        for line in list(self.busy):
            for batch in line.batches:
                if batch is line.open_batch and batch.content and not batch.content.count:
                    continue
                batch.wanted = True
                found.append(batch)
            self.pump(line, now_s)
        self.wake_nodes()
        return found

    def want(self, batch: Batch) -> None:
        """Stop lingering for a batch."""
        if not batch.done:
            batch.wanted = True  # its parts are, if it was split
            self.pump(batch.line, time.monotonic())
            self.wake_nodes()

    def wake_nodes(self) -> None:
        """Wake the nodes for the batches in their rings, because a thread waits."""
        for node in self.nodes.values():
            if node.ring is not None and node.ring.unwoken_size:
                try:
                    node.ring.wake()
                except NetworkException as fault:
                    self.lose_ring(node, fault)

    def end_batch(self, line: PartitionQueue) -> None:
        """Close the queue's open batch, if there is one."""
        if line.open_batch is not None:
            self.close_open(line, time.monotonic())

    def push(self, line: PartitionQueue) -> None:
        """Send the batches of a partition queue that are ready."""
        self.pump(line, time.monotonic())

    # Sending.

    def pump(self, line: PartitionQueue, now_s: float) -> None:
        """Send ready batches into a ring; leave those for TCP to the background thread."""
        while (batch := line.next_batch(now_s)) is not None:
            node = self.nodes.get(line.leader)
            lane = None if node is None else node.lane_for(batch)
            if lane is None or (self.numbered and self.identity == NO_IDENTITY):
                self.kick()
                return
            if line.under_way and line.lane is not lane:
                return
            if not isinstance(lane, RingTransport):
                self.kick()
                return
            if lane.full:
                return
            try:
                if not self._commit(line, batch, lane, now_s):
                    return
            except NetworkException as fault:
                self.lose_ring(node, fault)
                return

    def _commit(
        self, line: PartitionQueue, batch: Batch, lane: RingTransport, now_s: float
    ) -> bool:
        """Put a batch into a ring; return False if the ring is full or the batch too large."""
        content = self.prepared(batch)
        if content.size > lane.batch_size_max:
            batch.by_tcp = True
            self.kick()
            return False
        room = lane.reserve(content.size)
        if room is None:
            return False
        if self.write(batch, room):
            self.go(batch, lane, content.size, now_s)
        return True

    def write(self, batch: Batch, room: memoryview) -> bool:
        """Write a batch with its sequence to `room`; return False if it failed to encode."""
        batch.line.number(batch, self.identity)
        assert batch.content is not None
        try:
            size = batch.content.write(room, *batch.identity, batch.sequence)
        except InvalidRecord as fault:
            self.fail(batch, fault, unwritten=not batch.doubtful)
            self.kick()  # the batches behind it may be ready
            return False
        assert size == batch.content.size, "a batch is as large as it said"
        return True

    def go(self, batch: Batch, lane: RingTransport, size: int, now_s: float) -> None:
        """Commit the batch that was written to the ring."""
        line = batch.line
        line.went(batch, lane)
        hurry = batch.wanted or now_s >= batch.due_s or not line.may_go(line.under_way)
        lane.commit(batch, size, self.acks, now_s, hurry)
        self.counts["ring_batches"] += 1
        if not self.acks:
            self.settle(BatchResponse(batch, 0, NO_OFFSET, NO_TIMESTAMP), now_s)
        elif batch.heard:
            lane.listened = True
            self.arm(lane)

    def prepared(self, batch: Batch) -> Any:
        """Return a batch's content ready to send: closed, and compressed."""
        if batch is batch.line.open_batch:
            batch.line.close_batch()
        assert batch.content is not None
        if self.codec is not Codec.NONE and not batch.attempts:
            batch.content = batch.content.packed(self.codec, self.level)
        return batch.content

    def arm(self, lane: RingTransport) -> None:
        """Arm the ring's wake-up for the background thread, unless a thread has its lease."""
        if time.monotonic() < lane.watched_until_s:
            return
        try:
            if not lane.rest():
                self.kick()
        except NetworkException as fault:
            self.lose_ring(next((n for n in self.nodes.values() if n.ring is lane), None), fault)

    def listen(self, batch: Batch) -> None:
        """Have the background thread read the response for a batch that has callbacks."""
        with LockGuard(self.lock):
            lane = batch.lane
            if isinstance(lane, RingTransport):
                lane.listened = True
                if not self._in_turn:
                    self.turn(self.arm, lane)

    # Responses.

    def take(self, node: ProducerNode, now_s: float) -> None:
        """Handle a ring's responses, and send the batches that were waiting for them."""
        lane = node.ring
        if lane is None:
            return
        try:
            found = lane.answers()
        except NetworkException as fault:
            self.lose_ring(node, fault)
            return
        lines = self.settle_all(found, now_s)
        if lane.full:
            lane.full = False
            lines = {line: None for line in self.busy if line.leader == node.node_id}
        for line in lines:
            self.pump(line, now_s)

    def settle_all(
        self, answers: Iterable[BatchResponse], now_s: float
    ) -> dict[PartitionQueue, None]:
        """Handle responses; return the partition queues that they were for."""
        lines: dict[PartitionQueue, None] = {}
        for answer in answers:
            if not answer.batch.done:
                self.settle(answer, now_s)
            lines[answer.batch.line] = None
        return lines

    def settle(self, answer: BatchResponse, now_s: float) -> None:
        """Apply a response to its batch: complete, fail, retry, renumber or split it."""
        batch, line = answer.batch, answer.batch.line
        verdict, fault, unwritten = outcome_of(answer, self._retries)
        if verdict is DeliveryOutcome.WRITTEN:
            batch.decide(None, answer.base_offset, answer.append_time_ms)
            self.outcomes.decided(batch)
            line.written(batch)
            self.counts["records"] += batch.count
            self.counts["batches"] += 1
            self._leave(batch)
            return
        assert fault is not None
        if verdict is DeliveryOutcome.FAILED:
            self.fail(batch, fault, unwritten=unwritten)
            return
        self.counts["sent_again"] += 1
        not_before_s = now_s
        if isinstance(fault, StaleMetadata):
            self.stale.add(line.topic.name)
        if verdict is DeliveryOutcome.AGAIN and not line.stalled:
            not_before_s += self._rest_s(batch)
        line.again(batch, not_before_s, unwritten=unwritten)
        if verdict is DeliveryOutcome.RENUMBER:
            self.renumber(line)
        elif verdict is DeliveryOutcome.SPLIT:
            self._split(batch)
        self.kick()

    def renumber(self, line: PartitionQueue) -> None:
        """Continue this partition queue with a new producer id; the other queues keep theirs."""
        if line.identity == self.identity:
            self.identity = NO_IDENTITY
        line.forget_numbers()

    def _rest_s(self, batch: Batch) -> float:
        settings = self.settings
        return rest_s(batch.attempts, settings[RETRY_BACKOFF_MS], settings[RETRY_BACKOFF_MAX_MS])

    def _split(self, batch: Batch) -> None:
        """Split a batch that is too large for the topic into two halves."""
        line = batch.line
        assert batch.content is not None
        try:
            halves = batch.content.halves()
        except InvalidRecord as fault:
            self.fail(batch, fault, unwritten=not batch.doubtful)
            return
        parts = []
        for content in halves:
            part = Batch(line, content, batch.created_s, batch.due_s, 0)
            part.count = content.count
            part.wanted = True
            part.parent = batch
            # Not 0: `prepared` compresses at the first attempt, and the parts are compressed.
            part.attempts = batch.attempts
            parts.append(part)
        parts[0].memory_size, batch.memory_size = batch.memory_size, 0
        batch.parts = [(0, parts[0]), (parts[0].count, parts[1])]
        line.split(batch, parts)

    def fail(self, batch: Batch, fault: KafkaError, *, unwritten: bool) -> None:
        """Fail a batch with an error; `unwritten`: the broker has certainly not written it."""
        line = batch.line
        if batch is line.open_batch:
            line.close_batch()
        was = line.identity
        batch.decide(fault, NO_OFFSET, NO_TIMESTAMP)
        self.outcomes.decided(batch)
        line.failed(batch, unwritten=unwritten)
        if was != NO_IDENTITY and line.identity == NO_IDENTITY and was == self.identity:
            self.identity = NO_IDENTITY
        self.counts["failed_records"] += batch.count
        self._leave(batch)

    def _leave(self, batch: Batch) -> None:
        """Release the memory of a completed batch."""
        self.accumulator.give_back(batch)
        if not batch.line.batches:
            self.busy.pop(batch.line, None)

    def look_at(self, batch: Batch) -> None:
        """Register that the batch's outcome was requested."""
        with LockGuard(self.lock):
            self.outcomes.look_at(batch)

    def changed(self) -> None:
        """Wake the threads that wait for progress."""
        self.turn(self.outcomes.open_gates)

    # Transports that end.

    def lose_ring(self, node: ProducerNode | None, fault: KafkaError) -> None:
        """Drop a ring after an error; its batches in flight are sent again, over TCP for now."""
        if node is None or node.ring is None:
            return
        log.debug("The ring of node %d is left: %s", node.node_id, fault)
        with contextlib.suppress(NetworkException):
            self.settle_all(node.ring.answers(), time.monotonic())
        batches = list(node.ring.under_way.values())
        self.drop_ring(node)
        self.counts["rings_lost"] += 1
        node.ring_backoff.failed(fault)
        self.again_all(batches, node.node_id)

    def drop_ring(self, node: ProducerNode) -> None:
        """Unregister and close the node's ring."""
        lane, node.ring = node.ring, None
        if lane is not None:
            for descriptor in (lane.ring, lane.local):
                with contextlib.suppress(OSError, ValueError):
                    self.epoll.unregister(descriptor)
            lane.close()

    def again_all(self, batches: Iterable[Batch], node_id: int) -> None:
        """Retry batches that were in flight to a node; whether they were written is not known."""
        now_s = time.monotonic()
        for batch in batches:
            if batch.done or batch.lane is None:
                continue
            if batch.attempts > self._retries:
                fault = NetworkException(f"The way to node {node_id} ended before an answer came.")
                self.fail(batch, fault, unwritten=False)
            else:
                self.counts["sent_again"] += 1
                batch.line.again(batch, now_s, unwritten=False)
                self.stale.add(batch.line.topic.name)
        self.kick()

    def expire(self, now_s: float) -> None:
        """Fail batches older than delivery.timeout.ms."""
        oldest_s = now_s - self._delivery_timeout_s
        for line in list(self.busy):
            for batch in list(line.batches):
                if batch.created_s > oldest_s:
                    break
                line_words = f"partition {line.index} of topic {line.topic.name!r}"
                fault = RequestTimedOut(
                    f"{line_words}: not delivered within delivery.timeout.ms"
                    f" ({self._delivery_timeout_s:g} s)."
                )
                self.fail(batch, fault, unwritten=False)

    # Topics.

    def learn(self, topic: ProducerTopic, told: TopicMetadata) -> None:
        """Update the leaders of a topic's partitions, and add new partitions."""
        if topic.topic_id != told.topic_id:
            topic.topic_id = told.topic_id
            for line in topic.lines:
                line.known = False  # another log, which accepts any first sequence
            self._drop_lines(topic, len(told.partitions))
        for index in range(len(topic.lines), len(told.partitions)):
            topic.lines.append(PartitionQueue(topic, index, self.in_flight_max, self.numbered))
        for line in topic.lines:
            partition = told.partitions.get(line.index)
            if partition is not None:
                line.leader, line.leader_epoch = partition
                if line.leader >= 0 and line.leader not in self.nodes:
                    self.nodes[line.leader] = ProducerNode(
                        line.leader,
                        self.settings[RECONNECT_BACKOFF_MS],
                        self.settings[RECONNECT_BACKOFF_MAX_MS],
                    )
                    self.kick()

    def _drop_lines(self, topic: ProducerTopic, count: int) -> None:
        """Drop the partition queues of a topic that was recreated with only `count` partitions.

        Their batches fail: whether a record was sent to this very partition or hashed to it by its
        key is not known any more.
        """
        for line in topic.drop_lines(count):
            for batch in list(line.batches):
                self.fail(batch, self._gone(line), unwritten=not batch.attempts)

    @staticmethod
    def _gone(line: PartitionQueue) -> UnknownTopicOrPartition:
        return UnknownTopicOrPartition(
            f"Partition {line.index} of topic {line.topic.name!r} is gone: the topic was deleted"
            " and made again with fewer partitions.  Send the record again to reach one of those."
        )

    def check_open(self, line: PartitionQueue) -> None:
        """Raise the error with which the queue refuses batches, if it does."""
        if self.ended is not None:
            raise self.ended.again()
        if line.dropped:
            raise self._gone(line)

    # Close.

    def abandon(self, fault: KafkaError) -> None:
        """Fail all batches without an outcome, and refuse new ones."""
        self.ended = fault
        for line in list(self.busy):
            for batch in list(line.batches):
                self.fail(batch, fault.again(), unwritten=False)

    def close(self) -> None:
        """Close the transports and descriptors; the background thread has ended."""
        for node in self.nodes.values():
            self.drop_ring(node)
            if node.tcp is not None:
                node.tcp.close()
                node.tcp = None
        self.accumulator.close()
        self.epoll.close()
        self._kicked = True  # so that kick() does not write to the closed descriptor
        os.close(self.kick_event)
