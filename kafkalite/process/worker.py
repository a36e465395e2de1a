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
from kafkalite.broker.node_metrics import keep_page
from kafkalite.broker.node_settings import reactor_limits
from kafkalite.clock import SystemClock
from kafkalite.process.loop import hear_signals, rest_collector
from kafkalite.process.nodes.spawn_spec import Birth
from kafkalite.storage.log_manager import LogManager
from kafkalite.transport.bus import BusClient, Peer, identity_of
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import BUS

log = logging.getLogger("kafkalite.process")


def run(birth: Birth) -> int:
    """Run a worker until SIGTERM and return the exit code of the process."""
    reactor = Reactor(SystemClock(), reactor_limits(birth.settings))
    hear_signals(reactor, lambda _: reactor.stop(), signal.SIGTERM)
    logs = LogManager(birth.data, birth.settings, reactor.clock)
    logs.open_directory(birth.cluster_id, birth.node_id)
    controller = remote_controller(logs, reactor, birth.data)
    node = worker_node(
        controller, birth.settings, reactor, logs, birth.listener, birth.data, birth.node_id
    )
    node.serve_locally(birth.run_directory)
    node.open(when_welcome=birth.first)

    bus = BusClient(
        reactor,
        birth.run_directory / BUS,
        identity_of(Peer(birth.node_id, birth.incarnation)),
        controller.received,
        controller.reached,
    )
    controller.connect(bus.send)
    keep_page(node, birth.run_directory)
    rest_collector(reactor)
    log.info("serving %d partitions", sum(1 for _ in node.replicas))
    reactor.run()
    log.info("ending")
    bus.close()
    node.close()
    log.info("ended")
    return 0
