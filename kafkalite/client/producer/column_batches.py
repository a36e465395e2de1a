"""Column batches: partitions the rows of a table, and encodes them from the columns.

    PartitionRows    rows of a table for one partition, in order
    ColumnContent    as many of them as one batch takes
    Piece            those that were sent in one batch

Few rows are appended to the partition's open batch, beside the records of send(), and wait for more
up to linger.ms: a batch of their own costs as much as a hundred rows.  Many are sent at once.

The thread that called send_arrow encodes the rows directly into the ring's memory, without an
intermediate copy.  A retry encodes them again, from columns that are held until the batch is
completed: columns do not change, so the bytes are the same.  Without a ring, or with a codec, the
rows are encoded into a buffer that buffer.memory counts.  If columns do change meanwhile, the
batches in which that shows fail.

Rows without a key and a partition stay together: a small table goes to one partition, a large one
in contiguous parts to several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kafkalite._ext.gathering import Piece
from kafkalite._ext.hashing import group_rows, partitions_of
from kafkalite._ext.record_batch import HEADER_SIZE
from kafkalite._ext.record_writer import encode_columns, seal
from kafkalite.client.producer.arrow_columns import ArrowColumns, Bytes
from kafkalite.client.producer.batch_completion import BatchCompletion
from kafkalite.client.producer.partition_queue import PartitionQueue, ProducerTopic
from kafkalite.client.producer.partitioner import Partitioner
from kafkalite.client.producer.payload import BatchContent, EncodedContent
from kafkalite.errors import InvalidRecord, KafkaError
from kafkalite.records.compression import Codec

PART_ROWS_MIN = 16_384
"""Minimum rows per partition when rows without a key are spread over several partitions."""

CHUNK_SIZE_MAX = 384 << 10
"""Maximum size of a batch of columns.  Small batches pay the cost per batch more often: CPU time of
producer and worker per record at 192, 384 and 512 KiB, 100,000 rows a call: 1 : 0.83 : 0.75.  Large
batches leave the worker's cache before they are copied, checked and written, and lengthen an
iteration of the worker's event loop, which handles two."""


CHANGED_COLUMNS = "The columns were changed while send_arrow() sent them."


class PartitionRows(NamedTuple):
    """Rows of some columns for one partition: first… up to end, or rows[first…] with an index."""

    queue: PartitionQueue
    columns: ArrowColumns
    rows: Any
    first: int
    end: int


class ColumnContent:
    """The content of a batch that is encoded from the columns each time."""

    __slots__ = ("_columns", "_first", "_now_ms", "_rows", "_times", "count", "size")

    def __init__(
        self, run: PartitionRows, count: int, payload_size: int, times: tuple[int, int], now_ms: int
    ) -> None:
        self._columns = run.columns
        self._rows = run.rows
        self._first = run.first
        self._times = times
        self._now_ms = now_ms
        self.count = count
        self.size = HEADER_SIZE + payload_size

    def close(self) -> None:
        """Do nothing: no records are appended to it."""

    def seal(
        self, out: memoryview, producer_id: int, epoch: int, sequence: int, attributes: int = 0
    ) -> int:
        """Write the header before records that are encoded already."""
        payload_size = self.size - HEADER_SIZE
        return seal(
            out, payload_size, self.count, *self._times, attributes, producer_id, epoch, sequence
        )

    def write(
        self, out: memoryview, producer_id: int, epoch: int, sequence: int, attributes: int = 0
    ) -> int:
        try:
            taken, payload_size, *_ = encode_columns(
                out[: self.size],
                self._first,
                self._first + self.count,
                self._rows,
                *self._columns[1:5],
                self._now_ms,
            )
        except ValueError:
            taken = payload_size = -1
        if taken != self.count or payload_size != self.size - HEADER_SIZE:
            raise InvalidRecord(CHANGED_COLUMNS)
        return self.seal(out, producer_id, epoch, sequence, attributes)

    def of_buffer(self, buffer: bytearray) -> EncodedContent:
        """Return the same content for records that are encoded in this buffer."""
        return EncodedContent(buffer, self.size - HEADER_SIZE, self.count, *self._times)

    def compressed(self, codec: Codec, level: int | None) -> EncodedContent:
        buffer = bytearray(self.size)
        self.write(memoryview(buffer), -1, -1, -1)
        payload = bytes(memoryview(buffer)[HEADER_SIZE:])
        return EncodedContent.of(payload, self.count, *self._times, codec, level)

    def halves(self) -> tuple[BatchContent, BatchContent]:
        return self.compressed(Codec.NONE, None).halves()


def column_content(
    run: PartitionRows, room: memoryview | bytearray, now_ms: int
) -> ColumnContent | None:
    """Encode as many of a run's rows as fit in `room`; return None if not even the first does."""
    taken, payload_size, *times = encode_columns(
        room, run.first, run.end, run.rows, *run.columns[1:5], now_ms
    )
    if not taken:
        return None
    return ColumnContent(run, taken, payload_size, (times[0], times[1]), now_ms)


