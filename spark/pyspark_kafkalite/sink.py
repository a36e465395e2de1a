"""The sink: what `df.write.format("kafkalite")` and `df.writeStream` write to topics.

    value       string or binary, required; null: a tombstone
    key         string or binary; null: no key
    headers     array<struct<key: string, value: binary>>
    partition   int; null: the partitioner's choice (`kafka.partitioner`: by the key)
    timestamp   timestamp; null: now
    topic       string; the option `topic` stands above it

Columns of other names are passed over, as Spark's own sink does: what was read from a topic can be
written as it is.  `kafka.X` is the producer's setting X.  What cannot be written is refused here,
on the driver and before a row is read, with a ValueError that names the column or the option.

A row is written at least once.  Batches are numbered, so what is sent again after a fault is
written once; the rows of a task that failed may be there already when it runs again.  A task has
succeeded when all its rows are acknowledged (rows.py).

Rows are appended, whatever the mode.  Three modes Spark itself refuses of every source in Python:
`ignore` and `errorIfExists` (its default), so a batch says `.mode("append")`; and a stream's output
mode `update`, which is written by `foreachBatch(appending(…))`.  SQL inserts, where the options
stand in the statement, for Spark does not hand on a table's own:

    CREATE TABLE flights USING kafkalite;
    INSERT INTO flights WITH ('kafka.bootstrap.servers' '127.0.0.1:9092', 'topic' 'flights')
        (value) SELECT ...

Left out: exactlyOnce=true, which comes with transactions; `includeHeaders`, which only a source
needs: headers are written where there is such a column.
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

from pyspark_kafkalite.options import boolean, client_settings
from pyspark_kafkalite.rows import Destination, Written, write

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
"""The columns that are written, and what each may be."""

COLLATED = " collate "
"""What follows the type of text that is compared in a way of its own; its bytes are the same."""


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a batch; ValueError when the rows or the options are not what they must be."""
    if overwrite:
        raise ValueError(
            "Save mode Overwrite is not allowed for topics, whose records stay: use"
            ' .mode("append"), or delete the topic first.'
        )
    return BatchWriter(destination(options, schema))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of a stream, in any output mode: each micro-batch's rows are appended.

    `overwrite` is how Spark says `complete`.  ValueError as for a batch.
    """
    return StreamWriter(destination(options, schema))


def appending(**options: str) -> Callable[[DataFrame, int], None]:
    """What foreachBatch takes to append each micro-batch, in the output mode `update` too.

    counts.writeStream.outputMode("update").foreachBatch(appending(topic="counts", **kafka))
    """

    def append(frame: DataFrame, number: int) -> None:
        frame.write.format("kafkalite").options(**options).mode("append").save()

    return append


def destination(options: Mapping[str, str], schema: StructType) -> Destination:
    """Where rows of this schema go by these options, both checked."""
    said = {name.lower(): value for name, value in options.items()}
    if boolean(said, "exactlyOnce", False):
        raise ValueError(
            "exactlyOnce=true comes with transactions, which this version does not have: leave it"
            " out, and rows are written at least once."
        )
    settings = client_settings(said, sink=True)
    topic = said.get("topic")
    if topic is not None and not topic.strip():
        raise ValueError("The option topic is empty: name a topic, or leave it out and give the"
                         " rows a column topic.")  # fmt: skip
    columns = checked(schema, topic is not None)
    return Destination(settings, topic and topic.strip(), columns)


def checked(schema: StructType, topic_is_said: bool) -> tuple[str, ...]:
    """The columns that a record is made of; ValueError for what is missing or of another type."""
    kinds: dict[str, str] = {}
    for field in schema.fields:
        if field.name not in TYPES or (field.name == "topic" and topic_is_said):
            continue
        if field.name in kinds:
            raise ValueError(f"There is more than one column {field.name}: drop or rename all but"
                             " one.")  # fmt: skip
        kinds[field.name] = field.dataType.simpleString()
    there = ", ".join(schema.names) or "none"
    if "value" not in kinds:
        raise ValueError(f"Required column 'value' not found: name what is to be written so. The"
                         f" columns are: {there}.")  # fmt: skip
    if "topic" not in kinds and not topic_is_said:
        raise ValueError(
            "The option topic is required when there is no column 'topic': say"
            f' .option("topic", "flights"), or add the column. The columns are: {there}.'
        )
    for name, kind in kinds.items():
        if kind.partition(COLLATED)[0] not in TYPES[name]:
            wanted = " or ".join(TYPES[name])
            raise ValueError(
                f"Column {name} has the unsupported type {kind}: it must be {wanted}. Cast it, as"
                f' in col("{name}").cast("{TYPES[name][0]}").'
            )
    return tuple(name for name in kinds if name != "topic")


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch; every task writes its own."""

    def __init__(self, to: Destination) -> None:
        self._to = to

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows; back when all of them are acknowledged, else it raises."""
        return write(iterator, self._to)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.info("Written: %s.", summed(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log.warning("The write failed; %s, and stay.", summed(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of each micro-batch; one that runs again writes its rows again."""

    def __init__(self, to: Destination) -> None:
        self._to = to

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows; back when all of them are acknowledged, else it raises."""
        return write(iterator, self._to)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.info("Written of micro-batch %d: %s.", batchId, summed(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log.warning("Micro-batch %d failed; %s, and stay.", batchId, summed(messages))


def summed(messages: Sequence[WriterCommitMessage | None]) -> str:
    """What the tasks that succeeded have written, in words; None stands for one that did not."""
    written = [message for message in messages if isinstance(message, Written)]
    return (
        f"{sum(message.records for message in written)} records of {len(written)} tasks in"
        f" {sum(message.batches for message in written)} batches are acknowledged"
    )
