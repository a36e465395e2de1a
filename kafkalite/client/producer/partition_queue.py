"""Partition queue: a partition's batches, from their first record until their outcome.

    [ in flight ]  [ waiting ]  [ open ]
      at most 5      closed       appended to by ext/client/gathering

Batches are sent in this order and stay here until their outcome is known, so that every retry and
recovery finds them here.

Sequences (KIP-98).  A batch gets its sequence when it is first sent and keeps it for as long as the
broker may have written it.  Only a response that says that nothing was written frees a sequence;
then all batches behind it get new sequences when they are sent again, because the broker refuses a
batch that does not follow.  So a failed batch stalls the queue: nothing more is sent until the
batches in flight have responses, and then sending resumes in order.  A broker accepts any first
sequence of a producer id, so until one batch is known to be written they are sent one by one.

`acknowledged_sequence` is the sequence after the last batch known to be written.  A broker that
refuses a batch with exactly this sequence has lost its producer state; a new producer id, which
begins at 0, solves that.  Batches with an unknown outcome keep their producer id, and batches of
two ids are never in flight together.

A batch reaches the producer, which does the work that its outcome needs, through the BatchDriver of
its topic, and is sent over a Transport (ring_transport.py, tcp_transport.py).

No I/O, no clock, no lock: sender.py holds the lock.
"""

from __future__ import annotations

import random
from typing import NamedTuple, Protocol

from kafkalite._ext.gathering import OpenQueue, OpenTopic
from kafkalite.client.net.producer_identity import NO_IDENTITY, ProducerIdentity
from kafkalite.client.producer.batch_completion import BatchCompletion
from kafkalite.client.producer.payload import BatchContent
from kafkalite.errors import KafkaError
from kafkalite.ids import NO_ID

SEQUENCES = 1 << 31
NO_SEQUENCE = -1


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence after `count` records from this one on."""
    return (sequence + count) % SEQUENCES


def max_sequence(one: int, other: int) -> int:
    """Return the higher of two sequences; they wrap to 0, and are never far apart."""
    return one if (one - other) % SEQUENCES < SEQUENCES // 2 else other


class Transport(Protocol):
    """A ring or a TCP connection that batches are sent over to one node."""

    node_id: int

    def responses(self) -> list[BatchResponse]:
        """Return the responses that have arrived; NetworkException if the transport ended."""
        ...

    def close(self) -> None: ...


class BatchResponse(NamedTuple):
    """A node's response to a batch."""

    batch: Batch
    error_code: int
    base_offset: int
    append_time_ms: int
    message: str | None = None


class BatchDriver(Protocol):
    """The producer, as its batches see it: it does the work that their outcomes need."""

    def wait_for(self, batch: Batch, timeout_s: float | None) -> bool:
        """Wait for the outcome of a batch; return False if the timeout has passed."""
        ...

    def send_now(self, batch: Batch) -> None:
        """Send a batch without waiting for linger.ms."""
        ...

    def listen(self, batch: Batch) -> None:
        """Have the response read for a batch in flight that has callbacks."""
        ...

    def request_outcome(self, batch: Batch) -> None:
        """Register that a batch's outcome was requested."""
        ...

    def schedule_callbacks(self, batch: Batch) -> None:
        """Have the background thread run a callback that was added after its batch completed."""
        ...


class ProducerTopic(OpenTopic):
    """A topic that records are sent to."""

    __slots__ = ("driver", "topic_id")

    def __init__(self, name: str, driver: BatchDriver) -> None:
        super().__init__(name)
        self.driver = driver
        self.topic_id = NO_ID

    def drop_queues(self, count: int) -> list[PartitionQueue]:
        """Keep only `count` partition queues; return the others, which take no more records."""
        dropped: list[PartitionQueue] = self.queues[count:]
        del self.queues[count:]
        for queue in dropped:
            queue.dropped = True
        if self.sticky in dropped:
            self.sticky = None
        return dropped

    def choose_sticky(self) -> PartitionQueue:
        """Choose another partition that has a leader for records without a key."""
        queues = self.queues
        if len(queues) == 1:
            self.sticky = queues[0]
            return queues[0]  # type: ignore[no-any-return]
        led = [queue for queue in queues if queue.leader >= 0] or queues
        if len(led) > 1:
            led = [queue for queue in led if queue is not self.sticky]
        chosen: PartitionQueue = random.choice(led)
        self.sticky = chosen
        return chosen


