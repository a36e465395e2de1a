"""Decoding a batch in steps.

Compressed records may be hostile and many times the size of their batch, and a broker's event loop
must not block for all of them.  The functions here are generators: each `next` takes one step and
yields its cost, in bytes that were produced or scanned.  The event loop decides after each step
whether there is time for another, or continues on another thread; `finish` takes all steps at once.
Unless the records are recompressed, at most one record and one piece are in memory.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

from kafkalite._ext.record_batch import CODEC_MASK
from kafkalite._ext.record_scan import RecordScan
from kafkalite.errors import BY_CODE
from kafkalite.records.batch import RECORDS_DIFFER, RecordBatch, sealed
from kafkalite.records.compression import Codec, compress, output_size_max, pieces

T = TypeVar("T")

DecodeSteps: TypeAlias = Generator[int, None, T]
"""The cost of each step; the generator's return value is the result."""

BATCH_COST = 8192
"""The cost of a batch in addition to that of its bytes."""

LARGE = 1 << 62
"""The cost that is yielded before a step which is too large for an event loop."""

COMPRESS_COST = 8
"""The cost of a byte that is compressed."""

COMPRESSED_AT_ONCE_MAX = 64 << 10
"""The largest payload that an event loop compresses, at a level up to that in FAST_LEVELS."""

FAST_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}


def finish(steps: DecodeSteps[T]) -> T:
    """Take all steps now and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def scan_of(batch: RecordBatch) -> RecordScan:
    """Return a scan for the records of this batch."""
    header = batch.header
    size_max = output_size_max(len(batch))
    return RecordScan(header.count, header.last_offset_delta, size_max, header.base_timestamp)


def walk(
    batch: RecordBatch,
    scan: RecordScan,
    *,
    until_hit: bool = False,
    kept: list[bytes] | None = None,
    size_max: int | None = None,
    strict: bool = False,
) -> DecodeSteps[None]:
    """Pass the batch's records to a scan; raise the Kafka error if they are invalid.

    With `until_hit` the walk ends once the scan has found all that it collects.  The pieces of
    the payload are appended to `kept`, if given.  `strict` as in `compression.pieces`.
    """
    cost = BATCH_COST
    for piece in pieces(batch.header.codec, batch.packed, size_max, strict=strict):
        if not piece:
            yield LARGE
            continue
        if code := scan.feed(piece):
            raise BY_CODE[code](RECORDS_DIFFER)
        if kept is not None:
            kept.append(piece)
        yield cost + len(piece)
        if until_hit and scan.hit_all:
            return
        cost = 0
    if code := scan.end():
        raise BY_CODE[code](RECORDS_DIFFER)


def recompress(
    batch: RecordBatch,
    codec: Codec,
    level: int | None = None,
    *,
    scan: RecordScan | None = None,
    size_max: int | None = None,
    strict: bool = False,
) -> DecodeSteps[bytes]:
    """Return the batch with its records in another codec and all other fields unchanged."""
    kept: list[bytes] = []
    yield from walk(batch, scan or scan_of(batch), kept=kept, size_max=size_max, strict=strict)
    header = batch.header
    if header.codec is codec:
        return bytes(batch)
    payload = b"".join(kept)
    kept.clear()
    if len(payload) > COMPRESSED_AT_ONCE_MAX or (level or 0) > FAST_LEVELS.get(codec, 0):
        yield LARGE
    packed = compress(codec, payload, level)
    yield COMPRESS_COST * len(payload)
    attributes = (header.attributes & ~CODEC_MASK) | codec
    return sealed(header._replace(attributes=attributes), packed)
