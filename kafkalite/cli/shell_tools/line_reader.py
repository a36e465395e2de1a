"""Lines of kafka-console-producer.sh: headers, key and value.

    h1:v1,h2:v2 TAB key TAB value          parse.headers=true, parse.key=true

The separators, and a marker for null, are properties.  A line without the required parts is an
error; with ignore.error=true, the whole line is the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kafkalite.cli.command import nearest
from kafkalite.errors import Refusal

DEFAULTS = {
    "parse.key": "false",
    "parse.headers": "false",
    "ignore.error": "false",
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
}
NULL_MARKER = "null.marker"

Headers = list[tuple[str, bytes | None]]


class ParsedLine(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers


class MalformedLine(Refusal):
    """A line lacks a part or has an invalid one."""


class LineReader:
    """Parses lines to records, according to its properties."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        for name in properties:
            if name not in (*DEFAULTS, NULL_MARKER):
                near = nearest(name, (*DEFAULTS, NULL_MARKER))
                raise Refusal(f"unknown reader property {name}{near}")
        known = DEFAULTS | dict(properties)
        for name, value in known.items():
            if not value and name != NULL_MARKER:
                raise Refusal(f"the reader property {name} must not be empty")
        self.parse_key = truth(known, "parse.key")
        self.parse_headers = truth(known, "parse.headers")
        self.ignore_error = truth(known, "ignore.error")
        self.key_separator = encoded(known["key.separator"])
        self.headers_delimiter = encoded(known["headers.delimiter"])
        self.headers_separator = encoded(known["headers.separator"])
        self.headers_key_separator = encoded(known["headers.key.separator"])
        marker = known.get(NULL_MARKER)
        self.null_marker = encoded(marker) if marker is not None else None
        self.line_count = 0

    @property
    def splits(self) -> bool:
        """True if a line has more parts than a value."""
        return self.parse_key or self.parse_headers or self.null_marker is not None

    def parse(self, line: bytes) -> ParsedLine:
        """Return the record in a line."""
        self.line_count += 1
        headers, remainder = self._before(
            line, line, self.parse_headers, self.headers_delimiter, "headers delimiter"
        )
        key, value = self._before(
            line, remainder, self.parse_key, self.key_separator, "key separator"
        )
        has_headers = headers is not None and headers != self.null_marker
        named = self._split_headers(headers) if has_headers and headers is not None else []
        return ParsedLine(self._unmarked(key), self._unmarked(value), named)

    def _before(
        self, line: bytes, remainder: bytes, is_enabled: bool, separator: bytes, what: str
    ) -> tuple[bytes | None, bytes]:
        """Split a line at a separator, if the part before it is enabled."""
        if not is_enabled:
            return None, remainder
        part, found, after = remainder.partition(separator)
        if found:
            return part, after
        if self.ignore_error:
            return None, remainder
        raise MalformedLine(f"no {what} in line {self.line_count}: {shown(line)}")

    def _split_headers(self, text: bytes) -> Headers:
        parts = text.split(self.headers_separator)
        while len(parts) > 1 and not parts[-1]:  # as Java's split does
            parts.pop()
        return [self._header(part) for part in parts]

    def _header(self, part: bytes) -> tuple[str, bytes | None]:
        name, found, value = part.partition(self.headers_key_separator)
        if not found and not self.ignore_error:
            raise MalformedLine(
                f"no header key separator in {shown(part)} in line {self.line_count}"
            )
        if name == self.null_marker:
            raise MalformedLine(f"a header key must not be null, in line {self.line_count}")
        return name.decode(errors="replace"), self._unmarked(value) if found else None

    def _unmarked(self, content: bytes | None) -> bytes | None:
        return None if content is not None and content == self.null_marker else content


def java_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Split lines as Java does: at carriage returns too; the line feed is already removed."""
    for line in lines:
        if b"\r" in line:
            yield from re.split(rb"\r", line.removesuffix(b"\r"))
        else:
            yield line


def truth(properties: Mapping[str, str], name: str) -> bool:
    """Return a property as a boolean; spaces around it are ignored."""
    value = properties[name].strip().lower()
    if value not in ("true", "false"):
        raise Refusal(f"{name} must be true or false, not {properties[name]!r}")
    return value == "true"


def encoded(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def shown(content: bytes) -> str:
    """Return the beginning of a line, for an error message."""
    text = content.decode(errors="replace")
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
