"""The twin of ext/codec/record_batch.pyx."""

import struct

from .crc32c import crc32c as crc

HEADER = struct.Struct(">qiibIhiqqqhii")
GOOD = {
    "base_offset": 0,
    "batch_length": None,
    "leader_epoch": -1,
    "magic": 2,
    "crc": None,
    "attributes": 0,
    "last_offset_delta": 0,
    "base_timestamp": 1_700_000_000_000,
    "max_timestamp": 1_700_000_000_000,
    "producer_id": -1,
    "producer_epoch": -1,
    "base_sequence": -1,
    "count": 1,
}


def build(payload: bytes, **fields) -> bytearray:
    """Return a batch with these fields; length and CRC are valid unless they are given."""
    fields = GOOD | fields
    if fields["batch_length"] is None:
        fields["batch_length"] = 49 + len(payload)
    given_crc = fields["crc"]
    batch = bytearray(HEADER.pack(*(fields | {"crc": 0}).values()) + payload)
    struct.pack_into(">I", batch, 17, crc(batch[21:]) if given_crc is None else given_crc)
    return batch


def check(batch: bytes) -> int:
    if len(batch) < HEADER.size:
        return 2
    _, length, _, magic, stored_crc, *_ = HEADER.unpack_from(batch)
    if length + 12 != len(batch):
        return 2
    if magic != 2:
        return 43
    if stored_crc != crc(batch[21:]):
        return 2
    return 0


def check_client_batch(batch: bytes) -> int:
    if len(batch) < 12:
        return 87
    length = int.from_bytes(batch[8:12], "big", signed=True)
    if length < 5:
        return 2
    if len(batch) < 17:
        return 87
    if batch[16] > 2:
        return 2
    if batch[16] < 2 or length + 12 != len(batch):
        return 87
    return check(batch) or check_client_fields(HEADER.unpack_from(batch), len(batch) - HEADER.size)


def check_client_fields(fields: tuple, payload_size: int) -> int:
    attributes, last_delta = fields[5:7]
    producer_id, producer_epoch, base_sequence, count = fields[9:]
    codec = attributes % 8
    if attributes & 0b110_0000:
        return 87
    if codec > 4:
        return 76
    if attributes & 0b1000:
        return 32
    if count <= 0 or last_delta + 1 != count:
        return 87
    if codec == 0 and count * 7 > payload_size:
        return 87
    if producer_id >= 0:
        return 87 if producer_epoch < 0 or base_sequence < 0 else 0
    return 87 if attributes & 0b1_0000 else 0


def header(batch: bytes) -> tuple:
    return HEADER.unpack_from(batch)


def assign_offset(header: bytearray, base_offset: int, leader_epoch: int) -> None:
    struct.pack_into(">q", header, 0, base_offset)
    struct.pack_into(">i", header, 12, leader_epoch)


def stamp_append_time(batch: bytearray, timestamp_ms: int) -> None:
    batch[22] |= 0b1000
    struct.pack_into(">q", batch, 35, timestamp_ms)
    struct.pack_into(">I", batch, 17, crc(batch[21:]))


def correct_max_timestamp(batch: bytearray, timestamp_ms: int) -> None:
    struct.pack_into(">q", batch, 35, timestamp_ms)
    struct.pack_into(">I", batch, 17, crc(batch[21:]))
