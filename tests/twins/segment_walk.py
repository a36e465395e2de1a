"""The twin of ext/log/segment_walk.pyx: takes the bytes of a file instead of the file."""

from __future__ import annotations

import struct
from collections import Counter

from tests.twins import record_batch

HEADER = struct.Struct(">qiibIhiqqqhii")
WHOLE, DAMAGED, AT_END, TORN, ZEROS, GAP = 0, 2, -1, -2, -3, -4
KEPT = 0x30  # transactional or control
CONTROL = 0x20
OFFSET_MAX = (1 << 63) - 2  # an offset follows it


def is_empty(batch: bytes) -> bool:
    """Return whether compaction has removed all records of a batch."""
    fields = HEADER.unpack_from(batch)
    return fields[1] == HEADER.size - 12 and fields[-1] == 0


def header_at(file: bytes, position: int) -> tuple[int, int, int, int, int]:
    """Return (code, size, base offset, last offset, max timestamp)."""
    if position == len(file):
        return AT_END, 0, -1, -1, -1
    if len(file) - position < HEADER.size:
        return TORN, 0, -1, -1, -1
    base, length, _, magic, _, _, delta, _, newest, *_ = HEADER.unpack_from(file, position)
    if is_empty(file[position : position + HEADER.size]):
        newest = -1
    size = length + 12
    if size < HEADER.size or magic != 2 or delta < 0 or not 0 <= base <= OFFSET_MAX - delta:
        return DAMAGED, size, base, -1, newest
    whole = position + size <= len(file)
    return (WHOLE if whole else TORN), size, base, base + delta, newest


def find_offset(file: bytes, position: int, offset: int, expected: int = -1) -> tuple[int, int]:
    """Return (code, position)."""
    code, size, _, last, _ = header_at(file, position)
    if code == WHOLE and expected >= 0 and last != expected:
        return DAMAGED, position
    while code == WHOLE and last < offset:
        position += size
        code, size, _, last, _ = header_at(file, position)
    return code, position


def find_timestamp(file: bytes, position: int, timestamp: int, offset: int) -> tuple[int, int]:
    code, size, _, last, newest = header_at(file, position)
    while code == WHOLE and (is_empty(file[position:]) or newest < timestamp or last < offset):
        position += size
        code, size, _, last, newest = header_at(file, position)
    return code, position


def walk_to_end(file: bytes, position: int) -> tuple[int, int, int, int, int]:
    next_offset, newest, of_newest = -1, -1, -1
    code, size, _, last, timestamp = header_at(file, position)
    while code == WHOLE:
        if timestamp > newest:
            newest, of_newest = timestamp, last
        next_offset, position = last + 1, position + size
        code, size, _, last, timestamp = header_at(file, position)
    return code, position, next_offset, newest, of_newest


def walk_seams(file: bytes, base: int, next_offset: int) -> tuple[int, int, int]:
    """Return (code, position, next offset) of a walk over the whole file."""
    position = 0
    code, size, first, last, _ = header_at(file, position)
    while code == WHOLE:
        if first < next_offset or last - base > (1 << 31) - 1:
            return DAMAGED, position, next_offset
        next_offset, position = last + 1, position + size
        code, size, first, last, _ = header_at(file, position)
    return code, position, next_offset


def scan(file: bytes, base: int, interval: int, gaps_to: int = OFFSET_MAX) -> tuple[object, ...]:
    """Scan from the beginning of a segment, without a state from an earlier call."""
    position, next_offset, since, newest, of_newest, entered, epoch = 0, base, 0, -1, base, -1, -1
    offsets, times, produced, began, count = b"", b"", [], [], 0
    code = AT_END
    while position < len(file):
        rest = file[position:]
        if not any(rest):
            code = ZEROS
            break
        if len(rest) < 12:
            code = TORN
            break
        size = struct.unpack_from(">i", rest, 8)[0] + 12
        if size < HEADER.size:
            code = DAMAGED if size != 12 else TORN
            break
        if size > len(rest):
            code = TORN
            break
        whole = rest[:size]
        first, _, leader, _, _, bits, delta, _, when, producer, p_epoch, sequence, _ = (
            HEADER.unpack_from(whole)
        )
        last_max = min(base + (1 << 31) - 1, OFFSET_MAX)
        misplaced = first < next_offset or delta < 0 or first + delta > last_max
        code = DAMAGED if misplaced else record_batch.check(whole)
        if not code and first != next_offset and first > gaps_to:
            code = GAP
        if code:
            break
        code = AT_END
        if when > newest and not is_empty(whole):
            newest, of_newest = when, first + delta
        if since > interval:
            offsets += struct.pack(">ii", first + delta - base, position)
            if newest > entered:
                times += struct.pack(">qi", newest, of_newest - base)
                entered = newest
            since = 0
        since += size
        if leader > epoch:
            began.append((leader, first))
            epoch = leader
        if producer >= 0:
            control = control_record(whole) if bits & CONTROL else (-1, -1)
            produced.append((first, delta, bits, when, producer, p_epoch, sequence, *control))
        next_offset, position, count = first + delta + 1, position + size, count + 1
    seen: Counter[int] = Counter()
    kept = []
    for batch in reversed(produced):
        if seen[batch[4]] < 5 or batch[2] & KEPT:
            kept.append(batch)
        seen[batch[4]] += 1
    return (code, position, next_offset, since, newest, of_newest, entered, epoch, count,
            offsets, times, kept[::-1], began)  # fmt: skip


def varint(content: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return a zigzag varint and the position after it; raise ValueError if it is not one."""
    value = shift = 0
    while True:
        if at == len(content) or shift >= bits:
            raise ValueError
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if value >> bits:
        raise ValueError
    return value >> 1 ^ -(value & 1), at


def control_record(batch: bytes) -> tuple[int, int]:
    """Return (type, coordinator epoch) of a control batch; -1 for what it lacks."""
    fields = HEADER.unpack_from(batch)
    kind = epoch = -1
    if fields[-1] < 1 or fields[5] & 7:
        return kind, epoch
    try:
        _, at = varint(batch, HEADER.size, 32)
        at += 1
        for _ in range(2):
            _, at = varint(batch, at, 64)
        size, at = varint(batch, at, 32)
        if not 4 <= size <= len(batch) - at:
            return kind, epoch
        (kind,) = struct.unpack_from(">h", batch, at + 2)
        size, at = varint(batch, at + size, 32)
        if 6 <= size <= len(batch) - at:
            (epoch,) = struct.unpack_from(">i", batch, at + 2)
    except ValueError:
        pass
    return kind, epoch
