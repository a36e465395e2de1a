"""Random damage to frames."""

from __future__ import annotations

import random

EDGES = [b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff"]


def torn(frame: bytes, other: bytes, dice: random.Random) -> bytes:
    """Return the frame with a few kinds of damage, including parts of another frame."""
    torn = bytearray(frame)
    for _ in range(dice.choice([1, 1, 2, 4, 8])):
        at = dice.randrange(len(torn) + 1)
        match dice.randrange(6):
            case 0 if at < len(torn):
                torn[at] ^= 1 << dice.randrange(8)
            case 1:
                edge = dice.choice(EDGES)
                torn[at : at + len(edge)] = edge
            case 2:
                del torn[at : at + dice.randrange(1, 9)]
            case 3:
                torn[at:at] = torn[at : at + dice.randrange(1, 64)]
            case 4:
                start = dice.randrange(len(other) + 1)
                torn[at:at] = other[start : start + dice.randrange(1, 64)]
            case 5:
                del torn[at:]
    return bytes(torn)
