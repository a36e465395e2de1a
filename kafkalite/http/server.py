"""HttpServer: HTTP/1.0 on a given listening socket, one request a connection.

    connection ─▶ limit of connections ─▶ thread: request line, headers ─▶ respond ─▶ response

A client can hold one of `connections` threads for `request_s` at most, and make it buffer the
request line and the headers up to their limits.  A connection beyond the limit is closed at once.

`respond` is called in the thread of the connection, so it must be safe to call from several.

Left out: request bodies, methods other than GET and HEAD (501), connections that persist, TLS and
authentication.
"""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kafkalite.http.limits import HttpLimits
from kafkalite.http.messages import HttpRequest, HttpResponse

log = logging.getLogger("kafkalite.http")

Respond = Callable[[HttpRequest], HttpResponse]


class HttpServer(ThreadingHTTPServer):
    """Calls `respond` for each request that stays within the limits."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, respond: Respond, limits: HttpLimits | None = None
    ) -> None:
        super().__init__(listener.getsockname()[:2], HttpConnection, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.respond = respond
        self.limits = limits or HttpLimits()
        self._free = threading.BoundedSemaphore(self.limits.connections)
        self._accepted_s: dict[Any, float] = {}
        """Time at which each open connection was accepted."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a new connection, or close it if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._accepted_s[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started; the caller closes the connection
            self._release(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._release(request)

    def _release(self, request: Any) -> None:
        del self._accepted_s[request]
        self._free.release()

    def service_actions(self) -> None:
        """Close connections whose request takes too long; `serve_forever` calls this regularly."""
        now_s = time.monotonic()
        for request, accepted_s in list(self._accepted_s.items()):
            if now_s - accepted_s >= self.limits.request_s:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error, unless the client has closed the connection."""
        if not isinstance(sys.exception(), OSError):
            log.error("HTTP request failed. client=%s", client_address, exc_info=True)


class HeadReader(io.BufferedIOBase):
    """The lines of a request's head, read up to the limits on their sizes."""

    def __init__(self, stream: io.BufferedIOBase, limits: HttpLimits) -> None:
        self._stream = stream
        self._limits = limits
        self._headers_left: int | None = None
        """Bytes that the headers may still have; None before the request line."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the next line.

        A request line beyond the limit is cut to one byte more than it.  Headers beyond theirs
        raise HTTPException, which the caller turns into a response with status 431.
        """
        if self._headers_left is None:
            self._headers_left = self._limits.headers_size
            return self._stream.readline(self._limits.request_line_size + 1)
        line = self._stream.readline(self._headers_left + 1)
        self._headers_left -= len(line)
        if self._headers_left < 0:
            raise HTTPException(f"headers are larger than {self._limits.headers_size} bytes")
        return line

    def close(self) -> None:
        """Close the stream below, too."""
        self._stream.close()
        super().close()


class HttpConnection(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: HttpServer
    raw_requestline: bytes
    server_version = "kafkalite"
    sys_version = ""

    def setup(self) -> None:
        """Apply the limits to the connection."""
        super().setup()
        self.connection.settimeout(self.server.limits.idle_s)
        self.rfile = HeadReader(self.rfile, self.server.limits)

    def parse_request(self) -> bool:
        """Parse the request line and the headers; return False after an error response."""
        if len(self.raw_requestline) > self.server.limits.request_line_size:
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        """Send the response of the server's function."""
        path, _, query = self.path.partition("?")
        headers = combine_fields(self.headers.items())
        response = self.server.respond(HttpRequest(self.command, path, query, headers))
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: one line for each request would hide the others."""


def combine_fields(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header fields by lower-case name; repeated ones are joined by a comma (RFC 9110)."""
    combined: dict[str, str] = {}
    for name, value in fields:
        key = name.lower()
        combined[key] = f"{combined[key]}, {value}" if key in combined else value
    return combined
