"""TransactionsNode: what the handlers of producers and transactions use of the node."""

from __future__ import annotations

from typing import Protocol

from kafkalite.broker.controller.local_controller import LocalController
from kafkalite.broker.coordinator.producer_ids import ProducerIdBlocks
from kafkalite.broker.coordinator.transaction_coordinators import TransactionCoordinators
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.coordination.features import transaction_version_max
from kafkalite.protocol.schemas.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    TXN_OFFSET_COMMIT,
)

KEYS = (ADD_PARTITIONS_TO_TXN.key, ADD_OFFSETS_TO_TXN.key, END_TXN.key, TXN_OFFSET_COMMIT.key)
"""The APIs that are advertised only if there are transactions."""


def has_transactions(node: HandlerNode) -> bool:
    """Return whether transactional producers are served."""
    return transaction_version_max(node.settings) is not None


class TransactionsNode(HandlerNode, Protocol):
    """The components that requests of producers use."""

    producer_ids: ProducerIdBlocks
    replicas: ReplicaManager
    transactions: TransactionCoordinators

    @property
    def local_controller(self) -> LocalController:
        """The controller on this node, which is also the one that coordinates transactions."""
