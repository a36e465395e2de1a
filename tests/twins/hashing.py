"""The twin of ext/client/hashing.pyx."""

from __future__ import annotations

import struct

MULTIPLIER = 0x5BD1E995
SEED = 0x9747B28C
MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    hashed = SEED ^ len(key)
    whole = len(key) // 4 * 4
    for (four,) in struct.iter_unpack("<I", key[:whole]):
        four = four * MULTIPLIER & MASK
        four = (four ^ four >> 24) * MULTIPLIER & MASK
        hashed = (hashed * MULTIPLIER & MASK) ^ four
    rest = key[whole:]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * MULTIPLIER & MASK
    hashed = (hashed ^ hashed >> 13) * MULTIPLIER & MASK
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


def partition_of(key: bytes, count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % count


def partitions_of(keys: list[bytes | None], count: int, partitions: list[int]) -> list[int]:
    return [
        partition_of(key, count) if partition < 0 and key is not None else partition
        for key, partition in zip(keys, partitions, strict=True)
    ]


def group_rows(partitions: list[int], count: int) -> tuple[list[int], list[int]]:
    rows = sorted(range(len(partitions)), key=partitions.__getitem__)
    ends = [sum(partition <= index for partition in partitions) for index in range(count)]
    return rows, ends
