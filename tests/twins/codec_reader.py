"""The reader of codec.pyx: a message by its schema, or None where the bytes are not one."""

from __future__ import annotations

import struct as packing
from collections.abc import Callable
from typing import Any

from kafkalite.protocol.schema import MessageSchema
from kafkalite.protocol.types import Array, Bool, Bytes, Field, Records, String, Struct, Uuid
from tests.twins.codec import FORMATS


class Fault(Exception):
    """The bytes are not a valid message."""


class Reader:
    """The remaining bytes of one message, in one version of it."""

    def __init__(self, left: bytes, version: int, flexible: bool) -> None:
        self.left = left
        self.version = version
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        if size > len(self.left):
            raise Fault
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def number(self, form: str) -> Any:
        return packing.unpack(form, self.take(packing.calcsize(form)))[0]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << 32:
                return value
        raise Fault

    def length(self, form: str, nullable: bool) -> int | None:
        found = self.uvarint() - 1 if self.flexible else self.number(form)
        if found == -1 and nullable:
            return None
        if found < 0 or found > len(self.left):
            raise Fault
        return found

    def struct(self, struct: Struct) -> dict[str, Any]:
        found, tagged = {}, {}
        for name, field in struct.fields.items():
            if self.version in field.versions and field.tag is None:
                found[name] = self.value(field)
            else:
                found[name] = field.default
                if self.version in field.versions:
                    tagged[field.tag] = name, field
        if self.flexible:
            for _ in range(self.uvarint()):
                tag, said = self.uvarint(), self.take(self.uvarint())
                if tag in tagged:
                    name, field = tagged[tag]
                    inner = Reader(said, self.version, True)
                    found[name] = inner.value(field)
                    if inner.left:
                        raise Fault
        return found

    def value(self, field: Field) -> Any:
        nullable = self.version in field.nullable
        if isinstance(field, Struct):
            lowest = 0 if field.tag is None else 1
            return None if nullable and self.number(">b") < lowest else self.struct(field)
        if isinstance(field, Array):
            count = self.length(">i", nullable)
            return None if count is None else [self.value(field.element) for _ in range(count)]
        if isinstance(field, String | Bytes | Records):
            size = self.length(">h" if isinstance(field, String) else ">i", nullable)
            read: Callable[[bytes], Any] = bytes.decode if isinstance(field, String) else bytes
            return None if size is None else read(self.take(size))
        if isinstance(field, Uuid):
            return self.take(16)
        if isinstance(field, Bool):
            return self.take(1) != b"\0"
        return self.number(FORMATS[type(field)])


def read(message: MessageSchema, version: int, content: bytes) -> dict[str, Any] | None:
    try:
        return Reader(content, version, version in message.flexible).struct(message.struct)
    except (Fault, UnicodeDecodeError):
        return None
