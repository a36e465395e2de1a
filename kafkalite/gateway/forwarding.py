"""Forwarding: sends full batches with the producer and reports their outcomes.

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
from kafkalite._ext.gateway_intake import Batch, Question
from kafkalite.errors import (
    InvalidRecord,
    InvalidTimestamp,
    KafkaError,
    MessageTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kafkalite.gateway.counts import Counts
from kafkalite.gateway.post import Post
from kafkalite.transport.reactor import Reactor, Timer

HEADER_SIZE = 61
AGAIN_MS = 10
OF_ONE_RECORD = (InvalidRecord, InvalidTimestamp, MessageTooLarge)


Delivered = Callable[[KafkaError | None, Any], object]
"""Takes an error, or the metadata of the written batch."""


class Sender(Protocol):
    """The methods of a Producer that the gateway uses."""

    def partitions_for(self, topic: str, timeout: float) -> int: ...
    def send_batch(
        self, topic: str, partition: int, batch: bytearray, payload_size: int, count: int,
        base_timestamp: int, max_timestamp: int,
        on_delivery: Delivered | None = None,
    ) -> object: ...  # fmt: skip
    def close(self, timeout: float | None = None) -> None: ...


class Forwarding:
    """Batches on their way to the broker; see the module.

    `answer(questions)` and `failed(topic)` receive outcomes; `eased()` is called when no batch
    waits for the producer any more.
    """

    def __init__(
        self,
        sender: Sender,
        reactor: Reactor,
        post: Post,
        counts: Counts,
        answer: Callable[[list[Question]], object],
        failed: Callable[[str], object],
        eased: Callable[[], object],
    ) -> None:
        self._sender = sender
        self._reactor = reactor
        self._post = post
        self._counts = counts
        self._answer = answer
        self._failed = failed
        self._eased = eased
        self._waiting: deque[Batch] = deque()
        self._rest: dict[Batch, list[Batch]] = {}
        """Parts of a split batch to send after the one that is the key."""
        self._again: Timer | None = None
        self.waiting_size = 0
        self.sent = self.sent_size = 0
        """Batches and bytes that the producer has accepted and that have no outcome."""

    @property
    def behind(self) -> bool:
        """True if batches wait for the producer."""
        return bool(self._waiting)

    @property
    def idle(self) -> bool:
        """True if every batch has an outcome."""
        return not (self._waiting or self.sent or self._rest)

    def take(self, batches: Iterable[Batch]) -> None:
        """Send these batches, after those that wait."""
        behind = self.behind
        for batch in batches:
            self._waiting.append(batch)
            self.waiting_size += batch.size
        self._send_waiting(behind)

    def _send(self) -> None:
        while self._waiting:
            batch = self._waiting[0]
            try:
                self._sender.send_batch(
                    batch.topic, batch.partition, batch.content, batch.size, batch.count,
                    batch.base_timestamp, batch.max_timestamp, self._teller(batch),
                )  # fmt: skip
            except RequestTimedOut:  # no room, not accepted; batches in flight will make room
                if not self.sent and self._again is None:
                    self._again = self._reactor.call_later(AGAIN_MS, self._send_again)
                return
            except ValueError as fault:  # the topic has fewer partitions by now
                self._drop(batch)
                self._settle(batch, UnknownTopicOrPartition(str(fault)), -1)
            except KafkaError as fault:
                self._drop(batch)
                self._settle(batch, fault, -1)
            else:
                self._drop(batch)
                self.sent += 1
                self.sent_size += batch.size

    def _teller(self, batch: Batch) -> Delivered:
        """Return a callback that passes the outcome of a batch to the event loop's thread."""

        def tell(error: KafkaError | None, metadata: Any) -> None:
            self._post.leave(lambda: self._done(batch, error, metadata))

        return tell

    def _send_again(self) -> None:
        self._again = None
        self._send_waiting(self.behind)

    def _drop(self, batch: Batch) -> None:
        self._waiting.popleft()
        self.waiting_size -= batch.size

    def _done(self, batch: Batch, error: KafkaError | None, metadata: Any) -> None:
        behind = self.behind
        self.sent -= 1
        self.sent_size -= batch.size
        rest = self._rest.pop(batch, [])
        if isinstance(error, OF_ONE_RECORD) and batch.count > 1:
            rest = halves(batch) + rest
        else:
            self._settle(batch, error, -1 if metadata is None else metadata.offset)
        if rest:
            following = rest.pop(0)
            if rest:
                self._rest[following] = rest
            self._waiting.append(following)
            self.waiting_size += following.size
        self._send_waiting(behind)

    def _send_waiting(self, behind: bool) -> None:
        """Send waiting batches, and call `eased` if that ends a time in which it was `behind`."""
        self._send()
        if behind and not self.behind:
            self._eased()

    def _settle(self, batch: Batch, error: KafkaError | None, base_offset: int) -> None:
        if error is None:
            self._counts.records += batch.count
            self._counts.record_bytes += batch.size
            self._counts.batches += 1
            done = batch.settle(0, base_offset, "")
        else:
            self._counts.fail(batch.topic, batch.count, error.code, str(error))
            self._failed(batch.topic)
            done = batch.settle(error.code, -1, str(error))
        if done:
            self._answer(done)


def halves(batch: Batch) -> list[Batch]:
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
