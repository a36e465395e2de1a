"""Producer: writes records to topics.

    with Producer("127.0.0.1:9092", linger_ms=5) as producer:
        producer.send("flights", b"EWR-IAH", key="UA1545")          # a Delivery, like a future
        producer.send("flights", "JFK-MIA").result()                # waits: RecordMetadata
        producer.send_arrow("flights", table)
        producer.send_table("flights", frame, key="carrier")        # one JSON value per row

Transports: a shared memory ring to a broker on the same host, TCP otherwise.  The producer changes
between them without an effect on the API.  With enable.idempotence, batches carry a sequence, so
that a batch that is retried after an error is written once (KIP-98).

Thread-safe.  Not usable in a forked child, where its methods raise RuntimeError.  A producer that
is garbage collected without close() is flushed and closed in the background, with a
ResourceWarning; at interpreter exit, unsent records are sent within EXIT_TIMEOUT_S (lifetime.py).

on_delivery and done callbacks run in the background thread, or in a thread that is inside
result(), exception(), flush() or close() without a timeout; never inside send().  They must not
block, and cannot wait for deliveries or close the producer.  A failure whose outcome is never
requested is logged, and a with block that ends after one raises it (delivery_callbacks.py).

Records are appended to their batch by ext/client/gathering.pyx; this module holds the steps that
are needed about once per batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from kafkalite._ext.gathering import Delivery, Gatherer, Piece
from kafkalite._ext.hashing import partition_of
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, producer_settings
from kafkalite.client.producer.accumulator import Accumulator
from kafkalite.client.producer.arrow_columns import check_sizes, columns_of, layout_of
from kafkalite.client.producer.background_wakeup import BackgroundWakeup
from kafkalite.client.producer.batch_completion import BatchCompletion, OnDelivery
from kafkalite.client.producer.batch_waiter import BatchWaiter
from kafkalite.client.producer.column_batches import Deliveries, partition_rows
from kafkalite.client.producer.column_sender import GATHERED_SIZE_MAX, ColumnSender
from kafkalite.client.producer.lifetime import FORKED, ProducerLifetime, exit_timeout_s
from kafkalite.client.producer.partition_queue import PartitionQueue, ProducerTopic
from kafkalite.client.producer.partitioner import partitioner_of
from kafkalite.client.producer.payload import EncodedContent
from kafkalite.client.producer.producer_transaction import ProducerTransaction
from kafkalite.client.producer.sender import Sender
from kafkalite.client.producer.state import ProducerState
from kafkalite.client.producer.transaction_calls import TransactionCalls, transaction_calls
from kafkalite.config.client import (
    BATCH_SIZE,
    BUFFER_MEMORY,
    KEY_SERIALIZER,
    LINGER_MS,
    MAX_BLOCK_MS,
    MAX_REQUEST_SIZE,
    VALUE_SERIALIZER,
)
from kafkalite.config.client_keywords import ProducerConfig
from kafkalite.errors import KafkaError, MessageTooLarge, UnknownTopicOrPartition


def closed() -> RuntimeError:
    """Return the error of a call on a closed producer."""
    return RuntimeError("The producer is closed; create a new one to send more records.")


@hints.hinting(hints.PRODUCER)
class Producer(Gatherer):
    """Writes records to topics.

    Example:
        with Producer("127.0.0.1:9092") as producer:
            producer.send("flights", b"EWR-IAH", key="UA1545")
    """

    def __init__(self, bootstrap: Bootstrap = None, **keywords: Unpack[ProducerConfig]) -> None:
        """Open a producer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's configuration
                keys ("linger.ms": 5).
            keywords: Kafka's configuration keys with underscores.  `key_serializer` and
                `value_serializer` are functions of one argument that return bytes or str; they are
                not called for None.

        Raises:
            InvalidConfig: A key is unknown, a value is invalid, or settings contradict each other.
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
        self._state = ProducerState(settings, accumulator, self.topics, BackgroundWakeup())
        self._sender = Sender(self._state)
        self._waiter = BatchWaiter(self._sender)
        self._columns = ColumnSender(self._sender, self._waiter)
        self._block_s = settings[MAX_BLOCK_MS] / 1000
        self.is_open = True
        self._lifetime = ProducerLifetime(self, self._waiter, self._sender, self._cluster)
        self._transactions = transaction_calls(
            self._sender, self._waiter, self._cluster, self._lifetime
        )

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
        """Append a record that the open batch could not take, to a new batch."""
        self._check_open()
        state = self._state
        transaction_number = state.transaction_number
        deadline = Deadline(self._max_block_s())
        topic = self._topic(name)
        if partition is None and key is None and self.partitioner is None:
            before, queue = topic.sticky, topic.choose_sticky()
            if queue is not before and queue.open_batch is not None:
                return self.gather(name, value, key, headers, timestamp, queue.index, on_delivery)
        else:
            queue = self._queue_of(topic, key, partition)
        accumulator = state.accumulator
        size = accumulator.batch_size_for(key, value, headers)
        try:
            self._waiter.open_batch(
                queue, queue.open_batch, size, deadline.left_s, transaction_number
            )
        except UnknownTopicOrPartition:
            if partition is not None or not queue.dropped:
                raise
            # The topic was created again with fewer partitions: another one is chosen.
            return self._send_slowly(name, value, key, headers, timestamp, None, on_delivery)
        if state.transaction_number != transaction_number:  # begun after the batch was opened
            state.check_transaction(transaction_number)
        delivery: Delivery = self.gather(
            name, value, key, headers, timestamp, queue.index, on_delivery
        )
        sender = self._sender
        if not accumulator.batch_size:
            sender.locked(sender.end_batch, queue)
        elif not accumulator.linger_s:
            sender.locked(sender.send_ready_now, queue)
        self._state.callbacks.run_callbacks_soon()
        return delivery

    def _queue_of(
        self, topic: ProducerTopic, key: bytes | None, partition: int | None
    ) -> PartitionQueue:
        """Return the partition queue that the partition, the partitioner or the key selects."""
        count = len(topic.queues)
        if partition is None and self.partitioner is not None:
            partition = self.partitioner(topic.name, key, count)
        elif partition is None:
            partition = partition_of(key or b"", count)
        if not 0 <= partition < count:
            raise ValueError(f"topic {topic.name!r} has no partition {partition} among its {count}")
        queue: PartitionQueue = topic.queues[partition]
        return queue

    def _topic(self, name: str, wait_s: float | None = None) -> ProducerTopic:
        """Return the topic; look it up if it is unknown, for up to `wait_s` or max.block.ms."""
        if not isinstance(name, str):
            raise TypeError(f"a topic name must be text, not {type(name).__name__}")
        topic: ProducerTopic | None = self.topics.get(name)
        if topic is None:
            metadata = self._cluster.topic(name, self._block_s if wait_s is None else wait_s)
            topic = ProducerTopic(name, self._waiter)
            self._sender.locked(self._sender.update_metadata, topic, metadata)
            # Register it only now: Gatherer.gather() needs its partition queues.
            topic = self.topics.setdefault(name, topic)
        return topic

    def send_arrow(self, topic: str, rows: Any) -> Deliveries:
        """Send each row of an Arrow table as a record, without creating Python objects per row.

        Returns when all rows are sent or appended to a batch; a few rows wait for more up to
        linger.ms, as records of send() do.  All rows are checked before the first one is sent.

        Args:
            topic: Name of the topic.
            rows: pyarrow Table or RecordBatch, pandas or polars DataFrame, or any object with
                `__arrow_c_stream__`.  It has a column `value` (binary or string) and optionally
                `key`, `headers`, `timestamp` and `partition`; arrow_columns.py lists their types.

        Returns:
            A Deliveries with the outcomes of the rows.

        Raises:
            TypeError: The rows are not a table, or a column has another name or type.
            ValueError: A row cannot be a record, or a partition does not exist.
            MessageTooLarge: A row is larger than max.request.size or buffer.memory allows.
            BufferExhausted: buffer.memory was used up for max.block.ms.  Errors raised after
                sending has begun, like this one, have an attribute `deliveries`: the Deliveries of
                the rows sent before.
            RuntimeError: The producer is closed.
        """
        piece = self.gather_table(topic, rows)
        if piece is None:
            return self._send_columns(topic, rows)
        if not self._state.accumulator.linger_s:
            self._sender.locked(self._sender.send_ready_now, piece.batch.queue)
        return Deliveries([piece])

    def _send_columns(self, topic: str, rows: Any) -> Deliveries:
        """Send rows that are not a small table for an open batch (Gatherer.gather_table)."""
        self._check_open()
        require_pyarrow("send_arrow() and send_table() take Arrow columns")
        columns, transaction_number = self._columns, self._state.transaction_number
        self._gather_tables()
        parts = columns_of(rows)
        check_sizes(parts, columns.record_size_max)
        known = self._topic(topic)
        now_ms = time.time_ns() // 1_000_000
        runs = [run for part in parts for run in partition_rows(known, part, self.partitioner)]
        pieces: list[Piece] = []
        try:
            for run in runs:
                columns.send(run, now_ms, transaction_number, self._block_s, pieces)
        except Exception as error:
            error.deliveries = Deliveries(pieces)  # type: ignore[attr-defined]
            raise
        finally:
            self._state.callbacks.run_callbacks_soon()
        return Deliveries(pieces)

    def _gather_tables(self) -> None:
        """Have Gatherer append small tables, once pyarrow is known to be there."""
        import pyarrow as pa

        size_max = self._columns.record_size_max
        self.gather_tables(pa.Table, layout_of, size_max, GATHERED_SIZE_MAX)

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
        """Send each row of a data frame as a record whose value is the row as JSON, CSV or Avro.

            producer.send_table("readings", frame, key="sensor", timestamp="time").result()

        Args:
            topic: Name of the topic.
            frame: pyarrow Table or RecordBatch, pandas or polars DataFrame, with any columns.
            format: "json" (one object per row), "csv" (without a header line) or "avro" (the plain
                datum, without registry framing; needs fastavro).  row_encoding.py describes each
                type; NaN and infinity are null in JSON.
            key: Name of the column that holds the keys: text, binary, or a type with an exact text
                form.  A null is no key.
            timestamp: Name of the column that holds the record timestamps: timestamps of any unit,
                or integers in milliseconds.
            columns: Names of the columns in the value, in this order.  Default: all columns,
                including those of `key` and `timestamp`.
            schema: Avro only: the schema, as a dict or JSON text.  Default: derived from the
                columns.

        Returns:
            A Deliveries with the outcomes of the rows, as send_arrow().

        Raises:
            TypeError: The frame, or a column, is of a type that cannot be encoded.
            ValueError: A column or format does not exist, or a row does not fit the schema.
            MessageTooLarge: A row is larger than max.request.size allows.
            BufferExhausted: buffer.memory was used up for max.block.ms; its `deliveries` are those
                of the rows sent before.  With the other errors no row is sent.
        """
        from kafkalite.client.producer.row_encoding import records_of

        self._check_open()
        require_pyarrow("send_arrow() and send_table() take Arrow columns")
        records = records_of(
            frame, format, key=key, timestamp=timestamp, columns=columns, schema=schema
        )
        return self.send_arrow(topic, records)

    def partitions_for(self, topic: str, timeout: float | None = None) -> int:
        """Return the current number of partitions of a topic.

        An unknown topic is created by the request if brokers and client allow auto-creation.

        Args:
            topic: Name of the topic.
            timeout: Seconds to wait; None waits up to max.block.ms.

        Returns:
            The number of partitions, at least 1.

        Raises:
            KafkaError: The topic does not exist, or no broker responded in time.
            RuntimeError: The producer is closed.
        """
        self._check_open()
        known: ProducerTopic | None = self.topics.get(topic)
        if known is None:
            return len(self._topic(topic, timeout).queues)
        wait_s = self._block_s if timeout is None else timeout
        metadata = self._cluster.describe([topic], wait_s, create=False)[topic]
        if isinstance(metadata, KafkaError):
            raise metadata
        self._sender.locked(self._sender.update_metadata, known, metadata)
        return len(known.queues)

    def known_partitions(self, topic: str) -> int | None:
        """Return the number of partitions of a topic as of its last metadata, without a request.

        Args:
            topic: Name of the topic.

        Returns:
            The number of partitions; None if the topic was not looked up yet.
        """
        known: ProducerTopic | None = self.topics.get(topic)
        return None if known is None else len(known.queues)

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
        """Send records that are already encoded, as one batch.

        Args:
            topic: Name of the topic.
            partition: Partition to write to.
            batch: Buffer with uncompressed records at [61:61 + payload_size], behind space for the
                batch header; their offset deltas count from 0.  The producer owns it from now on.
            payload_size: Size of the records in bytes.
            count: Number of records.
            base_timestamp: Timestamp of the first record, in milliseconds since 1970.
            max_timestamp: Largest timestamp, in milliseconds since 1970.
            on_delivery: Called as on_delivery(error, metadata) once the outcome is known.

        Returns:
            A Delivery for the whole batch; its offset is that of the first record.

        Raises:
            MessageTooLarge: The batch is larger than max.request.size or buffer.memory.
            BufferExhausted: buffer.memory was used up for max.block.ms.
            ValueError: The partition does not exist.
        """
        self._check_open()
        transaction_number = self._state.transaction_number
        queue = self._queue_of(self._topic(topic), None, partition)
        size = HEADER_SIZE + payload_size
        accumulator = self._state.accumulator
        if size > min(accumulator.record_size_max, accumulator.memory_size):
            raise MessageTooLarge(
                f"A batch of {size} bytes is larger than max.request.size or buffer.memory allows."
            )
        content = EncodedContent(batch, payload_size, count, base_timestamp, max_timestamp)
        block_s = self._max_block_s()
        made = self._waiter.add_batch(queue, content, size, block_s, transaction_number)
        delivery = Delivery(made, 0, base_timestamp)
        if on_delivery is not None:
            made.call_on_delivery(delivery, on_delivery)
        self._state.callbacks.run_callbacks_soon()
        return delivery

    # Transactions.

    def init_transactions(self, timeout: float | None = None) -> None:
        """Fence earlier producers with this transactional id, and end their open transaction.

        The first transaction does this too.  A program that reads committed offsets and continues
        from them does it first: until then an earlier run may still commit.

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The coordinator refused, or was not available in time.
            RuntimeError: The producer has no transactional id.
        """
        calls = self._transaction_calls()
        calls.init(calls.deadline(None if timeout is None else limit_s(timeout)))

    def transaction(
        self, *, identity: ProducerIdentity | None = None, shared: bool = False
    ) -> ProducerTransaction:
        """Return a transaction, for a `with` block or explicit begin(), commit() and abort().

        Args:
            identity: Join a transaction that another producer with this transactional id shares:
                write in it, without ending it.  Each partition has one writer.
            shared: Other producers write in it under its `identity`.

        Returns:
            A ProducerTransaction that is not begun; all records sent while it is open belong to it.

        Raises:
            RuntimeError: The producer has no transactional id.
        """
        return ProducerTransaction(self._transaction_calls(), identity, shared)

    def _transaction_calls(self) -> TransactionCalls:
        self._check_open()
        if self._transactions is None:
            raise RuntimeError("Transactions need a transactional id: Producer(transactional_id=…)")
        return self._transactions

    # Flush and close.

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent so far are delivered or failed, and their callbacks have run.

        Failed records raise nothing here; their deliveries do.

        Args:
            timeout: Seconds to wait.  None: the outcome of each record is known within
                delivery.timeout.ms, and callbacks may run in this thread.

        Raises:
            TimeoutError: The timeout has passed.
            ValueError: The timeout is negative.
            RuntimeError: Called inside a delivery callback.
        """
        self._check_process()
        limit_s(timeout)
        self._lifetime.flush(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Flush, wait for callbacks, and close the producer; abort its open transaction.

        Failed records raise nothing here; those whose outcome was never requested are logged as an
        error, and raised at the end of a with block.  A second call does nothing, and so does a
        call in a forked child, whose parent still uses the producer.

        Args:
            timeout: Seconds to wait; records that are not delivered by then fail.  None: each
                record is waited for up to delivery.timeout.ms, and callbacks until they return.
                With a timeout, a callback that blocks is given one second more.

        Raises:
            RuntimeError: Called inside a delivery callback; nothing is closed.
        """
        limit_s(timeout)
        if self._lifetime.forked:
            return
        if self._transactions is not None and self.is_open:
            deadline = Deadline(math.inf if timeout is None else timeout)
            self._transactions.close(timeout)
            timeout = None if timeout is None else deadline.left_s
        self._lifetime.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; raise the first error of failed records whose outcome was never requested.

        An exception that ends the block is never replaced.  Closing then waits for EXIT_TIMEOUT_S
        at most, except for SystemExit: after sys.exit() all records are sent.
        """
        if self._lifetime.forked:
            return
        self.close(exit_timeout_s(kind))
        if kind is None:
            self.check_unseen()

    def check_unseen(self) -> None:
        """Raise the first error of records that failed unseen since the last call.

        Raises:
            KafkaError: Records failed, and the outcome of their batches was never requested.
        """
        self._sender.locked(self._state.callbacks.check)

    def metrics(self) -> dict[str, int]:
        """Return counters since the producer was opened, and current gauges.

        Returns:
            Counters: `records`, `batches`, `failed_records`, `sent_again` (retries),
            `ring_batches`, `tcp_batches`, `rings_lost`, `identities`.  Gauges: `waiting_batches`
            (without an outcome), `under_way_batches` (in flight), `buffer_memory` and
            `buffer_memory_left` (bytes), `rings`.
        """
        nodes = list(self._sender.nodes.values())
        return {**self._state.metrics(), "rings": sum(node.ring is not None for node in nodes)}

    def want(self, batch: BatchCompletion) -> None:
        """Send a batch without waiting for linger.ms.

        Args:
            batch: A batch of this producer; `Delivery.batch` is the one of a record.
        """
        batch.send_now()

    def _max_block_s(self) -> float:
        """Return the time in seconds that a call may wait for buffer memory."""
        return self._block_s

    def _check_open(self) -> None:
        self._check_process()
        if not self.is_open:
            raise closed()

    def _check_process(self) -> None:
        if self._lifetime.forked:
            raise RuntimeError(FORKED)
