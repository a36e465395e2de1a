"""HTTP requests and responses as plain values, without a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TEXT = "text/plain; charset=utf-8"


class HttpRequest(NamedTuple):
    """A request as the server has received it."""

    method: str
    """`GET` or `HEAD`."""
    path: str
    """The target without its query, as sent."""
    query: str
    """The part of the target after `?`; empty if there is none."""
    headers: Mapping[str, str]
    """Header fields by lower-case name."""


class HttpResponse(NamedTuple):
    """A response; the server adds `Content-Length` and leaves out the body for HEAD."""

    status: int
    body: bytes
    content_type: str = TEXT
