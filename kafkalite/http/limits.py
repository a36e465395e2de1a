"""Limits of an HTTP server: sizes, number of connections, time."""

from __future__ import annotations

from typing import NamedTuple


class HttpLimits(NamedTuple):
    """Bounds on what the clients of one server can make it hold."""

    connections: int = 16
    """Connections at the same time; a further one is closed at once."""
    request_line_size: int = 8 << 10
    """Maximum size of the request line in bytes; the response beyond it is 414."""
    headers_size: int = 32 << 10
    """Maximum size of all header lines in bytes; the response beyond it is 431."""
    idle_s: float = 10.0
    """Maximum time without a byte from the client."""
    request_s: float = 60.0
    """Maximum time of a request in total, however steadily bytes arrive."""
