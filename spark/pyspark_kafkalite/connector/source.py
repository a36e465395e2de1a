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
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_kafkalite.connector import range_planning
from pyspark_kafkalite.connector.columns import schema_of, work_of
from pyspark_kafkalite.connector.pushdown import RangeFilter, bound_of
from pyspark_kafkalite.connector.range_partition import RangePartition, read_range
from pyspark_kafkalite.connector.source_options import source_options
from pyspark_kafkalite.connector.topic_offsets import TopicOffsets

if TYPE_CHECKING:
    import pyarrow as pa

PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""Module of the worker in which Spark plans when spark.sql.python.filterPushdown.enabled is set and
there are filters.  In other workers a reader must not have pushFilters.
"""


class DefaultSource(DataSource):
    """Spark data source for topics; source_options.py and sink.py document the options."""

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
        from pyspark_kafkalite.connector.stream_reader import StreamReader

        self._check(schema)
        return StreamReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch."""
        from pyspark_kafkalite.connector import sink

        return sink.batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream."""
        from pyspark_kafkalite.connector import sink

        return sink.stream_writer(self.options, schema, overwrite)

    def _check(self, schema: StructType) -> None:
        wanted = schema_of(self.options)
        if schema.fieldNames() != wanted.fieldNames():
            raise ValueError(
                f"A topic has the columns {', '.join(wanted.fieldNames())}: remove schema(…),"
                " and select columns with the option columns or with select()."
            )


class Reader(DataSourceReader):
    """Reader of a batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = source_options(options, stream=False)
        self._pipeline = work_of(options)
        self._bounds: list[RangeFilter] = []

    def partitions(self) -> list[InputPartition]:
        topics = TopicOffsets(self._options)
        try:
            ranges = range_planning.bounded(topics, self._options)
            for narrow in self._bounds:
                ranges = narrow(ranges, topics)
            return [RangePartition(each) for each in ranges]
        finally:
            topics.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._pipeline)


class PushingReader(Reader):
    """A Reader that excludes offsets by filters on partition, topic, offset or timestamp."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            bound = bound_of(each, self._pipeline.decoded_names)
            if bound is not None:
                self._bounds.append(bound)
            yield each  # Spark still applies it to each record; pushdown only saves reads
