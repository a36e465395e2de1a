"""Records as lines: kcat's format tokens, or one JSON object per record.

    %t topic     %k key     %K key's size     %T timestamp in ms
    %p partition %s value   %S value's size   %h headers: name=value,name=value
    %o offset    %% a %     %R value's size as four bytes, big-endian

    \\n \\t \\r \\0 \\\\ and \\xNN are bytes, as in C.

The size of null is -1.  A format is compiled to one bytes template, and a batch of records is
formatted column by column, without Python code per record.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
)

Records = Sequence[Message]
Writer = Callable[[Records], bytes]

ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
TIMESTAMP_TYPES = {
    TIMESTAMP_CREATE_TIME: "create",
    TIMESTAMP_LOG_APPEND_TIME: "logappend",
    TIMESTAMP_NOT_AVAILABLE: "unknown",
}


def unescaped(text: str) -> bytes:
    """Parse a text with backslash escapes into bytes; an argument type."""

    def byte(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code in ESCAPED:
            return ESCAPED[code]
        if len(code) == 3:
            return bytes.fromhex(code[1:].decode())
        raise argparse.ArgumentTypeError(f"unknown escape \\{code.decode()} in {text!r}")

    # Bytes of the command line that are not UTF-8 are surrogates.
    content = text.encode(errors="surrogateescape")
    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.|$)", byte, content, flags=re.DOTALL)


def delimiter(text: str) -> bytes:
    """Parse the argument of -D and -K."""
    if not text:
        raise argparse.ArgumentTypeError("a delimiter must not be empty")
    return unescaped(text)


def template(text: str) -> bytes:
    """Parse the argument of -f: a format of known tokens."""
    content = unescaped(text)
    for token in re.findall(rb"%(.?)", content, flags=re.DOTALL):
        if token not in b"tpokKsSTRh%" or not token:
            known = "%t %p %o %k %K %s %S %T %R %h %%"
            raise argparse.ArgumentTypeError(
                f"unknown token %{token.decode(errors='replace')}; the tokens are {known}"
            )
    return content


def formatted(content: bytes, null: bytes = b"") -> Writer:
    """Return a function that writes records in a format, with a text for null."""
    columns: list[Callable[[Records], Iterable[object]]] = []

    def conversion(match: re.Match[bytes]) -> bytes:
        if match[1] == b"%":
            return b"%%"
        kind, column = tokens[match[1]]
        columns.append(column)
        return kind

    tokens = {
        b"t": (b"%b", lambda records: [topic_bytes(record) for record in records]),
        b"p": (b"%d", lambda records: map(Message.partition, records)),
        b"o": (b"%d", lambda records: map(Message.offset, records)),
        b"k": (b"%b", lambda records: nulls_as(null, map(Message.key, records))),
        b"K": (b"%d", lambda records: sizes(map(Message.key, records))),
        b"s": (b"%b", lambda records: nulls_as(null, map(Message.value, records))),
        b"S": (b"%d", lambda records: sizes(map(Message.value, records))),
        b"R": (b"%b", lambda records: map(big_endian, sizes(map(Message.value, records)))),
        b"T": (b"%d", lambda records: [record.timestamp()[1] for record in records]),
        b"h": (b"%b", lambda records: map(header_bytes, records)),
    }
    line = re.sub(rb"%(.)", conversion, content, flags=re.DOTALL)
    if not columns:
        return lambda records: line % () * len(records)
    if line.startswith(b"%b") and b"%" not in line[2:]:
        # The most frequent format: one part of the record and a delimiter.
        (column,), end = columns, line[2:]
        return lambda records: end.join([*cast(Iterable[bytes], column(records)), b""])
    return lambda records: b"".join(
        map(line.__mod__, zip(*(column(records) for column in columns), strict=True))
    )


def json_lines(records: Records) -> bytes:
    """Return records as JSON objects with kcat's names, one per line."""
    return b"".join([encoded(json_fields(record)) + b"\n" for record in records])


def json_fields(record: Message) -> dict[str, Any]:
    """Return a record's fields; bytes that are not UTF-8 are base64 under `<name>_base64`."""
    kind, timestamp_ms = record.timestamp()
    fields: dict[str, Any] = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "tstype": TIMESTAMP_TYPES[kind],
        "ts": timestamp_ms,
    }
    headers = headers_of(record)
    if headers:
        # A name may appear twice, so this is kcat's list: name, value, name, value, …
        fields["headers"] = [
            part.decode(errors="backslashreplace") if isinstance(part, bytes) else part
            for header in headers
            for part in header
        ]
    for name, content in ("key", record.key()), ("payload", record.value()):
        try:
            fields[name] = None if content is None else content.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(content or b"").decode()
    return fields


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encoded(fields: dict[str, Any]) -> bytes:
    return _encode(fields).encode()


def topic_bytes(record: Message) -> bytes:
    return (record.topic() or "").encode()


def nulls_as(null: bytes, column: Iterable[bytes | None]) -> list[bytes]:
    return [null if content is None else content for content in column]


def sizes(column: Iterable[bytes | None]) -> list[int]:
    return [-1 if content is None else len(content) for content in column]


def big_endian(size: int) -> bytes:
    return size.to_bytes(4, "big", signed=True)


def headers_of(record: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], record.headers() or [])


def header_bytes(record: Message) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if content is None else content)
        for name, content in headers_of(record)
    )
