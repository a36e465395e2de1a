"""The supervisor process: node 0 with the controller, in a cluster of several processes.

    metadata log → controller → nodes registered → desired nodes to the launcher → bus, listener

The controller's records say which nodes exist.  The launcher receives the whole list of desired
nodes whenever it changes, and reports the processes it has.  Workers connect to the bus
(broker/controller/worker_manager.py).

The configured number of workers counts only when the broker itself starts.  A supervisor that is
restarted while workers run takes the nodes from its metadata log.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import Any

from kafkalite.broker.assembly import controller_node, local_controller, make_missing, settle
from kafkalite.broker.controller.admin_commands import AdminCommands
from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.controller.reassigner import Reassigner
from kafkalite.broker.controller.worker_manager import BACKOFF, ProcessReport, WorkerManager
from kafkalite.broker.node import Node
from kafkalite.broker.node_metrics import keep_page
from kafkalite.broker.node_settings import placement_limits, reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.config.broker import (
    BROKER_HEARTBEAT_INTERVAL_MS,
    BROKER_RACK,
    BROKER_SESSION_TIMEOUT_MS,
    BROKER_TICK_TIMEOUT_MS,
)
from kafkalite.coordination.image import SUPERVISOR_ID
from kafkalite.coordination.sessions import NodeSessions
from kafkalite.errors import CorruptMessage, Fatal, UnsupportedVersion
from kafkalite.process.loop import hear_signals, rest_collector
from kafkalite.process.nodes.process_state import is_running
from kafkalite.process.nodes.spawn_spec import Birth
from kafkalite.process.nodes.supervisor_watch import send_unless_unread
from kafkalite.process.options import default_workers
from kafkalite.protocol.schemas import bus, internal
from kafkalite.protocol.schemas.bus import FRAME_SIZE_MAX
from kafkalite.storage.log_manager import LogManager
from kafkalite.storage.node_directories import evacuate
from kafkalite.transport.bus import BusServer, Peer
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import BUS

log = logging.getLogger("kafkalite.process")

CLEAR_MS = 1_000
"""Interval of the search for partition directories of nodes that were removed.  A worker that
started with an older image may have moved some there, or a full disk kept them there."""


def run(birth: Birth) -> int:
    """Run the supervisor until SIGTERM and return the exit code of the process."""
    reactor = Reactor(SystemClock(), reactor_limits(birth.settings))
    hear_signals(reactor, lambda _: reactor.stop(), signal.SIGTERM)
    logs = LogManager(birth.data, birth.settings, reactor.clock)
    logs.open_directory(birth.cluster_id, SUPERVISOR_ID)
    controller = local_controller(logs, reactor)
    addresses = wanted_nodes(birth, controller)
    settle(controller, birth.cluster_id, birth.settings, addresses)
    node = controller_node(controller, birth.settings, reactor, logs, birth.listener, birth.data)
    if birth.first:
        make_missing(controller, birth.data)
    there = {*controller.image.nodes, *birth.nodes}
    evacuate(
        birth.data, there, node.place_of, logs.file_system, is_deleted=node.is_deleted
    )
    node.serve_locally(birth.run_directory)
    node.open()
    supervisor = Supervisor(birth, node, controller, reactor)
    keep_page(node, birth.run_directory)
    rest_collector(reactor)
    log.info("supervising nodes %s", [*controller.image.nodes])
    reactor.run()
    log.info("ending")
    supervisor.close()
    node.close()
    log.info("ended")
    return 0


def wanted_nodes(birth: Birth, controller: LocalController) -> dict[int, tuple[str, int]]:
    """Return the addresses of the nodes that shall exist; port 0 for a node without a listener."""
    image = controller.image
    known = [n for n, node in image.nodes.items() if n != SUPERVISOR_ID and not node.dedicated]
    ids = set(known)
    if birth.first:
        count = birth.explicit_workers or len(known) or default_workers()
        ids = set(sorted(known)[:count])
        free = (n for n in range(1, count + len(image.nodes) + 1) if n not in image.nodes)
        while len(ids) < count:
            ids.add(next(free))
    ids |= {n for n, node in image.nodes.items() if node.dedicated and n in birth.nodes}
    return {n: birth.nodes.get(n, ("", 0)) for n in sorted({SUPERVISOR_ID, *ids})}


class Supervisor:
    """Connects the controller with the launcher and the bus."""

    def __init__(
        self, birth: Birth, node: Node, controller: LocalController, reactor: Reactor
    ) -> None:
        assert birth.orders is not None
        self._orders = birth.orders
        self._controller = controller
        self._rack = birth.settings[BROKER_RACK]
        self._reactor = reactor
        self._roster: list[int] | None = None
        self._bus = BusServer(reactor, birth.run_directory / BUS, self._received)
        self.worker_manager = WorkerManager(
            controller,
            node.dispatcher.serve,
            NodeSessions(
                birth.settings[BROKER_SESSION_TIMEOUT_MS], birth.settings[BROKER_TICK_TIMEOUT_MS]
            ),
            reactor,
            send=self._bus.send,
            fence=self._fence,
            is_running=is_running,
            incarnation=birth.incarnation,
            heartbeat_ms=birth.settings[BROKER_HEARTBEAT_INTERVAL_MS],
        )
        self.reassigner = Reassigner(
            controller,
            self.worker_manager,
            reactor,
            birth.data,
            limits=lambda: placement_limits(node.settings),
        )
        self._node = node
        self._data = birth.data
        self.admin_commands = AdminCommands(
            controller,
            lambda: node.settings,
            self.worker_manager,
            self.reassigner,
            birth.data,
        )
        self._born_among = birth.nodes.keys()
        controller.on_change(self._changed)
        self._orders.setblocking(False)
        reactor.watch(self._orders.fileno(), self._launcher_tells)
        reactor.call_later(CLEAR_MS, self._clear)
        self._heartbeat_ms = birth.settings[BROKER_HEARTBEAT_INTERVAL_MS]
        # Before any other message: a heartbeat is not sent while an earlier message is unread, and
        # a process that is stopped before its second heartbeat would not be watched.
        self._heartbeat()
        self._tell_roster()

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
        self._tell_roster()

    def _tell_roster(self) -> None:
        nodes = self._controller.image.nodes
        roster = [node_id for node_id in nodes if node_id != SUPERVISOR_ID]
        if roster != self._roster:
            self._roster = roster
            dedicated = [node_id for node_id in roster if nodes[node_id].dedicated]
            self._order(bus.ROSTER(node_ids=roster, dedicated=dedicated))

    def _fence(self, peer: Peer) -> None:
        self._order(bus.FENCE(node_id=peer.node_id, incarnation=peer.incarnation))

    def _heartbeat(self) -> None:
        """Send the launcher a heartbeat from this event loop (supervisor_watch.py)."""
        self._reactor.call_later(self._heartbeat_ms, self._heartbeat)
        offset = self._controller.log.end_offset
        beat = bus.HEARTBEAT(image_offset=offset, led_count=0, size=0, unmade=[])
        send_unless_unread(self._orders, bus.write_frame(beat))

    def _order(self, message: bus.TypedRecord) -> None:
        try:
            self._orders.send(bus.write_frame(message))
        except OSError as fault:
            # The supervisor must not run without the launcher, and is killed with it anyway.
            raise Fatal(f"the launcher cannot be told anything: {fault}") from None

    def _launcher_tells(self) -> None:
        while True:
            try:
                frame = self._orders.recv(FRAME_SIZE_MAX)
            except BlockingIOError:
                return
            if not frame:
                raise Fatal("the launcher is gone")
            try:
                message = bus.read_frame(frame)
            except (CorruptMessage, UnsupportedVersion) as fault:
                log.warning("the launcher said something that does not read: %s", fault)
                continue
            if message.kind is bus.NODES:
                self._nodes_are(message.fields["nodes"])

    def _nodes_are(self, nodes: list[dict[str, Any]]) -> None:
        processes = {}
        for told in nodes:
            process = ProcessReport(
                told["incarnation"], told["pid"], told["host"], told["port"], told["state"]
            )
            if told["node_id"] == SUPERVISOR_ID:
                continue
            processes[told["node_id"]] = process
            self._locate(told["node_id"], process)
        gone = self.worker_manager.processes.keys() - processes.keys()
        self.worker_manager.update_processes(processes)
        if gone:
            self._evacuate()

    def _evacuate(self) -> None:
        """Move partition directories, deferred deletes included, away from nodes that do not
        exist: to the nodes they belong to, or delete them."""
        processes = self.worker_manager.processes.keys() or self._born_among
        there = {*self._controller.image.nodes, *processes}
        node = self._node
        evacuate(
            self._data, there, node.place_of, node.logs.file_system, is_deleted=node.is_deleted
        )

    def _clear(self) -> None:
        self._evacuate()
        self._reactor.call_later(CLEAR_MS, self._clear)

    def _locate(self, node_id: int, process: ProcessReport) -> None:
            # Without a listener the node has no address: another program may have its port by now
            # and would receive the records of our clients.
        port = 0 if process.state == BACKOFF else process.port
        self._controller.decide(
            lambda machine: machine.locate_node(node_id, process.host, port, self._rack)
        )
