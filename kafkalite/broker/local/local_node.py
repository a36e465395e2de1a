"""LocalNode: what the local listener, its rings and its segment grants use of a node."""

from __future__ import annotations

from socket import socket
from typing import Protocol

from kafkalite.broker.handlers.produce import ProduceNode
from kafkalite.broker.security import Authorizer


class LocalNode(ProduceNode, Protocol):
    """The components of a node; Node has them all."""

    authorizer: Authorizer
    cluster_id: str
    listener: socket
