"""Opening a batch a step at a time.

Compressed records are hostile and may be many times the size of their batch, and a broker's loop
must not stop for all of them.  What opens a batch here is a generator: each `next` takes one step
and yields what it cost, in bytes that were made or walked through.  Whoever runs it decides after
each step whether there is time for another, or lets another thread go on with it; `finish` runs
it at once.  Unless the records are compressed again, one record and one piece are held at most.
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

Steps: TypeAlias = Generator[int, None, T]
"""The cost of each step; all of them return what was to be found or made."""

BATCH_COST = 8192
"""The cost of a batch beside that of its bytes."""

LARGE = 1 << 62
"""The cost that is yielded before a step which is too large for a loop."""

COMPRESS_COST = 8
"""The cost of a byte that is compressed."""

COMPRESSED_AT_ONCE_MAX = 64 << 10
"""The largest payload that a loop compresses, at a level up to that in FAST_LEVELS."""

FAST_LEVELS = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}


def finish(steps: Steps[T]) -> T:
    """Take all steps now, and return their result."""
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
) -> Steps[None]:
    """Walk through the batch's records with a scan; raise what is wrong with them.

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
) -> Steps[bytes]:
    """Return the batch with its records in another codec, and every other field as it was."""
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
