"""Consumer: reads partitions as messages or as Arrow columns.

    with Consumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        for message in consumer:                        # until consumer_timeout_ms, if it is set
            print(message.offset, message.value)

        for batch in consumer.batches(timeout=5):       # pyarrow.RecordBatch
            ...
        table = consumer.to_table(start=-1000)          # pyarrow.Table of the current records

It reads all partitions of its topics, or the partitions assigned to it.  With `group` it starts at
the group's committed offsets: with topics it joins the group, which assigns the partitions; with
assigned partitions it is no member.  It reads from a node on the same host directly (`native`), and
from others over TCP.

A position, and so a commit, is the offset after the last message or batch that was returned.
Retriable errors are retried up to the timeout of the call.  Other errors are raised by class
(kafkalite.errors) and leave the position unchanged, so the next call raises them again.

Not thread-safe: one thread uses a consumer at a time.  Another thread may only close it, which ends
an iteration and makes other calls raise ClientClosed.  A forked child may only close it.  A member
has a thread that sends heartbeats; callbacks run in the thread that calls for records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.fetch_buffer import column_reader
from kafkalite.client.consumer.positioned_consumer import PositionedConsumer
from kafkalite.client.consumer.tables import Bounds, read_table, spans_of
from kafkalite.client.decoding.arrow_batches import ColumnReader
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.arguments import checked_integer
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.config.client import CHECK_CRCS
from kafkalite.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 1 << 20
"""Default size of a column batch in bytes, approximate: several thousand small records, most of
which stay in the CPU cache until they are processed."""


@hints.hinting(hints.CONSUMER)
class Consumer(PositionedConsumer):
    """Kafka consumer for topics or assigned partitions.

    Methods that need the topics' metadata (poll, consume, lag) request it; `assignment` is empty
    until then, and until a group has assigned partitions.  A timeout is in seconds; where a method
    does not say otherwise, None means default.api.timeout.ms.
    """

    # Messages.

    def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None waits without limit.  A call is up to 1 s longer while a
                broker does not respond to a connection attempt or a request for metadata, and up to
                2 s longer while an automatic commit has no response.

        Returns:
            The message, or None if none arrived in time.

        Raises:
            KafkaError: An error that is not retriable; the next call raises it again.
            RuntimeError: Nothing is subscribed or assigned, or another thread uses the consumer.
            ClientClosed: The consumer was closed.
        """
        limit = limit_s(timeout)
        if not self.buffer.waker.is_set:
            for message in self.buffer.ready:
                return message
        if not self._fill(Deadline(limit), self.buffer.fill):
            return None
        return next(self.buffer.ready, None)

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Return the next messages, waiting until there are `num_messages` or the time is up.

        Args:
            num_messages: Maximum number of messages.
            timeout: Seconds to wait; None waits for all of them.

        Returns:
            Messages in the order poll() returns them; fewer than `num_messages` when the time is
            up, when an error follows them, which the next call raises, or when a group rebalances.

        Raises:
            ValueError: `num_messages` or `timeout` is negative.
            KafkaError: An error that is not retriable.
        """
        num_messages = checked_integer(num_messages, "num_messages must be an integer")
        if num_messages < 0:
            raise ValueError(f"num_messages must be at least 0, not {num_messages}")
        deadline = Deadline(limit_s(timeout))
        messages: list[Message] = []
        fill = self.buffer.fill
        try:
            if self.buffer.waker.is_set and not self._fill(deadline, fill):
                return messages
            while True:
                messages += islice(self.buffer.ready, num_messages - len(messages))
                if len(messages) >= num_messages:
                    return messages
                # Changes of a group are applied between calls: a commit covers what was returned.
                if not (fill(deadline) if messages else self._fill(deadline, fill)):
                    return messages
        except (KafkaError, ClientClosed):
            if not messages:
                raise
            return messages  # the next call raises it again
        except BaseException:
            self._positions.rewind_to(messages)
            raise

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages, waiting for each.

        Ends after consumer.timeout.ms without a message, or when another thread closes the
        consumer.
        """
        buffer = self.buffer
        buffer.check()
        while True:
            if buffer.group is None:
                yield from buffer.ready
            else:
                yield from self._ready_of_member()
            try:
                if not self._fill(buffer.poll_deadline(None), buffer.fill):
                    return
            except ClientClosed:
                return

    def _ready_of_member(self) -> Iterator[Message]:
        """Return the messages that are ready, until something is due in the group."""
        for message in self.buffer.ready:
            yield message
            if self.buffer.waker.is_set:
                return

    def _fill(self, deadline: Deadline, fill: Callable[..., bool], *arguments: Any) -> bool:
        """Wait for records; apply the changes of a group before, and when it has others."""
        buffer = self.buffer
        while True:
            if buffer.group is not None:
                buffer.waker.clear()
                self._apply_changes()
            if fill(deadline, *arguments):
                return True
            if buffer.group is None or deadline.passed:
                return False

    # Columns.

    def batches(
        self,
        max_bytes: int = BATCH_SIZE,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator over column batches, each of one partition.

        Args:
            max_bytes: Approximate size of a batch in bytes, at least 1.  A batch is smaller if
                fewer records are available; a record batch as sent by a producer is never split.
            columns: Columns to decode, in the order given: some of key, value, topic, partition,
                offset, timestamp, timestamp_type and headers.  None: all.
            timeout: Seconds to wait for the next batch; None: consumer.timeout.ms, by default
                without limit.
            timestamp_unit: "ms", "us" or "ns".

        Returns:
            An iterator of pyarrow.RecordBatch.  It ends when no batch arrived in time, or when
            another thread closes the consumer.

        Raises:
            ImportError: pyarrow is not installed.
            InvalidConfig: An unknown column or timestamp unit.
            ValueError: `max_bytes` is less than 1.
        """
        reader = self.column_reader(columns, timestamp_unit, max_bytes)
        return self._batches(reader, max_bytes, timeout)

    def column_reader(
        self, columns: Sequence[str] | None, timestamp_unit: str, max_bytes: int = 1
    ) -> ColumnReader:
        """Return a reader of columns, as batches() and to_table() use it.

        Args:
            columns: Names of the columns; None: those of batches().
            timestamp_unit: Unit of the timestamp column, as in batches().
            max_bytes: Checked to be at least 1.

        Returns:
            The reader, with the consumer's check.crcs.

        Raises:
            ValueError: An argument is invalid.
            ImportError: pyarrow is not installed.
        """
        self.buffer.check()
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        return column_reader(columns, timestamp_unit, self.buffer.settings[CHECK_CRCS])

    def _batches(
        self, reader: ColumnReader, max_bytes: int, timeout: float | None
    ) -> Iterator[pa.RecordBatch]:
        buffer = self.buffer
        while True:
            try:
                deadline = buffer.poll_deadline(timeout)
                if not self._fill(deadline, buffer.fill_columns, reader, max_bytes):
                    return
                found = buffer.take_columns()
            except ClientClosed:
                return
            yield from found

    def to_table(
        self,
        start: Bounds = None,
        end: Bounds = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> pa.Table:
        """Return the records from `start` up to, but not including, `end` as one table.

        A bound is an offset, a negative offset counted from the end (as in a slice), a datetime
        with a time zone (the first record at or after it), None, or a mapping of (topic,
        partition) to such bounds, in which a partition without an entry has the bound None.

        Reads independently of the positions and moves none.  The table is complete: records deleted
        before they were read raise OffsetOutOfRange.  A member of a group waits for its assignment
        and reads these partitions.

        Args:
            start: First record.  None and 0: the log start offset.
            end: First record that is left out.  None: the current end; records written later are
                not waited for.
            columns: As for batches().
            timeout: Seconds for the whole read; None: no limit, but default.api.timeout.ms without
                any data.
            timestamp_unit: "ms", "us" or "ns".

        Returns:
            A pyarrow.Table, ordered by partition and then by offset.

        Raises:
            OffsetOutOfRange: `start` is below the log start offset, or records were deleted during
                the read.
            UnknownTopicOrPartition: A topic does not exist; none is created.
            UnknownTopicId: A topic was deleted and recreated during the read.
            RequestTimedOut: The table was not complete in time.
            RuntimeError: Nothing is subscribed or assigned.
            ValueError: A mapping names a partition that is not read, or a datetime has no time
                zone.
        """
        if self.buffer.group is not None:
            deadline = Deadline(self.buffer.limit_s(timeout))
            if not self._fill(deadline, self.buffer.await_stable):
                raise RequestTimedOut("The group did not assign partitions in time.")
            timeout = None if timeout is None else deadline.left_s
        return self.table(start, end, columns, timeout, timestamp_unit)

    def table(
        self,
        start: Bounds,
        end: Bounds,
        columns: Sequence[str] | None,
        timeout: float | None,
        timestamp_unit: str,
    ) -> pa.Table:
        """Return the records of the current assignment, as to_table().

        Args:
            start: As for to_table().
            end: As for to_table().
            columns: As for to_table().
            timeout: As for to_table().
            timestamp_unit: As for to_table().

        Returns:
            A pyarrow.Table.

        Raises:
            KafkaError: As for to_table().
        """
        reader = self.column_reader(columns, timestamp_unit)
        wanted = reader.schema.names
        if "offset" not in wanted:
            reader = self.column_reader([*wanted, "offset"], timestamp_unit)
        with self.buffer.locked() as buffer:
            buffer.check_assigned()
            buffer.check_topics(buffer.assignment_reader.topics, timeout)
            partitions = sorted(position.partition for position in buffer.known(timeout))
            spans = spans_of(buffer, partitions, (start, end), buffer.limit_s(timeout))
            table = read_table(buffer, spans, reader, timeout)
        return table.select(wanted)
