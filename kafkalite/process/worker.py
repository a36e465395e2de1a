"""The worker process: one node, which owns the files of the partitions it leads.

    image from the files of the metadata log → own logs opened → listener served → bus

A worker waits for the supervisor only when the whole broker starts: until the supervisor has
decided which nodes exist, the image has none, or those of the last run.  Otherwise a worker serves
what the image assigns to it, and continues while the supervisor is down.  Deltas, heartbeats and
requests that only the controller serves go over the bus (broker/controller/remote_controller.py).
"""

from __future__ import annotations

import logging
import signal

from kafkalite.broker.assembly import remote_controller, worker_node
from kafkalite.broker.node_metrics import start_metrics
from kafkalite.broker.node_settings import reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.process.loop import disable_automatic_gc, handle_signals
from kafkalite.process.nodes.spawn_spec import SpawnSpec
from kafkalite.process.shutdown import Shutdown
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.transport.bus import BusClient, Peer, identity_of
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import BUS

log = logging.getLogger("kafkalite.process")


def run(spec: SpawnSpec) -> int:
    """Run a worker until SIGTERM and return the exit code of the process."""
    reactor = Reactor(SystemClock(), reactor_limits(spec.settings))
    logs = LogManager(spec.data, spec.settings, reactor.clock)
    logs.open_directory(spec.cluster_id, spec.node_id)
    peer = Peer(spec.node_id, spec.incarnation)
    controller = remote_controller(logs, reactor, spec.data, peer)
    node = worker_node(
        controller, spec.settings, reactor, logs, spec.listener, spec.data, spec.node_id
    )
    node.serve_locally(spec.run_directory)
    node.open(when_welcome=spec.is_first_start)

    shutdown = Shutdown(controller, reactor.stop)
    handle_signals(reactor, lambda _: shutdown.begin(), signal.SIGTERM)
    bus = BusClient(
        reactor,
        spec.run_directory / BUS,
        identity_of(peer),
        controller.received,
        shutdown.connection_changed,
    )
    controller.connect(bus.send)
    start_metrics(node, spec.run_directory)
    disable_automatic_gc(reactor)
    log.info(
        "Node %d serves its partitions. node=%d partitions=%d",
        spec.node_id, spec.node_id, sum(1 for _ in node.replicas),
    )  # fmt: skip
    reactor.run()
    log.info("Node %d shuts down. node=%d", spec.node_id, spec.node_id)
    bus.close()
    node.close()
    log.info("Node %d has shut down. node=%d", spec.node_id, spec.node_id)
    return 0
