"""Producer: what a program holds to write records.

    with Producer("127.0.0.1:9092", linger_ms=5) as producer:
        producer.send("flights", b"EWR-IAH", key="UA1545")          # a Delivery, like a future
        producer.send("flights", "JFK-MIA").result()                # waits: RecordMetadata
        producer.send_arrow("flights", table)
        producer.send_table("flights", frame, key="carrier")        # a row as JSON

On the broker's own host records go through a ring of shared memory, elsewhere over TCP; nobody
notices when that changes.  Batches are numbered (enable.idempotence), so that what is sent again
after a fault is written once.

Any thread may use it.  It is of no use in a process forked from this one, which is told so.  One
that is dropped without close() is flushed and closed in the background, with a ResourceWarning;
what is not sent when the interpreter ends is given EXIT_TIMEOUT_S (lifetime.py).

on_delivery and done callbacks run in the background thread, or in a thread that is inside
result(), exception(), flush() or close() without a timeout: never inside send().  They must not
block, and cannot wait for deliveries or close the producer.  A failure that nobody asks about is
logged, and a with block that ends after one raises it (outcomes.py).

A record is appended to its batch by ext/gathering; here is what happens about once a batch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from kafkalite._ext.gathering import Delivery, Gatherer
from kafkalite._ext.hashing import partition_of
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, producer_settings
from kafkalite.client.producer.accumulator import Accumulator, Topic
from kafkalite.client.producer.arrow_columns import check_sizes, columns_of
from kafkalite.client.producer.batch import Batch, OnDelivery
from kafkalite.client.producer.column_batches import Deliveries, Piece, runs_of
from kafkalite.client.producer.lifetime import Lifetime, exit_timeout_s
from kafkalite.client.producer.partition_queue import Line
from kafkalite.client.producer.partitioner import partitioner_of
from kafkalite.client.producer.payload import Packed
from kafkalite.client.producer.sender import Sender
from kafkalite.config.client import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    KEY_SERIALIZER,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
    VALUE_SERIALIZER,
)
from kafkalite.errors import KafkaError, MessageTooLarge


def closed() -> RuntimeError:
    """Return the error of a call on a closed producer."""
    return RuntimeError("The producer is closed; make a new one to go on sending.")


@hints.hinting(hints.PRODUCER)
class Producer(Gatherer):
    """Writes records to topics."""

    def __init__(self, bootstrap: Bootstrap = None, **keywords: Any) -> None:
        """Open a producer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, or a mapping of Kafka's keys ("linger.ms": 5).
            keywords: Kafka's keys with underscores.  `key_serializer` and `value_serializer` are
                functions of one argument that return bytes or str; None is not passed to them.
        """
        settings = producer_settings(bootstrap, keywords)
        super().__init__(partitioner_of(settings))
        self.key_serializer = settings[KEY_SERIALIZER]
        self.value_serializer = settings[VALUE_SERIALIZER]
        self._settings = settings
        self._cluster = Cluster(settings)
        accumulator = Accumulator(
            settings[BATCH_SIZE],
            settings[LINGER_MS] / 1000,
            settings[BUFFER_MEMORY],
            settings[MAX_REQUEST_SIZE],
        )
        self._sender = Sender(settings, self._cluster, accumulator, self.topics)
        self._block_s = settings[MAX_BLOCK_MS] / 1000
        self.is_open = True
        self._lifetime = Lifetime(self, self._sender, self._cluster)

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
                return self.gather(name, value, key, headers, timestamp, line.index, on_delivery)
        else:
            line = self._line(topic, key, partition)
        sender = self._sender
        size = sender.accumulator.room_for(key, value, headers)
        sender.waiting.make_room(line, line.open_batch, size, deadline.left_s)
        delivery: Delivery = self.gather(
            name, value, key, headers, timestamp, line.index, on_delivery
        )
        if not sender.accumulator.batch_size:
            sender.turn(sender.end_batch, line)
        elif not sender.accumulator.linger_s:
            sender.turn(sender.push, line)
        sender.outcomes.tell_soon()
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

        Columns: value, and if wanted key, headers, timestamp, partition (arrow_in.py).  Returns
        when all rows are on their way, or waits up to max.block.ms for room.  Few rows wait for
        more up to linger.ms, as those of send() do.

        Rows that cannot be records, or are larger than max.request.size, are refused before the
        first is sent.  What is raised later (BufferExhausted, for one) has an attribute
        `deliveries`: the Deliveries of the rows that were sent before, as those below.
        """
        self._check_open()
        require_pyarrow("send_arrow() and send_table() take Arrow columns")
        columns = self._sender.columns
        parts = columns_of(rows)
        check_sizes(parts, columns.record_size_max)
        known = self._topic(topic)
        now_ms = time.time_ns() // 1_000_000
        runs = [run for part in parts for run in runs_of(known, part, self.partitioner)]
        pieces: list[Piece] = []
        try:
            for run in runs:
                columns.send(run, now_ms, self._block_s, pieces)
        except Exception as error:
            error.deliveries = Deliveries(pieces)  # type: ignore[attr-defined]
            raise
        finally:
            self._sender.outcomes.tell_soon()
        return Deliveries(pieces)

    def send_table(
        self,
        topic: str,
        frame: Any,
        format: str = "json",
        *,
        key: str | None = None,
        timestamp: str | None = None,
        columns: Sequence[str] | None = None,
        schema: Any = None,
    ) -> Deliveries:
        """Send the rows of a data frame, each as one record whose value is the row as JSON.

            producer.send_table("readings", frame, key="sensor", timestamp="time").result()

        Args:
            topic: Name of the topic.
            frame: pyarrow Table or RecordBatch, pandas or polars DataFrame, with any columns.
            format: "json" (one object a row), "csv" (without a header line) or "avro" (the plain
                datum, without registry framing; needs fastavro).  row_encoding.py has each type's
                form; NaN and infinity are null in JSON.
            key: Column whose cells are the keys: text, binary, or a value with an exact text.
                Null: no key.
            timestamp: Column whose cells are the records' timestamps: timestamps of any unit, or
                integers of milliseconds.
            columns: Columns that the value holds, in this order.  By default all of them, those
                of `key` and `timestamp` included.
            schema: Avro only: the schema, as a dict or JSON text.  Derived from the columns
                by default.

        Returns:
            The Deliveries of the rows, as those of send_arrow.

        Raises:
            TypeError: The frame, or a column, is of a type that cannot be encoded.
            ValueError: A column or format does not exist, or a row does not fit the schema.
            MessageTooLarge: A row is larger than max.request.size allows.
            BufferExhausted: There was no room for max.block.ms; its `deliveries` are of the rows
                sent before.  No row is sent with the other errors.
        """
        from kafkalite.client.producer.row_encoding import records_of

        self._check_open()
        require_pyarrow("send_arrow() and send_table() take Arrow columns")
        records = records_of(
            frame, format, key=key, timestamp=timestamp, columns=columns, schema=schema
        )
        return self.send_arrow(topic, records)

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
        self._sender.outcomes.tell_soon()
        return delivery

    # The whole.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent so far are delivered or failed, and their callbacks have run.

        Failed records raise nothing here: their deliveries do.

        Args:
            timeout: Seconds to wait.  Without one, each record is decided within
                delivery.timeout.ms, and callbacks may run in this thread.

        Raises:
            TimeoutError: It took longer.
            ValueError: The timeout is negative.
            RuntimeError: Called inside a delivery callback.
        """
        self._check_process()
        limit_s(timeout)
        self._lifetime.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Send what is left, wait for the outcomes and their callbacks, and close.

        Failed records raise nothing here either; those whose outcome nobody asked for are logged
        as an error.  The end of a with block raises for them.  A second call does nothing, and so
        does a call in a forked child, whose parent still uses the producer.

        Args:
            timeout: Seconds to wait; records that are not delivered by then fail.  By default
                each is waited for up to delivery.timeout.ms, and callbacks for as long as they
                run.  With a timeout, a callback that blocks is given one second more.

        Raises:
            RuntimeError: Called inside a delivery callback; nothing is closed.
        """
        limit_s(timeout)
        if not self._lifetime.forked:
            self._lifetime.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; raise the first error of failed records whose outcome nobody has asked for.

        An exception that ends the block is never replaced, and waits for EXIT_TIMEOUT_S at most,
        except SystemExit: a program that ends by sys.exit() has its records sent.
        """
        if self._lifetime.forked:
            return
        self.close(exit_timeout_s(kind))
        if kind is None:
            self.check_unseen()

    def check_unseen(self) -> None:
        """Raise the first error of records that failed unseen since the last call."""
        self._sender.turn(self._sender.outcomes.check)

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
            self._sender.outcomes.tell_soon()

    def _patience_s(self) -> float:
        """How long a call may wait for room."""
        return self._block_s

    def _check_open(self) -> None:
        self._check_process()
        if not self.is_open:
            raise closed()

    def _check_process(self) -> None:
        if self._lifetime.forked:
            raise RuntimeError("A producer cannot be used after a fork; make a new one here.")
