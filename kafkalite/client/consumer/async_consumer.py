"""AsyncConsumer: the Consumer for asyncio.

    async with AsyncConsumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        async for message in consumer:
            ...

Methods have the names and arguments of Consumer's; those that may wait are coroutines.  They run
one after the other in a thread that belongs to this consumer; messages that are already decoded are
returned without it.  A cancelled call loses nothing: what it fetched is returned by the next call.
Rebalance callbacks are called in the event loop, and awaited if they are coroutine functions.

One event loop uses it, and closes it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.async_positioned_consumer import AsyncPositionedConsumer
from kafkalite.client.consumer.consumer import BATCH_SIZE
from kafkalite.client.consumer.tables import Bounds
from kafkalite.client.decoding.arrow_batches import ColumnReader
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import RequestTimedOut

if TYPE_CHECKING:
    import pyarrow as pa


@hints.hinting(hints.CONSUMER)
class AsyncConsumer(AsyncPositionedConsumer):
    """Kafka consumer for asyncio.

    The counterpart of Consumer, with the same methods except consume(); getmany() replaces it.
    A timeout is in seconds; where a method does not say otherwise, None means
    default.api.timeout.ms.
    """

    # Messages and columns.

    async def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The message, or None if none arrived in time.

        Raises:
            KafkaError: An error that is not retriable; the next call raises it again.
            RuntimeError: Nothing is subscribed or assigned.
            ClientClosed: The consumer was closed.
        """
        deadline = Deadline(limit_s(timeout))
        message = self._take()
        while message is None and await self._wait(deadline, self._buffer.fill):
            message = self._buffer.take()
        return message

    async def getmany(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Message]]:
        """Return the messages that are decoded, by partition, waiting for the first one.

        Args:
            timeout: Seconds to wait for the first message; None waits without limit.
            max_records: Maximum number of messages; None: all that are decoded.

        Returns:
            Lists of messages by partition; empty if none arrived in time.

        Raises:
            ValueError: `max_records` is less than 1.
            KafkaError: An error that is not retriable.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records must be at least 1, not {max_records}")
        found: dict[TopicPartition, list[Message]] = {}
        message = await self.poll(timeout)
        count = 0
        while message is not None:
            place = TopicPartition(message.topic, message.partition)
            found.setdefault(place, []).append(message)
            count += 1
            message = self._buffer.take() if count != max_records else None
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages; ends as iteration over a Consumer does."""
        self._buffer.check()
        while True:
            while (message := self._take()) is not None:
                yield message
            try:
                if not await self._wait(self._buffer.poll_deadline(None), self._buffer.fill):
                    return
                if (message := self._buffer.take()) is not None:
                    yield message
            except ClientClosed:
                return

    def _take(self) -> Message | None:
        """Return a message that is ready, unless something is due in the group."""
        buffer = self._buffer
        return None if buffer.group is not None and buffer.waker.is_set else buffer.take()

    def batches(
        self,
        max_bytes: int = BATCH_SIZE,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> AsyncIterator[pa.RecordBatch]:
        """Return an asynchronous iterator over column batches, each of one partition.

        Args:
            max_bytes: Approximate size of a batch in bytes, at least 1.  A batch is smaller if
                fewer records are available; a record batch as sent by a producer is never split.
            columns: Columns to decode, in the order given: some of key, value, topic, partition,
                offset, timestamp, timestamp_type and headers.  None: all.
            timeout: Seconds to wait for the next batch; None: consumer.timeout.ms, by default
                without limit.
            timestamp_unit: "ms", "us" or "ns".

        Returns:
            An asynchronous iterator of pyarrow.RecordBatch.  It ends when no batch arrived in time,
            or when the consumer is closed.

        Raises:
            ImportError: pyarrow is not installed.
            InvalidConfig: An unknown column or timestamp unit.
            ValueError: `max_bytes` is less than 1.
        """
        reader = self._consumer.column_reader(columns, timestamp_unit, max_bytes)
        return self._batches(reader, max_bytes, timeout)

    async def _batches(
        self, reader: ColumnReader, max_bytes: int, timeout: float | None
    ) -> AsyncIterator[pa.RecordBatch]:
        buffer = self._buffer
        while True:
            try:
                if not await self._wait(
                    buffer.poll_deadline(timeout), buffer.fill_columns, reader, max_bytes
                ):
                    return
                found = buffer.take_columns()
            except ClientClosed:
                return
            for batch in found:
                yield batch

    async def to_table(
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
        if self._buffer.group is not None:
            deadline = Deadline(self._buffer.limit_s(timeout))
            if not await self._wait(deadline, self._buffer.await_stable):
                raise RequestTimedOut("The group did not assign partitions in time.")
            timeout = None if timeout is None else deadline.left_s
        return await self._call(self._consumer.table, start, end, columns, timeout, timestamp_unit)
