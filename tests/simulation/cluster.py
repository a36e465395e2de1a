"""A whole broker in this process: a supervisor and workers, on one clock and an in-memory bus.

Each process is what supervisor.run and worker.run make, on its own reactor; the bus, the launcher
and the flusher threads are replaced, so that a test controls the order of events.  Only `step` and
its parts make progress: a message is delivered, one loop ticks, or a millisecond passes.

A killed process is dropped as it is: what it wrote is in the files, as after SIGKILL.
"""

from __future__ import annotations

import random
import shutil
import socket
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from kafkalite.broker import assembly
from kafkalite.broker.controller import metadata_log
from kafkalite.broker.controller.remote_controller import RemoteController
from kafkalite.broker.controller.replica_lookup import ReplicaLookup
from kafkalite.broker.controller.worker_manager import BACKOFF, READY, STARTING
from kafkalite.broker.node import Node
from kafkalite.clock import ManualClock
from kafkalite.config.settings import Settings
from kafkalite.errors import Fatal
from kafkalite.process import supervisor as supervising
from kafkalite.process.nodes.spawn_spec import SpawnSpec
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.bus import TypedRecord
from kafkalite.storage.manager.log_directory import LogDirectory
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.manager.node_directories import check_directories, evacuate
from kafkalite.transport.bus import Peer, identity_of, peer_of
from kafkalite.transport.reactor import Reactor
from tests.handlers.conftest import Wire
from tests.simulation.disk import QuickDisk, SlowFlusher
from tests.simulation.network import BusEnd, MemoryBus

STEPS_MAX = 4_000
PACKET_MAX = 1 << 20


def internal_factors(replicas: int) -> dict[str, str]:
    """Return the settings for this number of replicas of the internal topics."""
    topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {f"{topic}.replication.factor": str(replicas) for topic in topics}


class ClientRequest(Wire):
    """A client's connection with one request."""

    def __init__(self, api: Api, version: int, correlation_id: int, port: int) -> None:
        super().__init__(("127.0.0.1", port))
        self.api = api
        self.version = version
        self.correlation_id = correlation_id

    @property
    def is_done(self) -> bool:
        """True once a response has been sent or the connection closed."""
        return self.sent is not None or self.closed

    @property
    def response(self) -> Fields:
        """Return the decoded response, after checking its correlation id."""
        assert not self.closed, "the connection was closed"
        answer = self.bytes
        assert int.from_bytes(answer[:4], "big") == self.correlation_id, "somebody else's answer"
        begin = 5 if self.api.response_header_flexible(self.version) else 4
        return self.api.response.read(self.version, answer, begin)


class Running:
    """The process of one node."""

    node: Node
    remote: RemoteController
    supervisor: supervising.Supervisor | None = None

    def __init__(self, cluster: Cluster, node_id: int, incarnation: int) -> None:
        self.peer = Peer(node_id, incarnation)
        self.identity = identity_of(self.peer)
        self.paused = False
        self.pending_requests: list[ClientRequest] = []
        self.flusher = SlowFlusher()
        self.reactor = Reactor(cluster.clock)
        self.logs = LogManager(cluster.directory, cluster.settings, cluster.clock, QuickDisk())

    def hang_up(self) -> None:
        """Close its clients' connections."""
        for pending in self.pending_requests:
            pending.closed = pending.closed or pending.sent is None

    def forget(self) -> None:
        """Release its open files without writing anything, as when it is killed."""
        self.hang_up()
        self.flusher.forget()
        self.node.opener.close()
        self.node.replication.close()
        self.reactor.close()
        for found in self.logs.logs.values():
            found._truncating = None  # the thread that truncates it ends with the process
            found.release()


