"""The writer of codec.pyx, with every length kept apart from the bytes around it, so that a test
can replace each of them."""

from __future__ import annotations

import struct as packing
from dataclasses import dataclass
from typing import Any

from kafkalite.protocol.schema import MessageSchema
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
    Uuid,
)

FORMATS = {
    Bool: ">?",
    Float64: ">d",
    Int8: ">b",
    Int16: ">h",
    Int32: ">i",
    Int64: ">q",
    UInt16: ">H",
}


@dataclass(frozen=True)
class Length:
    """A length, count or size as encoded: in a format of `struct`, or as a varint."""

    value: int
    form: str = "uvarint"

    def __bytes__(self) -> bytes:
        return (
            uvarint(self.value) if self.form == "uvarint" else packing.pack(self.form, self.value)
        )


Tokens = list[bytes | Length]


def uvarint(value: int) -> bytes:
    written = b""
    while value >= 0x80:
        written += bytes([value & 0x7F | 0x80])
        value >>= 7
    return written + bytes([value])


def joined(tokens: Tokens) -> bytes:
    return b"".join(bytes(token) for token in tokens)


def tokens(message: MessageSchema, version: int, values: dict[str, Any]) -> Tokens:
    return struct_tokens(message.struct, version, version in message.flexible, values)


def struct_tokens(struct: Struct, version: int, flexible: bool, values: dict[str, Any]) -> Tokens:
    found: Tokens = []
    tagged: dict[int, Tokens] = {}
    for name, field in struct.fields.items():
        if version not in field.versions:
            continue
        value = values.get(name, field.default)
        if field.tag is None:
            found += field_tokens(field, version, flexible, value)
        elif value != field.default:
            tagged[field.tag] = field_tokens(field, version, flexible, value)
    if flexible:
        found.append(Length(len(tagged)))
        for tag, content in sorted(tagged.items()):
            found += [uvarint(tag), Length(len(joined(content))), *content]
    return found


def field_tokens(field: Field, version: int, flexible: bool, value: Any) -> Tokens:
    nullable = version in field.nullable
    if isinstance(field, Struct):
        if value is None:
            return [b"\xff" if field.tag is None else b"\0"]
        there = [b"\1"] if nullable else []
        return [*there, *struct_tokens(field, version, flexible, value)]
    if isinstance(field, Array):
        elements: Tokens = []
        for one in value or ():
            elements += field_tokens(field.element, version, flexible, one)
        return [length(value, flexible, ">i"), *elements]
    if isinstance(field, String):
        text = None if value is None else value.encode()
        return [length(text, flexible, ">h"), text or b""]
    if isinstance(field, Bytes | Records):
        return [length(value, flexible, ">i"), value or b""]
    if isinstance(field, Uuid):
        return [value]
    return [packing.pack(FORMATS[type(field)], value)]


def length(value: Any, flexible: bool, form: str) -> Length:
    count = -1 if value is None else len(value)
    return Length(count + 1) if flexible else Length(count, form)
