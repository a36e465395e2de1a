"""StatusPublisher: the ready file, status.json and the banner, kept up to date."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kafkalite.config.broker import ADVERTISED_LISTENERS
from kafkalite.config.listener import Listener, parse_listener
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.errors import Refusal
from kafkalite.process import log_file
from kafkalite.process.log_file import LOG_FILE
from kafkalite.process.ports import reachable
from kafkalite.process.status.banner import banner
from kafkalite.process.status.ready import STATUS_FILE, NodeReady, Ready, text_of, write_atomically

log = logging.getLogger("kafkalite.process")


class RunningNode(NamedTuple):
    """A node that has responded: its process, and the address it listens on."""

    node_id: int
    role: str
    address: Listener
    pid: int


class StatusPublisher:
    """The published state of a broker; see the module."""

    def __init__(self, settings: Settings, data: Path, ready_file: Path | None) -> None:
        self.settings = settings
        self.log_file = data / LOG_FILE
        self.status_file = data / STATUS_FILE
        self.ready_file = ready_file
        self.log_start = log_file.end_position(self.log_file)
        self.published: Ready | None = None

    def remove_files_or_refuse(self) -> None:
        """Remove the files that a killed broker left; the data directory must be locked by then.

        Raises Refusal if that fails.
        """
        for path in (self.status_file, self.ready_file):
            try:
                if path is not None:
                    path.unlink(missing_ok=True)
            except OSError as error:
                role = "ready file" if path == self.ready_file else "status file"
                raise Refusal(f"cannot remove the {role} {path}: {error.strerror}") from None

    def remove_files(self) -> None:
        """Remove the files at shutdown."""
        with contextlib.suppress(Refusal):
            self.remove_files_or_refuse()

    def publish(self, ready: Ready) -> None:
        """Write the state to the files if it has changed; the first time, log it."""
        if ready == self.published:
            return
        first = self.published is None
        self.published = ready
        for path in (self.status_file, self.ready_file) if first else (self.status_file,):
            try:
                if path is not None:
                    write_atomically(path, text_of(ready))
            except OSError as error:
                if first:
                    raise Refusal(f"cannot write the ready file {path}: {error.strerror}") from None
                log.warning("Status file cannot be written. file=%s error=%r", path, error.strerror)
        if first:
            nodes = ", ".join(f"{node['id']} (port {node['port']})" for node in ready["nodes"])
            log.info("Broker is ready. bootstrap=%s nodes=%r", ready["bootstrap"], nodes)

    def print_banner(self, services: Mapping[str, str]) -> None:
        """Print the banner with these texts about the services."""
        assert self.published is not None
        warnings = log_file.warnings_since(self.log_file, self.log_start)
        with contextlib.suppress(OSError):  # a closed standard output is no reason to end
            text = banner(self.published, self.settings, self.log_file, services, warnings)
            print(text, flush=True)

    def bootstrap(self, address: Listener) -> str:
        """Return the bootstrap server for clients of this host, given node 0's listener."""
        host, port = self.advertised_address(address, address)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def node_entries(self, running: list[RunningNode], first: Listener) -> list[NodeReady]:
        """Return the nodes with the addresses sent to clients, by id."""
        entries = []
        for node_id, role, address, pid in sorted(running):
            host, port = self.advertised_address(address, first)
            entries.append(NodeReady(id=node_id, role=role, host=host, port=port, pid=pid))
        return entries

    def advertised_address(self, address: Listener, first: Listener) -> Listener:
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
