"""Messages for codec tests: every field filled, with edge cases among the values.

A seed always makes the same message.
"""

from __future__ import annotations

import random
import struct as packing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import kafkalite.protocol.schemas  # noqa: F401
from kafkalite.errors import BY_CODE
from kafkalite.protocol.schema import BY_KEY, Api, MessageSchema
from kafkalite.protocol.types import (
    Array,
    Bool,
    Bytes,
    Field,
    Float64,
    Records,
    String,
    Struct,
    UInt16,
    Uuid,
)
from tests.twins.codec import FORMATS

CODES = [0, *(code for code in BY_CODE if -1 <= code <= 100)]
STRINGS = ["", "a", "flights", "naïve 🛩", "x" * 126, "y" * 127, "z" * 300]
BYTES = [b"", b"\0", b"abc\xff", bytes(126), bytes(127), b"r" * 20_000]


def versions(api: Api) -> range:
    low, high = api.versions
    return range(low, high + 1)


def every_message() -> Iterator[tuple[MessageSchema, int]]:
    for api in BY_KEY.values():
        for version in versions(api):
            yield api.request, version
            yield api.response, version

OWN_TAG_MIN = 1000
"""The least tag of the fields that are ours."""


def is_own(field: Field) -> bool:
    """Return whether a field is a tagged one that Kafka does not have."""
    return field.tag is not None and field.tag >= OWN_TAG_MIN


def filled(message: MessageSchema, version: int, seed: int = 0, **how: Any) -> dict[str, Any]:
    """Return a message with every field that Kafka has in this version."""
    dice = random.Random(f"{message.name} {version} {seed}")
    return Maker(dice, version, **how).struct(message.struct)


@dataclass
class Maker:
    dice: random.Random
    version: int
    null: float = 0.0  # probability of null in a nullable field
    counts: tuple[int, ...] = (0, 1, 2, 2)
    small: bool = False  # no value of more than a few bytes

    def struct(self, struct: Struct) -> dict[str, Any]:
        return {
            name: self.value(name, field)
            for name, field in struct.fields.items()
            if self.version in field.versions and not is_own(field)
        }

    def value(self, name: str, field: Field) -> Any:
        if self.version in field.nullable and self.dice.random() < self.null:
            return None
        if isinstance(field, Array):
            count = self.dice.choice(self.counts)
            return [self.value(name, field.element) for _ in range(count)]
        if isinstance(field, Struct):
            return self.struct(field)
        if isinstance(field, Bool):
            return self.dice.random() < 0.5
        if isinstance(field, String):
            return self.dice.choice(STRINGS[:4] if self.small else STRINGS)
        if isinstance(field, Bytes | Records):
            return self.dice.choice(BYTES[:3] if self.small else BYTES)
        if isinstance(field, Uuid):
            return self.dice.choice([bytes(16), bytes(range(16)), self.dice.randbytes(16)])
        if isinstance(field, Float64):
            return self.dice.choice([0.0, -1.5, 1e300])
        return self.number(name, field)

    def number(self, name: str, field: Field) -> int:
        size = packing.calcsize(FORMATS[type(field)])
        low, high = -1 << (size * 8 - 1), (1 << (size * 8 - 1)) - 1
        if name.endswith("error_code"):
            return self.dice.choice(CODES)
        if isinstance(field, UInt16):
            return self.dice.choice([0, 9092, high - low])
        if size == 8 and ("time" in name or name.endswith("_ms")):
            # kio reads these as dates, whose range is smaller than 64 bits.
            return self.dice.choice([0, 1, 1_385_078_400_123])
        return self.dice.choice([0, 1, -1, low, high, self.dice.randint(low, high)])


def with_defaults(struct: Struct, version: int, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields a reader must find: those the version lacks have their default."""
    found = {}
    for name, field in struct.fields.items():
        value = values.get(name, field.default) if version in field.versions else field.default
        element = field.element if isinstance(field, Array) else field
        if isinstance(element, Struct) and value is not None:
            if isinstance(field, Array):
                value = [with_defaults(element, version, one) for one in value]
            else:
                value = with_defaults(element, version, value)
        found[name] = value
    return found
