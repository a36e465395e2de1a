"""Ports: assignment of listeners to nodes; node 0 has the configured address.

    port 9092 configured     each further node has the lowest port above 9092 that no other has,
                             so nodes 1..N of the first start listen on 9093..9092+N
    port 0 configured        every node has a free port

A node keeps its port as long as it exists; then the next new node gets it.  Node ids only increase,
and ports that increased with them would collide with other programs or pass the last port.

The ports are stored in the data directory, and in the other log directories, with a checksum
(storage/files/checkpoint.py):

    listeners    {"dedicated": [5], "free": false, "ports": {"0": 9092, "1": 9093, …}}

If the configured port is the one that node 0 had, each node gets its earlier port, so that clients
find their nodes, and the ids of the nodes are known before anything else is read.  If the file is
damaged or missing, only that is lost: the ports follow from the rule above.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from kafkalite.config.listener import Listener
from kafkalite.errors import Refusal
from kafkalite.storage.files import checkpoint
from kafkalite.storage.files.disk import DISK, put_file

LISTENERS_FILE = "listeners"
PORT_MAX = 65_535
RELEASE_TIMEOUT_S = 0.2
BIND_RETRY_S = 0.01


class PortInUse(Refusal):
    """The port is in use by another process, possibly only for a moment."""


class SavedPorts(NamedTuple):
    """The ports of the nodes; `free` if the configured port was 0."""

    ports: dict[int, int]
    dedicated: frozenset[int] = frozenset()
    free: bool = False


def load_ports(data: Path) -> SavedPorts | None:
    """Return what the last run stored; None if it is missing or not valid."""
    try:
        stored: Any = checkpoint.unsealed((data / LISTENERS_FILE).read_bytes())
        ports = {int(node_id): int(port) for node_id, port in stored["ports"].items()}
        saved = SavedPorts(ports, frozenset(stored["dedicated"]), bool(stored["free"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    is_valid = 0 in ports and all(
        node_id >= 0 and 0 < port <= PORT_MAX for node_id, port in ports.items()
    )
    return saved if is_valid else None


def save_ports(data: Path, saved: SavedPorts) -> None:
    """Store the ports for the next run."""
    content = {
        "dedicated": sorted(saved.dedicated),
        "free": saved.free,
        "ports": {str(node_id): port for node_id, port in sorted(saved.ports.items())},
    }
    put_file(DISK, data / LISTENERS_FILE, checkpoint.sealed(content))


class Ports:
    """The ports of the nodes; see the module."""

    def __init__(self, address: Listener, saved: SavedPorts | None, backlog: int) -> None:
        self.address = address
        self.backlog = backlog
        if saved is None or saved.ports[0] != address.port:
            saved = SavedPorts({}, free=address.port == 0)
        self.free = saved.free
        self.ports = dict(saved.ports)

    def of(self, node_id: int) -> int:
        """Return the port of a node, which then stays assigned to it; 0 means any free port."""
        if node_id not in self.ports:
            if node_id == 0:
                return self.address.port
            if self.free:
                return 0
            had = {self.address.port, *self.ports.values()}
            after = itertools.count(self.address.port + 1)
            self.ports[node_id] = next(port for port in after if port not in had)
        return self.ports[node_id]

    def bind(self, node_id: int) -> socket.socket:
        """Bind the node's listening socket and assign its port; raise Refusal if that fails."""
        listener = bind(self.address._replace(port=self.of(node_id)), self.backlog, node_id)
        self.ports[node_id] = listener.getsockname()[1]
        return listener

    def bind_first(self, node_id: int) -> socket.socket:
        """Bind the node's listening socket while the broker starts.

        Retries for a moment: a process killed just before may release the lock of the data
        directory before its listener.  After that, a port that was only a free one is replaced.
        """
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        while True:
            try:
                return self.bind(node_id)
            except PortInUse:
                if time.monotonic() >= deadline:
                    if node_id == 0 or not self.free:
                        raise
                    self.release(node_id)
            time.sleep(BIND_RETRY_S)

    def release(self, node_id: int) -> None:
        """Release the port of a node that was removed."""
        self.ports.pop(node_id, None)

    def release_all_but(self, node_ids: Collection[int]) -> None:
        """Release the ports of all other nodes."""
        self.ports = {node_id: port for node_id, port in self.ports.items() if node_id in node_ids}


def bind(address: Listener, backlog: int, node_id: int = 0) -> socket.socket:
    """Bind a node's listening socket; raise Refusal if that fails."""
    host = address.host or "0.0.0.0"
    if node_id == 0:
        cannot, instead = "cannot listen on", "choose another with --listen"
        ports = " HOST:PORT (port 0 takes a free one)"
    else:
        cannot, instead = f"node {node_id} cannot listen on", "choose others with --listen"
        ports = " HOST:PORT (nodes take the ports after it, and port 0 takes free ones)"
    if address.port > PORT_MAX:
        raise Refusal(
            f"{cannot} port {address.port}: the highest port is {PORT_MAX}; {instead}{ports}"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        where = socket.getaddrinfo(host, address.port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(where, family=family, backlog=backlog)
    except socket.gaierror as error:
        reason = (error.strerror or str(error)).lower()
        raise Refusal(f"{cannot} {host}: {reason}; {instead}") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        refused = PortInUse if error.errno == errno.EADDRINUSE else Refusal
        raise refused(f"{cannot} {host}:{address.port}: {reason}; {instead}{ports}") from None


def reachable(host: str) -> str:
    """Return an address by which this machine reaches a socket bound to `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
