"""Fuzz targets for the steps in which a compressed batch is decoded on the broker's event loop.

    zstd    frames divided between blocks, and decompressed a part at a time
    scan    decompressed records scanned in arbitrary pieces, and searched by time

Each must agree with a decoder that gets everything at once.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import zstandard

from kafkalite._ext import record_batch, records, zstd_blocks
from kafkalite._ext.record_scan import RecordScan
from kafkalite.errors import KafkaError
from kafkalite.records.batch import Record, build
from kafkalite.records.compression import Codec, decompress
from tests.twins import records as records_twin
from tests.twins import zstd_blocks as blocks_twin

BLOCK_SIZE_MAX = 128 << 10
OUTPUT_SIZE_MAX = 1 << 20

# Input: the maximum size of a part, and the maximum number of frames; then the frames.

DIVIDE = struct.Struct(">BB")


def zstd(given: memoryview) -> int:
    """Return the outcome of dividing a payload and decompressing its parts."""
    if len(given) < DIVIDE.size:
        return 0
    size, frames_max = DIVIDE.unpack_from(given)
    payload = given[DIVIDE.size :]
    output_max = BLOCK_SIZE_MAX + 1024 * size
    parts = zstd_blocks.divide(payload, output_max, frames_max)
    assert parts == blocks_twin.divide(bytes(payload), output_max, frames_max)
    if not parts:
        return 1 + (parts is None)
    assert parts[-1][0] == len(payload) and parts == sorted(parts)
    try:
        content = decompress(Codec.ZSTD, payload, OUTPUT_SIZE_MAX)
    except KafkaError:
        return 3
    assert content == at_once(bytes(payload))
    return 4 + min(len(parts), 9) + 10 * min(sum(ends for _, ends in parts), 9)


def at_once(payload: bytes) -> bytes:
    """Decompress all frames with the zstandard library."""
    content = b""
    while payload:
        decoder = zstandard.ZstdDecompressor().decompressobj()
        content += decoder.decompress(payload)
        payload = decoder.unused_data
    return content


def zstd_seeds() -> Iterator[bytes]:
    skippable = struct.pack("<II", 0x184D2A50, 3) + b"abc"
    frames = [
        zstandard.ZstdCompressor(write_checksum=checked, write_content_size=sized).compress(content)
        for checked in (False, True)
        for sized in (False, True)
        for content in (b"", b"ab" * 20, bytes(300_000), bytes(range(256)) * 4)
    ]
    for frame in frames:
        yield DIVIDE.pack(0, 5) + frame
        yield DIVIDE.pack(255, 5) + frame + skippable + frames[1]
    yield DIVIDE.pack(0, 1) + frames[1] * 2
    yield DIVIDE.pack(0, 9) + skippable * 9
    yield DIVIDE.pack(0, 9) + frames[1][:-3]
    yield DIVIDE.pack(0, 9)


# Input: the number of records, the last offset, a first timestamp, the range of timestamps and the
# first offset to search, and the sizes of pieces; then the records.

SCAN = struct.Struct(">iiqqqiBB")


def scan(given: memoryview) -> int:
    """Return the outcome of scanning records in pieces."""
    if len(given) < SCAN.size:
        return 0
    count, last, base, low, high, least, first, rest = SCAN.unpack_from(given)
    payload = given[SCAN.size :]
    torn = RecordScan(count, last, len(payload), base)
    whole = RecordScan(count, last, len(payload), base)
    for each in (torn, whole):
        each.collect(low, high, inside=bool(rest & 1), offset_delta_min=least)
    position, size = 0, first
    while position < len(payload):
        torn.feed(payload[position : position + max(1, size)])
        position += max(1, size)
        size = rest
    whole.feed(payload)
    code = whole.end()
    assert torn.end() == code == records.validate(payload, count, last)
    if code:
        return 1
    found = records_twin.decode(bytes(payload), count, last)
    assert isinstance(found, list)
    assert torn.hits == whole.hits and torn.hit_all == whole.hit_all
    assert torn.max_timestamp == whole.max_timestamp
    return 2 + min(len(whole.hits), 9) + 10 * min(count, 9)


def scan_seeds() -> Iterator[bytes]:
    for count in (1, 3, 12):
        some = [
            Record(timestamp=5 + at % 4, key=b"k" * at or None, value=b"v" * 9,
                   headers=(("h", None),) * (at % 3))
            for at in range(count)
        ]  # fmt: skip
        payload = build(some)[record_batch.HEADER_SIZE :]
        for low, high, least in ((0, 100, 0), (6, 7, 2), (0, 0, 0)):
            for first, rest in ((255, 255), (1, 1), (7, 30)):
                yield SCAN.pack(count, count - 1, 5, low, high, least, first, rest) + payload
        yield SCAN.pack(count, count, 5, 0, 9, 0, 9, 9) + payload
        yield SCAN.pack(count + 1, count, 5, 0, 9, 0, 9, 9) + payload
        yield SCAN.pack(count, count - 1, 5, 0, 9, 0, 9, 9) + payload[:-1]
