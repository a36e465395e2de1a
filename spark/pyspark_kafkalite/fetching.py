"""The records of one range of offsets, as the Arrow batches that Spark takes.

    key            binary
    value          binary
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]
    timestampType  int32
    headers        list<element: struct<key: string, value: binary>>, null where there are none

or those of them that are asked for, in the order in which they are; only those are decoded.

    start ≤ offset < end        a gap may be anywhere, also at the end: compaction, markers of
                                transactions, records of those that were aborted

What is gone is a DataLoss, or a warning and the rest of the range, as `fail_on_data_loss` says:

    A  the log begins later than the range        its start was deleted
    B  the log ends before the range does         it was cut, or made anew
    C  the topic or the partition is gone
    D  the topic is another one by its id         nothing of the range is there any more

When nothing arrives for a moment, the leader is asked what is there: so a range that ends in a gap
ends, and one that waits for a transaction or a leader waits.

Connections are kept for the next range, by process and settings.  While a batch is with the caller
the next fetch is on its way, and none is made that begins behind the range.

Left out: one range is read at a time, so the first fetch of a range waits for the last record of
the one before.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite.client.consumer import offsets
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.assignment_reader import Reading
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import NOWHERE, Position, shown
from kafkalite.client.consumer.record_range import ShortRead, Stretch
from kafkalite.client.consumer.tables import cut
from kafkalite.client.consumer.tcp_fetcher import BY_NAME_MAX
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.settings import consumer_settings
from kafkalite.client.net.topology import NOBODY, TopicPartition, fault_of
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import CHECK_CRCS
from kafkalite.errors import (
    KafkaError,
    OffsetOutOfRange,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark_kafkalite.offsets import OffsetRange

ROWS_MAX = 32_768
STEP_SIZE = 2 << 20
"""About how many bytes of columns are decoded at once."""
BATCH_SIZE_MAX = 4 << 20
"""About how many bytes a batch has; a record that is larger is one by itself."""

STALL_S = 1.0
"""How long nothing comes before the leader is asked why."""
LAG_S = 2.0
"""How long a node may not have heard yet of a topic, or of how far others have written."""
PROBE_S_MAX = 10.0
GAP_WAIT_MS = 2_000
"""Time that a leader without records for an offset is given before the gap is accepted: a leader
that reads a segment from remote storage first answers that there is nothing."""
IDLE_S_MAX = 60.0
"""How long connections are kept that nobody uses; brokers close them after some minutes."""
IDLE_MAX = 4
RANGES_MAX = 1_000
"""After how many ranges a reader is made anew: it remembers a little of each."""

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER)),
}
"""Of each column, as Spark's own `to_arrow_schema(schema, timezone="UTC")` has it."""

COLUMNS = tuple(name for name in TYPES if name != "headers")
"""What is read if nobody says."""

ADVICE = (
    "If the rest is to be read without them, set failOnDataLoss to false; if not, begin a new query"
    " with a new checkpoint or other startingOffsets."
)

log = logging.getLogger("pyspark_kafkalite")


class DataLoss(ValueError):
    """Records of a range are no longer there."""


