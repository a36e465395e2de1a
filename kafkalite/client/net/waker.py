"""A Waker ends another thread's wait: set from anywhere, it is readable until it is cleared."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """A pair of sockets: one is written into, the other one polled."""

    def __init__(self) -> None:
        self._heard, self._said = socket.socketpair()
        self._heard.setblocking(False)
        self._said.setblocking(False)
        self.is_set = False

    def fileno(self) -> int:
        return self._heard.fileno()

    def set(self) -> None:
        self.is_set = True
        with contextlib.suppress(OSError):  # it is full, or closed: nobody can miss that
            self._said.send(b"!")

    def clear(self) -> None:
        self.is_set = False
        with contextlib.suppress(OSError):  # there is no more, or it is closed
            while self._heard.recv(64):
                pass

    def close(self) -> None:
        self._heard.close()
        self._said.close()
