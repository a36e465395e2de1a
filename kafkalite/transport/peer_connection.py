"""PeerConnection: a connection to another node of the broker, through which this node fetches.

    send(frame)                 size and request; what the socket does not take is sent later
    on_response(frame)          each whole response, without its size; valid during the call only
    on_close()                  once, if the connection cannot be opened, is closed or sends
                                something that is no response

It is used on the event loop and never blocks it.  The other end is a PeerListener.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.transport")

SIZE_SIZE = 4
FRAME_SIZE_MAX = 128 << 20
"""Maximum size of a response; one record batch may exceed the limits of a fetch."""

BUFFER_SIZE = 256 << 10
READ_SIZE_MAX = 4 << 20
"""Maximum number of bytes read in one tick."""

SEND_RETRY_MS = 1
"""Delay before more is sent to a socket that was full."""


class PeerConnection:
    """One connection to a peer; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        path: Path,
        on_response: Callable[[memoryview], object],
        on_close: Callable[[], object],
    ) -> None:
        """Connect to the Unix socket of a node."""
        self._reactor = reactor
        self._path = path
        self._on_response = on_response
        self._on_close: Callable[[], object] | None = on_close
        self._unsent: deque[memoryview] = deque()
        self._buffer = bytearray(BUFFER_SIZE)
        self._begin = self._end = 0
        """The range of the buffer that holds bytes of responses."""
        self._is_watched = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._lose(f"cannot be opened: {error.strerror}")
        else:
            reactor.watch(self._socket.fileno(), self._read)
            self._is_watched = True

    @property
    def is_open(self) -> bool:
        """False once the connection was closed by either end."""
        return self._on_close is not None

    def close(self) -> None:
        """Close the connection, without a call of `on_close`."""
        if self._on_close is not None:
            self._on_close = None
            self._unsent.clear()
            if self._is_watched:
                self._reactor.unwatch(self._socket.fileno())
            self._socket.close()

    def _lose(self, why: str) -> None:
        """Close the connection, and report it in the next tick."""
        on_close = self._on_close
        if on_close is None:
            return
        log.debug("Connection to a peer %s. path=%s", why, self._path)
        self.close()
        self._reactor.call_later(0, on_close)

    # -- requests ----------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Send a request."""
        if self._on_close is None:
            return
        is_idle = not self._unsent
        self._unsent.append(memoryview(len(frame).to_bytes(SIZE_SIZE, "big") + frame))
        if is_idle:
            self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            try:
                sent = self._socket.send(view)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._lose(f"has failed: {error.strerror}")
                return
            if sent < len(view):
                self._unsent[0] = view[sent:]
                self._reactor.call_later(SEND_RETRY_MS, self._send_unsent)
                return
            self._unsent.popleft()

    # -- responses ---------------------------------------------------------------------------

    def _read(self) -> None:
        left = READ_SIZE_MAX
        while left > 0 and self._on_close is not None:
            space = memoryview(self._buffer)[self._end :]
            try:
                size = self._socket.recv_into(space)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(f"has failed: {error.strerror}")
                return
            if not size:
                self._lose("was closed by the peer")
                return
            is_all = size < len(space)
            self._end += size
            left -= size
            self._take_frames()
            if is_all:
                return

    def _take_frames(self) -> None:
        """Pass on the whole responses in the buffer, and make room for the rest of the next one."""
        buffer = memoryview(self._buffer)
        size = 0
        while self._end - self._begin >= SIZE_SIZE and self._on_close is not None:
            begin = self._begin + SIZE_SIZE
            size = int.from_bytes(buffer[self._begin : begin], "big")
            if not SIZE_SIZE <= size <= FRAME_SIZE_MAX:
                self._lose(f"has sent a response of {size} bytes")
                return
            if self._end - begin < size:
                break
            self._begin = begin + size
            self._on_response(buffer[begin : begin + size])
            size = 0
        if self._begin == self._end:
            self._begin = self._end = 0
        if self._begin or self._end == len(self._buffer):
            # Another buffer: a part of this one may still be in use.
            kept = buffer[self._begin : self._end]
            whole = bytearray(max(BUFFER_SIZE, SIZE_SIZE + size))
            whole[: len(kept)] = kept
            self._buffer = whole
            self._begin, self._end = 0, len(kept)
