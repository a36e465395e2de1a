"""Fetches the records of one offset range as Arrow batches in Spark's types.

    key            binary
    value          binary
    topic          string
    partition      int32
    offset         int64
    timestamp      timestamp[us, UTC]
    timestampType  int32
    headers        list<element: struct<key: string, value: binary>>, null if there are none

or the requested columns of it, in the requested order; only those are decoded.

    start ≤ offset < end        gaps may be anywhere, also at the end: compaction, transaction
                                markers, records of aborted transactions

Lost records are a DataLoss, or with `fail_on_data_loss=False` a warning and the rest of the range:

    A  the log start offset is after the start    the start was deleted
    B  the log ends before the range does         it was truncated or recreated
    C  the topic or the partition does not exist
    D  the topic has another id                   nothing of the range exists any more

When no records arrive for STALL_S, the leader is asked for the state of the log: a range that ends
in a gap ends, and one that waits for a transaction or a leader waits.

Connections are kept for the next range, by process and settings.  While a batch is processed the
next fetch is in flight; no fetch starts at or after the end of the range.

Left out: reading ranges in parallel; the first fetch of a range follows the last record of the one
before.
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
"""Approximate size of the columns that are decoded at once, in bytes."""
BATCH_SIZE_MAX = 4 << 20
"""Approximate maximum size of a batch in bytes; a larger record is a batch by itself."""

STALL_S = 1.0
"""Seconds without records before the state of the log is requested."""
LAG_S = 2.0
"""Seconds in which a node may not know a topic, or the high watermark, that others know."""
PROBE_S_MAX = 10.0
GAP_WAIT_MS = 2_000
"""Maximum wait at the leader for records before a gap is accepted: a leader that reads a segment
from remote storage first returns an empty response.
"""
IDLE_S_MAX = 60.0
"""Seconds for which unused connections are kept; brokers close them after some minutes."""
IDLE_MAX = 4
RANGES_MAX = 1_000
"""Ranges after which a reader is replaced, since it keeps some state of each."""

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
"""Type of each column, as from Spark's `to_arrow_schema(schema, timezone="UTC")`."""

COLUMNS = tuple(name for name in TYPES if name != "headers")
"""Default columns."""

ADVICE = (
    "If the rest is to be read without them, set failOnDataLoss to false; if not, begin a new query"
    " with a new checkpoint or other startingOffsets."
)

log = logging.getLogger("pyspark_kafkalite")


class DataLoss(ValueError):
    """Records of a range do not exist any more."""


