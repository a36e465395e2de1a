"""BatchForwarder: sends full batches with the producer and reports their outcomes.

A producer whose memory is full accepts no batch.  The batch waits here, and while one waits the
gateway receives nothing, so that memory is bounded and the messages stay in the senders' queues.

A batch has messages of many senders.  If the broker refuses it because of the content of one
record, it is split in halves that are sent one after the other, until that record is alone: an
invalid record does not fail the others, and the order within the batch is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kafkalite._ext import records
from kafkalite._ext.gateway_receiver import DealerRequest, OpenBatch
from kafkalite.errors import (
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kafkalite.gateway.gateway_metrics import GatewayMetrics
from kafkalite.gateway.loop_calls import LoopCalls
from kafkalite.transport.reactor import Reactor, Timer

HEADER_SIZE = 61
RETRY_MS = 10
SINGLE_RECORD_ERRORS = (InvalidRecord, InvalidTimestamp, MessageTooLarge)


Delivered = Callable[[KafkaError | None, Any], object]
"""Takes an error, or the metadata of the written batch."""


class BatchProducer(Protocol):
    """The methods of a Producer that the gateway uses."""

    def partitions_for(self, topic: str, timeout: float) -> int: ...
    def send_batch(
        self, topic: str, partition: int, batch: bytearray, payload_size: int, count: int,
        base_timestamp: int, max_timestamp: int,
        on_delivery: Delivered | None = None,
    ) -> object: ...  # fmt: skip
    def close(self, timeout: float | None = None) -> None: ...


class BatchForwarder:
    """Batches on their way to the broker; see the module.

    `on_responses(requests)` and `on_failure(topic)` receive outcomes; `on_unblocked()` is called
    when no batch waits for the producer any more.
    """

    def __init__(
        self,
        producer: BatchProducer,
        reactor: Reactor,
        calls: LoopCalls,
        metrics: GatewayMetrics,
        on_responses: Callable[[list[DealerRequest]], object],
        on_failure: Callable[[str], object],
        on_unblocked: Callable[[], object],
    ) -> None:
        self._producer = producer
        self._reactor = reactor
        self._calls = calls
        self._metrics = metrics
        self._on_responses = on_responses
        self._on_failure = on_failure
        self._on_unblocked = on_unblocked
        self._waiting: deque[OpenBatch] = deque()
        self._rest: dict[OpenBatch, list[OpenBatch]] = {}
        """Parts of a split batch to send after the one that is the key."""
        self._retry_timer: Timer | None = None
        self.waiting_size = 0
        self.sent = self.sent_size = 0
        """Batches and bytes that the producer has accepted and that have no outcome."""

    @property
    def is_blocked(self) -> bool:
        """True if batches wait for the producer."""
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if every batch has an outcome."""
        return not (self._waiting or self.sent or self._rest)

    def add(self, batches: Iterable[OpenBatch]) -> None:
        """Send these batches, after those that wait."""
        is_blocked = self.is_blocked
        for batch in batches:
            self._waiting.append(batch)
            self.waiting_size += batch.size
        self._send_waiting(is_blocked)

    def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            try:
                self._producer.send_batch(
                    batch.topic, batch.partition, batch.content, batch.size, batch.count,
                    batch.base_timestamp, batch.max_timestamp, self._delivery_callback(batch),
                )  # fmt: skip
            except RequestTimedOut:  # no room, not accepted; batches in flight will make room
                if not self.sent and self._retry_timer is None:
                    self._retry_timer = self._reactor.call_later(RETRY_MS, self._retry)
                return
            except ValueError as error:  # the topic has fewer partitions by now
                self._remove_first(batch)
                self._report(batch, UnknownTopicOrPartition(str(error)), -1)
            except KafkaError as error:
                self._remove_first(batch)
                self._report(batch, error, -1)
            else:
                self._remove_first(batch)
                self.sent += 1
                self.sent_size += batch.size

    def _delivery_callback(self, batch: OpenBatch) -> Delivered:
        """Return a callback that passes the outcome of a batch to the event loop's thread."""

        def deliver(error: KafkaError | None, metadata: Any) -> None:
            self._calls.call_soon(lambda: self._delivered(batch, error, metadata))

        return deliver

    def _retry(self) -> None:
        self._retry_timer = None
        self._send_waiting(self.is_blocked)

    def _remove_first(self, batch: OpenBatch) -> None:
        self._waiting.popleft()
        self.waiting_size -= batch.size

    def _delivered(self, batch: OpenBatch, error: KafkaError | None, metadata: Any) -> None:
        is_blocked = self.is_blocked
        self.sent -= 1
        self.sent_size -= batch.size
        rest = self._rest.pop(batch, [])
        if isinstance(error, SINGLE_RECORD_ERRORS) and batch.count > 1:
            rest = halves(batch) + rest
        else:
            self._report(batch, error, -1 if metadata is None else metadata.offset)
        if rest:
            following = rest.pop(0)
            if rest:
                self._rest[following] = rest
            self._waiting.append(following)
            self.waiting_size += following.size
        self._send_waiting(is_blocked)

    def _send_waiting(self, is_blocked: bool) -> None:
        """Send waiting batches, and call `on_unblocked` if none waits any more."""
        self._send()
        if is_blocked and not self.is_blocked:
            self._on_unblocked()

    def _report(self, batch: OpenBatch, error: KafkaError | None, base_offset: int) -> None:
        if error is None:
            self._metrics.records += batch.count
            self._metrics.record_bytes += batch.size
            self._metrics.batches += 1
            done = batch.settle(0, base_offset, "")
        else:
            self._metrics.fail(batch.topic, batch.count, error.code, str(error))
            self._on_failure(batch.topic)
            done = batch.settle(error.code, -1, str(error))
        if done:
            self._on_responses(done)


def halves(batch: OpenBatch) -> list[OpenBatch]:
    """Return two batches with the same records."""
    payload = memoryview(batch.content)[HEADER_SIZE : HEADER_SIZE + batch.size]
    rows = records.decode(payload, batch.count)
    payload.release()
    assert not isinstance(rows, int), "we wrote them"
    middle = batch.count // 2
    parts = rows[:middle], rows[middle:]
    return batch.split(
        [records.encode([(at, *row[1:]) for at, row in enumerate(part)]) for part in parts],
        [len(part) for part in parts],
        [batch.base_timestamp + max(row[1] for row in part) for part in parts],
    )
