"""PeerListener: the Unix socket `peer-NODE` on which a node serves the other nodes of its broker.

The permissions of the run directory admit only processes of the broker's user and of root, and each
connection's user is checked.  Its requests are served as those of clients are, but as from a peer.
The limits on clients' connections do not apply.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.errors import Refusal
from kafkalite.transport.run_directory import file_of

if TYPE_CHECKING:
    from kafkalite.transport.connection import Serve
    from kafkalite.transport.reactor import Reactor

BACKLOG = 128
SEND_BUFFER_SIZE = 2 << 20
"""Size of a connection's send buffer, as far as the system allows: a whole response of 1 MB takes
one tick of both ends."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group id of a peer."""


class PeerListener:
    """The listener for other nodes; see the module."""

    def __init__(self, reactor: Reactor, path: Path, serve: Serve) -> None:
        self._reactor = reactor
        self._path = path
        self._serve = serve
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)  # the file of a killed process
            listener.bind(str(path))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            reason = error.strerror or error
            raise Refusal(f"cannot listen on the socket {path}: {reason}") from None
        self._file = file_of(path)
        self._socket_listener = reactor.admit(listener, self._open_connection, lambda: False)

    def _open_connection(self, accepted: socket.socket, address: object) -> None:
        credentials = accepted.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size
        )
        _, uid, _ = CREDENTIALS.unpack(credentials)
        if uid not in (os.geteuid(), 0):
            self._reactor.reject(accepted, ("", 0), f"it is of user {uid}, and no peer")
            return
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_SIZE)
        self._reactor.open_peer_connection(accepted, self._serve)

    def close(self) -> None:
        """Close the listener, and remove its file if it is still its own."""
        self._socket_listener.close()
        if file_of(self._path) == self._file:
            self._path.unlink(missing_ok=True)
