"""NodeTable: the nodes of a broker in the launcher: the desired ones, and the process of each.

    supervisor ─▶ DesiredNodes  all nodes that should run
               ─▶ Fence         the session of a node expired: kill its process, and restart it
               ─▶ Heartbeat     the supervisor runs; without it, it is killed: supervisor_watch.py
    launcher   ─▶ Nodes         all node processes, after each change

The desired nodes of the start are those of the last run, or as many as are configured, until the
supervisor sends its list.  process/launcher.py starts and ends processes towards them.

A node keeps its port across restarts of its process and of the broker.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kafkalite.config.broker import SOCKET_LISTEN_BACKLOG_SIZE, WORKERS
from kafkalite.config.listener import Listener
from kafkalite.config.settings import Settings
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.process.nodes.control_channel import ControlChannel
from kafkalite.process.nodes.node_process import NodeProcess, NodeProcessState, ProcessExit
from kafkalite.process.nodes.supervisor_watch import SupervisorWatch
from kafkalite.process.options import default_workers
from kafkalite.process.ports import Ports, SavedPorts, load_ports, save_ports
from kafkalite.process.restart import CarriedState
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")


def workers_of(settings: Settings, saved: SavedPorts | None, directory_count: int = 1) -> int:
    """Return the number of workers: as configured, else as in the last run, else by cores."""
    workers = settings[WORKERS]
    if workers is not None:
        return workers
    return default_workers(directory_count) if saved is None else len(saved.ports) - 1


def initial_nodes(workers: int | None, default: int, saved: SavedPorts | None) -> set[int]:
    """Return the ids of the nodes to start before the supervisor has sent its list."""
    if saved is None:
        return set(range((default if workers is None else workers) + 1))
    if workers is None:
        return set(saved.ports)
    ordinary = sorted(saved.ports.keys() - saved.dedicated - {SUPERVISOR_ID})[:workers]
    known = {SUPERVISOR_ID, *ordinary, *saved.dedicated}
    unknown = (node_id for node_id in itertools.count(1) if node_id not in known)
    return known.union(itertools.islice(unknown, workers - len(ordinary)))


class NodeTable:
    """The desired nodes and the processes of all nodes; see the module."""

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        directories: Sequence[Path],
        address: Listener,
        on_exit: Callable[[ProcessExit], None],
        on_demand: Callable[[str], None] = lambda key: None,
    ) -> None:
        self.reactor = reactor
        self.directories = directories
        self.on_exit = on_exit
        self.saved_ports = load_ports(directories[0])
        self._are_ports_copied = all(load_ports(d) == self.saved_ports for d in directories)
        self.ports = Ports(address, self.saved_ports, settings[SOCKET_LISTEN_BACKLOG_SIZE])
        self.processes: dict[int, NodeProcess] = {}
        self.watch = SupervisorWatch(reactor, settings, lambda: self.process(SUPERVISOR_ID))
        self.control = ControlChannel(
            reactor, self.set_desired_nodes, self.fence, self.watch.record_heartbeat, on_demand
        )
        workers = workers_of(settings, self.saved_ports, len(directories))
        self.desired = initial_nodes(settings[WORKERS], workers, self.saved_ports)
        self.dedicated = self.saved_ports.dedicated if self.saved_ports else frozenset()
        self.has_desired_nodes = False
        """True if a supervisor has sent the list of nodes."""

    def process(self, node_id: int) -> NodeProcess:
        """Return the record of a node's process, created if it is missing."""
        if node_id not in self.processes:
            self.processes[node_id] = NodeProcess(self.reactor, node_id, self.on_exit)
        return self.processes[node_id]

    def __iter__(self) -> Iterator[NodeProcess]:
        """Return the processes in the order of their node ids."""
        return iter([process for _, process in sorted(self.processes.items())])

    def remove(self, node_id: int) -> None:
        """Remove the record of a node without a process."""
        self.processes.pop(node_id).close()

    def kill(self) -> None:
        """Kill all processes."""
        for process in self:
            process.kill()

    @property
    def running(self) -> list[NodeProcess]:
        """The processes that were not reaped."""
        return [process for process in self if process.is_running]

    @property
    def all_ready(self) -> bool:
        """True if every desired node has responded."""
        return all(
            self.process(node_id).state is NodeProcessState.READY for node_id in self.desired
        )

    # -- messages of the supervisor, and to it -----------------------------------------------

    def set_desired_nodes(self, node_ids: set[int], dedicated: frozenset[int]) -> None:
        """Replace the desired nodes by the supervisor's list."""
        self.desired, self.dedicated = {SUPERVISOR_ID, *node_ids}, dedicated
        self.has_desired_nodes = True
        self.ports.release_all_but({*self.desired, *self.processes})

    def fence(self, node_id: int, incarnation: int) -> None:
        """Kill a process whose session has expired, if it is still the same incarnation."""
        process = self.processes.get(node_id)
        if process is not None and process.is_running and process.incarnation == incarnation:
            log.error(
                "Node %d missed its heartbeat deadline; killing its process. node=%d pid=%d"
                " incarnation=%d", node_id, node_id, process.pid, incarnation,
            )  # fmt: skip
            process.kill()

    def send_to_supervisor(self) -> None:
        """Send the supervisor the list of all node processes if it has changed."""
        self.control.send_nodes(self, self.address_of)

    # -- listeners and ports -----------------------------------------------------------------

    def address_of(self, process: NodeProcess) -> Listener:
        """Return the address of a node's listener, also while it has none."""
        first = self.processes.get(SUPERVISOR_ID)
        for known in (process, first):
            if known is not None and known.listener is not None:
                host = known.listener.getsockname()[0]
                return Listener(host, self.ports.of(process.node_id))
        return self.ports.address._replace(port=self.ports.of(process.node_id))

    @property
    def known_addresses(self) -> dict[int, Listener]:
        """The addresses, by node id, of all nodes with a listener or a process."""
        return {
            process.node_id: self.address_of(process)
            for process in self
            if process.listener is not None or process.is_running
        }

    def save_ports(self) -> None:
        """Write the nodes' ports to the data directory if they have changed, and to the other log
        directories, one of which may take its place."""
        if not self.has_desired_nodes or self.desired != self.processes.keys():
            return
        known = {node_id: self.ports.of(node_id) for node_id in self.desired}
        now = SavedPorts(known, self.dedicated & self.desired, self.ports.free)
        if now == self.saved_ports and self._are_ports_copied:
            return
        if all(known.values()):
            self.saved_ports, self._are_ports_copied = now, True
            for directory in self.directories:
                try:
                    save_ports(directory, now)
                except OSError as error:
                    log.warning(
                        "Ports cannot be saved for the next start. path=%s error=%r",
                        directory, error.strerror,
                    )  # fmt: skip

    # -- restart of the launcher -------------------------------------------------------------

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the listeners and of the control channel."""
        sockets = [self.control.socket, *(process.listener for process in self)]
        return [each.fileno() for each in sockets if each is not None]

    @property
    def carried_fields(self) -> dict[str, Any]:
        """The table in the state that the launcher carries over an exec."""
        return {
            "orders": -1 if self.control.socket is None else self.control.socket.fileno(),
            "roster": sorted(self.desired),
            "dedicated": sorted(self.dedicated),
            "ports": self.ports.ports,
            "free": self.ports.free,
            "nodes": [
                {
                    "node_id": process.node_id,
                    "listener": -1 if process.listener is None else process.listener.fileno(),
                    "pid": process.pid,
                    "incarnation": process.incarnation,
                    "state": process.state.value,
                }
                for process in self.processes.values()
            ],
        }

    def take_over(self, carried: CarriedState) -> None:
        """Adopt the sockets and processes of the code before the exec."""
        self.desired = set(carried["roster"])
        self.dedicated = frozenset(carried["dedicated"])
        self.ports.free = carried["free"]
        self.ports.ports = {int(node_id): port for node_id, port in carried["ports"].items()}
        self.has_desired_nodes = True
        for fields in carried["nodes"]:
            process = self.process(fields["node_id"])
            if fields["listener"] >= 0:
                os.set_inheritable(fields["listener"], False)
                process.listener = socket.socket(fileno=fields["listener"])
            if fields["pid"]:
                state = NodeProcessState(fields["state"])
                process.take_over(fields["pid"], fields["incarnation"], state)
        if carried["orders"] >= 0:
            self.control.take_over(carried["orders"])
