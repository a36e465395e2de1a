"""PushReceiver: receives client metrics from the nodes, on a socket in the run directory."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kafkalite.exporter.client_metrics import ClientMetrics
from kafkalite.metrics import PUSH_SIZE_MAX, PUSHES, read_push

LOOK_S = 1.0
"""Interval of the check that the socket still has its path."""
ROOM = 4 << 20


class PushReceiver:
    """Binds a socket in the run directory; only the first exporter on it receives pushes."""

    def __init__(self, where: Callable[[], Path | None], clients: ClientMetrics) -> None:
        self.where = where
        self.clients = clients
        self._thread = threading.Thread(target=self._run, name="pushes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            run_directory = self.where()
            if run_directory is not None:
                with contextlib.suppress(OSError):
                    self._take(run_directory / PUSHES)
            time.sleep(LOOK_S)

    def _take(self, path: Path) -> None:
        """Receive pushes until the socket's path is gone; raise OSError if it cannot be bound."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as taker:
            if is_taken(path):
                return
            path.unlink(missing_ok=True)
            taker.bind(str(path))
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
            taker.settimeout(LOOK_S)
            own = os.stat(path).st_ino
            while is_there(path, own):
                with contextlib.suppress(TimeoutError):
                    while True:
                        self.clients.push(read_push(taker.recv(PUSH_SIZE_MAX)))


def is_taken(path: Path) -> bool:
    """Return True if another process receives pushes there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect(str(path))
        except OSError:
            return False
    return True


def is_there(path: Path, inode: int) -> bool:
    """Return True if the path still refers to this socket."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
