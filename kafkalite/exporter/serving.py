"""The exporter's HTTP server: three pages, with limits on time and number of requests."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

AT_ONCE_MAX = 16
REQUEST_S_MAX = 10.0
"""Maximum time without data of a request."""
WHOLE_S_MAX = 60.0
"""Maximum time of a request in total, however steadily bytes arrive."""
TEXT_KEPT_S = 0.5
NODE_S_MAX = 1.0
READY_S_MAX = 3.0

API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 0, -1)
"""The smallest possible request: ApiVersions v0, correlation id 0, no client id."""
ANSWER_START = 10
"""Bytes of size, correlation id and error code."""

Address = tuple[str, int]
WhyNot = str
"""The reason why the broker is not ready; empty if it is."""


class Server(ThreadingHTTPServer):
    """Serves on a given listening socket; closes connections that come while it is busy."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, registry: CollectorRegistry, ready: Callable[[], WhyNot]
    ) -> None:
        super().__init__(listener.getsockname()[:2], Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.registry = registry
        self.ready = ready
        self._room = threading.BoundedSemaphore(AT_ONCE_MAX)
        self._lock = threading.Lock()
        self._texts: dict[str, tuple[float, bytes]] = {}
        self._began_s: dict[Any, float] = {}

    def scraped(self, accept: str) -> tuple[bytes, str]:
        """Return the text of all metrics in the format the scraper accepts, and its content type.

        Scrapes are encoded one at a time.
        """
        encode, content_type = choose_encoder(accept)
        with self._lock:
            at_s, text = self._texts.get(content_type, (float("-inf"), b""))
            if time.monotonic() - at_s >= TEXT_KEPT_S:
                text = encode(self.registry)
                self._texts = {content_type: (time.monotonic(), text)}
        return text, content_type

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._began_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._began_s[request]
            self._room.release()

    def service_actions(self) -> None:
        """Close requests that take too long; `serve_forever` calls this regularly."""
        now_s = time.monotonic()
        for request, began_s in list(self._began_s.items()):
            if now_s - began_s >= WHOLE_S_MAX:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: the client has closed the connection."""


class Request(BaseHTTPRequestHandler):
    """One HTTP request."""

    server: Server
    timeout = REQUEST_S_MAX
    server_version = "kafkalite"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self.answer(200, *self.server.scraped(self.headers.get("Accept", "")))
        elif path == "/healthz":
            self.answer(200, b"ok\n")
        elif path == "/readyz":
            why_not = self.server.ready()
            self.answer(503 if why_not else 200, f"{why_not or 'ready'}\n".encode())
        else:
            self.answer(404, b"there are /metrics, /healthz and /readyz\n")

    def answer(
        self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line for each scrape would be of no use."""


def why_not_ready(nodes: dict[int, Address] | None) -> WhyNot:
    """Send a request to each node; return why the broker is not ready, or an empty string."""
    if nodes is None:
        return "no broker is ready"
    given_up = time.monotonic() + READY_S_MAX
    for node_id, address in sorted(nodes.items()):
        left_s = min(NODE_S_MAX, given_up - time.monotonic())
        if left_s <= 0 or not answers(address, left_s):
            return f"node {node_id} at {address[0]}:{address[1]} does not answer"
    return ""


def answers(address: Address, wait_s: float) -> bool:
    """Return True if the node at this address responds to ApiVersions."""
    try:
        with socket.create_connection(address, timeout=wait_s) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            came = b""
            while len(came) < ANSWER_START:
                more = connection.recv(ANSWER_START - len(came))
                if not more:
                    return False
                came += more
    except OSError:
        return False
    return came[4:] == bytes(ANSWER_START - 4)
