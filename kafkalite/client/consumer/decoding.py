"""Decoding of a record range into a builder of messages or columns, step by step.

Aborted transactions, if the fetch response lists any, are skipped as in Kafka's clients: from the
first offset of the transaction its producer's batches are skipped up to the abort marker.
"""

from __future__ import annotations

from kafkalite._ext import record_batch
from kafkalite.client.consumer.record_range import BatchStart, RecordRange, ShortRead, batch_start
from kafkalite.client.consumer.record_sets import Builder, decode_set
from kafkalite.client.net.topology import partition_name
from kafkalite.errors import CorruptMessage, KafkaError, raise_for
from kafkalite.records.control import ControlType

UNPACKED_SIZE_MAX = 1 << 30
"""Maximum decompressed size of a batch in bytes.  Producers limit a batch before compression,
mostly to far less; this only prevents a decompression bomb from using all memory.
"""

_COUNT = 12
"""Index of the record count in a batch header."""


def decode(record_range: RecordRange, builder: Builder, size_max: int) -> bool:
    """Decode until the builder has about `size_max` bytes; return False if the range has no more.

    Records before an error are returned before it is raised: ShortRead, or the error of a batch,
    with the partition and the offset.
    """
    try:
        while builder.size < size_max:
            window = record_range.window()
            if not window:
                return False
            if record_range.aborted:
                if decode_committed(record_range, window, builder, size_max):
                    continue
                return True
            size, record_range.first_offset = decode_set(
                builder, window, 0, record_range.first_offset, size_max, UNPACKED_SIZE_MAX
            )
            record_range.take(size)
            if not size:
                return True  # the builder is full before `size_max`
    except ShortRead:
        if not builder.count:
            raise
    except KafkaError as error:
        if not builder.count:
            raise type(error)(
                f"{partition_name(record_range.position.partition)}: {error}"
            ) from None
    return True


def decode_committed(
    record_range: RecordRange, window: memoryview, builder: Builder, size_max: int
) -> bool:
    """Decode one window of a range with aborted transactions, batch by batch.

    Returns False if the builder is full before `size_max`, or the next batch cannot be decoded.
    """
    place = 0
    open_ones = AbortedTransactionFilter(record_range.aborted)
    try:
        while place < len(window) and builder.size < size_max:
            start = batch_start(window, place)
            batch = window[place : place + start.size]
            if open_ones.has(start, batch):
                record_range.first_offset = max(record_range.first_offset, start.last_offset + 1)
            else:
                size, record_range.first_offset = decode_set(
                    builder, batch, 0, record_range.first_offset, size_max, UNPACKED_SIZE_MAX
                )
                if not size:
                    return False
            place += start.size
        return True
    finally:
        record_range.aborted = open_ones.left
        record_range.take(place)


class AbortedTransactionFilter:
    """The aborted transactions of a record range that have not ended yet."""

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        self._aborted = sorted(aborted, key=lambda each: each[1])

    @property
    def left(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._aborted)

    def has(self, start: BatchStart, batch: memoryview) -> bool:
        """Return whether a batch belongs to an aborted transaction; an abort marker ends it."""
        if not start.is_transactional:
            return False
        for number, (producer_id, first_offset) in enumerate(self._aborted):
            if first_offset > start.last_offset:
                return False
            if producer_id == start.producer_id:
                # Check the CRC first: a damaged header must not make records be skipped.
                words = f"At offset {start.base_offset}: the batch is invalid."
                raise_for(record_batch.check(batch), words)
                if start.is_control and is_abort(batch):
                    del self._aborted[number]
                return True
        return False


def is_abort(batch: memoryview) -> bool:
    """Return whether a control batch is an abort marker; one emptied by compaction is none."""
    control_type = record_batch.control_record(batch)[0]
    if control_type < 0 and record_batch.header(batch)[_COUNT]:
        raise CorruptMessage("A control batch has no control record.")
    return control_type == ControlType.ABORT
