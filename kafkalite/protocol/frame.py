"""Headers of requests and responses.

    request     api key int16 · version int16 · correlation id int32 · client id nullable string
                · tags, when the version is flexible
    response    correlation id int32 · tags, when the version is flexible and the API is not
                ApiVersions

The connection handles the four bytes of size that precede both.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import kafkalite.protocol.schemas  # noqa: F401  (fills BY_KEY)
from kafkalite._ext.wire import decode_header
from kafkalite.errors import InvalidRequest
from kafkalite.protocol.schema import BY_KEY

__all__ = ["RequestHeader", "read_header", "response_header", "write_header"]

NEVER = 255
"""Value in the table of `decode_header` for an API without flexible versions."""

FLEXIBLE_FROM = bytes(
    min(BY_KEY[key].flexible.low, NEVER)
    if key in BY_KEY and BY_KEY[key].flexible.high is None
    else NEVER
    for key in range(max(BY_KEY) + 1)
)

CORRELATION_ID = struct.Struct(">i")
REQUEST_START = struct.Struct(">hhi")
NO_TAGS = b"\0"
CLIENT_ID_SIZE_MAX = 0x7FFF


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def read_header(frame: bytes | memoryview) -> RequestHeader:
    """Return the header of a request frame, of any API and version, known or not."""
    header = decode_header(frame, FLEXIBLE_FROM)
    if isinstance(header, int):
        raise InvalidRequest("The frame has no valid request header.")
    return RequestHeader._make(header)


def write_header(
    api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool
) -> bytes:
    """Return the bytes of a request header."""
    if client_id is None:
        named = b"\xff\xff"
    else:
        text = client_id.encode()
        assert len(text) <= CLIENT_ID_SIZE_MAX, "the client id is too long for its field"
        named = len(text).to_bytes(2, "big") + text
    start = REQUEST_START.pack(api_key, version, correlation_id)
    return start + named + (NO_TAGS if flexible else b"")


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """Return the bytes of a response header."""
    return CORRELATION_ID.pack(correlation_id) + (NO_TAGS if flexible else b"")
