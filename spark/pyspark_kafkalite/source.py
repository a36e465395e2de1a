"""Data source `kafkalite`: Spark's entry point to read and write topics.

    spark.read.format("kafkalite").option("kafka.bootstrap.servers", "127.0.0.1:9092")
         .option("subscribe", "flights").load()

Spark finds it by the name of the module; no registration is needed.  Planning runs in a Python
process beside the driver (with a new DataSource for each query), reading in the executors.

The offsets of a batch are fixed by the first action on the result of load(), not by load() itself;
filters that are pushed down fix them again.  A stream's offsets come from its checkpoint; only a
new query uses the options.

Left out: fixing offsets for every action.  Spark keeps the plan of a Python data source as long as
the DataFrame exists; call load() again to read newer records.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkalite.client.net.topology import TopicPartition
from pyspark_kafkalite import planning
from pyspark_kafkalite.decoding import OPTIONS as DECODING
from pyspark_kafkalite.offsets import OffsetRange
from pyspark_kafkalite.options import boolean, source_options
from pyspark_kafkalite.topics import Topics
from pyspark_kafkalite.work import Work, decoded, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = StructType([
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
])  # fmt: skip
"""Columns of a record, as in Spark's Kafka source."""

HEADERS = StructField("headers", ArrayType(StructType([
    StructField("key", StringType()),
    StructField("value", BinaryType()),
])))  # fmt: skip

RANGES = StructType([
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("start", LongType()),
    StructField("end", LongType()),
    StructField("topicId", BinaryType()),
])  # fmt: skip
"""Columns of `rangesOnly`: one row per offset range, whose records the user fetches."""

PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""Module of the worker in which Spark plans when spark.sql.python.filterPushdown.enabled is set and
there are filters.  In other workers a reader must not have pushFilters.
"""


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns for these options, in order.

    With value_format the decoded columns replace `value`.
    """
    if boolean(options, "rangesOnly", False):
        return RANGES
    said = {name.lower(): value for name, value in options.items()}
    if any(name in said for name in DECODING):
        decoded_too: StructType = spark_schema(work_of(options).schema)
        return decoded_too
    fields = {field.name: field for field in (*SCHEMA.fields, HEADERS)}
    names = columns_of(said)
    if names is None:
        headers = [HEADERS] if boolean(options, "includeHeaders", False) else []
        return StructType([*SCHEMA.fields, *headers])
    by_lower = {name.lower(): name for name in fields}
    if any(name.lower() not in by_lower for name in names):
        raise ValueError(f"columns is a list of different ones of {', '.join(fields)}, not"
                         f" {said['columns']!r}.")  # fmt: skip
    return StructType([fields[by_lower[name.lower()]] for name in names])


def columns_of(said: Mapping[str, str]) -> list[str] | None:
    """Return the names in the option columns."""
    asked = said.get("columns")
    if asked is None:
        return None
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names or len({name.lower() for name in names}) < len(names):
        raise ValueError(f"columns is a list of different names, not {asked!r}.")
    return names


def work_of(options: Mapping[str, str]) -> Work:
    """Return the per-range work for these options, for a batch or a stream."""
    read = source_options(options, stream=None)
    said = {name.lower(): value for name, value in options.items()}
    decode = decoded(None, {name: said[name] for name in DECODING if name in said}, read)
    names = columns_of(said)
    if names is None and boolean(options, "includeHeaders", False):
        names = [*Work(read, decode).schema.names, HEADERS.name]
    elif names is not None:
        known = {name.lower(): name for name in (*SCHEMA.fieldNames(), HEADERS.name)}
        names = [known.get(name.lower(), name) for name in names]
    return Work(read, decode, names)


