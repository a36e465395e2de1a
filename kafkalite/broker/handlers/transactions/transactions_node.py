"""TransactionsNode: what the handlers of producers and transactions use of the node."""

from __future__ import annotations

from typing import Protocol

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
from kafkalite.broker.coordinator.transaction_coordinators import TransactionCoordinators
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.replica_manager import ReplicaManager


class TransactionsNode(HandlerNode, Protocol):
    """The components that requests of producers use."""

    producer_ids: ProducerIdBlocks
    replicas: ReplicaManager
    transactions: TransactionCoordinators

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node, which is also the one that coordinates transactions."""
