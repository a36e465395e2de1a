"""Node: what one Kafka node owns, put together.

A node has an id, a listener, a controller (its state is the metadata log), the logs of the
partitions it leads, and the replica manager over them.  It is given its settings, its clock, its
loop, its disk and its socket; it makes no thread but the flusher's.

With `workers=0` this one node is the whole cluster: it leads every partition, and it is its own
controller.
"""

from __future__ import annotations

import logging
from socket import socket
from typing import Any

from kafkalite.broker.dispatch import Dispatcher
from kafkalite.broker.fetch_sessions import FetchSessions
from kafkalite.broker.handlers import Caller
from kafkalite.broker.machine_host import MachineHost
from kafkalite.broker.partition import Partition
from kafkalite.broker.replica_manager import ReplicaManager
from kafkalite.broker.security import Authorizer
from kafkalite.clock import Clock
from kafkalite.config.broker import (
    ADVERTISED_LISTENERS,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
)
from kafkalite.config.settings import Settings
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.image import ClusterImage
from kafkalite.storage.flusher import Flusher
from kafkalite.storage.log_manager import LogManager
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

SUPERVISOR_ID = 0


class Node:
    """One node of the cluster; see the module."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        reactor: Reactor,
        logs: LogManager,
        listener: socket,
        node_id: int = SUPERVISOR_ID,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.reactor = reactor
        self.logs = logs
        self.listener = listener
        self.node_id = node_id
        self.cluster_id = logs.cluster_id
        self.authorizer = Authorizer()
        self.flusher = Flusher(clock)
        self.replicas = ReplicaManager(reactor, self.flusher)
        self.fetch_sessions = FetchSessions(settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS])
        self.controller: MachineHost[Controller]
        self._advertised = _advertised(settings)
