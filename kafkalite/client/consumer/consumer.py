"""Consumer: reads partitions as messages or as Arrow columns.

    with Consumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        for message in consumer:                        # until consumer_timeout_ms, if it is set
            print(message.offset, message.value)

        for batch in consumer.batches(timeout=5):       # pyarrow.RecordBatch
            ...
        table = consumer.to_table(start=-1000)          # pyarrow.Table of the current records

It reads all partitions of its topics, or the partitions assigned to it, without being a member of
a group: with `group` it commits offsets under that name and starts at the committed offsets.  It
reads from a node on the same host directly (`native`), and from others over TCP.

A position, and so a commit, is the offset after the last message or batch that was returned.
Retriable errors are retried up to the timeout of the call.  Other errors are raised by class
(kafkalite.errors) and leave the position unchanged, so the next call raises them again.

Not thread-safe: one thread uses a consumer at a time.  Another thread may only close it, which ends
an iteration and makes other calls raise ClientClosed.  A forked child may only close it.

Left out: group membership (`group` with `topics`), planned for a later version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, Unpack

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.consumer_offsets import ConsumerOffsets, Watermarks
from kafkalite.client.consumer.fetch_buffer import FetchBuffer, column_reader
from kafkalite.client.consumer.tables import Bounds, read_table, spans_of, timestamp_ms
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.arguments import (
    OffsetsToCommit,
    checked_integer,
    checked_offset,
    checked_partition,
)
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client import CHECK_CRCS
from kafkalite.config.client_keywords import ConsumerConfig
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 1 << 20
"""Default size of a column batch in bytes, approximate: several thousand small records, most of
which stay in the CPU cache until they are processed."""


@hints.hinting(hints.CONSUMER)
class Consumer:
    """Kafka consumer for topics or assigned partitions.

    Methods that need the topics' metadata (poll, consume, lag) request it; `assignment` is empty
    until then.  A timeout is in seconds; where a method does not say otherwise, None means
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
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys
                ("fetch.max.bytes": 1048576).
            topics: Topics of which all partitions are read: a name or several, as for subscribe().
                None: assign() or subscribe() follows.
            group: Name under which offsets are committed (group.id); not together with `topics`.
            settings: Kafka's keys with underscores (`auto_offset_reset="earliest"`).

        Raises:
            InvalidConfig: A setting is unknown, invalid or given twice, a topic pattern is not a
                regular expression, or `group` and `topics` are both given.
            TypeError: `topics` is not a name or a list of names.
        """
        self.buffer = FetchBuffer(bootstrap, topics, group, settings)
        """Shared with AsyncConsumer."""
        self._offsets = ConsumerOffsets(self.buffer)

    def close(self) -> None:
        """Close the consumer, from any thread; a second call does nothing."""
        self.buffer.close()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self.buffer.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Messages.

    def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None waits without limit.  A call is up to 1 s longer while a
                broker does not respond to a connection attempt or a request for metadata.

        Returns:
            The message, or None if none arrived in time.

        Raises:
            KafkaError: An error that is not retriable; the next call raises it again.
            RuntimeError: Nothing is subscribed or assigned, or another thread uses the consumer.
            ClientClosed: The consumer was closed.
        """
        limit = limit_s(timeout)
        for message in self.buffer.ready:
            return message
        self.buffer.fill(Deadline(limit))
        return next(self.buffer.ready, None)

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Return the next messages, waiting until there are `num_messages` or the time is up.

        Args:
            num_messages: Maximum number of messages.
            timeout: Seconds to wait; None waits for all of them.

        Returns:
            Messages in the order poll() returns them; fewer than `num_messages` when the time is
            up or an error follows them, which the next call raises.

        Raises:
            ValueError: `num_messages` or `timeout` is negative.
            KafkaError: An error that is not retriable.
        """
        num_messages = checked_integer(num_messages, "num_messages must be an integer")
        if num_messages < 0:
            raise ValueError(f"num_messages must be at least 0, not {num_messages}")
        deadline = Deadline(limit_s(timeout))
        messages: list[Message] = []
        try:
            while True:
                messages += islice(self.buffer.ready, num_messages - len(messages))
                if len(messages) >= num_messages or not self.buffer.fill(deadline):
                    return messages
        except (KafkaError, ClientClosed):
            if not messages:
                raise
            return messages  # the next call raises it again
        except BaseException:
            self._rewind_to(messages)
            raise

    def _rewind_to(self, messages: list[Message]) -> None:
        """Rewind to the first of these messages, which were not returned to the application."""
        with self.buffer.locked() as buffer:
            for message in reversed(messages):
                position = buffer.assignment_reader.assignment[
                    TopicPartition(message.topic, message.partition)
                ]
                buffer.discard(position)
                position.seek(message.offset)

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages, waiting for each.

        Ends after consumer.timeout.ms without a message, or when another thread closes the
        consumer.
        """
        buffer = self.buffer
        buffer.check()
        while True:
            yield from buffer.ready
            try:
                if not buffer.fill(buffer.poll_deadline(None)):
                    return
            except ClientClosed:
                return

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
                if not buffer.fill_columns(buffer.poll_deadline(timeout), reader, max_bytes):
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

    # Subscription and positions.

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics instead of the current ones.

        Partitions that are already read keep their positions.

        Args:
            topics: Names of topics.  A name that starts with ^ is a regular expression, searched
                for in the names of all topics and matched again every metadata.max.age.ms; a topic
                that appears later is read from its first record.

        Raises:
            InvalidConfig: A pattern is not a regular expression, or the consumer has a group.
        """
        with self.buffer.locked() as buffer:
            buffer.subscribe(topics)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the current ones.

        Partitions that are already read keep their positions.  Others start at the group's
        committed offset if there is one, else where auto.offset.reset says.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            TypeError: An element is not such a pair.
        """
        with self.buffer.locked() as buffer:
            wanted = [checked_partition(each) for each in partitions]
            buffer.discard()
            buffer.assignment_reader.assign(wanted)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, as far as they are known."""
        return [position.partition for position in self.buffer.assignment_reader.assignment]

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return [p.partition for p in self.buffer.assignment_reader.assignment if p.paused]

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
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
        with self.buffer.locked() as buffer:
            buffer.settle()
            (position,) = buffer.known(timeout, [partition], resolved=True)
            assert position.offset is not None
            return position.offset

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Set the position of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            offset: Offset of the next message, 0 to 2**63 - 1.

        Raises:
            ValueError: The partition is not assigned, or the offset is out of these bounds.
        """
        offset = checked_offset(offset, "an offset")
        with self.buffer.locked() as buffer:
            (position,) = buffer.known(None, [partition])
            buffer.discard(position)
            position.seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the log start offsets of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._seek(EARLIEST, partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the current ends of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        self._seek(LATEST, partitions)

    def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        """Set the positions to the first record at or after a time.

        Args:
            when: A datetime with a time zone, or milliseconds since 1970.
            partitions: Partitions to seek; none: all of the assignment.  A partition without such a
                record is set to its end.

        Raises:
            ValueError: The datetime has no time zone, or a partition is not assigned.
        """
        self._seek(timestamp_ms(when), partitions)

    def _seek(self, start: int, partitions: Sequence[tuple[str, int]]) -> None:
        with self.buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                buffer.discard(position)
                position.restart(start)
            buffer.known(None, partitions, resolved=True)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no messages of these partitions, or of all, until they are resumed.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        with self.buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                buffer.discard(position)
                position.rewind()
                position.paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these partitions, or all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        with self.buffer.locked() as buffer:
            for position in buffer.known(None, partitions):
                position.paused = False

    # Watermarks and lag.

    def watermarks(self, partition: tuple[str, int], timeout: float | None = None) -> Watermarks:
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
        return self._offsets.watermarks(partition, timeout)

    def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
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
        return self._offsets.lag(partitions, timeout)

    def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | int],
        timeout: float | None = None,
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
        timestamps: dict[tuple[str, int], int] = {
            checked_partition(partition): timestamp_ms(when) for partition, when in times.items()
        }
        return self._offsets.at_timestamps(timestamps, timeout)

    # Committed offsets.

    def commit(
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
        if None not in (offsets, offsets_to_keep):
            raise TypeError("pass either offsets or offsets_to_keep, its former name, not both")
        self._offsets.commit(offsets_to_keep if offsets is None else offsets, timeout)

    def committed(
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
        return self._offsets.committed(partitions, timeout)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the current positions, without a request.

        Returns:
            The offset of the next message, of each partition that has a position.
        """
        return self._offsets.positions()

    def group_metadata(self) -> GroupMetadata:
        """Return what a transaction needs to commit offsets of this consumer's group.

        Returns:
            The group's name; this consumer is no member of it.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return GroupMetadata(self._offsets.group())

    def metrics(self) -> dict[str, Any]:
        """Return the consumer's metrics.

        Returns:
            `transports`: the transport of each node id, "direct" or "tcp" (also under its
            former name); `offset_resets`: how often auto.offset.reset was used;
            `missed_records`: offsets deleted before they were read.
        """
        assignment_reader = self.buffer.assignment_reader
        kinds = assignment_reader.transports.kinds
        return {
            "transports": kinds,
            "lanes": dict(kinds),
            "offset_resets": assignment_reader.resets,
            "missed_records": assignment_reader.missed_records,
        }
