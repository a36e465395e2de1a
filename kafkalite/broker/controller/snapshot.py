"""Snapshots: the fewest records of the controller's state, in a file beside the metadata log.

    00000000000000012345.checkpoint = batches of records as in the log, then 8 bytes XXH3-64 of them

The name is the offset at which the log continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import xxhash

from kafkalite.errors import CorruptMessage
from kafkalite.protocol.schemas import internal
from kafkalite.records import batch as record_batch
from kafkalite.storage.files.disk import DISK, put_file

LEADER_EPOCH = 0
"""The leader epoch of all batches of the metadata log."""

BATCH_COUNT_MAX = 10_000
SNAPSHOT = ".checkpoint"
DIGEST_SIZE = 8


def encode_batch(records: Sequence[internal.TypedRecord], base_offset: int, now_ms: int) -> bytes:
    """Return one batch of these records, without keys."""
    return record_batch.build(
        (record_batch.Record(timestamp=now_ms, value=internal.write(record)) for record in records),
        base_offset=base_offset,
        leader_epoch=LEADER_EPOCH,
    )


def write_snapshot(path: Path, records: Iterable[internal.TypedRecord], now_ms: int) -> None:
    """Write a machine's fewest records to a file, completely or not at all."""
    left = iter(records)
    content = bytearray()
    offset = 0
    while chunk := list(islice(left, BATCH_COUNT_MAX)):
        content += encode_batch(chunk, offset, now_ms)
        offset += len(chunk)
    put_file(DISK, path, bytes(content) + xxhash.xxh3_64_digest(content))


def read_snapshot(path: Path) -> list[internal.TypedRecord]:
    """Return the records of a snapshot; raise CorruptMessage if its checksum is wrong."""
    content = memoryview(path.read_bytes())
    batches, digest = content[:-DIGEST_SIZE], bytes(content[-DIGEST_SIZE:])
    if xxhash.xxh3_64_digest(batches) != digest:
        raise CorruptMessage("its checksum does not match.")
    return [
        internal.read(record.value or b"")
        for batch in record_batch.batches(batches)
        for record in batch
    ]