def partition_rows(
    topic: ProducerTopic, columns: ArrowColumns, partitioner: Partitioner | None
) -> Iterator[PartitionRows]:
    """Yield the rows by partition."""
    queues, count = topic.queues, columns.row_count
    chosen = columns.partitions
    if chosen is None and partitioner is None and (columns.key is None or len(queues) == 1):
        for place, queue in enumerate(parts := sticky_queues(topic, count)):
            first, end = count * place // len(parts), count * (place + 1) // len(parts)
            yield PartitionRows(queue, columns, None, first, end)
        return
    partitions = bytearray(b"\xff" * 4 * count if chosen is None else chosen)
    if partitioner is not None:
        call_partitioner(partitions, partitioner, topic.name, columns, len(queues))
    elif columns.key is not None:
        partitions_of(columns.key, len(queues), partitions)
    assign_missing(
        partitions, lambda missing: [queue.index for queue in sticky_queues(topic, missing)]
    )
    rows = bytearray(4 * count)
    first = 0
    for index, end in enumerate(group_rows(partitions, len(queues), rows)):
        if end > first:
            yield PartitionRows(queues[index], columns, rows, first, end)
        first = end


def sticky_queues(topic: ProducerTopic, count: int) -> list[PartitionQueue]:
    """Return the partition queues for `count` rows without a key.

    A few rows are added to the queue whose open batch holds records without a key.
    """
    count_max = max(1, min(count // PART_ROWS_MIN, len(topic.queues)))
    if count_max == 1 and topic.sticky is not None and topic.sticky.open_batch is not None:
        return [topic.sticky]
    queues: dict[PartitionQueue, None] = {}
    led = [queue for queue in topic.queues if queue.leader >= 0] or topic.queues
    while len(queues) < min(count_max, len(led)):
        queues[topic.choose_sticky()] = None
    return list(queues)


def assign_missing(partitions: bytearray, choose: Callable[[int], list[int]]) -> None:
    """Assign contiguous parts of the rows without a partition to the chosen partitions."""
    import numpy as np

    numbers = np.frombuffer(partitions, np.int32)
    missing = np.flatnonzero(numbers < 0)
    if len(missing):
        parts = choose(len(missing))
        for part, index in zip(np.array_split(missing, len(parts)), parts, strict=True):
            numbers[part] = index


def call_partitioner(
    partitions: bytearray, partitioner: Partitioner, topic: str, columns: ArrowColumns, count: int
) -> None:
    """Call a user's partitioner for each row without a partition."""
    numbers = memoryview(partitions).cast("i")
    keys = keys_of(columns.key, columns.row_count)
    for row, key in enumerate(keys):
        if numbers[row] < 0:
            index = partitioner(topic, key, count)
            if not 0 <= index < count:
                raise ValueError(f"topic {topic!r} has no partition {index} among its {count}")
            numbers[row] = index


def keys_of(column: Bytes | None, count: int) -> Iterator[bytes | None]:
    """Yield the cells of a column of keys."""
    if column is None or column[1] is None:
        yield from [None] * count
        return
    validity, offsets, content, start, wide = column
    offsets = memoryview(offsets).cast("B").cast("q" if wide else "i")
    valid = None if validity is None else memoryview(validity)
    bytes_of_all = memoryview(b"" if content is None else content)
    for place in range(start, start + count):
        if valid is not None and not valid[place >> 3] >> (place & 7) & 1:
            yield None
        else:
            yield bytes(bytes_of_all[offsets[place] : offsets[place + 1]])


def leaves_of(piece: Piece) -> Iterator[tuple[BatchCompletion, int, int]]:
    """Yield the batches a piece was sent in, each with first place and row count."""
    for first, leaf in piece.batch.placed_leaves():
        begin = max(piece.place, first)
        end = min(piece.place + piece.row_count, first + leaf.count)
        if begin < end:
            yield leaf, begin - first, end - begin


class Deliveries:
    """The outcomes of a table's rows, one per batch that rows were sent in."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return f"<Deliveries of {len(self.pieces)} pieces>"

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def batches(self) -> list[BatchCompletion]:
        """The batches that hold rows of the table."""
        return [piece.batch for piece in self.pieces]

    def done(self) -> bool:
        """Return True if the outcomes of all rows are known."""
        return all(batch.done for batch in self.batches)

    def result(self, timeout: float | None = None) -> list[tuple[int, int, int]]:
        """Wait for the outcomes of all rows.

        Args:
            timeout: Seconds to wait; None: without a limit of its own.

        Returns:
            A list of (partition, base offset, record count), one per batch; the offset is -1 with
            acks=0.

        Raises:
            KafkaError: The first error of the batches.
            TimeoutError: The timeout has passed.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.copy()
        return [
            (leaf.partition, leaf.base_offset + place if leaf.base_offset >= 0 else -1, count)
            for piece in self.pieces
            for leaf, place, count in leaves_of(piece)
        ]

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcomes of all rows, and return the first error.

        Args:
            timeout: Seconds to wait; None: without a limit of its own.

        Returns:
            The first error of the batches, or None.

        Raises:
            TimeoutError: The timeout has passed.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        for batch in self.batches:
            batch.request_outcome()
            left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
            if not batch.done and not batch.wait(left_s):
                raise TimeoutError(f"{batch!r} is neither delivered nor failed yet; wait longer")
        errors = [leaf.error for piece in self.pieces for leaf, _, _ in leaves_of(piece)]
        return next((error for error in errors if error is not None), None)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call callback(deliveries) once all outcomes are known; immediately if they are.

        Args:
            callback: Function of this object.
        """
        left = iter(self.batches)

        def next_one(_: Any = None) -> None:
            for batch in left:
                if not batch.done:
                    batch.call_when_done(self, next_one)
                    return
            callback(self)

        next_one()
