"""Takes what clients push from the nodes, at a socket in the broker's run directory."""

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
"""How often it is looked whether the run directory is still the one."""
ROOM = 4 << 20


class Pushes:
    """Listens wherever the run directory is; the first exporter that does has all of it."""

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
        """Take pushes until the socket's place is gone; OSError when it cannot be taken."""
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
    """Whether another takes pushes there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
        try:
            asker.connect(str(path))
        except OSError:
            return False
    return True


def is_there(path: Path, inode: int) -> bool:
    """Whether the socket's name is still this one's."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