class Batch(BatchCompletion):
    """Records of one partition that are sent together."""

    __slots__ = (
        "attempts",
        "by_tcp",
        "content",
        "created_s",
        "maybe_written",
        "due_s",
        "identity",
        "transport",
        "queue",
        "memory_size",
        "not_before_s",
        "sent_s",
        "sequence",
        "send_immediately",
    )

    def __init__(
        self,
        queue: PartitionQueue,
        content: BatchContent,
        created_s: float,
        due_s: float,
        memory_size: int,
    ) -> None:
        super().__init__(queue.topic.name, queue.index)
        self.queue = queue
        self.content: BatchContent | None = content
        self.created_s = created_s
        self.due_s = due_s
        """Time at which it is sent even if it is not full."""
        self.memory_size = memory_size
        """Bytes of buffer.memory that are counted for it."""
        self.send_immediately = False
        """True if it is sent without waiting for linger.ms: a thread waits for it."""
        self.not_before_s = 0.0
        self.attempts = 0
        self.sent_s = 0.0
        self.by_tcp = False
        """True if it is too large for a ring."""
        self.sequence = NO_SEQUENCE
        self.identity = NO_IDENTITY
        self.maybe_written = False
        """True if it was sent and the outcome is not known: it may have been written."""
        self.transport: Transport | None = None
        """The transport that it was sent over; None while it is not in flight."""

    def complete(self, error: KafkaError | None, base_offset: int, append_time_ms: int) -> None:
        super().complete(error, base_offset, append_time_ms)
        self.content = None

    def wait(self, timeout_s: float | None) -> bool:
        return self.queue.topic.driver.wait_for(self, timeout_s)

    def send_now(self) -> None:
        if not self.done:
            self.queue.topic.driver.send_now(self)

    def request_outcome(self) -> None:
        if not self.outcome_requested:
            self.queue.topic.driver.request_outcome(self)

    def listen(self) -> None:
        if self.done:
            # Its other callbacks may have been called already.
            self.queue.topic.driver.schedule_callbacks(self)
        elif self.transport is not None:
            self.queue.topic.driver.listen(self)


