"""PartitionVerification: the transaction coordinators' responses to the leaders of partitions.

A leader sends a request before the first records of a transaction, by a call on this node or over
the bus (replica/transaction_verifier.py).  The decisions about the requests of a message are made
together: the records of each coordinator share a batch.  The responses are those of
AddPartitionsToTxn 4 and newer, also for partitions that are verified only, and are sent once all
that they depend on is committed.  The leader has the partition and has authorized the client, so
neither is checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.broker.future import Future, all_of
from kafkalite.coordination.machine import DecisionResult, Reply
from kafkalite.coordination.transaction import BUMPS_EPOCH_SINCE
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.broker.coordinator.transaction_coordinators import TransactionCoordinators
    from kafkalite.broker.replica.transaction_verifier import (
        VerificationRequest,
        VerificationResults,
    )
    from kafkalite.coordination.transaction_coordinator import TransactionCoordinator


class PartitionVerification:
    """Verifies partitions, or adds them, for the nodes that lead them; see the module."""

    def __init__(self, coordinators: TransactionCoordinators) -> None:
        self._coordinators = coordinators

    def verify(self, requests: Sequence[VerificationRequest]) -> Future[VerificationResults]:
        """Return the error codes of the partitions of each request."""
        results = [self._verify(request) for request in requests]
        for host in self._coordinators:
            host.decide_waiting()
        return all_of(results).map(tuple)

    def _verify(self, request: VerificationRequest) -> Future[Sequence[int]]:
        transactional_id, producer, adds, partitions = request
        wanted = frozenset(partitions)

        def decide(
            machine: TransactionCoordinator, token: Any, now_ms: int, wall_ms: int
        ) -> DecisionResult[list[Reply]]:
            if not adds:
                return machine.verify_partitions(transactional_id, producer, wanted, token)
            return machine.add_partitions(
                transactional_id, producer, wanted, BUMPS_EPOCH_SINCE, token, now_ms, wall_ms
            )

        def codes(response: dict[str, Any]) -> Sequence[int]:
            by_partition = response.get("codes", {})
            return [by_partition.get(each, 0) for each in partitions]

        try:
            host = self._coordinators.host_of(transactional_id)
        except KafkaError as error:
            return Future.of([error.code] * len(partitions))
        return (
            host.request(decide, transactional_id)
            .map(codes)
            .recover(lambda error: [error.code] * len(partitions))
        )
