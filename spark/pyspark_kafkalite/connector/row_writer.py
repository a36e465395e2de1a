"""Row writer: sends a task's rows to topics, in an executor's Python worker.

    rows from Spark  →  by topic, in Arrow  →  Producer.send_arrow  →  acknowledged: WriteResult

Record batches arrive as Spark divides them (spark.sql.execution.arrow.maxRecordsPerBatch, 10,000
rows); no row becomes a Python object.  Rows of one topic, key and partition keep their order.

A worker runs one task after the other; its producers stay open between tasks, one for each set of
settings.  A task that fails closes its producer, so that rows that are not sent yet are not sent
during its next attempt.  A worker that Spark forks from another creates its own producers.

All waits are bounded: kafka.max.block.ms limits the wait for metadata and for buffer memory,
kafka.delivery.timeout.ms each batch.  The first batch that fails fails the task, with advice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from kafkalite import Producer
from kafkalite.errors import (
    KafkaError,
    MessageTooLarge,
    NetworkException,
    RequestTimedOut,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.client import Deliveries

KEPT_MAX = 4
"""Maximum number of producers per worker; each has a thread, and connections to every broker."""

ADVICE: dict[type[KafkaError], str] = {
    UnknownTopicOrPartition: " Create the topic, or check its name.",
    MessageTooLarge: " Check kafka.max.request.size and the topic's max.message.bytes.",
    NetworkException: " Check that a broker is reachable at kafka.bootstrap.servers.",
    RequestTimedOut: (
        " Check that a broker is reachable at kafka.bootstrap.servers and still leads the topic;"
        " kafka.max.block.ms and kafka.delivery.timeout.ms limit the time of retries."
    ),
}

_pool: dict[tuple[tuple[str, str], ...], Producer] = {}
"""The producers of this process by settings, least recently used first."""


class WriteFailed(Exception):
    """Rows were not acknowledged; the message has the topic, the cause and advice."""


class NullTopic(ValueError):
    """A row has no topic, and the option is not set."""

    def __init__(self) -> None:
        super().__init__(
            "KAFKA_NULL_TOPIC_IN_DATA: the column topic is null in a row, and the option topic"
            " is not set. Set it, or leave out such rows."
        )


class Destination(NamedTuple):
    """Topic, columns and producer settings of a write."""

    settings: dict[str, str]
    """The producer's settings, by Kafka's names."""
    topic: str | None
    """None: the rows' column `topic`."""
    columns: tuple[str, ...]
    """Columns of a record, all of them accepted by `send_arrow`."""


@dataclass(frozen=True)
class WriteResult(WriterCommitMessage):
    """Result of a task: the number of records and batches, all acknowledged."""

    records: int = 0
    batches: int = 0


class Sent(NamedTuple):
    """Rows in flight."""

    topic: str
    deliveries: Deliveries


def write(batches: Iterable[pa.RecordBatch], to: Destination) -> WriteResult:
    """Write a task's rows, and wait until all of them are acknowledged.

    Raises WriteFailed if some are not; NullTopic or ValueError for rows that cannot be written, in
    which case no row of the same topic and batch was.
    """
    task = Task(to)
    try:
        for batch in batches:
            if batch.num_rows:
                task.send(batch)
        return task.finish()
    except BaseException:
        task.give_up()
        raise


class Task:
    """The rows of one task, in one thread."""

    def __init__(self, to: Destination) -> None:
        self._to = to
        self._producer: Producer | None = None
        self._failed_before = 0
        self._in_flight: deque[Sent] = deque()
        self._records = 0
        self._batches = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Send a record batch; wait for buffer memory, and raise errors of earlier rows."""
        if self._producer is None:
            self._producer = producer_of(self._to.settings)
            self._failed_before = self._producer.metrics()["failed_records"]
        for topic, rows in routed(batch, self._to):
            try:
                refresh_partitions(self._producer, topic, rows)
                deliveries = self._producer.send_arrow(topic, rows)
            except KafkaError as error:
                raise self._failure(topic, error) from None
            except (TypeError, ValueError) as error:
                raise ValueError(f"Rows for topic {topic!r} cannot be written: {error}.") from None
            self._in_flight.append(Sent(topic, deliveries))
            self._records += rows.num_rows
            self._batches += len(deliveries)
        self._check_failures()

    def finish(self) -> WriteResult:
        """Wait until all rows in flight are acknowledged."""
        while self._in_flight:
            self._settle(self._in_flight.popleft())
        return WriteResult(self._records, self._batches)

    def give_up(self) -> None:
        """Abort: close the producer without sending the rest."""
        if self._producer is not None:
            remove_producer(self._producer)

    def _check_failures(self) -> None:
        """Raise the error of rows that failed, and drop rows that are acknowledged."""
        assert self._producer is not None
        if self._producer.metrics()["failed_records"] > self._failed_before:
            for sent in self._in_flight:
                if sent.deliveries.done():
                    self._settle(sent)
        while self._in_flight and self._in_flight[0].deliveries.done():
            self._settle(self._in_flight.popleft())

    def _settle(self, sent: Sent) -> None:
        error = sent.deliveries.exception()
        if error is not None:
            raise self._failure(sent.topic, error) from None

    def _failure(self, topic: str, error: KafkaError) -> WriteFailed:
        advice = next((text for kind, text in ADVICE.items() if isinstance(error, kind)), "")
        servers = self._to.settings["bootstrap.servers"]
        why = str(error).removesuffix(".")
        return WriteFailed(
            f"Rows were not written to topic {topic!r} at {servers}: {why} ({error.name}).{advice}"
        )


def refresh_partitions(producer: Producer, topic: str, rows: pa.RecordBatch) -> None:
    """Refresh a topic's metadata if rows name a partition that was not known."""
    known = producer.known_partitions(topic)
    if known is None or "partition" not in rows.schema.names:
        return
    import pyarrow.compute as pc

    largest = pc.max(rows.column("partition")).as_py()
    if largest is not None and largest >= known:
        producer.partitions_for(topic)


def routed(batch: pa.RecordBatch, to: Destination) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows by topic, each in order; raise NullTopic before the first."""
    import pyarrow.compute as pc

    rows = batch.select(list(to.columns))
    if to.topic is not None:
        yield to.topic, rows
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise NullTopic
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) > 1:
        # Dictionary indices follow the order of appearance, and the sort is stable.
        rows = rows.take(pc.array_sort_indices(encoded.indices))
    counts = pc.value_counts(encoded.indices).field("counts").to_pylist()
    first = 0
    for name, count in zip(names, counts, strict=True):
        yield name, rows.slice(first, count)
        first += count


def producer_of(settings: Mapping[str, str]) -> Producer:
    """Return this process's producer for these settings."""
    key = tuple(sorted(settings.items()))
    producer = _pool.pop(key, None)
    # A producer that was created before a fork is closed in this process.
    if producer is None or not producer.is_open:
        while len(_pool) >= KEPT_MAX:
            oldest = _pool.pop(next(iter(_pool)))
            if oldest.is_open:
                oldest.close()
        producer = Producer(settings)
    _pool[key] = producer
    return producer


def remove_producer(producer: Producer) -> None:
    """Close a producer without sending the rest."""
    for key, pooled in list(_pool.items()):
        if pooled is producer:
            del _pool[key]
    if producer.is_open:
        producer.close(0)
