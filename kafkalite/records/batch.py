"""RecordBatch: a view of the bytes of one record batch (v2, KIP-98), and how to build them.

Producers send, logs store and consumers fetch a batch in the same form; a broker does not decode
it.  `ext/codec/batch_layout.pxd` shows its header, `ext/codec/records.pyx` a record.  This module
is for code that decodes or builds whole batches: tools, tests, clients.  A broker's event loop
decodes batches in steps (decode_steps.py).

Left out: message sets of magic 0 and 1, which Kafka 4 refuses as well.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from kafkalite._ext import record_batch
from kafkalite._ext import records as record_bytes
from kafkalite._ext.record_batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    PREFIX_SIZE,
    TRANSACTIONAL,
)
from kafkalite.errors import BY_CODE, CorruptMessage, raise_for
from kafkalite.records.compression import Codec, compress, decompress

NO_TIMESTAMP = -1
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_PLACE = 1
_CRC_POSITION = 17
_CHECKED_POSITION = 21
assert _HEADER.size == HEADER_SIZE

RECORDS_DIFFER = "The batch's records are not what its header says."

Headers = tuple[tuple[str, bytes | None], ...]


class TimestampType(IntEnum):
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """One record; in `build`, offset -1 means the one after the previous record."""

    offset: int = -1
    timestamp: int = NO_TIMESTAMP
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


class BatchHeader(NamedTuple):
    """The header fields of a batch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # a tuple's own `count` is nothing to a batch

    @property
    def size(self) -> int:
        return self.batch_length + PREFIX_SIZE

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> Codec:
        return Codec.of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which the cleaner may remove this batch's tombstones; None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


class RecordBatch:
    """One whole batch; the constructor validates the bytes and raises the Kafka error."""

    __slots__ = ("header", "view")

    def __init__(self, batch: bytes | bytearray | memoryview) -> None:
        raise_for(record_batch.check(batch))
        self.view = memoryview(batch)
        self.header = BatchHeader(*record_batch.header(batch))

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def __len__(self) -> int:
        return len(self.view)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        header = self.header
        return f"RecordBatch({header.base_offset}..{header.last_offset}, count={header.count})"

    @property
    def packed(self) -> memoryview:
        """The bytes of the records, as stored in the batch."""
        return self.view[HEADER_SIZE:]

    def payload(self, size_max: int | None = None) -> bytes | memoryview:
        """Return the records' bytes, decompressed to at most `size_max` (`output_size_max`)."""
        if not self.header.attributes & record_batch.CODEC_MASK:
            return self.packed
        return decompress(self.header.codec, self.packed, size_max)

    def records(self, size_max: int | None = None) -> list[Record]:
        """Return the records with their absolute offsets and timestamps."""
        header = self.header
        payload = self.payload(size_max)
        found = record_bytes.decode(payload, header.count, header.last_offset_delta)
        if isinstance(found, int):
            raise BY_CODE[found](RECORDS_DIFFER)
        base = header.base_offset
        if header.attributes & LOG_APPEND_TIME:
            when = header.max_timestamp
            return [Record(base + at, when, k, v, named) for at, _, k, v, named in found]
        first = header.base_timestamp
        return [Record(base + at, first + late, k, v, named) for at, late, k, v, named in found]


def batches(record_set: bytes | bytearray | memoryview) -> Iterator[RecordBatch]:
    """Yield the batches of a fetch response or of a segment.

    An incomplete last batch is skipped: a fetch ends wherever its size limit was reached.
    """
    view = memoryview(record_set)
    position = 0
    while len(view) - position >= HEADER_SIZE:
        size = record_batch.header(view[position:])[_LENGTH_PLACE] + PREFIX_SIZE
        if size < HEADER_SIZE:
            raise CorruptMessage(
                f"The batch at position {position} has an invalid size of {size} bytes."
            )
        if size > len(view) - position:
            return
        yield RecordBatch(view[position : position + size])
        position += size


def build(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Return the bytes of a batch of at least one record.

    With LOG_APPEND_TIME every record has the latest of the given timestamps.
    """
    entries: list[tuple[int, int, bytes | None, bytes | None, Headers]] = []
    next_delta = 0
    base_timestamp = max_timestamp = NO_TIMESTAMP
    for offset, timestamp, key, value, headers in records:
        delta = offset - base_offset if offset >= 0 else next_delta
        assert delta >= next_delta, "records stand in the order of their offsets"
        next_delta = delta + 1
        if not entries:
            base_timestamp = max_timestamp = timestamp
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        entries.append((delta, timestamp - base_timestamp, key, value, headers))
    assert entries, "a batch holds at least one record"
    payload = record_bytes.encode(entries)
    attributes = (
        codec
        | (LOG_APPEND_TIME if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
    )
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=next_delta - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(entries),
    )
    return sealed(header, compress(codec, payload, level))


def build_at(
    timestamp: int,
    pairs: Iterable[tuple[bytes, bytes | None]],
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return what `build` returns for these keys and values with one timestamp, in less time."""
    entries = [(at, 0, key, value, ()) for at, (key, value) in enumerate(pairs)]
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL if transactional else 0,
        last_offset_delta=len(entries) - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        count=len(entries),
    )
    return sealed(header, record_bytes.encode(entries))


def sealed(header: BatchHeader, payload: bytes) -> bytes:
    """Return header and payload as a batch, with its length and CRC."""
    length = HEADER_SIZE - PREFIX_SIZE + len(payload)
    batch = bytearray(_HEADER.pack(header.base_offset, length, *header[2:]))
    batch += payload
    crc = record_batch.crc32c(memoryview(batch)[_CHECKED_POSITION:])
    struct.pack_into(">I", batch, _CRC_POSITION, crc)
    return bytes(batch)
