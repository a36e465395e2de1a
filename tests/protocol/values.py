"""Messages to try a codec with: every field of a version filled, with edges among the values.

A seed makes one message, always the same.  `say` decides how much it says: every field and two
elements in each array, or nothing but what cannot be left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from kafkalite.errors import BY_CODE
from kafkalite.protocol.schema import BY_KEY, Api, Message
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Field,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    Struct,
    UInt16,
    UInt32,
    Uuid,
)

CODES = [0, *(code for code in BY_CODE if -1 <= code <= 100)]
STRINGS = ["", "a", "flights", "naïve 🛩", "x" * 126, "y" * 127, "z" * 300]
BYTES = [b"", b"\0", b"abc\xff", bytes(126), bytes(127), b"r" * 20_000]
BITS = {Int8: 8, Int16: 16, Int32: 32, Int64: 64}


def filled(message: Message, version: int, seed: int, null: float = 0.0) -> dict[str, Any]:
    """Every field the version has; a nullable one is null with this probability."""
    return fill(message.struct, version, random.Random(f"{message.name} {version} {seed}"), null)


def fill(struct: Struct, version: int, dice: random.Random, null: float) -> dict[str, Any]:
    return {
        name: value_of(name, field, version, dice, null)
        for name, field in struct.fields.items()
        if version in field.versions
    }


def value_of(name: str, field: Field, version: int, dice: random.Random, null: float) -> Any:
    if version in field.nullable and dice.random() < null:
        return None
    if isinstance(field, Array):
        count = dice.choice([0, 1, 2, 2])
        return [value_of(name, field.element, version, dice, null) for _ in range(count)]
    if isinstance(field, Struct):
        return fill(field, version, dice, null)
    if isinstance(field, Bool):
        return dice.random() < 0.5
    if isinstance(field, String):
        return dice.choice(STRINGS)
    if isinstance(field, Bytes | Records):
        return dice.choice(BYTES)
    if isinstance(field, Uuid):
        return dice.choice([bytes(16), bytes(range(16)), dice.randbytes(16)])
    if isinstance(field, Float64):
        return dice.choice([0.0, -1.5, 1e300])
    return number_of(name, field, dice)


def number_of(name: str, field: Field, dice: random.Random) -> int:
    if name.endswith("error_code"):
        return dice.choice(CODES)
    if isinstance(field, UInt16):
        return dice.choice([0, 9092, 0xFFFF])
    if isinstance(field, UInt32):
        return dice.choice([0, 9092, 0xFFFFFFFF])
    bits = BITS[type(field)]
    if bits == 64 and ("time" in name or name.endswith("_ms")):
        # kio reads these into dates, which end before 64 bits do.
        return dice.choice([0, 1, 1_385_078_400_123])
    high = (1 << (bits - 1)) - 1
    return dice.choice([0, 1, -1, high, -high - 1, dice.randint(-high - 1, high)])


def with_defaults(struct: Struct, version: int, values: dict[str, Any]) -> dict[str, Any]:
    """What a reader must find after these were written: fields the version lacks, by default."""
    found = {}
    for name, field in struct.fields.items():
        if version not in field.versions or name not in values:
            found[name] = field.default
            continue
        value = values[name]
        element = field.element if isinstance(field, Array) else field
        if isinstance(element, Struct) and value is not None:
            if isinstance(field, Array):
                value = [with_defaults(element, version, one) for one in value]
            else:
                value = with_defaults(element, version, value)
        found[name] = value
    return found


def versions(api: Api) -> range:
    low, high = api.versions
    return range(low, high + 1)


def every_message() -> Iterator[tuple[Api, Message, int]]:
    for api in BY_KEY.values():
        for version in versions(api):
            yield api, api.request, version
            yield api, api.response, version
