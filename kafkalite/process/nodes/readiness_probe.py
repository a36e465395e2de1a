"""ReadinessProbe: requests to a node's own listener until the first response."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable

from kafkalite.process.ports import reachable
from kafkalite.protocol.readiness_request import (
    READINESS_REQUEST,
    RESPONSE_HEAD_SIZE,
    is_success,
)
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

RETRY_MS = 20
DESCRIPTOR_RETRY_MS = 1_000
"""Retry interval when the process has no free descriptor."""


class ReadinessProbe:
    """One readiness request to a listener; calls `on_response` once a response has arrived.

    If the connection closes without a response the request is repeated, until `cancel`.
    """

    def __init__(
        self, reactor: Reactor, listener: socket.socket, on_response: Callable[[], None]
    ) -> None:
        self.reactor = reactor
        self.family = listener.family
        host, port = listener.getsockname()[:2]
        self.address = (reachable(host), port)
        self.on_response = on_response
        self.connection: socket.socket | None = None
        self.timer: Timer | None = None
        self.connect()

    def cancel(self) -> None:
        """Cancel the request."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.connection is not None:
            self.reactor.unwatch(self.connection.fileno())
            self.connection.close()
            self.connection = None

    def connect(self) -> None:
        self.timer = None
        try:
            self.connection = socket.socket(self.family)
        except OSError as error:
            log.error(
                "Readiness probe cannot open a socket; retrying. retry_ms=%d error=%r",
                DESCRIPTOR_RETRY_MS, error.strerror,
            )  # fmt: skip
            self.timer = self.reactor.call_later(DESCRIPTOR_RETRY_MS, self.connect)
            return
        self.connection.setblocking(False)
        self.connection.connect_ex(self.address)
        self.reactor.watch(self.connection.fileno(), self.read)
        self.send_request()

    def send_request(self) -> None:
        assert self.connection is not None
        self.timer = None
        try:
            self.connection.send(READINESS_REQUEST)
        except BlockingIOError:
            # The backlog is full of early clients; the kernel connects once the node accepts them.
            self.timer = self.reactor.call_later(RETRY_MS, self.send_request)
        except OSError:
            self.retry()

    def read(self) -> None:
        assert self.connection is not None
        response = b""
        with contextlib.suppress(OSError):
            response = self.connection.recv(RESPONSE_HEAD_SIZE)
        if not is_success(response):
            if response:
                log.error("Readiness probe got an unexpected response. response=%r", response)
            self.retry()
            return
        self.cancel()
        self.on_response()

    def retry(self) -> None:
        self.cancel()
        self.timer = self.reactor.call_later(RETRY_MS, self.connect)
