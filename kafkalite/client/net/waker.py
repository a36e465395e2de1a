"""Waker: ends another thread's poll; readable from `set`, in any thread, until `clear`."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """A socket pair: one end is written to, the other one polled."""

    def __init__(self) -> None:
        self._heard, self._said = socket.socketpair()
        self._heard.setblocking(False)
        self._said.setblocking(False)
        self.is_set = False

    def fileno(self) -> int:
        return self._heard.fileno()

    def set(self) -> None:
        self.is_set = True
        with contextlib.suppress(OSError):  # full, so readable anyway; or closed
            self._said.send(b"!")

    def clear(self) -> None:
        self.is_set = False
        with contextlib.suppress(OSError):  # empty, or closed
            while self._heard.recv(64):
                pass

    def close(self) -> None:
        self._heard.close()
        self._said.close()
