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

CHECK_S = 1.0
"""Interval of the check that the socket still has its path."""
RECEIVE_BUFFER_SIZE = 4 << 20


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
                    self._receive(run_directory / PUSHES)
            time.sleep(CHECK_S)

    def _receive(self, path: Path) -> None:
        """Receive pushes while the socket has its path; raise OSError if it cannot be bound."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            if has_receiver(path):
                return
            path.unlink(missing_ok=True)
            receiver.bind(str(path))
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_SIZE)
            receiver.settimeout(CHECK_S)
            inode = os.stat(path).st_ino
            while has_inode(path, inode):
                with contextlib.suppress(TimeoutError):
                    while True:
                        self.clients.push(read_push(receiver.recv(PUSH_SIZE_MAX)))


def has_receiver(path: Path) -> bool:
    """Return True if another process receives pushes at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def has_inode(path: Path, inode: int) -> bool:
    """Return True if the path still refers to this socket."""
    try:
        return os.stat(path).st_ino == inode
    except OSError:
        return False
