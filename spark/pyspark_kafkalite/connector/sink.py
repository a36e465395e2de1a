"""Sink: writes `df.write.format("kafkalite")` and `df.writeStream` to topics.

    value       string or binary, required; null: a tombstone
    key         string or binary; null: no key
    headers     array<struct<key: string, value: binary>>
    partition   int; null: chosen by the partitioner (`kafka.partitioner`: by the key)
    timestamp   timestamp; null: now
    topic       string; the option `topic` takes precedence

Columns of other names are ignored, as in Spark's own sink, so rows read from a topic can be written
unchanged.  `kafka.X` is the producer's setting X.  Invalid options and columns are a ValueError on
the driver, before a row is read.

Delivery is at least once.  Batches have sequence numbers, so retries within a task write no
duplicates; the rows of a failed task may have been written when the task runs again.  A task
succeeds when all its rows are acknowledged (row_writer.py).

Rows are appended, whatever the mode.  Spark itself rejects three modes for every Python data
source: `ignore` and `errorIfExists` (its default), so a batch needs `.mode("append")`; and a
stream's output mode `update`, which is written with `foreachBatch(appending(…))`.  SQL inserts need
the options in the statement, since Spark does not pass on a table's own:

    CREATE TABLE flights USING kafkalite;
    INSERT INTO flights WITH ('kafka.bootstrap.servers' '127.0.0.1:9092', 'topic' 'flights')
        (value) SELECT ...

Left out: `exactlyOnce=true`; `includeHeaders`, which only the source needs: headers are written if
there is such a column.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pyspark_kafkalite.connector.row_writer import Destination, WriteResult, write
from pyspark_kafkalite.connector.source_options import boolean, client_settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

log = logging.getLogger("pyspark_kafkalite")

TYPES = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
    "partition": ("int",),
    "topic": ("string",),
}
"""The columns that are written, and their allowed types."""

COLLATED = " collate "
"""Follows the type of a string with a collation, which does not change its bytes."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a batch; raise ValueError for invalid columns or options."""
    if overwrite:
        raise ValueError(
            "Save mode Overwrite is not allowed for topics; use"
            ' .mode("append"), or delete the topic first.'
        )
    return BatchWriter(destination(options, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer of a stream, for any output mode: each micro-batch's rows are appended.

    Spark sets `overwrite` for the output mode `complete`.  Raises ValueError as for a batch.
    """
    return StreamWriter(destination(options, schema))


def appending(**options: str) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that appends each micro-batch to a topic.

    It also works in the output mode `update`, which Spark rejects for the sink itself:

        counts.writeStream.outputMode("update").foreachBatch(appending(topic="counts", **kafka))

    Args:
        options: Options of the sink, such as `topic` and **{"kafka.bootstrap.servers":
            "host:9092"}.

    Returns:
        A function of a DataFrame and a micro-batch id.  It raises ValueError for invalid options or
        columns.
    """

    def append(frame: DataFrame, number: int) -> None:
        frame.write.format("kafkalite").options(**options).mode("append").save()

    return append


def destination(options: Mapping[str, str], schema: StructType) -> Destination:
    """Return the destination of rows with this schema, after validation of schema and options."""
    lowered = {name.lower(): value for name, value in options.items()}
    if boolean(lowered, "exactlyOnce", False):
        raise ValueError(
            "exactlyOnce=true requires transactions, which this version does not support; remove it"
            " to write rows at least once."
        )
    settings = client_settings(lowered, sink=True)
    topic = lowered.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("The option topic is empty: specify a topic, or remove the option and add"
                         " a column topic to the rows.")  # fmt: skip
    columns = checked(schema, topic is not None)
    return Destination(settings, topic and topic.strip(), columns)


def checked(schema: StructType, has_topic_option: bool) -> tuple[str, ...]:
    """Return the columns of a record; raise ValueError if one is missing or has a wrong type."""
    kinds: dict[str, str] = {}
    for field in schema.fields:
        if field.name not in TYPES or (field.name == "topic" and has_topic_option):
            continue
        if field.name in kinds:
            raise ValueError(f"Column {field.name} occurs more than once: drop or rename all but"
                             " one.")  # fmt: skip
        kinds[field.name] = field.dataType.simpleString()
    there = ", ".join(schema.names) or "none"
    if "value" not in kinds:
        raise ValueError(f"Required column 'value' not found: rename the column to write to value."
                         f" The columns are: {there}.")  # fmt: skip
    if "topic" not in kinds and not has_topic_option:
        raise ValueError(
            "The option topic is required when there is no column 'topic': add"
            f' .option("topic", "flights"), or the column. The columns are: {there}.'
        )
    for name, kind in kinds.items():
        if kind.partition(COLLATED)[0] not in TYPES[name]:
            wanted = " or ".join(TYPES[name])
            raise ValueError(
                f"Column {name} has the unsupported type {kind}: it must be {wanted}. Cast it, for"
                f' example with col("{name}").cast("{TYPES[name][0]}").'
            )
    return tuple(name for name in kinds if name != "topic")


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch; each task writes its own."""

    def __init__(self, to: Destination) -> None:
        self._to = to

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write a task's rows; return when all of them are acknowledged, else raise."""
        return write(iterator, self._to)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.info("Batch was written: %s.", summed(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.warning("Write failed; %s, and stay in the topic.", summed(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; a repeated micro-batch writes its rows again."""

    def __init__(self, to: Destination) -> None:
        self._to = to

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write a task's rows; return when all of them are acknowledged, else raise."""
        return write(iterator, self._to)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.info("Micro-batch %d was written: %s.", batchId, summed(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("Micro-batch %d failed; %s, and stay in the topic.", batchId, summed(messages))


def summed(messages: Sequence[WriterCommitMessage | None]) -> str:
    """Return a summary of the successful tasks; a failed task's message is None."""
    written = [message for message in messages if isinstance(message, WriteResult)]
    return (
        f"{sum(message.records for message in written)} records of {len(written)} tasks in"
        f" {sum(message.batches for message in written)} batches are acknowledged"
    )
