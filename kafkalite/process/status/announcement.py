"""Announcement: the ready file, status.json and the banner, kept up to date."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.broker import ADVERTISED_LISTENERS, Listener, parse_listener
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process import log_file
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.ports import reachable
from kafkalite.process.status.banner import banner
from kafkalite.process.status.ready import STATUS_FILE, NodeReady, Ready, put_whole, text_of

log = logging.getLogger("kafkalite.process")


class NodeThere(NamedTuple):
    """A node that has responded: its process, and the address it listens on."""

    node_id: int
    role: str
    address: Listener
    pid: int


class Announcement:
    """The published state of a broker; see the module."""

    def __init__(self, settings: Settings, data: Path, ready_file: Path | None) -> None:
        self.settings = settings
        self.log_file = data / LOG_FILE
        self.status_file = data / STATUS_FILE
        self.ready_file = ready_file
        self.since = log_file.mark(self.log_file)
        self.said: Ready | None = None

    def clear(self) -> None:
        """Remove the files of a killed broker; the data directory must be locked by then."""
        for path in (self.status_file, self.ready_file):
            try:
                if path is not None:
                    path.unlink(missing_ok=True)
            except OSError as fault:
                raise Refusal(f"{path} cannot be the ready file: {fault.strerror}") from None

    def withdraw(self) -> None:
        """Remove the files at shutdown."""
        with contextlib.suppress(Refusal):
            self.clear()

    def say(self, ready: Ready) -> None:
        """Write the state to the files if it has changed; the first time, log it."""
        if ready == self.said:
            return
        first = self.said is None
        self.said = ready
        for path in (self.status_file, self.ready_file) if first else (self.status_file,):
            try:
                if path is not None:
                    put_whole(path, text_of(ready))
            except OSError as fault:
                if first:
                    raise Refusal(f"cannot write the ready file {path}: {fault.strerror}") from None
                log.warning("%s cannot be written: %s", path, fault.strerror)
        if first:
            nodes = ", ".join(f"{node['id']} (port {node['port']})" for node in ready["nodes"])
            log.info("ready: %s, nodes %s", ready["bootstrap"], nodes)

    def greet(self, services: Mapping[str, str]) -> None:
        """Print the banner with these texts about the services."""
        assert self.said is not None
        warnings = log_file.warnings_since(self.log_file, self.since)
        with contextlib.suppress(OSError):  # a closed standard output is no reason to end
            text = banner(self.said, self.settings, self.log_file, services, warnings)
            print(text, flush=True)

    def bootstrap(self, address: Listener) -> str:
        """Return the bootstrap server for clients of this host, given node 0's listener."""
        told = self.told(address, address)
        return f"[{told.host}]:{told.port}" if ":" in told.host else f"{told.host}:{told.port}"

    def nodes(self, there: list[NodeThere], first: Listener) -> list[NodeReady]:
        """Return the nodes with the addresses sent to clients, by id."""
        nodes = []
        for node_id, role, address, pid in sorted(there):
            host, port = self.told(address, first)
            nodes.append(NodeReady(id=node_id, role=role, host=host, port=port, pid=pid))
        return nodes

    def told(self, address: Listener, first: Listener) -> Listener:
        """Return the address by which clients reach a node.

        Advertised ports have the same distances from each other as the ports of the listeners.
        """
        advertised = self.settings[ADVERTISED_LISTENERS]
        if not advertised:
            return Listener(reachable(address.host), address.port)
        host, port = parse_listener(advertised[0])
        return Listener(host, port + address.port - first.port)


def role_of(node_id: int, dedicated: frozenset[int] = frozenset()) -> str:
    """Return the role of a node, as in status.json."""
    if node_id == SUPERVISOR_ID:
        return "supervisor"
    return "dedicated" if node_id in dedicated else "worker"
