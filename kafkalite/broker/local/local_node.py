"""LocalNode: what the local listener, its rings and its segment grants use of a node."""

from __future__ import annotations

from socket import socket
from typing import Protocol

from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.node_replication import NodeReplication
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import Authorizer
from kafkalite.storage.manager.log_manager import LogManager


class LocalNode(HandlerNode, Protocol):
    """The components of a node; Node has them all."""

    authorizer: Authorizer
    cluster_id: str
    listener: socket
    logs: LogManager
    replicas: ReplicaManager
    replication: NodeReplication
