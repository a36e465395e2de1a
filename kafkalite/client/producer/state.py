"""Producer state: the batches of a producer and their outcomes, whichever transport sends them.

    queues        a partition queue per partition: its batches in order, with their sequences
    producer id   of batches that are sent for the first time; each queue keeps its own
    responses     complete, fail, retry, renumber or split a batch (delivery_outcome.py)
    metadata      leaders of the partition queues, and the topics whose leaders must be looked up

Sender (rings) and TcpSender (TCP) send the batches that are ready here, and pass the responses
here.  Neither keeps a batch: after a transport has ended, its batches are retried from here.

No I/O.  All methods are called in locked sections (locked_section.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from kafkalite._ext.record_batch import TRANSACTIONAL
from kafkalite.client.net.deadline import backoff_s
from kafkalite.client.net.producer_identity import NO_IDENTITY, ProducerIdentity
from kafkalite.client.net.settings import ClientSettings, compression_level, required_acks
from kafkalite.client.net.topology import TopicMetadata
from kafkalite.client.net.transaction_requests import CONCURRENT_BACKOFF_MS
from kafkalite.client.producer.accumulator import Accumulator
from kafkalite.client.producer.background_wakeup import BackgroundWakeup
from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP
from kafkalite.client.producer.delivery_callbacks import DeliveryCallbacks
from kafkalite.client.producer.delivery_outcome import DeliveryOutcome, outcome_of
from kafkalite.client.producer.partition_queue import (
    Batch,
    BatchResponse,
    PartitionQueue,
    ProducerTopic,
    Transport,
)
from kafkalite.client.producer.payload import BatchContent
from kafkalite.client.producer.producer_transaction_state import ProducerTransactionState
from kafkalite.config.client import (
    COMPRESSION_TYPE,
    DELIVERY_TIMEOUT_MS,
    ENABLE_IDEMPOTENCE,
    MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION,
    REQUEST_TIMEOUT_MS,
    RETRIES,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    TRANSACTIONAL_ID,
)
from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidRecord,
    InvalidTxnState,
    KafkaError,
    NetworkException,
    RequestTimedOut,
    StaleMetadata,
    UnknownTopicOrPartition,
)
from kafkalite.records.compression import Codec

TICK_S = 0.005
"""Interval in which the background thread polls while other threads are sending."""


class ProducerState:
    """The batches of a producer, and what the transports that send them share."""

    def __init__(
        self,
        settings: ClientSettings,
        accumulator: Accumulator,
        topics: dict[str, ProducerTopic],
        wakeup: BackgroundWakeup,
    ) -> None:
        self.settings = settings
        self.accumulator = accumulator
        self.topics = topics
        self.wakeup = wakeup
        self.callbacks = DeliveryCallbacks(wakeup.set)
        self.acks = required_acks(settings)
        self.idempotent = settings[ENABLE_IDEMPOTENCE]
        self.in_flight_max = settings[MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION]
        self.timeout_ms = settings[REQUEST_TIMEOUT_MS]
        self.codec = Codec[settings[COMPRESSION_TYPE].upper()]
        self._level = compression_level(settings, self.codec)
        self._delivery_timeout_s = settings[DELIVERY_TIMEOUT_MS] / 1000
        self._retries = settings[RETRIES]
        self.active_queues: dict[PartitionQueue, None] = {}
        """Partition queues with batches."""
        self.identity: ProducerIdentity = NO_IDENTITY
        self.transaction = ProducerTransactionState(wakeup) if settings[TRANSACTIONAL_ID] else None
        self.transaction_number = 0
        """Number of transactions begun."""
        self.attributes = TRANSACTIONAL if self.transaction is not None else 0
        """Attributes of all batches, besides the codec."""
        self.stale_topics: set[str] = set()
        """Topics whose metadata must be refreshed."""
        self.has_refused_unacked = False
        """True if a node refused a batch with acks=0, which has no response."""
        self.closed_error: KafkaError | None = None
        """The error that new batches are refused with, once the producer was closed."""
        self.opened_count = 0
        """Number of batches opened."""
        self.counts = dict.fromkeys(
            ("records", "batches", "failed_records", "sent_again", "ring_batches", "tcp_batches",
             "rings_lost", "identities"), 0,
        )  # fmt: skip

    @property
    def needs_producer_id(self) -> bool:
        """True if no batch can be sent until a producer id was received."""
        return self.idempotent and self.identity == NO_IDENTITY

    def may_send(self, queue: PartitionQueue) -> bool:
        """Return whether batches of the queue can be sent: there is a producer id, and no
        transaction that holds them back.
        """
        if self.transaction is None:
            return not self.needs_producer_id
        return self.transaction.may_send(queue)

    def metrics(self) -> dict[str, int]:
        """Return the counters, and the current numbers of batches and bytes."""
        queues = list(self.active_queues)
        return {
            **self.counts,
            "waiting_batches": sum(len(queue.batches) for queue in queues),
            "under_way_batches": sum(queue.in_flight for queue in queues),
            "buffer_memory": self.accumulator.memory_size,
            "buffer_memory_left": self.accumulator.memory_left,
        }

    # Batches.

    def check_open(self, queue: PartitionQueue, transaction_number: int) -> None:
        """Raise the error with which the queue refuses records that were sent in a transaction, if
        it does."""
        if self.closed_error is not None:
            raise self.closed_error.copy()
        if queue.dropped:
            raise self._dropped_error(queue)
        if self.transaction is not None:
            self.check_transaction(transaction_number)
            self.transaction.check_writable()

    def check_transaction(self, number: int) -> None:
        """Raise InvalidTxnState if another transaction was begun since a call began that sends."""
        if number != self.transaction_number:
            raise InvalidTxnState(
                "The transaction in which the record was sent has ended while the call waited; the"
                " record was not sent."
            )

    def open_batch(self, queue: PartitionQueue, size: int, now_s: float) -> None:
        """Open a batch in memory that was reserved."""
        batch = self.accumulator.begin(queue, size, now_s)
        self._register_batch(queue, max(batch.due_s, now_s + TICK_S))

    def append_batch(
        self, queue: PartitionQueue, content: BatchContent, size: int, now_s: float
    ) -> Batch:
        """Append a complete batch to the partition queue, and return it."""
        batch = Batch(queue, content, now_s, now_s, size)
        batch.count = content.count
        queue.batches.append(batch)
        self._register_batch(queue, now_s + TICK_S)
        return batch

    def _register_batch(self, queue: PartitionQueue, due_s: float) -> None:
        """Register a new batch, and have the background thread run by `due_s`."""
        self.active_queues[queue] = None
        self.opened_count += 1
        self.wakeup.set_by(due_s)

    def close_batch(self, queue: PartitionQueue) -> bool:
        """Close the open batch; drop it and return False if it is empty."""
        batch = queue.close_batch()
        assert batch is not None
        if batch.count:
            return True
        queue.batches.remove(batch)
        self.accumulator.release(batch)
        return False

    def stop_lingering(self, queue: PartitionQueue) -> list[Batch]:
        """Make the batches of a queue ready without waiting for linger.ms, and return them."""
        batches = []
        for batch in queue.batches:
            if batch is queue.open_batch and batch.content and not batch.content.count:
                continue  # just opened; its first record is not appended yet
            batch.send_immediately = True
            batches.append(batch)
        return batches

    # Sending.

    def prepare(self, batch: Batch) -> BatchContent:
        """Return a batch's content ready to send: closed, and compressed."""
        if batch is batch.queue.open_batch:
            batch.queue.close_batch()
        assert batch.content is not None
        if self.codec is not Codec.NONE and not batch.attempts:
            batch.content = batch.content.compressed(self.codec, self._level)
        return batch.content

    def write(self, batch: Batch, buffer: memoryview) -> bool:
        """Write a batch with its sequence to a buffer; return False if it failed to encode."""
        batch.queue.assign_sequence(batch, self.identity)
        assert batch.content is not None
        try:
            size = batch.content.write(buffer, *batch.identity, batch.sequence, self.attributes)
        except InvalidRecord as error:
            self.fail(batch, error, unwritten=not batch.maybe_written)
            self.wakeup.set()  # the batches behind it may be ready
            return False
        assert size == batch.content.size, "a batch has the size of its content"
        return True

    # Responses.

    def handle_responses(
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
        is_transactional = self.transaction is not None
        outcome, error, unwritten = outcome_of(response, self._retries, is_transactional)
        if outcome is DeliveryOutcome.WRITTEN:
            batch.complete(None, response.base_offset, response.append_time_ms)
            self.callbacks.completed(batch)
            queue.mark_written(batch)
            self.counts["records"] += batch.count
            self.counts["batches"] += 1
            self._release(batch)
            return
        assert error is not None
        if outcome is DeliveryOutcome.FAILED:
            self.fail(batch, error, unwritten=unwritten)
            return
        self.counts["sent_again"] += 1
        not_before_s = now_s
        if isinstance(error, StaleMetadata):
            self.stale_topics.add(queue.topic.name)
        if outcome is DeliveryOutcome.RETRY and not queue.stalled:
            not_before_s += self._backoff_s(batch, error)
        queue.retry(batch, not_before_s, unwritten=unwritten)
        if outcome is DeliveryOutcome.NEW_PRODUCER_ID:
            self._drop_producer_id(queue)
        elif outcome is DeliveryOutcome.SPLIT:
            self._split(batch)
        self.wakeup.set()

    def _drop_producer_id(self, queue: PartitionQueue) -> None:
        """Continue this partition queue with a new producer id; the other queues keep theirs."""
        if queue.identity == self.identity:
            self.identity = NO_IDENTITY
        queue.drop_producer_id()

    def _backoff_s(self, batch: Batch, error: KafkaError) -> float:
        settings = self.settings
        first_ms: float = settings[RETRY_BACKOFF_MS]
        if isinstance(error, ConcurrentTransactions):
            # The previous transaction is being completed, a matter of milliseconds.
            first_ms = min(first_ms, CONCURRENT_BACKOFF_MS)
        return backoff_s(batch.attempts, first_ms, settings[RETRY_BACKOFF_MAX_MS])

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
            # Not 0: `prepare` compresses at the first attempt, and the parts are compressed.
            part.attempts = batch.attempts
            parts.append(part)
        parts[0].memory_size, batch.memory_size = batch.memory_size, 0
        batch.parts = [(0, parts[0]), (parts[0].count, parts[1])]
        queue.split(batch, parts)

    def _release(self, batch: Batch) -> None:
        """Release the memory of a completed batch."""
        self.accumulator.release(batch)
        if not batch.queue.batches:
            self.active_queues.pop(batch.queue, None)

    # Errors.

    def fail(self, batch: Batch, error: KafkaError, *, unwritten: bool) -> None:
        """Fail a batch with an error; `unwritten`: the broker has certainly not written it."""
        queue = batch.queue
        if batch is queue.open_batch:
            queue.close_batch()
        before, transaction = queue.identity, self.transaction
        if transaction is not None:
            batch.outcome_requested = True  # the commit raises the error
        batch.complete(error, NO_OFFSET, NO_TIMESTAMP)
        self.callbacks.completed(batch)
        queue.mark_failed(batch, unwritten=unwritten)
        if transaction is not None:
            transaction.batch_failed(queue, error)
        elif before != NO_IDENTITY and queue.identity == NO_IDENTITY and before == self.identity:
            self.identity = NO_IDENTITY
        self.counts["failed_records"] += batch.count
        self._release(batch)

    def fail_unsent(self, error: KafkaError, topic_name: str | None = None) -> None:
        """Fail all batches not in flight, or a topic's, with an error that is not retriable."""
        for queue in list(self.active_queues):
            if topic_name not in (None, queue.topic.name):
                continue
            for batch in list(queue.batches):
                if batch.transport is None:
                    self.fail(batch, error.copy(), unwritten=not batch.attempts)

    def drop_unsent(self) -> None:
        """Fail the batches not in flight if their transaction has failed or is being aborted."""
        if self.transaction is not None and self.transaction.drops_unsent:
            self.fail_unsent(self.transaction.dropped_error)

    def fail_all(self, error: KafkaError) -> None:
        """Fail all batches without an outcome, and refuse new ones."""
        self.closed_error = error
        for queue in list(self.active_queues):
            for batch in list(queue.batches):
                self.fail(batch, error.copy(), unwritten=False)

    def retry_in_flight(self, transport: Transport) -> None:
        """Retry the batches in flight over a transport that has ended.

        Whether they were written is not known.
        """
        now_s = time.monotonic()
        for queue in list(self.active_queues):
            for batch in [batch for batch in queue.batches if batch.transport is transport]:
                if batch.attempts > self._retries:
                    error = NetworkException(
                        f"The connection to node {transport.node_id} was lost before a response."
                    )
                    self.fail(batch, error, unwritten=False)
                else:
                    self.counts["sent_again"] += 1
                    queue.retry(batch, now_s, unwritten=False)
                    self.stale_topics.add(queue.topic.name)
        self.wakeup.set()

    def expire(self, now_s: float) -> None:
        """Fail batches older than delivery.timeout.ms."""
        oldest_s = now_s - self._delivery_timeout_s
        for queue in list(self.active_queues):
            for batch in list(queue.batches):
                if batch.created_s > oldest_s:
                    break
                error = RequestTimedOut(
                    f"Partition {queue.index} of topic {queue.topic.name!r}: not delivered within"
                    f" delivery.timeout.ms ({self._delivery_timeout_s:g} s)."
                )
                self.fail(batch, error, unwritten=False)

    @property
    def expires_at_s(self) -> float:
        """Monotonic time at which the oldest batch expires; infinity if there is none."""
        batches = (queue.batches[0] for queue in self.active_queues if queue.batches)
        oldest_s = min((batch.created_s for batch in batches), default=float("inf"))
        return oldest_s + self._delivery_timeout_s

    def recover(self) -> None:
        """Requeue all batches without an outcome after an interrupted locked section."""
        queues = [queue for topic in self.topics.values() for queue in topic.queues]
        for queue in queues:
            for batch in queue.recover():
                self.callbacks.completed(batch)
                if self.transaction is not None and batch.error is not None:
                    self.transaction.batch_failed(queue, batch.error)
        self.active_queues = {queue: None for queue in queues if queue.batches}
        waiting = [batch for queue in self.active_queues for batch in queue.batches]
        reserved = sum(batch.memory_size for batch in waiting)
        self.accumulator.memory_left = self.accumulator.memory_size - reserved
        self.wakeup.set()

    # Topics.

    def update_metadata(self, topic: ProducerTopic, metadata: TopicMetadata) -> None:
        """Update the leaders of a topic's partitions, and add new partitions."""
        if topic.topic_id != metadata.topic_id:
            topic.topic_id = metadata.topic_id
            for queue in topic.queues:
                queue.known = False  # another log, which accepts any first sequence
            self._drop_queues(topic, len(metadata.partitions))
        for index in range(len(topic.queues), len(metadata.partitions)):
            topic.queues.append(PartitionQueue(topic, index, self.in_flight_max, self.idempotent))
        for queue in topic.queues:
            partition = metadata.partitions.get(queue.index)
            if partition is not None:
                queue.leader, queue.leader_epoch = partition

    def _drop_queues(self, topic: ProducerTopic, count: int) -> None:
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

    def expire_metadata_of(self, node_id: int) -> None:
        """Have the metadata of the topics with batches for a node refreshed."""
        self.stale_topics |= {
            queue.topic.name for queue in list(self.active_queues) if queue.leader == node_id
        }

    def refused_unacked(self, node_id: int) -> None:
        """Have all topics of a node refreshed: it refused a batch with acks=0.

        It may not be the leader; a batch with acks=0 has no response that says so.
        """
        self.has_refused_unacked = True
        self.stale_topics |= {
            topic.name
            for topic in self.topics.values()
            if any(queue.leader == node_id for queue in topic.queues)
        }