class DefaultSource(DataSource):
    """Spark data source for topics; options.py and sink.py document the options."""

    @classmethod
    def name(cls) -> str:
        """Return the name for spark.read.format()."""
        return "kafkalite"

    def schema(self) -> StructType:
        """Return the columns for the options."""
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        self._check(schema)
        kind = PushingReader if PUSHING in sys.modules else Reader
        return kind(dict(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from pyspark_kafkalite.stream import StreamReader

        self._check(schema)
        return StreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        from pyspark_kafkalite import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        from pyspark_kafkalite import sink

        return sink.stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        wanted = schema_of(self.options)
        if schema.fieldNames() != wanted.fieldNames():
            raise ValueError(
                f"A topic has the columns {', '.join(wanted.fieldNames())}: take out schema(…),"
                " and choose with the option columns, or with select."
            )


class RangePartition(InputPartition):
    """A Spark partition: one offset range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(tuple(wanted))

    @property
    def wanted(self) -> OffsetRange:
        return OffsetRange(*self.value)


def read_range(partition: InputPartition, work: Work | None) -> Iterator[pa.RecordBatch]:
    """Return the records of a Spark partition, in an executor.

    Without work it returns the range itself.  Spark creates a partition of its own for an empty
    plan, which has no records.
    """
    if not isinstance(partition, RangePartition):
        return iter(())
    if work is None:
        return iter([ranges_batch([partition.wanted])])
    return work.of(partition.wanted)


def ranges_batch(ranges: Iterable[OffsetRange]) -> pa.RecordBatch:
    """Return offset ranges as rows of RANGES."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    rows = [tuple(each) for each in ranges]
    schema = to_arrow_schema(RANGES, timezone="UTC")
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(schema.types)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Reader(DataSourceReader):
    """Reader of a batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = source_options(options, stream=False)
        self._work = work_of(options)
        self._bounds: list[Bound] = []

    def partitions(self) -> list[InputPartition]:
        topics = Topics(self._options)
        try:
            ranges = planning.bounded(topics, self._options)
            for narrow in self._bounds:
                ranges = narrow(ranges, topics)
            return [RangePartition(each) for each in ranges]
        finally:
            topics.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._work)


# Filters that exclude offsets.

Bound = Callable[[list[OffsetRange], Topics], list[OffsetRange]]

COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda at, value: at == value,
    EqualNullSafe: lambda at, value: at == value,
    GreaterThan: lambda at, value: at > value,
    GreaterThanOrEqual: lambda at, value: at >= value,
    LessThan: lambda at, value: at < value,
    LessThanOrEqual: lambda at, value: at <= value,
    In: lambda at, value: at in value,
}


class PushingReader(Reader):
    """A Reader that excludes offsets by filters on partition, topic, offset or timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            bound = bound_of(each, self._work.decoded_names)
            if bound is not None:
                self._bounds.append(bound)
            yield each  # Spark still applies it to each record; pushdown only saves reads


def bound_of(each: Any, decoded_names: Collection[str]) -> Bound | None:
    """Return a function that excludes offsets by a Filter, or None if it excludes none.

    A decoded column may have the name of a record's column that is not read.
    """
    compared = COMPARED.get(type(each))
    if compared is None or len(each.attribute) != 1 or each.attribute[0] in decoded_names:
        return None
    name, value = each.attribute[0], each.value
    values = value if isinstance(each, In) else [value]
    if not values or any(type(one) is not KINDS.get(name) for one in values):
        return None
    if name == "offset":
        return lambda ranges, topics: within(ranges, *offsets_within(type(each), value))
    if name == "timestamp":
        if type(each) not in SINCE:
            return None
        return lambda ranges, topics: since(ranges, topics, value)
    return lambda ranges, topics: [each for each in ranges if compared(getattr(each, name), value)]


KINDS = {"topic": str, "partition": int, "offset": int, "timestamp": datetime}
"""Columns by which ranges can be excluded, and the types they are compared with."""

SINCE = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual)


def offsets_within(kind: type[Filter], value: Any) -> tuple[int, int]:
    """Return the offsets first ≤ offset < end that satisfy a comparison."""
    end = 1 << 63
    if kind is In:
        return min(value), max(value) + 1
    return {
        EqualTo: (value, value + 1),
        EqualNullSafe: (value, value + 1),
        GreaterThan: (value + 1, end),
        GreaterThanOrEqual: (value, end),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }[kind]


def within(ranges: Iterable[OffsetRange], first: int, end: int) -> list[OffsetRange]:
    """Return the ranges, cut to these offsets."""
    cut = [
        each._replace(start=max(each.start, first), end=min(each.end, end)) for each in ranges
    ]
    return [each for each in cut if each.start < each.end]


def since(ranges: list[OffsetRange], topics: Topics, when: datetime) -> list[OffsetRange]:
    """Return the ranges without the offsets before the first record at or after a time."""
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    at_ms = (when - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    if at_ms <= 0:
        return ranges  # records without a timestamp count as before 1970
    places = {TopicPartition(each.topic, each.partition) for each in ranges}
    found = topics.at(dict.fromkeys(places, at_ms))
    cut = []
    for each in ranges:
        first = found[TopicPartition(each.topic, each.partition)]
        if first >= 0:
            cut += within([each], first, each.end)
    return cut
