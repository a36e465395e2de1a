"""Frames in readable form: the bytes on the left, their meaning on the right.

    00 03 00 0c 00 00 00 02      Metadata request 12, correlation_id 2
    00 07 72 64 6b 61 66 6b 61   client_id 'rdkafka'
    00                           no tags

Numbers of one struct share a line; text and bytes begin a line of their own and continue below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kafkalite.protocol.frame import REQUEST_START, RequestHeader
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.types import Array, Bytes, Field, Records, String, Struct
from tests.twins.codec import field_tokens, joined, length, uvarint

LINE_BYTES = 20
HEX_WIDTH = 3 * LINE_BYTES
WORDS_MAX = 100 - HEX_WIDTH


@dataclass
class Page:
    """Lines being written; short neighbouring fields of one struct share a line."""

    lines: list[str] = field(default_factory=list)
    raw: bytes = b""
    words: str = ""

    def say(self, raw: bytes, words: str) -> None:
        both = f"{self.words}, {words}" if self.words else words
        if len(self.raw + raw) > LINE_BYTES or len(both) > WORDS_MAX:
            self.end_line()
            both = words
        self.raw += raw
        self.words = both

    def end_line(self) -> None:
        for at in range(0, len(self.raw), LINE_BYTES):
            part = self.raw[at : at + LINE_BYTES].hex(" ")
            words = "" if at else self.words
            self.lines.append(f"{part:{HEX_WIDTH}}{words}".rstrip())
        self.raw, self.words = b"", ""

    def apart(self, raw: bytes, words: str) -> None:
        self.end_line()
        self.say(raw, words)
        self.end_line()


def request_lines(
    api: Api, header: RequestHeader, fields: Fields, left_behind: bytes = b""
) -> list[str]:
    page = Page()
    start = REQUEST_START.pack(*header[:3])
    page.say(start, f"{api.name} request {header.version}, correlation_id {header.correlation_id}")
    named = None if header.client_id is None else header.client_id.encode()
    page.apart(
        bytes(length(named, False, ">h")) + (named or b""), f"client_id {header.client_id!r}"
    )
    if api.request_header_flexible(header.version):
        page.apart(b"\0", "no tags")
    walk(page, api.request.struct, header.version, header.version in api.flexible, fields)
    page.end_line()
    if left_behind:
        page.apart(left_behind, "left behind, and not looked at")
    return page.lines


def response_lines(api: Api, version: int, correlation_id: int, fields: Fields) -> list[str]:
    page = Page()
    page.say(
        correlation_id.to_bytes(4, "big"),
        f"{api.name} response {version}, correlation_id {correlation_id}",
    )
    if api.response_header_flexible(version):
        page.apart(b"\0", "no tags")
    page.end_line()
    walk(page, api.response.struct, version, version in api.flexible, fields)
    page.end_line()
    return page.lines


def walk(page: Page, struct: Struct, version: int, flexible: bool, fields: Fields) -> None:
    tagged: list[tuple[int, str, Field]] = []
    for name, one in struct.fields.items():
        if version not in one.versions:
            continue
        if one.tag is None:
            field_lines(page, name, one, version, flexible, fields[name])
        elif fields[name] != one.default:
            tagged.append((one.tag, name, one))
    if flexible:
        page.say(uvarint(len(tagged)), f"{len(tagged)} tags" if tagged else "no tags")
    for tag, name, one in sorted(tagged):
        size = len(joined(field_tokens(one, version, flexible, fields[name])))
        page.apart(uvarint(tag) + uvarint(size), f"tag {tag}, {size} bytes")
        field_lines(page, name, one, version, flexible, fields[name])


def field_lines(
    page: Page, name: str, one: Field, version: int, flexible: bool, value: Any
) -> None:
    raw = joined(field_tokens(one, version, flexible, value))
    if isinstance(one, Array) and isinstance(one.element, Struct) and value:
        page.apart(bytes(length(value, flexible, ">i")), f"{name}, {len(value)} of them")
        for index, element in enumerate(value):
            page.end_line()
            page.say(b"", f"[{index}]")
            walk(page, one.element, version, flexible, element)
        page.end_line()
    elif isinstance(one, Struct) and value is not None:
        page.apart(raw[: 1 if version in one.nullable else 0], name)
        walk(page, one, version, flexible, value)
    elif isinstance(one, Bytes | Records) and value is not None:
        page.apart(raw, f"{name}, {len(value)} bytes")
    elif isinstance(one, String):
        page.apart(raw, f"{name} {value!r}")
    else:
        page.say(raw, f"{name} {shown(value)}")


def shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return "[" + " ".join(map(str, value)) + "]"
    return str(value)


def bytes_of(lines: Iterator[str] | list[str]) -> bytes:
    return bytes.fromhex("".join(line[:HEX_WIDTH] for line in lines))