class Cluster:
    """The launcher and its processes; see the module."""

    def __init__(self, directory: Path, workers: int = 2, seed: int = 0, **settings: str) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.settings = Settings.broker({"durability": "os", "workers": str(workers), **settings})
        self.bus = MemoryBus()
        self.running: dict[int, Running] = {}
        self.held_down: set[int] = set()
        """Killed nodes that are not restarted until the test allows it."""
        self.incarnation = 0
        self.incarnations: dict[int, int] = {}
        self.desired_nodes: set[int] = set()
        self.listeners: dict[int, socket.socket] = {}
        self.orders: socket.socket | None = None
        self.busy: set[int] = set()
        """Process ids that count as running although they may send no heartbeats."""
        self.fenced: list[Peer] = []
        self.deaths: list[tuple[int, BaseException]] = []
        """Processes that exited on an error, with the error."""
        self.faults: list[Exception] = []
        """Errors that a process's end of the bus would have logged."""
        self.request_count = 0
        self._told = b""
        # The path of a Unix socket is short.
        self.run_directory = Path(tempfile.mkdtemp(prefix="kafkalite-"))
        self.locked = LogDirectory(directory, QuickDisk())
        self.locked.lock()
        self.begin(workers)

    # -- the launcher ------------------------------------------------------------------------

    def begin(self, workers: int | None) -> None:
        """Start the broker with this many workers."""
        self.start(0, workers=workers, first=True)
        self.settle()

    def end(self) -> None:
        """Stop the broker cleanly: the workers, then the supervisor."""
        self.desired_nodes.clear()
        for node_id in sorted(self.running, reverse=True):
            self.end_one(node_id)
        self.listeners_closed()

    def close(self) -> None:
        for node_id in list(self.running):
            self.kill(node_id)
        self.listeners_closed()
        self.locked.close()
        shutil.rmtree(self.run_directory, ignore_errors=True)

    def listeners_closed(self) -> None:
        while self.listeners:
            self.listeners.popitem()[1].close()

    def start(self, node_id: int, *, workers: int | None = None, first: bool = False) -> Running:
        """Start a node's process."""
        self.held_down.discard(node_id)
        self.incarnation += 1
        self.incarnations[node_id] = self.incarnation
        made = Running(self, node_id, self.incarnation)
        if node_id not in self.listeners:
            self.listeners[node_id] = socket.create_server(("127.0.0.1", 0))
        listener = self.listeners[node_id].dup()
        made.logs.open_directory(self.locked.cluster_id, node_id)
        flusher = mock.patch.object(assembly, "Flusher", lambda *_, **__: made.flusher)
        with flusher, mock.patch.object(metadata_log, "DISK", QuickDisk()):
            if node_id == 0:
                self._supervise(made, listener, workers, first)
            else:
                self._work(made, listener)
        self.running[node_id] = made
        return made

    def _supervise(
        self, made: Running, listener: socket.socket, workers: int | None, first: bool
    ) -> None:
        self.orders, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.orders.setblocking(False)
        self._told = b""
        addresses = {n: bound.getsockname()[:2] for n, bound in self.listeners.items()}
        spec = SpawnSpec(
            0, made.peer.incarnation, listener, others, self.settings, self.directory, (), False,
            self.locked.cluster_id, self.directory, addresses, workers, first,
        )  # fmt: skip
        controller = assembly.open_local_controller(made.logs, made.reactor)
        if first:
            check_directories(self.directory, ReplicaLookup(self.directory))
        wanted = supervising.initial_addresses(spec, controller)
        assembly.register_nodes(
            controller, spec.cluster_id, self.settings, wanted, is_first_start=first
        )
        made.node = assembly.controller_node(
            controller, self.settings, made.reactor, made.logs, listener, self.directory
        )
        own = assembly.own_replicas(controller, made.peer.incarnation, made.node.partition_rules)
        own.take_over()
        if first:
            assembly.take_leaders(controller, made.logs.ran_in_this_boot, made.node.partition_rules)
            assembly.create_missing_logs(controller, self.directory)
        evacuate(
            self.directory,
            {*controller.image.nodes, *addresses},
            made.node.directory_at,
            made.logs.file_system,
            QuickDisk(),
            is_deleted=made.node.is_deleted,
        )
        made.node.serve_peers(self.run_directory)
        made.node.open()
        end = mock.patch.object(
            supervising, "BusServer", lambda reactor, path, received: BusEnd(self.bus, received)
        )
        running = mock.patch.object(supervising, "is_running", lambda pid: pid in self.busy)
        with end, running:
            made.supervisor = supervising.Supervisor(spec, made.node, controller, made.reactor)

    def _work(self, made: Running, listener: socket.socket) -> None:
        made.remote = assembly.remote_controller(
            made.logs, made.reactor, self.directory, made.peer
        )
        made.node = assembly.worker_node(
            made.remote, self.settings, made.reactor, made.logs, listener, self.directory,
            made.peer.node_id,
        )  # fmt: skip
        made.node.serve_peers(self.run_directory)
        made.node.open()
        made.remote.connect(lambda message: self.bus.send_up(made.identity, message))

    def kill(self, node_id: int, *, stay_down: bool = False) -> None:
        """Kill a node, as SIGKILL does."""
        gone = self.running.pop(node_id)
        if stay_down:
            self.held_down.add(node_id)
        if node_id == 0:
            self._supervisor_gone(gone)
        else:
            self.bus.lose_worker(gone.identity)
        gone.forget()

    def end_one(self, node_id: int) -> None:
        """Stop a node cleanly, as SIGTERM does."""
        gone = self.running.pop(node_id)
        if gone.supervisor is not None:
            self._supervisor_gone(gone)
            gone.supervisor.close()
        else:
            self.bus.lose_worker(gone.identity)
        gone.node.close()
        gone.hang_up()

    def _supervisor_gone(self, gone: Running) -> None:
        assert self.orders is not None and gone.supervisor is not None
        self.orders.close()
        gone.supervisor._control_socket.close()
        self.orders = None
        lost = [there for there in self.workers if there.identity in self.bus.connected]
        self.bus.lose_server()
        for there in lost:
            self.guarded(there, lambda there=there: there.remote.connection_changed(False))

    def launch(self) -> None:
        """Execute the supervisor's orders, start missing processes, and report all states."""
        while self.orders is not None:
            try:
                message = bus.read_frame(self.orders.recv(PACKET_MAX))
            except BlockingIOError:
                break
            if message.kind is bus.DESIRED_NODES:
                self.desired_nodes = set(message.fields["node_ids"])
            elif message.kind is bus.FENCE:
                peer = Peer(**message.fields)
                self.fenced.append(peer)
                if peer.node_id in self.running and self.running[peer.node_id].peer == peer:
                    self.kill(peer.node_id)
        for node_id in [n for n in self.running if n and n not in self.desired_nodes]:
            self.end_one(node_id)
            self.listeners.pop(node_id).close()
        for node_id in [0, *sorted(self.desired_nodes)]:
            if node_id not in self.running and node_id not in self.held_down:
                self.start(node_id)
        self._tell()

    def _tell(self) -> None:
        nodes = []
        for node_id in sorted({0, *self.desired_nodes}):
            there = self.running.get(node_id)
            host, port = "127.0.0.1", 0
            if node_id in self.listeners:
                port = self.listeners[node_id].getsockname()[1]
            ready = there is not None and (node_id == 0 or there.identity in self.bus.connected)
            nodes.append(
                {
                    "node_id": node_id,
                    "incarnation": self.incarnations.get(node_id, 0),
                    "pid": 1000 + self.incarnations.get(node_id, 0),
                    "host": host,
                    "port": port,
                    "state": BACKOFF if there is None else READY if ready else STARTING,
                }
            )
        frame = bus.write_frame(bus.NODES(nodes=nodes))
        if self.orders is not None and frame != self._told:
            self.orders.send(frame)
            self._told = frame

    # -- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        """Deliver messages, tick each node, run the launcher, and advance the clock by 1 ms."""
        self.connect()
        self.deliver()
        for node_id in list(self.running):
            self.tick(node_id)
        self.launch()
        self.clock.advance(1)

    def connect(self) -> None:
        """Connect every worker that is not connected."""
        if self.bus.server is None:
            return
        for there in list(self.running.values()):
            if there.peer.node_id and there.identity not in self.bus.connected | self.bus.cut:
                self.bus.connected.add(there.identity)
                self.bus.to_worker.setdefault(there.identity, deque())
                self.guarded(there, lambda there=there: there.remote.connection_changed(True))

    def disconnect(self, node_id: int) -> None:
        """Break a worker's connection; messages in flight are lost."""
        there = self.running[node_id]
        if there.identity in self.bus.connected:
            self.bus.connected.discard(there.identity)
            self.bus.to_worker.pop(there.identity, None)
            self.bus.to_server.pop(there.identity, None)
            self.guarded(there, lambda: there.remote.connection_changed(False))

    def deliver(self) -> None:
        """Deliver all messages now on the bus; those they cause are delivered by the next call."""
        for identity in list(self.bus.to_server):
            self.deliver_up(identity, len(self.bus.to_server[identity]))
        for identity in list(self.bus.to_worker):
            self.deliver_down(identity, len(self.bus.to_worker.get(identity, ())))

    def deliver_up(self, identity: bytes, count: int = 1) -> None:
        queue = self.bus.to_server.get(identity, deque())
        there = self.running.get(0)
        for _ in range(min(count, len(queue))):
            if self.bus.server is None or there is None or there.paused:
                return
            if identity not in self.bus.connected and self._runs(identity):
                return  # delivered once it is connected
            self.receive_from_worker(identity, queue.popleft())

    def _runs(self, identity: bytes) -> bool:
        peer = peer_of(identity)
        return peer is not None and any(there.peer == peer for there in self.running.values())

    def deliver_down(self, identity: bytes, count: int = 1) -> None:
        queue = self.bus.to_worker.get(identity, deque())
        peer = peer_of(identity)
        assert peer is not None
        there = self.running.get(peer.node_id)
        for _ in range(min(count, len(queue))):
            if there is None or there.paused or self.running.get(peer.node_id) is not there:
                return
            self.said_down(there, queue.popleft())

    def receive_from_worker(self, identity: bytes, frame: bytes) -> None:
        """Have the supervisor handle a frame."""
        server = self.bus.server
        assert server is not None
        self.guarded(self.running[0], lambda: server(identity, bus.read_frame(frame)))

    def said_down(self, there: Running, frame: bytes) -> None:
        """Have a worker handle a frame."""
        self.guarded(there, lambda: there.remote.received(bus.read_frame(frame)))

    def guarded(self, there: Running, handle: Callable[[], object]) -> None:
        """Handle a message as an end of the bus does: only some errors end the process."""
        try:
            handle()
        except (AssertionError, Fatal) as fault:
            self.died(there, fault)
        except Exception as fault:
            self.faults.append(fault)

    def died(self, there: Running, fault: BaseException) -> None:
        """Record that a process exited on an error."""
        self.deaths.append((there.peer.node_id, fault))
        self.kill(there.peer.node_id)

    def tick(self, node_id: int) -> None:
        """Run one tick of a process's loop."""
        there = self.running.get(node_id)
        if there is None or there.paused:
            return
        try:
            there.reactor.tick(0)
        except Exception as fault:
            self.died(there, fault)

    def settle(self) -> None:
        """Run until every node is ready and has applied all metadata."""
        self.until(self.is_settled)

    def is_settled(self) -> bool:
        """Return whether every node has the supervisor's metadata and leads its partitions."""
        supervisor = self.running.get(0)
        if supervisor is None or self.running.keys() != {0, *self.desired_nodes}:
            return False
        image = supervisor.node.image
        members = self.supervisor.worker_manager.workers
        end_offset = supervisor.node.local_controller.log.end_offset
        return (
            {n for n in image.nodes if n} == self.desired_nodes
            and {m.peer for m in members.values()} == {there.peer for there in self.workers}
            and all(node.port for node in image.nodes.values())
            and all(member.reconciled_offset >= end_offset for member in members.values())
            and not any(member.unserved for member in members.values())
            and all(there.remote.offset == end_offset for there in self.workers)
            and self.supervisor.reassigner.remaining_count == 0
        )

    def until(self, holds: Callable[[], object], pace_ms: int = 1) -> None:
        """Step until the condition holds, advancing the clock `pace_ms` a step."""
        for _ in range(STEPS_MAX):
            if holds():
                return
            self.step()
            self.clock.advance(pace_ms - 1)
        raise AssertionError(f"the condition was not met in {STEPS_MAX} steps")

    # -- nodes -------------------------------------------------------------------------------

    @property
    def supervisor(self) -> supervising.Supervisor:
        found = self.running[0].supervisor
        assert found is not None
        return found

    @property
    def workers(self) -> list[Running]:
        return [there for node_id, there in self.running.items() if node_id]

    @property
    def image(self) -> Any:
        """The metadata image of the supervisor."""
        return self.running[0].node.image

    def some_running(self, *, paused: bool = False) -> list[Running]:
        """Return the running processes in random order, optionally with the paused ones."""
        running = [there for there in self.running.values() if paused or not there.paused]
        self.random.shuffle(running)
        return running

    def node(self, node_id: int) -> Node:
        return self.running[node_id].node

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition in the supervisor's image."""
        found: int = self.image.topics[topic].partitions[partition].leader
        return found

    # -- clients and operators ---------------------------------------------------------------

    def send(self, node_id: int, api: Api, version: int, **request: Any) -> ClientRequest:
        """Send a request to a node without waiting for the response."""
        self.request_count += 1
        pending = ClientRequest(
            api, version, self.request_count, self.listeners[node_id].getsockname()[1]
        )
        flexible = api.request_header_flexible(version)
        header = write_header(api.key, version, pending.correlation_id, "a test", flexible)
        frame = memoryview(header + api.request.write(version, request))
        there = self.running.get(node_id)
        if there is None:
            pending.close()
            return pending
        came = there.node.dispatcher.serve(pending, frame)  # type: ignore[arg-type]
        if isinstance(came, list):
            pending.send(came)
        there.pending_requests = [each for each in there.pending_requests if not each.is_done] + [
            pending
        ]
        return pending

    def request(self, node_id: int, api: Api, version: int, **request: Any) -> Fields:
        """Send a request to a node and return the decoded response."""
        pending = self.send(node_id, api, version, **request)
        self.until(lambda: pending.is_done)
        return pending.response

    def begin_order(self, verb: str, node_id: int = -1, dry_run: bool = False) -> list[TypedRecord]:
        """Send a node order; the report is appended to the returned list."""
        reports: list[TypedRecord] = []
        order = bus.NODE_ORDER(request_id=1, verb=verb, node_id=node_id, dry_run=dry_run)
        self.supervisor.admin_commands.execute(order, reports.append)
        return reports

    def order(self, verb: str, node_id: int = -1, dry_run: bool = False) -> dict[str, Any]:
        """Send a node order, as `kafkalite node` does, and return the report."""
        reports = self.begin_order(verb, node_id, dry_run)
        self.until(lambda: reports)
        return bus.read_frame(bus.write_frame(reports[0])).fields
