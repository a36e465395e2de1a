"""Consumer: reads partitions, message by message or in columns.

    with Consumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        for message in consumer:                        # never ends; consumer_timeout_ms ends it
            print(message.offset, message.value)

        for batch in consumer.batches(timeout=5):       # pyarrow.RecordBatch
            ...
        table = consumer.to_table(start=-1000)          # pyarrow.Table of what is there now

It reads all partitions of its topics, or those it is assigned, and is no member of a group: with
`group` it commits offsets under that name and begins where they say.  A node on this host is read
directly (`native`), every other over TCP, and neither can be told from the other by what comes.

What the caller was given is what counts: a position is behind the last message or batch given, and
so is a commit.  Faults that pass are waited for, up to the timeout of the call; others are raised
by class (kafkalite.errors) and leave the position where it is, so the next call raises them again.

One thread uses it at a time; another one may only close it, which ends an iteration and makes any
other call raise Closed.  A child made by fork may only close it.

Left out: membership of a group (`group` with `topics`) comes with a later version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer import offsets
from kafkalite.client.consumer.arguments import (
    integer,
    offset_given,
    offsets_to_commit,
    partition_named,
)
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.fetch_buffer import Intake, column_reader
from kafkalite.client.consumer.offsets import OffsetAt
from kafkalite.client.consumer.tables import Bounds, read_table, spans_of, timestamp_ms
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.cluster import Closed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client import CHECK_CRCS, GROUP_ID
from kafkalite.errors import (
    IllegalGeneration,
    InvalidGroupId,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_SIZE = 1 << 20
"""About how many bytes of columns a batch has, if nobody says: several thousand small records, and
most of it stays in the cache until it is looked at."""


class Watermarks(NamedTuple):
    """The offsets a partition can be read from and up to; the record at `high` is yet to come."""

    low: int
    high: int


@hints.hinting(hints.CONSUMER)
class Consumer:
    """Reads `topics`, or what it is assigned; other keywords are Kafka's settings.

    A topic that begins with ^ is a pattern (subscribe).  `assignment` is empty until the topics are
    known, which poll, consume and lag see to.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        **settings: Any,
    ) -> None:
        self.intake = Intake(bootstrap, topics, group, settings)
        """The inside, for AsyncConsumer."""

    def close(self) -> None:
        """End it, from any thread; closing twice is nothing."""
        self.intake.close()

    @property
    def closed(self) -> bool:
        return self.intake.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Messages.

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none has come within `timeout` seconds (None: wait)."""
        limit = limit_s(timeout)
        for message in self.intake.ready:
            return message
        self.intake.fill(Deadline(limit))
        return next(self.intake.ready, None)

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        """Return the next messages, waiting until there are as many or the time is up.

        Args:
            num_messages: How many at the most.
            timeout: Seconds to wait; None waits for all of them.

        Returns:
            Messages in the order they would be polled; fewer when the time is up.

        Raises:
            ValueError: `num_messages` or `timeout` is negative.
        """
        num_messages = integer(num_messages, "num_messages is an integer")
        if num_messages < 0:
            raise ValueError(f"num_messages is at least 0, not {num_messages}")
        deadline = Deadline(limit_s(timeout))
        messages: list[Message] = []
        try:
            while True:
                messages += islice(self.intake.ready, num_messages - len(messages))
                if len(messages) >= num_messages or not self.intake.fill(deadline):
                    return messages
        except (KafkaError, Closed):
            if not messages:
                raise
            return messages  # the next call raises it again
        except BaseException:
            self._give_back(messages)
            raise

    def _give_back(self, messages: list[Message]) -> None:
        """Have messages come again that the caller was not given."""
        with self.intake.entered() as intake:
            for message in reversed(messages):
                position = intake.reading.assignment[
                    TopicPartition(message.topic, message.partition)
                ]
                intake.take_back(position)
                position.seek(message.offset)

    def __iter__(self) -> Iterator[Message]:
        """Message after message, waiting for each; ends after consumer.timeout.ms without one, or
        when another thread closes the consumer."""
        intake = self.intake
        intake.check()
        while True:
            yield from intake.ready
            try:
                if not intake.fill(intake.patience(None)):
                    return
            except Closed:
                return

    # Columns.

    def batches(
        self,
        max_bytes: int = BATCH_SIZE,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> Iterator[pa.RecordBatch]:
        """Columns of records, a pyarrow.RecordBatch after another, each of one partition.

        Only the `columns` named are decoded: key, value, topic, partition, offset, timestamp,
        timestamp_type, headers.  A batch has about `max_bytes`, or fewer when fewer are there; what
        a producer sent as one is never divided.  It ends when none has come for `timeout` seconds
        (None: never, or consumer.timeout.ms), or when another thread closes the consumer.
        """
        reader = self.column_reader(columns, timestamp_unit, max_bytes)
        return self._batches(reader, max_bytes, timeout)

    def column_reader(
        self, columns: Sequence[str] | None, timestamp_unit: str, max_bytes: int = 1
    ) -> ColumnReader:
        """A reader of these columns, for batches() and to_table()."""
        self.intake.check()
        if max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {max_bytes}")
        return column_reader(columns, timestamp_unit, self.intake.settings[CHECK_CRCS])

    def _batches(
        self, reader: ColumnReader, max_bytes: int, timeout: float | None
    ) -> Iterator[pa.RecordBatch]:
        intake = self.intake
        while True:
            try:
                if not intake.fill_columns(intake.patience(timeout), reader, max_bytes):
                    return
                found = intake.take_columns()
            except Closed:
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
        """The records from `start` up to, without, `end`, as a pyarrow.Table: partition after
        partition, each in the order of its offsets.

        A bound is an offset; a negative one counts from the end, as in a slice; a datetime with its
        time zone stands for the first record at or after it.  A mapping gives each partition its
        own, and partitions without one are read whole.  None is the first record there is, or the
        end as it is now: what is written later is not waited for.

        It reads beside the positions and moves none, so it can be asked again.  The table is whole:
        what is gone before it was read is OffsetOutOfRange, and so is a `start` that is not there
        any more (0 and None are wherever the log begins).  It takes at most `timeout` seconds;
        without one, it gives up when nothing has come for default.api.timeout.ms.
        """
        reader = self.column_reader(columns, timestamp_unit)
        wanted = reader.schema.names
        if "offset" not in wanted:
            reader = self.column_reader([*wanted, "offset"], timestamp_unit)
        with self.intake.entered() as intake:
            intake.check_topics(intake.reading.topics, timeout)
            partitions = sorted(position.partition for position in intake.known(timeout))
            spans = spans_of(intake, partitions, (start, end), intake.limit_s(timeout))
            table = read_table(intake, spans, reader, timeout)
        return table.select(wanted)

    # Where it reads.

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics, in the place of whatever was read before.

        Partitions that were read before go on where they are.

        Args:
            topics: Names of topics.  One that begins with ^ is a regular expression, searched for
                in the names of all topics, again every metadata.max.age.ms; of a topic that
                appears later all records are read.

        Raises:
            InvalidConfig: A pattern is no regular expression.
        """
        with self.intake.entered() as intake:
            intake.subscribe(topics)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, in the place of whatever was read before.

        Those that were read before go on where they are; others begin at the group's committed
        offset, if there is a group and it has one, else as auto.offset.reset says.
        """
        with self.intake.entered() as intake:
            wanted = [partition_named(each) for each in partitions]
            intake.take_back()
            intake.reading.assign(wanted)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, as far as they are known."""
        return [position.partition for position in self.intake.reading.assignment]

    @property
    def paused(self) -> list[TopicPartition]:
        return [p.partition for p in self.intake.reading.assignment if p.paused]

    def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """The offset of the next message of this partition."""
        with self.intake.entered() as intake:
            intake.settle()
            (position,) = intake.known(timeout, [partition], begun=True)
            assert position.offset is not None
            return position.offset

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Go on at this offset of the partition."""
        offset = offset_given(offset, "an offset")
        with self.intake.entered() as intake:
            (position,) = intake.known(None, [partition])
            intake.take_back(position)
            position.seek(offset)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Go on at the first record there is of these partitions, or of all."""
        self._seek(EARLIEST, partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Go on behind the last record there is now of these partitions, or of all."""
        self._seek(LATEST, partitions)

    def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        """Go on at the first record at or after this time, a datetime with its time zone or
        milliseconds since 1970, of these partitions, or of all; at the end where there is none."""
        self._seek(timestamp_ms(when), partitions)

    def _seek(self, start: int, partitions: Sequence[tuple[str, int]]) -> None:
        with self.intake.entered() as intake:
            for position in intake.known(None, partitions):
                intake.take_back(position)
                position.restart(start)
            intake.known(None, partitions, begun=True)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Give nothing of these partitions, or of any, until they are resumed."""
        with self.intake.entered() as intake:
            for position in intake.known(None, partitions):
                intake.take_back(position)
                position.rewind()
                position.paused = True

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Go on with these partitions, or with all."""
        with self.intake.entered() as intake:
            for position in intake.known(None, partitions):
                position.paused = False

    # What the partitions hold.

    def watermarks(self, partition: tuple[str, int], timeout: float | None = None) -> Watermarks:
        """The first offset there is and the one behind the last, as they are now."""
        place = partition_named(partition)
        with self.intake.entered() as intake:
            intake.check_topics([place.topic], timeout)
            return self._watermarks([place], timeout)[0]

    def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
        """How many offsets lie between the positions and the ends of these partitions, or of all,
        as they are now."""
        with self.intake.entered() as intake:
            intake.settle()
            intake.check_topics(intake.reading.topics, timeout)
            wanted = dict.fromkeys(map(partition_named, partitions))
            positions = intake.known(timeout, tuple(wanted), begun=True)
            ends = self._watermarks([position.partition for position in positions], timeout)
            return sum(
                max(0, end.high - (position.offset or 0))
                for position, end in zip(positions, ends, strict=True)
            )

    def _watermarks(
        self, partitions: Sequence[tuple[str, int]], timeout: float | None
    ) -> list[Watermarks]:
        lows = self._offsets_at(dict.fromkeys(partitions, EARLIEST), timeout)
        highs = self._offsets_at(dict.fromkeys(partitions, LATEST), timeout)
        return [Watermarks(lows[each].offset, highs[each].offset) for each in lows]

    def _offsets_at(
        self, sought: Mapping[tuple[str, int], int], timeout: float | None
    ) -> dict[TopicPartition, OffsetAt]:
        intake = self.intake
        level = intake.reading.lanes.isolation_level
        return offsets.list_offsets(intake.cluster, sought, level, intake.limit_s(timeout))

    def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | int],
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAt | None]:
        """The first record at or after each time, its offset and timestamp; None without one."""
        sought: dict[tuple[str, int], int] = {
            partition_named(place): timestamp_ms(when) for place, when in times.items()
        }
        with self.intake.entered() as intake:
            intake.check_topics((topic for topic, _ in sought), timeout)
            found = self._offsets_at(sought, timeout)
        return {place: at if at.offset >= 0 else None for place, at in found.items()}

    # Offsets of the group.

    def commit(
        self,
        offsets_to_keep: Mapping[tuple[str, int], int | tuple[int, str | None]] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Keep under the group's name where to go on: these offsets, or all positions.

        The consumer is no member; a group that has members refuses it.
        """
        group = self._group()
        wanted = None if offsets_to_keep is None else offsets_to_commit(offsets_to_keep)
        with self.intake.entered() as intake:
            intake.settle()
            if wanted is None:
                wanted = {
                    position.partition: position.offset
                    for position in intake.reading.assignment
                    if position.offset is not None
                }
            try:
                offsets.commit(intake.cluster, group, wanted, intake.limit_s(timeout))
            except (UnknownMemberId, IllegalGeneration, RebalanceInProgress) as fault:
                raise type(fault)(
                    f"Group {group!r} has members, who alone may commit its offsets; this consumer"
                    " is none.  Choose another name, or end the members."
                ) from None

    def committed(
        self, *partitions: tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The offsets that are kept for these partitions, or for all; None where there is none."""
        group = self._group()
        with self.intake.entered() as intake:
            chosen = [partition_named(each) for each in partitions] or [
                each.partition for each in intake.reading.assignment
            ]
            return offsets.committed(intake.cluster, group, chosen, intake.limit_s(timeout))

    def _group(self) -> str:
        group = self.intake.settings[GROUP_ID]
        if group is None:
            raise InvalidGroupId("Offsets are kept under a name: give the consumer a group.")
        return group

    def metrics(self) -> dict[str, Any]:
        """Return how each node is read (`direct` or `tcp`), how often auto.offset.reset was used,
        and how many offsets were deleted before they were read."""
        reading = self.intake.reading
        return {
            "lanes": reading.lanes.ways,
            "offset_resets": reading.resets,
            "missed_records": reading.missed_records,
        }
