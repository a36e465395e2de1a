"""Fast path: offsets are planned on the driver, all else is one pass over Arrow in the executors.

    driver     ranges of offsets, one or more per partition
    executor   fetch → decode → filter → project → map_arrow        one mapInArrow
    JVM        only the result

    flights = read(spark, "flights", bootstrap="127.0.0.1:9092", columns=["carrier", "delay"],
                   decode="json", value_schema="carrier STRING, delay INT",
                   filter=pc.field("delay") > 60)

Rows that are filtered out and columns that are not requested are never converted to Spark's rows,
which costs ten times as much as reading them.  Use `format("kafkalite")` for Spark's own planning.

    columns     output columns, of the record's and the decoded ones, in this order
    filter      an expression of pyarrow.compute, or a function from a RecordBatch to a mask;
                it may use columns that are not output
    decode      a value_format, or a decoding.Decode; the decoded columns replace `value`
    map_arrow   from a RecordBatch to another, with the columns of `schema` (a DDL text,
                StructType or Arrow schema)

Further keywords are the options of `format("kafkalite")` and of decoding; pass those with dots as
**{"kafka.isolation.level": "read_committed"}.

The offsets of `read` are fixed when it is called: later records are not in the DataFrame, and each
action reads the same ones again.  `read_stream` has a checkpoint like every stream; Spark counts
its ranges and not its records (numInputRows).

Left out: filters and columns of Spark's plan are not pushed down, nor are those given here shown in
the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pyspark_kafkalite.connector import range_planning
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_pipeline import (
    Filter,
    MapArrow,
    RangePipeline,
    decoded,
    spark_schema,
)
from pyspark_kafkalite.connector.source_options import source_options
from pyspark_kafkalite.decoding import OPTIONS as DECODING
from pyspark_kafkalite.decoding import Decode

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
    map_arrow: MapArrow | None = None,
    schema: Any = None,
    **options: Any,
) -> DataFrame:
    """Return the current records of topics as a DataFrame.

    Args:
        spark: The Spark session.
        topic: Name of a topic, or several; short for the option `subscribe`.
        bootstrap: HOST:PORT of brokers; short for `kafka.bootstrap.servers`.
        columns: Output columns, in order.  None: the record's columns without headers, and the
            decoded ones in place of `value`.
        filter: A pyarrow.compute expression, or a function from a RecordBatch to a boolean mask.
        decode: json, avro, protobuf, csv or string, or a decoding.Decode.
        map_arrow: Function from a RecordBatch to another; needs `schema`.
        schema: Columns that map_arrow returns: a DDL text, StructType or Arrow schema.
        options: Options of `format("kafkalite")` for batches, and of decoding.

    Returns:
        A DataFrame over offsets that are fixed by this call.

    Raises:
        ValueError: An option is invalid, is given twice, or lacks another one.
        KafkaError: The cluster cannot be reached, or a topic does not exist.
    """
    text_options, decoding = options_of(topic, bootstrap, decode, options)
    chosen = source_options(text_options, stream=False)
    work = RangePipeline(
        chosen, decoded(decode, decoding, chosen), columns, filter, map_arrow, schema
    )
    ranges = range_planning.batch_ranges(text_options)
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
    map_arrow: MapArrow | None = None,
    schema: Any = None,
    **options: Any,
) -> DataFrame:
    """Return the records of topics as a streaming DataFrame.

    Args:
        spark: The Spark session.
        topic: As for read().
        bootstrap: As for read().
        columns: As for read().
        filter: As for read().
        decode: As for read().
        map_arrow: As for read().
        schema: As for read().
        options: Options of `format("kafkalite")` for streams, and of decoding.

    Returns:
        A streaming DataFrame.

    Raises:
        ValueError: An option is invalid, is given twice, or lacks another one.
    """
    text_options, decoding = options_of(topic, bootstrap, decode, options)
    chosen = source_options(text_options, stream=True)
    work = RangePipeline(
        chosen, decoded(decode, decoding, chosen), columns, filter, map_arrow, schema
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                yield from work.of(OffsetRange(*row.values()))

    stream = spark.readStream.format("kafkalite").options(**text_options, rangesOnly="true").load()
    return stream.mapInArrow(run, spark_schema(work.schema))


# Options.


def options_of(
    topic: str | Sequence[str] | None,
    bootstrap: str | Sequence[str] | None,
    decode: str | Decode | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the source's options as text, and those of decoding unchanged."""
    decoding = {name: value for name, value in options.items() if name.lower() in DECODING}
    text_options = {name: text(value) for name, value in options.items() if name not in decoding}
    if any(name.lower() == "includeheaders" for name in text_options):
        raise ValueError(
            "includeHeaders is not an option of this function; use columns=[…, 'headers']."
        )
    given = {name.lower() for name in text_options}
    for name, value, keyword in (
        ("subscribe", topic, "topic"),
        ("kafka.bootstrap.servers", bootstrap, "bootstrap"),
    ):
        if value is None:
            continue
        if name in given:
            raise ValueError(
                f"{keyword} and the option {name} exclude each other; remove one of them."
            )
        text_options[name] = value if isinstance(value, str) else ",".join(value)
    if isinstance(decode, str):
        if "value_format" in {name.lower() for name in decoding}:
            raise ValueError("decode and value_format exclude each other; remove one of them.")
        decoding["value_format"] = decode
    elif decode is not None and decoding:
        raise ValueError(
            f"A Decode cannot be combined with {', '.join(sorted(decoding))}; pass them to Decode."
        )
    return text_options, decoding


def text(value: Any) -> str:
    """Return an option's value as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
