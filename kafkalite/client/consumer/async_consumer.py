"""AsyncConsumer: the Consumer for asyncio.

    async with AsyncConsumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        async for message in consumer:
            ...

Methods have the names and arguments of Consumer's; those that may wait are coroutines.  They run
one after the other in a thread that belongs to this consumer; messages that are already decoded are
returned without it.  A cancelled call loses nothing: what it fetched is returned by the next call.

One event loop uses it, and closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.consumer import BATCH_SIZE, Consumer
from kafkalite.client.consumer.consumer_offsets import Watermarks
from kafkalite.client.consumer.fetch_buffer import FetchCall
from kafkalite.client.consumer.tables import Bounds
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.arguments import OffsetsToCommit
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client_keywords import ConsumerConfig

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@hints.hinting(hints.CONSUMER)
class AsyncConsumer:
    """Kafka consumer for asyncio.

    The counterpart of Consumer, with the same methods except consume(); getmany() replaces it.
    A timeout is in seconds; where a method does not say otherwise, None means
    default.api.timeout.ms.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        **settings: Unpack[ConsumerConfig],
    ) -> None:
        """Create a consumer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys.
            topics: Topics of which all partitions are read, as for subscribe().
            group: Name under which offsets are committed (group.id); not together with `topics`.
            settings: Kafka's keys with underscores.

        Raises:
            InvalidConfig: As for Consumer.
        """
        self._consumer = Consumer(bootstrap, topics, group, **settings)
        self._buffer = self._consumer.buffer
        self._thread = ThreadPoolExecutor(1, "kafkalite-consumer")
        self._urgent = 0
        """Number of pending calls that take precedence over waiting for records."""
        self._waiting = False
        """True while the thread waits for records, or is about to."""

    async def close(self) -> None:
        """Close the consumer and end calls that wait in it; a second call does nothing."""
        # Not the event loop's default executor, which the application may have filled.
        closing = ThreadPoolExecutor(1, "kafkalite-consumer-close")
        try:
            await asyncio.get_running_loop().run_in_executor(closing, self._close)
        except BaseException:  # cancelled: the thread closes the consumer
            closing.shutdown(wait=False)
            raise
        closing.shutdown()

    def _close(self) -> None:
        self._consumer.close()
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        while True:
            message = self._buffer.take()
            if message is not None:
                return message
            if not await self._wait(deadline, self._buffer.fill):
                return None

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
            while (message := self._buffer.take()) is not None:
                yield message
            try:
                if not await self._wait(self._buffer.poll_deadline(None), self._buffer.fill):
                    return
            except ClientClosed:
                return

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
        before they were read raise OffsetOutOfRange.

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
        return await self._call(
            self._consumer.to_table, start, end, columns, timeout, timestamp_unit
        )

    # Subscription and positions.

    async def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics instead of the current ones.

        Partitions that are already read keep their positions.

        Args:
            topics: Names of topics.  A name that starts with ^ is a regular expression, searched
                for in the names of all topics and matched again every metadata.max.age.ms; a topic
                that appears later is read from its first record.

        Raises:
            InvalidConfig: A pattern is not a regular expression, or the consumer has a group.
        """
        await self._call(self._consumer.subscribe, topics)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the current ones.

        Partitions that are already read keep their positions.  Others start at the group's
        committed offset if there is one, else where auto.offset.reset says.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            TypeError: An element is not such a pair.
        """
        await self._call(self._consumer.assign, partitions)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, as far as they are known."""
        return self._consumer.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.paused

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next message of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            timeout: Seconds to find the first offset.

        Returns:
            The position; it counts messages that were returned, not those fetched ahead.

        Raises:
            ValueError: The partition is not assigned.
            RequestTimedOut: The first offset was not found in time.
        """
        return await self._call(self._consumer.position, partition, timeout)

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Set the position of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            offset: Offset of the next message, 0 to 2**63 - 1.

        Raises:
            ValueError: The partition is not assigned, or the offset is out of these bounds.
        """
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the log start offsets of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the current ends of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        """Set the positions to the first record at or after a time.

        Args:
            when: A datetime with a time zone, or milliseconds since 1970.
            partitions: Partitions to seek; none: all of the assignment.  A partition without such a
                record is set to its end.

        Raises:
            ValueError: The datetime has no time zone, or a partition is not assigned.
        """
        await self._call(self._consumer.seek_to_time, when, *partitions)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no messages of these partitions, or of all, until they are resumed.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these partitions, or all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.resume, *partitions)

    # Watermarks, lag and committed offsets.

    async def watermarks(
        self, partition: tuple[str, int], timeout: float | None = None
    ) -> Watermarks:
        """Return the current first and end offsets of a partition.

        Args:
            partition: (topic, partition); need not be assigned.
            timeout: Seconds to wait.

        Returns:
            Watermarks(low, high).  With isolation.level=read_committed, `high` is the last stable
            offset.

        Raises:
            UnknownTopicOrPartition: The topic or partition does not exist.
        """
        return await self._call(self._consumer.watermarks, partition, timeout)

    async def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
        """Return the current number of offsets between the positions and the ends.

        Args:
            partitions: Partitions to sum over; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            The sum over the partitions; offsets without a record count as well.

        Raises:
            UnknownTopicOrPartition: A topic does not exist.
            ValueError: A partition is not assigned.
        """
        return await self._call(self._consumer.lag, *partitions, timeout=timeout)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], datetime | int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAt | None]:
        """Return the first record at or after each time.

        Args:
            times: For each (topic, partition) a datetime with a time zone, or milliseconds since
                1970.
            timeout: Seconds to wait.

        Returns:
            OffsetAt(offset, timestamp) by partition; None if there is no such record.

        Raises:
            UnknownTopicOrPartition: A topic or partition does not exist.
            ValueError: A datetime has no time zone.
        """
        return await self._call(self._consumer.offsets_for_times, times, timeout)

    async def commit(
        self,
        offsets: OffsetsToCommit | None = None,
        timeout: float | None = None,
        *,
        offsets_to_keep: OffsetsToCommit | None = None,
    ) -> None:
        """Commit offsets for the group.

        Args:
            offsets: For each (topic, partition) the offset of the next message, or (offset,
                metadata).  None: all current positions.
            timeout: Seconds to wait.
            offsets_to_keep: Former name of `offsets`.

        Raises:
            InvalidGroupId: The consumer has no group.
            UnknownMemberId, IllegalGeneration, RebalanceInProgress: The group has members; only
                they may commit.
        """
        await self._call(self._consumer.commit, offsets, timeout, offsets_to_keep=offsets_to_keep)

    async def committed(
        self, *partitions: tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group; wait for transactions that may change them.

        Args:
            partitions: Partitions to look up; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            Offsets by partition; None where nothing is committed.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return await self._call(self._consumer.committed, *partitions, timeout=timeout)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the current positions, without a request.

        Returns:
            The offset of the next message, of each partition that has a position.
        """
        return await self._call(self._consumer.positions)

    def group_metadata(self) -> GroupMetadata:
        """Return what a transaction needs to commit offsets of this consumer's group.

        Returns:
            The group's name; this consumer is no member of it.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return self._consumer.group_metadata()

    def metrics(self) -> dict[str, Any]:
        """Return the consumer's metrics.

        Returns:
            `transports`: the transport of each node id, "direct" or "tcp" (also under its
            former name); `offset_resets`: how often auto.offset.reset was used;
            `missed_records`: offsets deleted before they were read.
        """
        return self._consumer.metrics()

    # The thread.

    async def _wait(self, deadline: Deadline, fill: Callable[..., bool], *arguments: Any) -> bool:
        """Wait for records in the thread; return False if the time is up.

        Other calls take precedence: they interrupt the wait, which restarts after them.
        """

        def waiting() -> bool:
            # _call and _submit set their flag before the waker; so clear the waker, then check.
            self._waiting = True
            try:
                self._buffer.waker.clear()
                if self._urgent or self._buffer.call.is_cancelled:
                    return False
                return fill(deadline, *arguments)
            finally:
                self._waiting = False

        while not await self._submit(waiting):
            if deadline.passed:
                return False
        return True

    async def _call(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run a call in the thread, before any wait for records."""
        self._urgent += 1
        try:
            if self._waiting:
                self._buffer.waker.set()
            return await self._submit(lambda: function(*arguments, **keywords))
        finally:
            self._urgent -= 1

    async def _submit(self, job: Callable[[], T]) -> T:
        """Run a job in the thread; mark it as cancelled if this task is cancelled."""
        self._buffer.check()
        call = FetchCall()

        def run() -> T:
            self._buffer.call = call
            return job()

        try:
            return await asyncio.wrap_future(self._thread.submit(run))
        except asyncio.CancelledError:
            call.is_cancelled = True
            self._buffer.waker.set()
            raise
