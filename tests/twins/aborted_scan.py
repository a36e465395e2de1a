"""The twin of ext/log/aborted_scan.pyx: takes the bytes of a file, and a set of producer ids."""

from __future__ import annotations

import struct

from tests.twins import segment_walk

ENTRY = struct.Struct(">hqqqq")
TRANSACTIONAL, CONTROL = 0x10, 0x20
INT64_MAX = (1 << 63) - 1


def walk_transactions(
    file: bytes, position: int, size: int, count_max: int
) -> tuple[int, int, int, set[int]]:
    at, next_offset = position, -1
    producer_ids: set[int] = set()
    open_ids: set[int] = set()
    while True:
        code, batch_size, _, last_offset, _ = segment_walk.header_at(file, at)
        if code != segment_walk.WHOLE or at >= position + size:
            return code, at, next_offset, producer_ids
        *_, attributes, _, _, _, producer_id, _, _, _ = segment_walk.HEADER.unpack_from(file, at)
        if attributes & TRANSACTIONAL and producer_id >= 0:
            if producer_id not in open_ids:
                if count_max <= 0:
                    return code, at, next_offset, producer_ids
                count_max -= 1
            producer_ids.add(producer_id)
            open_ids.add(producer_id)
            if attributes & CONTROL:
                open_ids.remove(producer_id)
        at, next_offset = at + batch_size, last_offset + 1


def find_aborted(
    entries: bytes, upper_offset: int, count_max: int, producer_ids: set[int] | None = None
) -> tuple[list[tuple[int, int]], int, bool, int, int]:
    found: list[tuple[int, int]] = []
    count, lowest, highest, may_follow = 0, INT64_MAX, -1, True
    for _, producer_id, first_offset, _, stable_offset in ENTRY.iter_unpack(entries):
        if not may_follow:
            break
        count += 1
        lowest, highest = min(lowest, first_offset), max(highest, stable_offset)
        may_follow = stable_offset < upper_offset
        is_wanted = producer_ids is None or producer_id in producer_ids
        if is_wanted and first_offset < upper_offset:
            found.append((producer_id, first_offset))
            may_follow = may_follow and len(found) < count_max
    return found, count, may_follow, lowest, highest
