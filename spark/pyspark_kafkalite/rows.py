"""A task's rows on their way to topics: what the sink does in an executor's Python worker.

    rows from Spark  →  by topic, in Arrow  →  Producer.send_arrow  →  acknowledged: Written

Record batches come as Spark cuts them (spark.sql.execution.arrow.maxRecordsPerBatch, 10,000 rows);
no row becomes a Python object.  Rows of one topic, key and partition keep their order.

A worker serves one task after the other, and its producers stay open between them, one for each
set of settings.  A task that fails closes its own: what it has not sent yet is not sent beside its
next attempt.  A worker that Spark forks from another makes its own producers.

Nothing waits for ever: kafka.max.block.ms bounds the wait for a topic and for room,
kafka.delivery.timeout.ms each batch.  The first batch that fails fails the task, with what to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from kafkalite.client.producer.producer import Producer
from kafkalite.errors import (
    KafkaError,
    MessageTooLarge,
    NetworkException,
    RequestTimedOut,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalite.client.producer.column_batches import Deliveries

KEPT_MAX = 4
"""How many producers a worker keeps; each has a thread, and connections to every broker."""

ADVICE: dict[type[KafkaError], str] = {
    UnknownTopicOrPartition: " Create the topic, or see how its name is spelled.",
    MessageTooLarge: " kafka.max.request.size and the topic's max.message.bytes bound a record.",
    NetworkException: " See whether a broker can be reached at kafka.bootstrap.servers.",
    RequestTimedOut: (
        " See whether a broker can be reached at kafka.bootstrap.servers and still leads the topic;"
        " kafka.max.block.ms and kafka.delivery.timeout.ms say how long to try."
    ),
}

_kept: dict[tuple[tuple[str, str], ...], Producer] = {}
"""The producers of this process by their settings, the one used last at the end."""


class WriteFailed(Exception):
    """Rows were not acknowledged; says of which topic, why, and what to do."""


class NullTopic(ValueError):
    """A row says no topic, and neither does the option."""

    def __init__(self) -> None:
        super().__init__(
            "KAFKA_NULL_TOPIC_IN_DATA: the column topic is null in a row, and the option topic"
            " is not set. Set it, or leave out such rows."
        )


class Destination(NamedTuple):
    """Where rows go."""

    settings: dict[str, str]
    """The producer's, by Kafka's names."""
    topic: str | None
    """None: the rows' column `topic` says."""
    columns: tuple[str, ...]
    """What a record is made of, all of them columns that `send_arrow` takes."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task has written, all of it acknowledged."""

    records: int = 0
    batches: int = 0


class Sent(NamedTuple):
    """Rows that are on their way."""

    topic: str
    deliveries: Deliveries


def write(batches: Iterable[pa.RecordBatch], to: Destination) -> Written:
    """Write a task's rows, and wait until all of them are acknowledged.

    WriteFailed when some are not; NullTopic or ValueError for rows that cannot be written, of
    whose topic and batch none was.
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
        self._under_way: deque[Sent] = deque()
        self._records = 0
        self._batches = 0

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a record batch; waits for room, and raises what went wrong so far."""
        if self._producer is None:
            self._producer = producer_of(self._to.settings)
            self._failed_before = self._producer.metrics()["failed_records"]
        for topic, rows in routed(batch, self._to):
            try:
                learn_growth(self._producer, topic, rows)
                deliveries = self._producer.send_arrow(topic, rows)
            except KafkaError as fault:
                raise self._failure(topic, fault) from None
            except (TypeError, ValueError) as fault:
                raise ValueError(f"Rows for topic {topic!r} cannot be written: {fault}.") from None
            self._under_way.append(Sent(topic, deliveries))
            self._records += rows.num_rows
            self._batches += len(deliveries)
        self._look()

    def finish(self) -> Written:
        """Wait for all that is under way."""
        while self._under_way:
            self._settle(self._under_way.popleft())
        return Written(self._records, self._batches)

    def give_up(self) -> None:
        """Send no more of it."""
        if self._producer is not None:
            forget(self._producer)

    def _look(self) -> None:
        """Raise what has failed, and let go of what is written."""
        assert self._producer is not None
        if self._producer.metrics()["failed_records"] > self._failed_before:
            for sent in self._under_way:
                if sent.deliveries.done():
                    self._settle(sent)
        while self._under_way and self._under_way[0].deliveries.done():
            self._settle(self._under_way.popleft())

    def _settle(self, sent: Sent) -> None:
        fault = sent.deliveries.exception()
        if fault is not None:
            raise self._failure(sent.topic, fault) from None

    def _failure(self, topic: str, fault: KafkaError) -> WriteFailed:
        advice = next((text for kind, text in ADVICE.items() if isinstance(fault, kind)), "")
        servers = self._to.settings["bootstrap.servers"]
        why = str(fault).removesuffix(".")
        return WriteFailed(
            f"Rows were not written to topic {topic!r} at {servers}: {why} ({fault.name}).{advice}"
        )


def learn_growth(producer: Producer, topic: str, rows: pa.RecordBatch) -> None:
    """Ask anew how many partitions a topic has, when rows name one that was not there."""
    known = producer.topics.get(topic)
    if known is None or "partition" not in rows.schema.names:
        return
    import pyarrow.compute as pc

    largest = pc.max(rows.column("partition")).as_py()
    if largest is not None and largest >= len(known.lines):
        producer.partitions_for(topic)


def routed(batch: pa.RecordBatch, to: Destination) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by their topics, each topic's in their order; NullTopic before the first."""
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
        # Numbers are given as topics come, and the sort is stable.
        rows = rows.take(pc.array_sort_indices(encoded.indices))
    counts = pc.value_counts(encoded.indices).field("counts").to_pylist()
    first = 0
    for name, count in zip(names, counts, strict=True):
        yield name, rows.slice(first, count)
        first += count


def producer_of(settings: Mapping[str, str]) -> Producer:
    """This process's producer of these settings."""
    key = tuple(sorted(settings.items()))
    producer = _kept.pop(key, None)
    # One that was made before a fork is closed here.
    if producer is None or not producer.is_open:
        while len(_kept) >= KEPT_MAX:
            oldest = _kept.pop(next(iter(_kept)))
            if oldest.is_open:
                oldest.close()
        producer = Producer(**settings)
    _kept[key] = producer
    return producer


def forget(producer: Producer) -> None:
    """Close a producer, whatever it has not sent yet."""
    for key, kept in list(_kept.items()):
        if kept is producer:
            del _kept[key]
    if producer.is_open:
        producer.close(0)