class PartitionQueue(OpenQueue):
    """The batches of one partition, with their sequences."""

    __slots__ = (
        "batches",
        "dropped",
        "identity",
        "in_flight_max",
        "transport",
        "leader",
        "known",
        "leader_epoch",
        "next_sequence",
        "idempotent",
        "acknowledged_sequence",
        "stalled",
        "topic",
        "in_flight",
    )

    def __init__(
        self, topic: ProducerTopic, index: int, in_flight_max: int, idempotent: bool
    ) -> None:
        super().__init__(index)
        self.topic = topic
        self.in_flight_max = in_flight_max
        self.idempotent = idempotent
        self.leader = -1
        self.leader_epoch = -1
        self.transport: Transport | None = None
        """The transport that the last batch was sent over."""
        self.dropped = False
        """True if the topic was created again with fewer partitions, without this one."""
        self.batches: list[Batch] = []
        self.in_flight = 0
        self.stalled = False
        self.identity = NO_IDENTITY
        self.known = False
        """True if the broker has written a batch of this producer id."""
        self.next_sequence = 0
        self.acknowledged_sequence = 0

    def __repr__(self) -> str:
        counts = f"{len(self.batches)} batches, {self.in_flight} in flight"
        return f"<queue of {self.topic.name}-{self.index}: {counts}>"

    # Gathering.

    def close_batch(self) -> Batch | None:
        """Close the open batch and return it; None if there was none."""
        batch: Batch | None = self.end_batch()
        if batch is not None:
            assert batch.content is not None
            batch.content.close()
            batch.count = batch.content.count
        return batch

    # Sending.

    def must_wait(self, batch: Batch) -> bool:
        """Return whether the batch, even if full, must wait for responses before it is sent."""
        count = self.in_flight
        return not self.may_send(count) or self.batches[count] is not batch

    def may_send(self, in_flight: int) -> bool:
        """Return whether one more batch may be in flight beside `in_flight` others."""
        if self.stalled or (in_flight and self.idempotent and not self.known):
            return False
        return in_flight < self.in_flight_max

    @property
    def can_send_now(self) -> bool:
        """True if a batch that is added now would be sent at once."""
        self._resume()
        count = self.in_flight
        return self.may_send(count) and count == len(self.batches)

    def next_batch(self, now_s: float) -> Batch | None:
        """Return the next batch if it is ready to send, or None."""
        self._resume()
        if self.in_flight >= len(self.batches) or not self.may_send(self.in_flight):
            return None
        batch = self.batches[self.in_flight]
        if batch.not_before_s > now_s:
            return None
        if batch is self.open_batch:
            if not batch.send_immediately and now_s < batch.due_s:
                return None
            if not batch.content or not batch.content.count:
                return None  # just opened; its first record is not appended yet
        if self.in_flight and self.idempotent:
            identity = batch.identity if batch.sequence != NO_SEQUENCE else self.identity
            if self.batches[self.in_flight - 1].identity != identity:
                return None
        return batch

    def _resume(self) -> None:
        """Resume a stalled queue when nothing is in flight any more."""
        if self.stalled and not self.in_flight:
            self.stalled = False
            self.next_sequence = self.acknowledged_sequence

    def assign_sequence(self, batch: Batch, identity: ProducerIdentity) -> None:
        """Assign a sequence to the batch, unless it has one that the broker may know."""
        if not self.idempotent or batch.sequence != NO_SEQUENCE:
            return
        if self.identity == NO_IDENTITY:
            self.identity = identity
            self.next_sequence = self.acknowledged_sequence = 0
        batch.identity = self.identity
        batch.sequence = self.next_sequence

    def mark_sent(self, batch: Batch, transport: Transport) -> None:
        """Register that the batch is in flight."""
        assert self.batches[self.in_flight] is batch, "batches are sent in order"
        batch.transport = self.transport = transport
        batch.attempts += 1
        self.in_flight += 1
        if self.idempotent and batch.identity == self.identity:
            self.next_sequence = max_sequence(
                self.next_sequence, sequence_after(batch.sequence, batch.count)
            )

    # Responses.

    def retry(self, batch: Batch, not_before_s: float, *, unwritten: bool) -> None:
        """Requeue a batch for a retry; `unwritten`: the broker has certainly not written it."""
        if unwritten:
            batch.sequence = NO_SEQUENCE
            batch.maybe_written = False
        else:
            batch.maybe_written = True
        batch.not_before_s = not_before_s
        self._requeue(batch)

    def mark_written(self, batch: Batch) -> None:
        """Remove a batch that was written."""
        self._acknowledge(batch)
        self._remove(batch)

    def _acknowledge(self, batch: Batch) -> None:
        if self.idempotent and batch.identity == self.identity:
            self.known = True
            self.acknowledged_sequence = max_sequence(
                self.acknowledged_sequence, sequence_after(batch.sequence, batch.count)
            )

    def mark_failed(self, batch: Batch, *, unwritten: bool) -> None:
        """Remove a batch that failed."""
        if batch.sequence != NO_SEQUENCE and unwritten:
            self.stalled = True
        elif batch.attempts and not unwritten:
            # Also if its sequence was freed: should the batch be written after all, the broker
            # would take the next one for a duplicate of it.
            self.drop_producer_id()
        self._remove(batch)

    def follows(self, batch: Batch) -> bool:
        """Return whether the batch has exactly the sequence that the broker should accept next."""
        return batch.identity == self.identity and batch.sequence == self.acknowledged_sequence

    def drop_producer_id(self) -> None:
        """Continue with a new producer id."""
        self.identity = NO_IDENTITY
        self.known = False

    def split(self, batch: Batch, parts: list[Batch]) -> None:
        """Replace a batch by its parts."""
        assert batch.transport is None
        index = self.batches.index(batch)
        self.batches[index : index + 1] = parts

    def _requeue(self, batch: Batch) -> None:
        assert batch.transport is not None, "only a batch in flight is retried"
        batch.transport = None
        self.in_flight -= 1
        self.stalled = True

    def _remove(self, batch: Batch) -> None:
        if batch.transport is not None:
            batch.transport = None
            self.in_flight -= 1
        elif batch is self.open_batch:
            self.close_batch()
        self.batches.remove(batch)

    def recover(self) -> list[Batch]:
        """Requeue all batches after an interrupted locked section, so that none is in flight.

        Returns those that already have an outcome, which are removed.
        """
        completed = [batch for batch in self.batches if batch.done]
        for batch in completed:
            if batch.error is None:
                self._acknowledge(batch)
            else:
                self.drop_producer_id()
        kept = []
        for batch in self.batches:
            if batch.done:
                continue
            batch.maybe_written = batch.maybe_written or batch.transport is not None
            batch.transport = None
            batch.parts = None
            if batch is not self.open_batch and batch.content is not None:
                batch.content.close()
                batch.count = batch.content.count
                if not batch.count:
                    continue  # no record was appended
            kept.append(batch)
        self.batches = kept
        self.in_flight = 0
        self.stalled = True
        return completed
