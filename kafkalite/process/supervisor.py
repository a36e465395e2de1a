"""The supervisor process: node 0 with the controller, in a cluster of several processes.

    metadata log → controller → nodes registered → desired nodes to the launcher → bus, listener

The controller's records define the nodes.  The launcher receives the whole list of desired
nodes whenever it changes, and reports the processes it has.  Workers connect to the bus
(broker/controller/worker_manager.py).

The configured number of workers counts only when the broker itself starts.  A supervisor that is
restarted while workers run takes the nodes from its metadata log.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

from kafkalite.broker.assembly import (
    controller_node,
    create_missing_logs,
    open_local_controller,
    own_replicas,
    register_nodes,
    take_leaders,
)
from kafkalite.broker.controller.admin_commands import AdminCommands
from kafkalite.broker.controller.compaction_demand import CompactionDemand
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.controller.node_racks import racks_of
from kafkalite.broker.controller.preferred_leaders import PreferredLeaders
from kafkalite.broker.controller.reassigner import Reassigner
from kafkalite.broker.controller.replicated_nodes import ReplicatedNodes
from kafkalite.broker.controller.worker_manager import BACKOFF, ProcessReport, WorkerManager
from kafkalite.broker.node import Node
from kafkalite.broker.node_metrics import start_metrics
from kafkalite.broker.node_settings import placement_limits, reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.config.broker import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_SESSION_TIMEOUT_MS,
    BROKER_TICK_TIMEOUT_MS,
)
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.sessions import NodeSessions
from kafkalite.errors import CorruptMessage, Fatal, UnsupportedVersion
from kafkalite.process.loop import disable_automatic_gc, handle_signals
from kafkalite.process.nodes.process_state import is_running
from kafkalite.process.nodes.spawn_spec import SpawnSpec
from kafkalite.process.nodes.supervisor_watch import send_if_all_read
from kafkalite.process.options import default_workers
from kafkalite.process.services.cleaner_service import CLEANER
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.schemas.bus import FRAME_SIZE_MAX
from kafkalite.storage.files import layout
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.manager.node_directories import evacuate
from kafkalite.transport.bus import BusServer, Peer
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import BUS

log = logging.getLogger("kafkalite.process")

EVACUATION_MS = 1_000
"""Interval of the search for partition directories of nodes that were removed.  A worker that
started with an older image may have moved some there, or a full disk kept them there."""


def run(spec: SpawnSpec) -> int:
    """Run the supervisor until SIGTERM and return the exit code of the process."""
    reactor = Reactor(SystemClock(), reactor_limits(spec.settings))
    handle_signals(reactor, lambda _: reactor.stop(), signal.SIGTERM)
    logs = LogManager(spec.data, spec.settings, reactor.clock)
    logs.open_directory(spec.cluster_id, SUPERVISOR_ID)
    controller = open_local_controller(logs, reactor, spec.other_directories)
    addresses = initial_addresses(spec, controller)
    register_nodes(
        controller,
        spec.cluster_id,
        spec.settings,
        addresses,
        log_directories={node_id: log_directory(spec, node_id) for node_id in addresses},
        is_first_start=spec.is_first_start,
    )
    node = controller_node(controller, spec.settings, reactor, logs, spec.listener, spec.data)
    own_replicas(controller, spec.incarnation, node.partition_rules).take_over()
    if spec.is_first_start:
        ran_in_this_boot = logs.ran_in_this_boot or spec.ran_in_this_boot
        take_leaders(controller, ran_in_this_boot, node.partition_rules)
        create_missing_logs(controller, spec.data)
    existing = {*controller.image.nodes, *spec.nodes}
    evacuate(spec.data, existing, node.directory_at, logs.file_system, is_deleted=node.is_deleted)
    node.serve_locally(spec.run_directory)
    node.open()
    supervisor = Supervisor(spec, node, controller, reactor)
    start_metrics(node, spec.run_directory)
    disable_automatic_gc(reactor)
    log.info("Supervisor started. nodes=%s", [*controller.image.nodes])
    reactor.run()
    log.info("Node %d shuts down. node=%d", spec.node_id, spec.node_id)
    supervisor.close()
    node.close()
    log.info("Node %d has shut down. node=%d", spec.node_id, spec.node_id)
    return 0


def initial_addresses(spec: SpawnSpec, controller: LocalController) -> dict[int, tuple[str, int]]:
    """Return the addresses of the nodes that should exist; port 0 for a node without a listener."""
    image = controller.image
    known = [n for n, node in image.nodes.items() if n != SUPERVISOR_ID and not node.dedicated]
    ids = set(known)
    if spec.is_first_start:
        directory_count = 1 + len(spec.other_directories)
        count = spec.explicit_workers or len(known) or default_workers(directory_count)
        ids = set(sorted(known)[:count])
        free = (n for n in range(1, count + len(image.nodes) + 1) if n not in image.nodes)
        while len(ids) < count:
            ids.add(next(free))
    ids |= {n for n, node in image.nodes.items() if node.dedicated and n in spec.nodes}
    return {n: spec.nodes.get(n, ("", 0)) for n in sorted({SUPERVISOR_ID, *ids})}


def log_directory(spec: SpawnSpec, node_id: int) -> str:
    """Return the log directory of a node, "" if there is only one."""
    directory = layout.log_directory(layout.node_directory(spec.data, node_id))
    return str(directory) if spec.other_directories else ""


class Supervisor:
    """Connects the controller with the launcher and the bus."""

    def __init__(
        self, spec: SpawnSpec, node: Node, controller: LocalController, reactor: Reactor
    ) -> None:
        assert spec.control_socket is not None
        self._control_socket = spec.control_socket
        self._controller = controller
        self._settings = spec.settings
        self._log_directory = partial(log_directory, spec)
        self._reactor = reactor
        self._sent_node_ids: list[int] | None = None
        self._bus = BusServer(reactor, spec.run_directory / BUS, self._received)
        self.worker_manager = WorkerManager(
            controller,
            node.dispatcher.serve,
            NodeSessions(
                spec.settings[BROKER_SESSION_TIMEOUT_MS], spec.settings[BROKER_TICK_TIMEOUT_MS]
            ),
            reactor,
            send=self._bus.send,
            fence=self._fence,
            is_running=is_running,
            verify_transactions=node.verification.verify,
            incarnation=spec.incarnation,
            heartbeat_ms=spec.settings[BROKER_HEARTBEAT_INTERVAL_MS],
        )
        self._serve_workers(node)
        PreferredLeaders(controller, lambda: node.settings, node.partition_rules, reactor)
        self.reassigner = Reassigner(
            controller,
            self.worker_manager,
            reactor,
            spec.data,
            limits=lambda: placement_limits(node.settings),
            rules_of=node.partition_rules,
        )
        self._node = node
        self._data = spec.data
        self.admin_commands = AdminCommands(
            controller, lambda: node.settings, self.worker_manager, self.reassigner, spec.data
        )
        self._nodes_at_start = spec.nodes.keys()
        CompactionDemand(
            controller,
            lambda: node.settings,
            node.replicas,
            reactor,
            lambda: self._send(bus.DEMAND_SERVICE(key=CLEANER.key)),
        )
        controller.on_change(self._changed)
        self._heartbeat_ms = spec.settings[BROKER_HEARTBEAT_INTERVAL_MS]
        self._begin()

    def _begin(self) -> None:
        """Begin to read the launcher's messages, and send it the first ones."""
        self._control_socket.setblocking(False)
        self._reactor.watch(self._control_socket.fileno(), self._read_launcher)
        self._reactor.call_later(EVACUATION_MS, self._evacuate_periodically)
        # Before any other message: a heartbeat is not sent while an earlier message is unread, and
        # a process that is stopped before its second heartbeat would not be watched.
        self._heartbeat()
        self._send_desired_nodes()

    def _serve_workers(self, node: Node) -> None:
        """Pass the messages of workers to the coordinators and the controller."""
        workers = self.worker_manager
        workers.serve_transactions(node.transactions.markers, node.transactions.find_orphans)
        workers.serve_shares(
            node.share_coordinators.outcomes, node.share_progress, node.batch_appends
        )
        self._replicated = ReplicatedNodes(self._controller, node.partition_rules, self._reactor)
        workers.serve_replication(self._replicated)

    def close(self) -> None:
        """Close the bus.  The launcher notices the end of this process by its pidfd."""
        self._bus.close()

    # -- the bus -----------------------------------------------------------------------------

    def _received(self, identity: bytes, message: bus.TypedRecord) -> None:
        if message.kind is bus.NODE_ORDER:
            self.admin_commands.execute(message, lambda report: self._bus.send(identity, report))
        else:
            self.worker_manager.received(identity, message)

    # -- the launcher ------------------------------------------------------------------------

    def _changed(self, records: Sequence[internal.TypedRecord], end_offset: int) -> None:
        self._send_desired_nodes()

    def _send_desired_nodes(self) -> None:
        nodes = self._controller.image.nodes
        node_ids = [node_id for node_id in nodes if node_id != SUPERVISOR_ID]
        if node_ids != self._sent_node_ids:
            self._sent_node_ids = node_ids
            dedicated = [node_id for node_id in node_ids if nodes[node_id].dedicated]
            self._send(bus.DESIRED_NODES(node_ids=node_ids, dedicated=dedicated))

    def _fence(self, peer: Peer) -> None:
        self._send(bus.FENCE(node_id=peer.node_id, incarnation=peer.incarnation))

    def _heartbeat(self) -> None:
        """Send the launcher a heartbeat from this event loop (nodes/supervisor_watch.py)."""
        self._reactor.call_later(self._heartbeat_ms, self._heartbeat)
        offset = self._controller.log.end_offset
        beat = bus.HEARTBEAT(image_offset=offset, led_count=0, size=0, unserved=[])
        send_if_all_read(self._control_socket, bus.write_frame(beat))

    def _send(self, message: bus.TypedRecord) -> None:
        try:
            self._control_socket.send(bus.write_frame(message))
        except OSError as error:
            # The supervisor must not run without the launcher, and is killed with it anyway.
            raise Fatal(f"no message can be sent to the launcher: {error}") from None

    def _read_launcher(self) -> None:
        while True:
            try:
                frame = self._control_socket.recv(FRAME_SIZE_MAX)
            except BlockingIOError:
                return
            if not frame:
                raise Fatal("the launcher has exited")
            try:
                message = bus.read_frame(frame)
            except (CorruptMessage, UnsupportedVersion) as error:
                log.warning(
                    "Control channel ignores an invalid message of the launcher. error=%r",
                    str(error),
                )
                continue
            if message.kind is bus.NODES:
                self._update_processes(message.fields["nodes"])
            elif message.kind is bus.BROKER_ENDS:
                self._replicated.shutdowns.end_broker()

    def _update_processes(self, nodes: list[dict[str, Any]]) -> None:
        processes = {}
        for entry in nodes:
            process = ProcessReport(
                entry["incarnation"], entry["pid"], entry["host"], entry["port"], entry["state"]
            )
            if entry["node_id"] == SUPERVISOR_ID:
                continue
            processes[entry["node_id"]] = process
            self._locate(entry["node_id"], process)
        removed = self.worker_manager.processes.keys() - processes.keys()
        self.worker_manager.update_processes(processes)
        if removed:
            self._evacuate()

    def _evacuate(self) -> None:
        """Move partition directories, deferred deletes included, away from nodes that do not
        exist: to the nodes they belong to, or delete them."""
        processes = self.worker_manager.processes.keys() or self._nodes_at_start
        existing = {*self._controller.image.nodes, *processes}
        node = self._node
        evacuate(
            self._data, existing, node.directory_at, node.logs.file_system,
            is_deleted=node.is_deleted,
        )  # fmt: skip

    def _evacuate_periodically(self) -> None:
        self._evacuate()
        self._reactor.call_later(EVACUATION_MS, self._evacuate_periodically)

    def _locate(self, node_id: int, process: ProcessReport) -> None:
        # Without a listener the node has no address: another program may have its port by now
        # and would receive the records of our clients.
        port = 0 if process.state == BACKOFF else process.port
        rack = racks_of(self._settings, self._controller.image, [node_id])[node_id]
        self._controller.decide(
            lambda machine: machine.set_node_address(
                node_id, process.host, port, rack, self._log_directory(node_id)
            )
        )