def fetched(
    wanted: OffsetRange,
    columns: Sequence[str],
    settings: Mapping[str, str],
    *,
    fail_on_data_loss: bool = True,
    topic_id: bytes | None = None,
    timeout_s: float = 120.0,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order: batches of about 2 MB and at most 32,768 rows.

    `settings` are a consumer's, by Kafka's names.  Raises RequestTimedOut when no records arrive
    for `timeout_s`, DataLoss when records of the range are gone.
    """
    spark_columns = SparkColumns(columns)
    if wanted.start >= wanted.end:
        return
    topic_id = topic_id or getattr(wanted, "topic_id", None)
    with lent(settings) as reader:
        yield from Pass(reader, wanted, topic_id, fail_on_data_loss, timeout_s).run(spark_columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, TYPES[name]) for name in checked(columns, TYPES)])


def checked(columns: Sequence[str], known: Collection[str]) -> list[str]:
    """Return column names in order; raise ValueError unless they are distinct and known."""
    names = list(columns)
    if isinstance(columns, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"columns are a list of different names, not {columns!r}.")
    for name in names:
        if name not in known:
            raise ValueError(f"There is no column {name!r}; there are {', '.join(known)}.")
    return names


# Columns.


class SparkColumns:
    """Converts decoded columns to Spark's types; cost per batch, not per row."""

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
        """Yield the decoded rows with offsets below `end`."""
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
    """Return the number of rows per batch for Spark."""
    size: int = batch.nbytes
    if size <= BATCH_SIZE_MAX:
        return ROWS_MAX
    rows = len(batch) * BATCH_SIZE_MAX // size
    return max(1, min(ROWS_MAX, rows))


def headers_of(array: pa.Array[Any]) -> pa.Array[Any]:
    """Return header lists over the same memory, with null for a record without headers."""
    some = pc.greater(pc.list_value_length(array), 0)
    kind = TYPES["headers"]
    if not array.offset:
        _, places = array.buffers()[:2]
        return pa.Array.from_buffers(
            kind, len(array), [some.buffers()[1], places], -1, 0, [array.values]
        )
    # A validity bitmap starts at a byte, but this batch within one: pad with valid rows before it.
    filler = pa.repeat(pa.scalar(True), array.offset)
    bits = pa.concat_arrays([filler, some]).buffers()[1]
    places = array.buffers()[1]
    return pa.Array.from_buffers(
        kind, len(array), [bits, places], -1, array.offset, [array.values]
    )


# Reader pool.


class RangeReader:
    """An assignment reader with its connections, for one range after another.  Not thread-safe."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = consumer_settings(None, settings)
        self.cluster = Cluster(self.settings)
        self.waker = Waker()
        self.reading = Reading(self.cluster, self.settings, "fetch", self.waker, strict=True)
        self.ranges = 0
        self.since_s = 0.0
        self.clean = True
        """True if no fetch is in flight."""

    def close(self) -> None:
        self.reading.close()
        self.cluster.close()
        self.waker.close()


class Idle:
    """The unused readers of this process, by settings."""

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
        """Close the readers in a forked child; the parent keeps its connections."""
        self._lock = threading.Lock()
        self.close()


_idle = Idle()
atexit.register(_idle.close)
os.register_at_fork(after_in_child=_idle.leave)


@contextlib.contextmanager
def lent(settings: Mapping[str, str]) -> Iterator[RangeReader]:
    """Take a reader from the pool for one range; close it if the range was not read to its end."""
    reader = _idle.take(settings)
    try:
        yield reader
    except BaseException:  # a task that is killed, or needs no more rows, closes the generator
        reader.close()
        raise
    _idle.give(settings, reader)


# One range.


class Bounded(Position):
    """A position that is not fetched at or after an end offset."""

    __slots__ = ("end",)

    def __init__(self, partition: TopicPartition, start: int, end: int) -> None:
        super().__init__(partition, NOWHERE)
        self.end = end
        self.seek(start)

    @property
    def fetchable(self) -> bool:
        return self.ahead < self.end and super().fetchable


class State(NamedTuple):
    """State of the log at the leader, from a position on."""

    holds_more: bool
    high_watermark: int
    readable_end: int
    """The high watermark, or with read_committed the last stable offset."""
    log_start_offset: int


class Gone(Exception):
    """Records of the range are lost; it continues at `goes_on` (at its end: nowhere)."""

    def __init__(self, why: str, goes_on: int) -> None:
        super().__init__(why)
        self.goes_on = goes_on


class Pass:
    """Read of one range."""

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
        """Deadline after which a log that is still too short counts as truncated."""
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
                # A node with old metadata may return this during a range; a persistent error is
                # true.
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
                # Processing time does not count towards the timeout.
                self._patience = Deadline(self._timeout_s)
        # A fetch in flight would disturb the next range.
        self.reader.clean = self.position.ahead >= self.end
        self.reader.reading.assign(())

    @property
    def done(self) -> bool:
        assert self.position.offset is not None
        return self.position.offset >= self.end

    def _begin(self) -> None:
        """Wait for the topic's metadata, and check that it has the planned topic id."""
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
        """Decode the next records, or find out why there are none."""
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
        """Raise DataLoss, or log it and continue after the lost records."""
        assert self.position.offset is not None
        words = (
            f"Records of {shown(self.partition)} are lost, of the offsets"
            f" {self.position.offset} to {self.end - 1}: {str(gone).rstrip('.')}."
        )
        if self._strict:
            raise DataLoss(f"{words}  {ADVICE}") from None
        log.warning("%s  What is there of the rest is read.", words)
        self.position.seek(min(gone.goes_on, self.end))

    # State of the log.

    def _look_for_bounds(self) -> None:
        """Raise Gone if the offset is below the log start offset or after the end; else retry."""
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
        """Raise Gone if the log stays too short; a new leader may still have to catch up."""
        self._short_until = self._short_until or Deadline(LAG_S)
        if self._short_until.passed:
            raise Gone(f"the log ends at offset {high}", self.end)

    def _ask_why(self) -> None:
        """Handle a stall: end a range that ends in a gap, and detect a log that is too short."""
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
        """Return whether the range is readable, but has no more records at the leader."""
        return state is not None and not state.holds_more and state.readable_end >= self.end

    def _state(self, max_wait_ms: int = 0) -> State | None:
        """Return the state of the log at the leader, or None if it is unknown.

        The leader may wait `max_wait_ms` for records.
        """
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
