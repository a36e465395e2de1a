"""Question: an ApiVersions request to a node's own listener, to learn when it responds."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections.abc import Callable

from kafkalite.process.ports import reachable
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

API_VERSIONS_REQUEST = struct.pack(">ihhih", 10, 18, 0, 0, -1)
"""The smallest possible request: ApiVersions v0, correlation id 0, no client id."""

ANSWER_START = 10
"""Bytes of size, correlation id and error code, which the node sends in one piece."""

ASK_AGAIN_MS = 20
CONNECT_AGAIN_MS = 1_000
"""Retry interval when the process has no free descriptor."""


class Question:
    """One ApiVersions request to a listener; calls `answered` once a response has arrived.

    If the connection closes without a response the request is repeated, until `withdraw`.
    """

    def __init__(
        self, reactor: Reactor, listener: socket.socket, answered: Callable[[], None]
    ) -> None:
        self.reactor = reactor
        self.family = listener.family
        host, port = listener.getsockname()[:2]
        self.address = (reachable(host), port)
        self.answered = answered
        self.client: socket.socket | None = None
        self.timer: Timer | None = None
        self.connect()

    def withdraw(self) -> None:
        """Cancel the request."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.client is not None:
            self.reactor.unwatch(self.client.fileno())
            self.client.close()
            self.client = None

    def connect(self) -> None:
        self.timer = None
        try:
            self.client = socket.socket(self.family)
        except OSError as fault:
            log.error("it cannot be asked whether a node answers: %s", fault.strerror)
            self.timer = self.reactor.call_later(CONNECT_AGAIN_MS, self.connect)
            return
        self.client.setblocking(False)
        self.client.connect_ex(self.address)
        self.reactor.watch(self.client.fileno(), self.read)
        self.ask()

    def ask(self) -> None:
        assert self.client is not None
        self.timer = None
        try:
            self.client.send(API_VERSIONS_REQUEST)
        except BlockingIOError:
            # The backlog is full of early clients; the kernel connects once the node accepts them.
            self.timer = self.reactor.call_later(ASK_AGAIN_MS, self.ask)
        except OSError:
            self.begin_again()

    def read(self) -> None:
        assert self.client is not None
        reply = b""
        with contextlib.suppress(OSError):
            reply = self.client.recv(ANSWER_START)
        if reply[4:] != bytes(ANSWER_START - 4):
            if reply:
                log.error("ApiVersions is answered by %r", reply)
            self.begin_again()
            return
        self.withdraw()
        self.answered()

    def begin_again(self) -> None:
        self.withdraw()
        self.timer = self.reactor.call_later(ASK_AGAIN_MS, self.connect)
