"""Waker: ends another thread's poll; readable from `set`, in any thread, until `clear`."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """A socket pair: one end is written to, the other one polled."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.is_set = False

    def fileno(self) -> int:
        return self._receiver.fileno()

    def set(self) -> None:
        self.is_set = True
        with contextlib.suppress(OSError):  # full, so readable anyway; or closed
            self._sender.send(b"!")

    def clear(self) -> None:
        self.is_set = False
        with contextlib.suppress(OSError):  # empty, or closed
            while self._receiver.recv(64):
                pass

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
