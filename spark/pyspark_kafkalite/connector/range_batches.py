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

Lost records are a DataLoss, or with `fail_on_data_loss=False` a warning and the rest of the range.
The readers of a process are kept for its next ranges, by settings.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkalite import RangeReader, RecordsLost

if TYPE_CHECKING:
    from pyspark_kafkalite.connector.offset_ranges import OffsetRange

ROWS_MAX = 32_768
STEP_SIZE = 2 << 20
"""Approximate size of the columns that are decoded at once, in bytes."""
BATCH_SIZE_MAX = 4 << 20
"""Approximate maximum size of a batch in bytes; a larger record is a batch by itself."""

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
    "To continue without these records, set failOnDataLoss to false; otherwise start a new query"
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
    with pooled_reader(settings) as reader:
        batches = reader.read(
            (wanted.topic, wanted.partition),
            wanted.start,
            wanted.end,
            columns=spark_columns.decoded,
            timestamp_unit="us",
            max_bytes=STEP_SIZE,
            topic_id=topic_id or getattr(wanted, "topic_id", None),
            on_lost=fail if fail_on_data_loss else warn,
            timeout=timeout_s,
        )
        for batch in batches:
            yield from spark_columns.converted(batch)


def fail(lost: RecordsLost) -> None:
    raise DataLoss(f"{lost}  {ADVICE}") from None


def warn(lost: RecordsLost) -> None:
    log.warning(
        "Records were lost; reading continues after them.  partition=%s-%d from=%d resumed_at=%d"
        " range_end=%d reason=%r",
        *lost.partition, lost.start, lost.resumed_at, lost.end, lost.reason,
    )  # fmt: skip


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    return pa.schema([(name, TYPES[name]) for name in checked(columns, TYPES)])


def checked(columns: Sequence[str], known: Collection[str]) -> list[str]:
    """Return column names in order; raise ValueError unless they are distinct and known."""
    names = list(columns)
    if isinstance(columns, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"columns must be a list of distinct names, not {columns!r}.")
    for name in names:
        if name not in known:
            raise ValueError(f"There is no column {name!r}; the columns are {', '.join(known)}.")
    return names


# Columns.


class SparkColumns:
    """Converts decoded columns to Spark's types; cost per batch, not per row."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.schema = schema_of(columns)
        names = ["timestamp_type" if n == "timestampType" else n for n in self.schema.names]
        self._names = names
        self.decoded = names if "offset" in names else [*names, "offset"]
        """Columns to decode; the reader needs the offset."""

    def converted(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a decoded batch, in batches of the size for Spark."""
        rows = rows_of(batch)
        for start in range(0, len(batch), rows):
            yield self._converted(batch.slice(start, rows))

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
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
    return pa.Array.from_buffers(kind, len(array), [bits, places], -1, array.offset, [array.values])


# Reader pool.


class PooledReader:
    """A range reader of the pool."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.reader = RangeReader(settings)
        self.ranges = 0
        """Number of ranges that were read."""
        self.used_at_s = 0.0

    def close(self) -> None:
        self.reader.close()


class ReaderPool:
    """The unused range readers of this process, by settings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[frozenset[tuple[str, str]], list[PooledReader]] = {}

    def take(self, settings: Mapping[str, str]) -> PooledReader:
        before_s = time.monotonic() - IDLE_S_MAX
        with self._lock:
            unused = self._readers.get(frozenset(settings.items()), [])
            found = unused.pop() if unused else None
            old = [each for readers in self._readers.values() for each in readers
                   if each.used_at_s < before_s]  # fmt: skip
            for key, readers in list(self._readers.items()):
                self._readers[key] = [each for each in readers if each.used_at_s >= before_s]
                if not self._readers[key]:
                    del self._readers[key]
        for each in old:
            each.close()
        if found is not None and found.used_at_s < before_s:
            found.close()
            found = None
        return found or PooledReader(settings)

    def put_back(self, settings: Mapping[str, str], pooled: PooledReader) -> None:
        pooled.ranges += 1
        pooled.used_at_s = time.monotonic()
        if pooled.ranges < RANGES_MAX:
            with self._lock:
                unused = self._readers.setdefault(frozenset(settings.items()), [])
                if len(unused) < IDLE_MAX:
                    unused.append(pooled)
                    return
        pooled.close()

    def close(self) -> None:
        with self._lock:
            readers = [each for them in self._readers.values() for each in them]
            self._readers.clear()
        for reader in readers:
            reader.close()

    def close_in_child(self) -> None:
        """Close the readers in a forked child; the parent keeps its connections."""
        self._lock = threading.Lock()
        self.close()


_pool = ReaderPool()
atexit.register(_pool.close)
os.register_at_fork(after_in_child=_pool.close_in_child)


@contextlib.contextmanager
def pooled_reader(settings: Mapping[str, str]) -> Iterator[RangeReader]:
    """Take a reader from the pool for one range; close it if the range was not read to its end."""
    pooled = _pool.take(settings)
    try:
        yield pooled.reader
    except BaseException:  # a task that is killed, or needs no more rows, closes the generator
        pooled.close()
        raise
    _pool.put_back(settings, pooled)
