"""Twin of ext/codec/zstd_blocks.pyx: zstd frames divided between blocks (RFC 8878, section 3.1)."""

from __future__ import annotations

BLOCK_SIZE_MAX = 128 << 10
MAGIC = 0xFD2FB528
SKIPPABLE = 0x184D2A5
RAW, RLE, COMPRESSED, RESERVED = range(4)


class Damaged(Exception):
    """The bytes are not whole frames."""


def divide(payload: bytes, output_max: int, frames_max: int) -> list[tuple[int, bool]] | None:
    parts: list[tuple[int, bool]] = []
    position = 0
    try:
        while position < len(payload):
            position, ends = _frame(payload, position, output_max)
            parts += ends
    except Damaged:
        return None
    return parts if sum(ends for _, ends in parts) <= frames_max else None


def _number(payload: bytes, at: int, size: int) -> int:
    if at + size > len(payload):
        raise Damaged
    return int.from_bytes(payload[at : at + size], "little")


def _frame(payload: bytes, start: int, output_max: int) -> tuple[int, list[tuple[int, bool]]]:
    _number(payload, start, 8)
    magic = _number(payload, start, 4)
    if magic >> 4 == SKIPPABLE:
        end = start + 8 + _number(payload, start + 4, 4)
        if end > len(payload):
            raise Damaged
        return end, [(end, True)]
    if magic != MAGIC:
        raise Damaged
    blocks = []  # (end, largest output of the block)
    descriptor = payload[start + 4]
    single = descriptor >> 5 & 1
    position = start + 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    position += (single, 2, 4, 8)[descriptor >> 6]
    last = False
    while not last:
        head = _number(payload, position, 3)
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        if kind == RESERVED or size > BLOCK_SIZE_MAX:
            raise Damaged
        position += 3 + (1 if kind == RLE else size)
        if position > len(payload):
            raise Damaged
        blocks.append((position, BLOCK_SIZE_MAX if kind == COMPRESSED else size))
    ends: list[tuple[int, bool]] = []
    made = 0
    for number, (_, makes) in enumerate(blocks):
        if number and made + makes > output_max:
            ends.append((blocks[number - 1][0], False))
            made = 0
        made += makes
    end = position + (4 if descriptor & 4 else 0)
    if end > len(payload):
        raise Damaged
    return end, [*ends, (end, True)]