def fetched(
    wanted: OffsetRange,
    columns: Sequence[str],
    settings: Mapping[str, str],
    *,
    fail_on_data_loss: bool = True,
    topic_id: bytes | None = None,
    timeout_s: float = 120.0,
) -> Iterator[pa.RecordBatch]:
    """The records of a range, in order: batches of some 2 MB and at most 32,768 rows.

    `settings` are a consumer's, by Kafka's names.  RequestTimedOut when nothing comes for
    `timeout_s`; DataLoss when what was wanted is gone.
    """
    spark_columns = SparkColumns(columns)
    if wanted.start >= wanted.end:
        return
    topic_id = topic_id or getattr(wanted, "topic_id", None)
    with lent(settings) as reader:
        yield from Pass(reader, wanted, topic_id, fail_on_data_loss, timeout_s).run(spark_columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([(name, TYPES[name]) for name in checked(columns, TYPES)])


def checked(columns: Sequence[str], known: Collection[str]) -> list[str]:
    """Names of columns as they were asked for; ValueError unless they are different and known."""
    names = list(columns)
    if isinstance(columns, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"columns are a list of different names, not {columns!r}.")
    for name in names:
        if name not in known:
            raise ValueError(f"There is no column {name!r}; there are {', '.join(known)}.")
    return names


# Columns.


class SparkColumns:
    """What the decoder gives, in Spark's types.  Cheap by batch, and nothing by row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = schema_of(columns)
        names = ["timestamp_type" if n == "timestampType" else n for n in self.schema.names]
        self._names = names
        self._decoded = names if "offset" in names else [*names, "offset"]

    def reader(self, check_crcs: bool) -> ColumnReader:
        return ColumnReader(self._decoded, "us", check_crcs)

    def taken(
        self, reader: ColumnReader, partition: TopicPartition, end: int
    ) -> Iterator[pa.RecordBatch]:
        """What was decoded, as far as it comes before `end`."""
        for batch in cut(reader.take(*partition), end):
            rows = rows_of(batch)
            for start in range(0, len(batch), rows):
                yield self._turned(batch.slice(start, rows))

    def _turned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[pa.Array[Any]] = []
        for name in self._names:
            array = batch.column(name)
            if name == "timestamp_type":
                array = array.cast(pa.int32())
            elif name == "headers":
                array = headers_of(array)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def rows_of(batch: pa.RecordBatch) -> int:
    """How many rows of it make a batch for Spark."""
    size: int = batch.nbytes
    if size <= BATCH_SIZE_MAX:
        return ROWS_MAX
    rows = len(batch) * BATCH_SIZE_MAX // size
    return max(1, min(ROWS_MAX, rows))


def headers_of(array: pa.Array[Any]) -> pa.Array[Any]:
    """Lists of headers over the same memory, where a record without any has null."""
    some = pc.greater(pc.list_value_length(array), 0)
    kind = TYPES["headers"]
    if not array.offset:
        _, places = array.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(array), [some.buffers()[1], places], -1, 0, [array.values]
        )
    # Bits begin at bytes, and this batch amid one: what comes before it is told to be there.
    filler = pa.repeat(pa.scalar(True), array.offset)
    bits = pa.concat_arrays([filler, some]).buffers()[1]
    places = array.buffers()[1]
    return pa.Array.from_buffers(
        kind, len(array), [bits, places], -1, array.offset, [array.values]
    )


# Readers that are kept.


class RangeReader:
    """A reading with its connections, for one range after another.  One at a time."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = consumer_settings(None, settings)
        self.cluster = Cluster(self.settings)
        self.waker = Waker()
        self.reading = Reading(self.cluster, self.settings, "fetch", self.waker, strict=True)
        self.ranges = 0
        self.since_s = 0.0
        self.clean = True
        """Whether nothing is outstanding."""

    def close(self) -> None:
        self.reading.close()
        self.cluster.close()
        self.waker.close()


class Idle:
    """The readers that nobody uses now, by settings; of this process alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[frozenset[tuple[str, str]], list[RangeReader]] = {}

    def take(self, settings: Mapping[str, str]) -> RangeReader:
        before_s = time.monotonic() - IDLE_S_MAX
        with self._lock:
            kept = self._readers.get(frozenset(settings.items()), [])
            found = kept.pop() if kept else None
            old = [each for readers in self._readers.values() for each in readers
                   if each.since_s < before_s]  # fmt: skip
            for key, readers in list(self._readers.items()):
                self._readers[key] = [each for each in readers if each.since_s >= before_s]
                if not self._readers[key]:
                    del self._readers[key]
        for each in old:
            each.close()
        if found is not None and found.since_s < before_s:
            found.close()
            found = None
        return found or RangeReader(settings)

    def give(self, settings: Mapping[str, str], reader: RangeReader) -> None:
        reader.ranges += 1
        reader.since_s = time.monotonic()
        if reader.clean and reader.ranges < RANGES_MAX:
            with self._lock:
                kept = self._readers.setdefault(frozenset(settings.items()), [])
                if len(kept) < IDLE_MAX:
                    kept.append(reader)
                    return
        reader.close()

    def close(self) -> None:
        with self._lock:
            readers = [each for them in self._readers.values() for each in them]
            self._readers.clear()
        for reader in readers:
            reader.close()

    def leave(self) -> None:
        """After a fork, in the child: the parent's connections are the parent's."""
        self._lock = threading.Lock()
        self.close()


_idle = Idle()
atexit.register(_idle.close)
os.register_at_fork(after_in_child=_idle.leave)


@contextlib.contextmanager
def lent(settings: Mapping[str, str]) -> Iterator[RangeReader]:
    """A reader for one range; kept afterwards, unless it was left amid the range."""
    reader = _idle.take(settings)
    try:
        yield reader
    except BaseException:  # a task that is killed, or wants no more, closes the generator
        reader.close()
        raise
    _idle.give(settings, reader)


# One range.


class Bounded(Position):
    """A position behind whose end nothing is asked for."""

    __slots__ = ("end",)

    def __init__(self, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(partition, NOWHERE)
        self.end = end
        self.seek(start)

    @property
    def fetchable(self) -> bool:
        return self.ahead < self.end and super().fetchable


class State(NamedTuple):
    """What the leader says of the log, from a position on."""

    holds_more: bool
    high_watermark: int
    readable_end: int
    """The high watermark, or for who reads what is committed the last stable offset."""
    log_start_offset: int


class Gone(Exception):
    """Some of the range is not there; the rest of it begins at `goes_on` (its end: nowhere)."""

    def __init__(self, why: str, goes_on: int) -> None:
        super().__init__(why)
        self.goes_on = goes_on


class Pass:
    """One reading of one range."""

    def __init__(
        self,
        reader: RangeReader,
        wanted: OffsetRange,
        topic_id: bytes | None,
        fail_on_data_loss: bool,
        timeout_s: float,
    ) -> None:
        self.reader = reader
        self.partition = TopicPartition(wanted.topic, wanted.partition)
        self.start, self.end = wanted.start, wanted.end
        self.position = Bounded(self.partition, self.start, self.end)
        self._topic_id = topic_id
        self._strict = fail_on_data_loss
        self._timeout_s = timeout_s
        self._patience = Deadline(timeout_s)
        self._short_until: Deadline | None = None
        """When the log, if it is still too short then, is believed to be so."""
        self._why = "the leader says nothing"

    def run(self, columns: SparkColumns) -> Iterator[pa.RecordBatch]:
        decoder = columns.reader(self.reader.settings[CHECK_CRCS])
        self.reader.clean = False
        begun = False
        while not self.done:
            try:
                if not begun:
                    self._begin()
                    begun = True
                self._step(decoder)
            except Gone as gone:
                self._lose(gone)
            except UnknownTopicOrPartition as fault:
                # A node that lags may say so amid a range; one that says so for long is right.
                if begun:
                    begun, self._why = False, str(fault)
                    self._check_patience()
                    self.reader.cluster.rest(0.1)
                else:
                    self._lose(Gone(str(fault), self.end))
            except UnknownTopicId as fault:
                self._lose(Gone(str(fault), self.end))
            for batch in columns.taken(decoder, self.partition, self.end):
                yield batch
                # What the caller took is not the broker's time.
                self._patience = Deadline(self._timeout_s)
        # A fetch that is on its way would be in the way of the next range.
        self.reader.clean = self.position.ahead >= self.end
        self.reader.reading.assign(())

    @property
    def done(self) -> bool:
        assert self.position.offset is not None
        return self.position.offset >= self.end

    def _begin(self) -> None:
        """Have the topic known, and be the one that was planned for."""
        reading = self.reader.reading
        lag = Deadline(LAG_S)
        while True:
            reading.assign(())
            reading.assign([self.partition])
            reading.assignment.positions[self.partition] = self.position
            try:
                reading.await_offsets((), self._patience)
                break
            except UnknownTopicOrPartition:
                if lag.passed:
                    raise
            self.reader.cluster.rest(0.1)
        known = self.position.topic_id
        if self._topic_id and known != NO_ID and known != self._topic_id != NO_ID:
            raise Gone(f"topic {self.partition.topic!r} was deleted and made again", self.end)

    def _step(self, decoder: ColumnReader) -> None:
        """Decode what comes next, or find out why nothing does."""
        reading = self.reader.reading
        stretch: Stretch | None = None
        try:
            stretch = reading.stretch(self._patience.within(STALL_S))
            if stretch is None:
                self._ask_why()
                return
            self._decode(stretch, decoder)
        except ShortRead:
            assert stretch is not None
            reading.again(stretch)
        except OffsetOutOfRange:
            self._look_for_bounds()

    def _decode(self, stretch: Stretch, decoder: ColumnReader) -> None:
        more = decode(stretch, decoder.builder, STEP_SIZE)
        position = self.position
        if stretch.first_offset != position.offset:
            self._patience = Deadline(self._timeout_s)
            self._short_until = None
        position.offset = stretch.first_offset
        if not more or self.done:
            self.reader.reading.done(stretch)
            if self.done:
                position.ahead = position.offset

    def _lose(self, gone: Gone) -> None:
        """Tell that records are gone; go on behind them if that is what was asked."""
        assert self.position.offset is not None
        words = (
            f"Records of {shown(self.partition)} are lost, of the offsets"
            f" {self.position.offset} to {self.end - 1}: {str(gone).rstrip('.')}."
        )
        if self._strict:
            raise DataLoss(f"{words}  {ADVICE}") from None
        log.warning("%s  What is there of the rest is read.", words)
        self.position.seek(min(gone.goes_on, self.end))

    # What is there.

    def _look_for_bounds(self) -> None:
        """The offset is not there: is it before the log, or behind it?"""
        low, high = (
            offsets.list_offsets(
                self.reader.cluster, {self.partition: which}, 0, self._patience.left_s
            )[self.partition].offset
            for which in (EARLIEST, LATEST)
        )
        position = self.position
        assert position.offset is not None
        if position.offset < low:
            raise Gone(f"the log begins at offset {low}", low)
        if position.offset > high:
            self._be_short(high)
        self._check_patience()
        position.rewind()
        self.reader.cluster.rest(0.1)

    def _be_short(self, high: int) -> None:
        """The log ends before the range does; who leads it may have to catch up first."""
        self._short_until = self._short_until or Deadline(LAG_S)
        if self._short_until.passed:
            raise Gone(f"the log ends at offset {high}", self.end)

    def _ask_why(self) -> None:
        """Nothing has come: end a range that ends in a gap, and find a log that is too short."""
        self._check_patience()
        try:
            state = self._state()
            is_gap = self._is_gap(state) and self._is_gap(again := self._state(GAP_WAIT_MS))
        except KafkaError as fault:
            self._why = str(fault)
            return
        if state is None:
            return
        if is_gap and again is not None and again.log_start_offset == state.log_start_offset:
            self.position.offset = self.end
        elif state.holds_more or state.readable_end >= self.end:
            self._why = "the leader has more, and does not send it"
        elif state.high_watermark < self.end:
            self._why = f"the log ends at offset {state.high_watermark}"
            self._be_short(state.high_watermark)
        else:
            self._why = f"a transaction is open from offset {state.readable_end} on"

    def _is_gap(self, state: State | None) -> bool:
        """Return whether the range is readable, but the leader has no records for its rest."""
        return state is not None and not state.holds_more and state.readable_end >= self.end

    def _state(self, max_wait_ms: int = 0) -> State | None:
        """Ask the leader, which may wait so long for records; None when it cannot say."""
        position, cluster = self.position, self.reader.cluster
        if position.leader == NOBODY:
            self._why = "the partition has no leader"
            return None
        level = self.reader.reading.lanes.isolation_level
        entry = {
            "partition": self.partition.partition,
            "current_leader_epoch": position.leader_epoch,
            "fetch_offset": position.offset,
            "partition_max_bytes": 1,
        }
        body = {
            "max_wait_ms": max_wait_ms,
            "min_bytes": 1 if max_wait_ms else 0,
            "max_bytes": 1,
            "isolation_level": level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": self.partition.topic, "partitions": [entry]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        timeout_s = min(self._patience.left_s, max_wait_ms / 1000 + PROBE_S_MAX)
        answer = cluster.request(
            position.leader, FETCH, body, timeout_s=timeout_s, at_most=BY_NAME_MAX
        )
        said = [each for topic in answer.responses for each in topic.partitions]
        code = answer.error_code or (said[0].error_code if said else 0)
        if code:
            raise fault_of(code, shown(self.partition))
        if not said or (answer.throttle_time_ms and not said[0].records):
            self._why = "the broker slows this client down"
            return None
        stable = said[0].last_stable_offset if level else -1
        high = said[0].high_watermark
        readable_end = stable if stable >= 0 else high
        return State(bool(said[0].records), high, readable_end, said[0].log_start_offset)

    def _check_patience(self) -> None:
        if self._patience.passed:
            raise RequestTimedOut(
                f"{shown(self.partition)}: nothing came for {self._timeout_s:g} s at offset"
                f" {self.position.offset}, of the range {self.start} to {self.end}: {self._why}."
            )
