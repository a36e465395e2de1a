"""The faster way in: offsets are planned here, all else is one pass over Arrow in the executors.

    driver     ranges of offsets, one or more a partition
    executor   fetch → decode → filter → project → map_arrow        one mapInArrow
    JVM        only what is left

    flights = read(spark, "flights", bootstrap="127.0.0.1:9092", columns=["carrier", "delay"],
                   decode="json", value_schema="carrier STRING, delay INT",
                   filter=pc.field("delay") > 60)

Rows that are filtered out and columns that nobody wants never become Spark's, which costs ten
times what reading them does.  `format("kafkalite")` is the way for who wants Spark's own planning.

    columns     what comes out, of the record's columns and the value's, in this order
    filter      an expression of pyarrow.compute, or a function from a RecordBatch to a mask;
                it may look at columns that do not come out
    decode      a value_format, or a decoding.Decode; the value's own columns take its place
    map_arrow   from a RecordBatch to another, of the columns that `schema` says (a DDL text,
                StructType or Arrow schema)

Further keywords are the options of `format("kafkalite")` and of decoding; those with dots go in as
**{"kafka.isolation.level": "read_committed"}.

The offsets of `read` are bound when it is called: what comes later is not in the DataFrame, and
each action reads the same again.  `read_stream` has a checkpoint as every stream; Spark counts
ranges there and no records (numInputRows).

Left out: what Spark knows of filters and columns is not asked, neither is the plan told of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_kafkalite import planning
from pyspark_kafkalite.decoding import OPTIONS as DECODING
from pyspark_kafkalite.decoding import Decode
from pyspark_kafkalite.offsets import OffsetRange
from pyspark_kafkalite.options import source_options
from pyspark_kafkalite.work import Filter, Turn, Work, decoded, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    spark: SparkSession,
    topic: str | Sequence[str] | None = None,
    *,
    bootstrap: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,
    decode: str | Decode | None = None,
    map_arrow: Turn | None = None,
    schema: Any = None,
    **options: Any,
) -> DataFrame:
    """The records of topics as they are now; the module says what the keywords do."""
    said, decoding = options_of(topic, bootstrap, decode, options)
    chosen = source_options(said, stream=False)
    work = Work(chosen, decoded(decode, decoding, chosen), columns, filter, map_arrow, schema)
    ranges = planning.batch_ranges(said)
    if not ranges:
        return spark.createDataFrame([], spark_schema(work.schema))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from work.of(ranges[number])

    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return numbers.mapInArrow(run, spark_schema(work.schema))


def read_stream(
    spark: SparkSession,
    topic: str | Sequence[str] | None = None,
    *,
    bootstrap: str | Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,
    decode: str | Decode | None = None,
    map_arrow: Turn | None = None,
    schema: Any = None,
    **options: Any,
) -> DataFrame:
    """The same as a stream."""
    said, decoding = options_of(topic, bootstrap, decode, options)
    chosen = source_options(said, stream=True)
    work = Work(chosen, decoded(decode, decoding, chosen), columns, filter, map_arrow, schema)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from work.of(OffsetRange(*row.values()))

    stream = spark.readStream.format("kafkalite").options(**said, rangesOnly="true").load()
    return stream.mapInArrow(run, spark_schema(work.schema))


# What was asked for.


def options_of(
    topic: str | Sequence[str] | None,
    bootstrap: str | Sequence[str] | None,
    decode: str | Decode | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, str], dict[str, Any]]:
    """The source's options as text, and those of decoding as they are."""
    decoding = {name: value for name, value in options.items() if name.lower() in DECODING}
    said = {name: text(value) for name, value in options.items() if name not in decoding}
    if any(name.lower() == "includeheaders" for name in said):
        raise ValueError("includeHeaders is said by columns here: columns=[…, 'headers'].")
    given = {name.lower() for name in said}
    for name, value, keyword in (
        ("subscribe", topic, "topic"),
        ("kafka.bootstrap.servers", bootstrap, "bootstrap"),
    ):
        if value is None:
            continue
        if name in given:
            raise ValueError(f"{name} and {keyword} say the same; leave one of them out.")
        said[name] = value if isinstance(value, str) else ",".join(value)
    if isinstance(decode, str):
        if "value_format" in {name.lower() for name in decoding}:
            raise ValueError("decode and value_format say the same; leave one of them out.")
        decoding["value_format"] = decode
    elif decode is not None and decoding:
        raise ValueError(f"A Decode has its options; leave out {', '.join(sorted(decoding))}.")
    return said, decoding


def text(value: Any) -> str:
    """An option's value as Spark would be given it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
