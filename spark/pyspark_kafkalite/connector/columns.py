"""Columns of the data source: those of a record, and those that a value is decoded into."""

from __future__ import annotations

from collections.abc import Mapping

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

from pyspark_kafkalite.connector.range_partition import RANGES
from pyspark_kafkalite.connector.range_pipeline import RangePipeline, decoded, spark_schema
from pyspark_kafkalite.connector.source_options import boolean, source_options
from pyspark_kafkalite.decoding import OPTIONS as DECODING

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


def schema_of(options: Mapping[str, str]) -> StructType:
    """Return the columns for these options, in order.

    With value_format the decoded columns replace `value`.
    """
    if boolean(options, "rangesOnly", False):
        return RANGES
    lowered = {name.lower(): value for name, value in options.items()}
    if any(name in lowered for name in DECODING):
        decoded_too: StructType = spark_schema(work_of(options).schema)
        return decoded_too
    fields = {field.name: field for field in (*SCHEMA.fields, HEADERS)}
    names = columns_of(lowered)
    if names is None:
        headers = [HEADERS] if boolean(options, "includeHeaders", False) else []
        return StructType([*SCHEMA.fields, *headers])
    by_lower = {name.lower(): name for name in fields}
    if any(name.lower() not in by_lower for name in names):
        raise ValueError(f"columns must be a list of distinct names of {', '.join(fields)}, not"
                         f" {lowered['columns']!r}.")  # fmt: skip
    return StructType([fields[by_lower[name.lower()]] for name in names])


def columns_of(lowered: Mapping[str, str]) -> list[str] | None:
    """Return the names in the option columns."""
    chosen_columns = lowered.get("columns")
    if chosen_columns is None:
        return None
    names = [name.strip() for name in chosen_columns.split(",") if name.strip()]
    if not names or len({name.lower() for name in names}) < len(names):
        raise ValueError(f"columns must be a list of distinct names, not {chosen_columns!r}.")
    return names


def work_of(options: Mapping[str, str]) -> RangePipeline:
    """Return the per-range work for these options, for a batch or a stream."""
    read = source_options(options, stream=None)
    lowered = {name.lower(): value for name, value in options.items()}
    decode = decoded(None, {name: lowered[name] for name in DECODING if name in lowered}, read)
    names = columns_of(lowered)
    if names is None and boolean(options, "includeHeaders", False):
        names = [*RangePipeline(read, decode).schema.names, HEADERS.name]
    elif names is not None:
        known = {name.lower(): name for name in (*SCHEMA.fieldNames(), HEADERS.name)}
        names = [known.get(name.lower(), name) for name in names]
    return RangePipeline(read, decode, names)
