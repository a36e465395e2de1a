"""Producer: what a program holds to write records.

    with Producer("127.0.0.1:9092", linger_ms=5) as producer:
        producer.send("flights", b"EWR-IAH", key="UA1545")          # a Delivery, like a future
        producer.send("flights", "JFK-MIA").result()                # waits: RecordMetadata
        producer.send_arrow("flights", table)

On the broker's own host records go through a ring of shared memory, elsewhere over TCP; nobody
notices when that changes.  Batches are numbered (enable.idempotence), so that what is sent again
after a fault is written once.

Any thread may use it.  It is of no use in a process forked from this one, which is told so.  What
is not sent when the interpreter ends is given EXIT_TIMEOUT_S.

A record is appended to its batch by ext/gathering; here is what happens about once a batch.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from types import TracebackType
from typing import Any, Self

from kafkalite._ext.gathering import Delivery, Gatherer
from kafkalite._ext.hashing import partition_of
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.client.accumulator import Accumulator, Topic
from kafkalite.client.arrow_in import columns_of
from kafkalite.client.arrow_sending import Deliveries, runs_of
from kafkalite.client.background import Background
from kafkalite.client.batch import Batch, OnDelivery
from kafkalite.client.cluster import Cluster
from kafkalite.client.content import Packed
from kafkalite.client.line import Line
from kafkalite.client.partitioner import partitioner_of
from kafkalite.client.patience import Deadline
from kafkalite.client.sender import Sender
from kafkalite.client.settings import producer_settings
from kafkalite.config.client import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
)
from kafkalite.errors import KafkaError, MessageTooLarge, RequestTimedOut

EXIT_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

_open: weakref.WeakSet[Producer] = weakref.WeakSet()


class Producer(Gatherer):
    """Writes records to topics."""

    def __init__(self, bootstrap: str | list[str] | None = None, **keywords: Any) -> None:
        settings = producer_settings(bootstrap, keywords)
        super().__init__(partitioner_of(settings))
        self._settings = settings
        self._cluster = Cluster(settings)
        accumulator = Accumulator(
            settings[BATCH_SIZE],
            settings[LINGER_MS] / 1000,
            settings[BUFFER_MEMORY],
            settings[MAX_REQUEST_SIZE],
        )
        self._sender = Sender(settings, self._cluster, accumulator, self.topics)
        self._background = Background(self._sender)
        self._block_s = settings[MAX_BLOCK_MS] / 1000
        self._closed = False
        self._forked = False
        self._background.start()
        self.is_open = True
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Producer at {self._cluster!r}{'' if self.is_open else ', closed'}>"

    # Records.

    def _send_slowly(
        self,
        name: str,
        value: Any,
        key: bytes | None,
        headers: Any,
        timestamp: int | None,
        partition: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        """Take a record that did not fit where records go: see to it that the next one does."""
        self._check_open()
        deadline = Deadline(self._patience_s())
        topic = self._topic(name)
        if partition is None and key is None and self.partitioner is None:
            before, line = topic.sticky, topic.stick()
            if line is not before and line.open_batch is not None:
                return self.send(name, value, key, headers, timestamp, line.index, on_delivery)
        else:
            line = self._line(topic, key, partition)
        sender = self._sender
        size = sender.accumulator.room_for(key, value, headers)
        sender.waiting.make_room(line, line.open_batch, size, deadline.left_s)
        delivery = self.send(name, value, key, headers, timestamp, line.index, on_delivery)
        if not sender.accumulator.batch_size:
            sender.turn(sender.end_batch, line)
        elif not sender.accumulator.linger_s:
            sender.turn(sender.push, line)
        sender.tell()
        return delivery

    def _line(self, topic: Topic, key: bytes | None, partition: int | None) -> Line:
        """The line of a record that has a partition, or a key, or a partitioner."""
        count = len(topic.lines)
        if partition is None and self.partitioner is not None:
            partition = self.partitioner(topic.name, key, count)
        elif partition is None:
            partition = partition_of(key or b"", count)
        if not 0 <= partition < count:
            raise ValueError(f"topic {topic.name!r} has no partition {partition} among its {count}")
        line: Line = topic.lines[partition]
        return line

    def _topic(self, name: str, wait_s: float | None = None) -> Topic:
        """The topic, asked for when it is not known; waits so long, or max.block.ms."""
        if not isinstance(name, str):
            raise TypeError(f"a topic's name is text, not {type(name).__name__}")
        topic: Topic | None = self.topics.get(name)
        if topic is None:
            told = self._cluster.topic(name, self._block_s if wait_s is None else wait_s)
            topic = Topic(name, self._sender)
            self._sender.turn(self._sender.learn, topic, told)
            # Only now, when it has lines, may the fast way find it.
            topic = self.topics.setdefault(name, topic)
        return topic

    def send_arrow(self, topic: str, rows: Any) -> Deliveries:
        """Send the rows of an Arrow table or record batch, or of what can become one.

        Columns: value, and if wanted key, headers, timestamp, partition (arrow_in.py).  Rows that
        are refused are refused before any is sent.  Back when all are on their way.
        """
        self._check_open()
        pieces = columns_of(rows)
        known = self._topic(topic)
        now_ms = time.time_ns() // 1_000_000
        batches: list[Batch] = []
        runs = [run for piece in pieces for run in runs_of(known, piece, self.partitioner)]
        for run in runs:
            batches += self._sender.columns.send(run, now_ms, self._block_s)
        self._sender.tell()
        return Deliveries(batches)

    def partitions_for(self, topic: str, timeout: float | None = None) -> int:
        """How many partitions the topic has now; made by the first question where brokers do that.

        Waits up to `timeout` seconds, without one up to max.block.ms.
        """
        self._check_open()
        known: Topic | None = self.topics.get(topic)
        if known is None:
            return len(self._topic(topic, timeout).lines)
        wait_s = self._block_s if timeout is None else timeout
        told = self._cluster.described([topic], wait_s, create=False)[topic]
        if isinstance(told, KafkaError):
            raise told
        self._sender.turn(self._sender.learn, known, told)
        return len(known.lines)

    def send_batch(
        self,
        topic: str,
        partition: int,
        batch: bytearray,
        payload_size: int,
        count: int,
        base_timestamp: int,
        max_timestamp: int,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Send records that stand encoded behind room for a header: batch[61:61 + payload_size].

        They are uncompressed and their offset deltas count from 0.  One outcome for all: the offset
        is the first one's.  The buffer is the producer's from now on.
        """
        self._check_open()
        line = self._line(self._topic(topic), None, partition)
        size = HEADER_SIZE + payload_size
        accumulator = self._sender.accumulator
        if size > min(accumulator.record_size_max, accumulator.memory_size):
            raise MessageTooLarge(f"A batch of {size} bytes is more than max.request.size.")
        content = Packed(batch, payload_size, count, base_timestamp, max_timestamp)
        made = self._sender.waiting.add_batch(line, content, size, self._patience_s())
        delivery = Delivery(made, 0, base_timestamp)
        if on_delivery is not None:
            made.deliver_to(delivery, on_delivery)
        self._sender.tell()
        return delivery

    # The whole.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is decided; TimeoutError when that takes longer."""
        self._check_process()
        waiting = self._sender.turn(self._sender.want_all)
        left = iter(waiting)
        current = next(left, None)

        def done() -> bool:
            nonlocal current
            while current is not None and current.done:
                current = next(left, None)
            return current is None

        if not self._sender.waiting.work_until(done, timeout):
            count = sum(not batch.done for batch in waiting)
            raise TimeoutError(f"{count} batches are not decided after {timeout:g} s")

    def close(self, timeout: float | None = None) -> None:
        """Send what is left and end; what is not decided in time has failed.  Twice is nothing."""
        self._check_process()
        if self._closed:
            return
        self.is_open = False
        self._closed = True
        _open.discard(self)
        sender = self._sender
        try:
            self.flush(timeout)
        except TimeoutError:
            pass
        finally:
            self._background.stop()
            fault = RequestTimedOut("The producer was closed before an answer came.")
            sender.turn(sender.abandon, fault)
            sender.tell()
            sender.turn(sender.close)
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def metrics(self) -> dict[str, int]:
        """What it has counted, and what is waiting now."""
        sender = self._sender
        lines = list(sender.busy)
        return {
            **sender.counts,
            "waiting_batches": sum(len(line.batches) for line in lines),
            "under_way_batches": sum(line.under_way for line in lines),
            "buffer_memory": sender.accumulator.memory_size,
            "buffer_memory_left": sender.accumulator.memory_left,
            "rings": sum(node.ring is not None for node in list(sender.nodes.values())),
        }

    def want(self, batch: Batch) -> None:
        """Send a batch without waiting for more records; somebody waits for it."""
        if not batch.done:
            self._sender.turn(self._sender.want, batch)
            self._sender.tell()

    def _patience_s(self) -> float:
        """How long a call may wait for room."""
        return self._block_s

    def _check_open(self) -> None:
        self._check_process()
        if not self.is_open:
            raise RuntimeError("The producer is closed.")

    def _check_process(self) -> None:
        if self._forked:
            raise RuntimeError("A producer cannot be used after a fork; make a new one here.")


def _at_exit() -> None:
    """What nobody closed gets a moment to send what it has."""
    for producer in list(_open):
        producer.close(EXIT_TIMEOUT_S)
        lost = producer.metrics()["failed_records"]
        if lost:
            log.warning("%r was not closed: %d records were not delivered.", producer, lost)


def _after_fork() -> None:
    for producer in list(_open):
        producer.is_open = False
        producer._forked = True
        for node in producer._sender.nodes.values():
            if node.ring is not None:
                node.ring.close()  # else its lease lasts as long as this process
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
