"""Spark partitions: each is one offset range, which an executor reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_pipeline import RangePipeline

if TYPE_CHECKING:
    import pyarrow as pa

RANGES = StructType([
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("start", LongType()),
    StructField("end", LongType()),
    StructField("topicId", BinaryType()),
])  # fmt: skip
"""Columns of `rangesOnly`: one row per offset range, whose records the user fetches."""


class RangePartition(InputPartition):
    """A Spark partition: one offset range."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(tuple(wanted))

    @property
    def wanted(self) -> OffsetRange:
        return OffsetRange(*self.value)


def read_range(partition: InputPartition, work: RangePipeline | None) -> Iterator[pa.RecordBatch]:
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
