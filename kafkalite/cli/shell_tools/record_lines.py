"""Records in the format of kafka-console-consumer.sh.

    CreateTime:1 TAB Partition:0 TAB Offset:5 TAB Delivery:1 TAB Epoch:0 TAB h:v TAB key TAB value

A part is printed if its print.* property is true, in this order.  The default is the value alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Message

from kafkalite.cli.command import nearest, warn
from kafkalite.cli.shell_tools.line_reader import encoded, truth
from kafkalite.errors import Refusal

Lines = Callable[[Sequence[Message]], bytes]
Part = Callable[[Message], bytes]
Reader = Callable[[bytes], bytes]

DEFAULTS = {
    "print.timestamp": "false",
    "print.partition": "false",
    "print.offset": "false",
    "print.delivery": "false",
    "print.epoch": "false",
    "print.headers": "false",
    "print.key": "false",
    "print.value": "true",
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
    "key.deserializer": "StringDeserializer",
    "value.deserializer": "StringDeserializer",
    "headers.deserializer": "StringDeserializer",
}
KINDS = {
    TIMESTAMP_CREATE_TIME: b"CreateTime:%d",
    TIMESTAMP_LOG_APPEND_TIME: b"LogAppendTime:%d",
}
NUMBERS = {
    "ShortDeserializer": ">h",
    "IntegerDeserializer": ">i",
    "LongDeserializer": ">q",
    "DoubleDeserializer": ">d",
}
"""Supported numeric deserializers of Java, by class name without package."""


def nothing(records: Sequence[Message]) -> bytes:
    """Print none of the records."""
    return b""


def default(properties: Mapping[str, str], skip_unreadable: bool = False) -> Lines:
    """Return a function that prints records with these properties."""
    for name in properties:
        if name not in DEFAULTS:
            raise Refusal(f"unknown formatter property {name}{nearest(name, DEFAULTS)}")
    known = DEFAULTS | dict(properties)
    end, between = encoded(known["line.separator"]), encoded(known["key.separator"])
    chosen = parts(known)
    null = encoded(known["null.literal"])

    def values(records: Sequence[Message]) -> bytes:
        found = (record.value() for record in records)
        return end.join([*(null if value is None else value for value in found), b""])

    def lines(records: Sequence[Message]) -> bytes:
        return b"".join(
            [between.join([part(record) for part in chosen]) + end for record in records]
        )

    def readable_lines(records: Sequence[Message]) -> bytes:
        written = []
        for record in records:
            try:
                written.append(lines([record]))
            except Refusal as error:
                warn(str(error))
        return b"".join(written)

    if not any(name.startswith("print.") or name == "value.deserializer" for name in properties):
        return values
    return readable_lines if skip_unreadable else lines


def parts(known: Mapping[str, str]) -> list[Part]:
    """Return the requested parts of a line, in their order."""
    null = encoded(known["null.literal"])
    key = reader(known, "key.deserializer")
    value = reader(known, "value.deserializer")
    header = reader(known, "headers.deserializer")
    between = encoded(known["headers.separator"])

    def timestamp(record: Message) -> bytes:
        kind, timestamp_ms = record.timestamp()
        return KINDS[kind] % timestamp_ms if kind in KINDS else b"NO_TIMESTAMP"

    def delivery(record: Message) -> bytes:
        count = record.delivery_count()
        return b"Delivery:NOT_PRESENT" if count is None else b"Delivery:%d" % count

    def epoch(record: Message) -> bytes:
        number = record.leader_epoch()
        return b"Epoch:NOT_PRESENT" if number is None else b"Epoch:%d" % number

    def content(read: Reader, found: bytes | None) -> bytes:
        return null if found is None else read(found)

    def headers(record: Message) -> bytes:
        named = cast(list[tuple[str, bytes | None]], record.headers() or [])
        each = [name.encode() + b":" + content(header, found) for name, found in named]
        return between.join(each) if each else b"NO_HEADERS"

    every: dict[str, Part] = {
        "print.timestamp": timestamp,
        "print.partition": lambda record: b"Partition:%d" % (record.partition() or 0),
        "print.offset": lambda record: b"Offset:%d" % (record.offset() or 0),
        "print.delivery": delivery,
        "print.epoch": epoch,
        "print.headers": headers,
        "print.key": lambda record: content(key, record.key()),
        "print.value": lambda record: content(value, record.value()),
    }
    return [part for name, part in every.items() if truth(known, name)]


def reader(known: Mapping[str, str], name: str) -> Reader:
    """Return the function that converts bytes to text, for a deserializer's name."""
    kind = known[name].rpartition(".")[2]
    if kind == "StringDeserializer":
        return bytes
    if kind not in NUMBERS:
        readable = ", ".join(["StringDeserializer", *NUMBERS])
        raise Refusal(f"{name}={kind} is not supported; use one of {readable}")
    layout = struct.Struct(NUMBERS[kind])

    def number(content: bytes) -> bytes:
        if len(content) != layout.size:
            raise Refusal(f"{kind} requires {layout.size} bytes, but the record has {len(content)}")
        return str(layout.unpack(content)[0]).encode()

    return number
