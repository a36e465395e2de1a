"""The twin of ext/log/cleaner.pyx: an offset map in a dictionary, and the filter of a batch."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

from kafkalite.records.batch import BatchHeader, Record, RecordBatch, sealed
from tests.twins import records as records_twin

LOG_APPEND_TIME, CODEC_MASK, DELETE_HORIZON = 0x08, 0x07, 0x40
KEPT_IN_EMPTY = 0x38  # timestamp type, transactional, control


def digest(key: bytes) -> bytes:
    return xxhash.xxh3_128_digest(key)


def last_offsets(
    batches: Iterable[RecordBatch], first: int, upper: int, capacity: int
) -> tuple[dict[bytes, int], int]:
    """Return the last offset of each key and the offset up to which the records were taken."""
    found: dict[bytes, int] = {}
    end = first
    for batch in batches:
        for record in batch.records():
            if record.key is not None and first <= record.offset < upper:
                if record.key not in found and len(found) == capacity:
                    return found, record.offset
                found[record.key] = record.offset
        end = max(end, min(batch.header.last_offset + 1, upper))
    return found, end


def is_kept(
    record: Record, header: BatchHeader, offsets: dict[bytes, int], end: int, now_ms: int
) -> bool:
    if record.offset >= end:
        return True
    if record.key is None or offsets.get(record.key, -1) > record.offset:
        return False
    horizon = header.delete_horizon_ms
    return record.value is not None or horizon is None or horizon > now_ms


def filtered(
    batch: RecordBatch, offsets: dict[bytes, int], end: int, now_ms: int, horizon_ms: int
) -> bytes:
    """Return what is left of an uncompressed batch; nothing if it is emptied."""
    header = batch.header
    if header.base_offset >= end:
        return bytes(batch)
    kept = [
        record for record in batch.records() if is_kept(record, header, offsets, end, now_ms)
    ]
    if not kept:
        return b""
    has_tombstone = any(record.value is None for record in kept) and header.last_offset < end
    rebased = has_tombstone and header.delete_horizon_ms is None
    if len(kept) == header.count and not rebased:
        return bytes(batch)
    base_timestamp = horizon_ms if rebased else header.base_timestamp
    decoded = records_twin.decode(batch.packed, header.count, header.last_offset_delta)
    deltas = {header.base_offset + offset: delta for offset, delta, *_ in decoded}
    payload = records_twin.encode(
        (
            record.offset - header.base_offset,
            record.timestamp - horizon_ms if rebased else deltas[record.offset],
            *record[2:],
        )
        for record in kept
    )
    newest = max(record.timestamp for record in kept)
    if header.attributes & LOG_APPEND_TIME:
        newest = header.max_timestamp
    attributes = header.attributes | (DELETE_HORIZON if rebased else 0)
    return sealed(
        header._replace(
            attributes=attributes, base_timestamp=base_timestamp, max_timestamp=newest,
            count=len(kept),
        ),
        payload,
    )  # fmt: skip


def emptied(batch: RecordBatch) -> bytes:
    """Return the header of a batch without records."""
    header = batch.header
    attributes = header.attributes & KEPT_IN_EMPTY
    return sealed(header._replace(attributes=attributes, base_timestamp=-1, count=0), b"")
