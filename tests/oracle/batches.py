"""Record batches that a client should not send: built by hand, with any header field wrong.

No code of kafkalite is used here, so that the same mistake cannot be on both sides.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Sequence
from typing import NamedTuple

import crc32c
import zstandard

HEADER = struct.Struct(">qiibIhiqqqhii")
AFTER_CRC = struct.Struct(">hiqqqhii")

# Any time, as long as it is always the same and never in the future.
MOMENT_MS = 1_600_000_000_000


class Sent(NamedTuple):
    """One record of a batch; its offset delta is its position in the list unless given."""

    value: bytes | None = b"value"
    key: bytes | None = None
    timestamp_delta: int = 0
    headers: Sequence[tuple[bytes | None, bytes | None]] = ()
    offset_delta: int | None = None


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes(out) + bytes([zigzag])


def sized(field: bytes | None) -> bytes:
    return varint(-1) if field is None else varint(len(field)) + field


def record(sent: Sent, place: int) -> bytes:
    body = b"\0" + varint(sent.timestamp_delta)
    body += varint(place if sent.offset_delta is None else sent.offset_delta)
    body += sized(sent.key) + sized(sent.value) + varint(len(sent.headers))
    body += b"".join(sized(key) + sized(value) for key, value in sent.headers)
    return varint(len(body)) + body


def batch(
    records: Sequence[Sent] | int = 1,
    *,
    payload: bytes | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    timestamp_ms: int = MOMENT_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    length_off_by: int = 0,
    crc_off_by: int = 0,
) -> bytes:
    """Return a batch in which every field is correct except those given as arguments."""
    sent = [Sent()] * records if isinstance(records, int) else records
    if payload is None:
        payload = b"".join(record(each, place) for place, each in enumerate(sent))
    after_crc = AFTER_CRC.pack(
        attributes,
        len(sent) - 1 if last_offset_delta is None else last_offset_delta,
        timestamp_ms,
        timestamp_ms + max((each.timestamp_delta for each in sent), default=0)
        if max_timestamp is None
        else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(sent) if count is None else count,
    )
    crc = crc32c.crc32c(after_crc + payload) + crc_off_by & 0xFFFFFFFF
    length = 4 + 1 + 4 + len(after_crc) + len(payload) + length_off_by
    before_crc = struct.pack(">qiibI", base_offset, length, leader_epoch, magic, crc)
    return before_crc + after_crc + payload


def described(records: bytes) -> list[dict[str, object]]:
    """Describe the fetched batches one by one; a batch truncated by the size is left out."""
    batches, position = [], 0
    while len(records) - position >= HEADER.size:
        offset, length, epoch, magic, crc, *rest = HEADER.unpack_from(records, position)
        whole = records[position : position + 12 + length]
        if len(whole) < 12 + length:
            break
        names = (
            "attributes", "last_offset_delta", "base_timestamp", "max_timestamp",
            "producer_id", "producer_epoch", "base_sequence", "count",
        )  # fmt: skip
        fields = dict(zip(names, rest, strict=True))
        codec = fields["attributes"] & 7
        batches.append(
            {
                "base_offset": offset, "leader_epoch": epoch, "magic": magic, **fields,
                "crc_holds": crc32c.crc32c(whole[21:]) == crc,
                "payload": plain(codec, whole[HEADER.size :]),
            }
        )  # fmt: skip
        position += 12 + length
    return batches


def plain(codec: int, payload: bytes) -> str:
    """Return a compressed payload's content: two compressors need not agree on more."""
    try:
        if codec == 1:
            return gzip.decompress(payload).hex()
        if codec == 4:
            return zstandard.ZstdDecompressor().decompressobj().decompress(payload).hex()
    except (OSError, zstandard.ZstdError):
        return f"not of codec {codec}: {payload.hex()}"
    return payload.hex()
