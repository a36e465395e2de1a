"""The twin of ext/log/offset_index.pyx."""

from __future__ import annotations

import os
import struct

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


def entries_of(fd: int, count: int, tail: bytes, entry: struct.Struct) -> list[tuple[int, int]]:
    stored = os.pread(fd, count * entry.size, 0) if count else b""
    return [(key, value) for key, value in entry.iter_unpack(stored + bytes(tail))]


def floor_offset(fd: int, count: int, tail: bytes, relative_offset: int) -> tuple[int, int]:
    known = [e for e in entries_of(fd, count, tail, OFFSET_ENTRY) if e[0] <= relative_offset]
    return max(known, default=(-1, 0))


def floor_time(fd: int, count: int, tail: bytes, timestamp: int) -> tuple[int, int]:
    known = [e for e in entries_of(fd, count, tail, TIME_ENTRY) if e[0] <= timestamp]
    return max(known, default=(-1, 0))


def count_valid_offsets(entries: bytes, end_position: int) -> int:
    before = (-1, -1)
    for count, (offset, position) in enumerate(OFFSET_ENTRY.iter_unpack(entries)):
        if offset <= before[0] or position <= before[1] or position >= end_position:
            return count
        before = (offset, position)
    return len(entries) // OFFSET_ENTRY.size


def count_valid_times(entries: bytes, last_relative_offset: int) -> int:
    before = (-1, 0)
    for count, (timestamp, offset) in enumerate(TIME_ENTRY.iter_unpack(entries)):
        if timestamp <= before[0] or offset < before[1] or offset > last_relative_offset:
            return count
        before = (timestamp, offset)
    return len(entries) // TIME_ENTRY.size
