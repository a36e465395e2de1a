"""Metrics of transactions: the coordinators on this node, and open transactions of its partitions.

Kafka's names are used where it has the metric: the queue of markers without a reachable leader,
partitions with late transactions, verifications, and the lag of the last stable offset of a
partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkalite.metrics import COUNTER, GAUGE, HISTOGRAM, Family
from kafkalite.protocol.schemas.transaction_records import TransactionState

if TYPE_CHECKING:
    from kafkalite.broker.node import Node


def transaction_families(node: Node) -> Iterator[Family]:
    """Yield the metrics of transactions; those of coordinators only where they are hosted."""
    yield Family(
        "kafka_server_replicamanager_partitionswithlatetransactionscount", GAUGE,
        "Partitions with a transaction that should have been ended by its timeout.",
        [({}, node.late_transactions.partition_count)],
    )  # fmt: skip
    verifier = node.replicas.verifier
    yield Family(
        "kafka_server_addpartitionstotxnmanager_verificationtimems", HISTOGRAM,
        "Time in which the coordinator verified a transaction's partitions, or added them.",
        [({}, verifier.times.values())],
    )  # fmt: skip
    yield Family(
        "kafka_server_addpartitionstotxnmanager_verificationfailurerate_total", COUNTER,
        "Partitions that could not be verified, or added to the transaction.",
        [({}, verifier.failed_count)],
    )  # fmt: skip
    if not node.controller.is_local:
        return
    counts: Counter[TransactionState] = Counter()
    starts: list[int] = []
    for host in node.transactions:
        counts.update(host.machine.counts)
        if host.machine.oldest_start_ms is not None:
            starts.append(host.machine.oldest_start_ms)
    yield Family(
        "kafkalite_transactions", GAUGE, "Transactional ids, by the state of the transaction.",
        [({"state": state.title}, counts[state]) for state in TransactionState],
    )  # fmt: skip
    age_ms = max(node.clock.wall_ms() - min(starts), 0) if starts else 0
    yield Family(
        "kafkalite_transaction_oldest_age_seconds", GAUGE,
        "Age of the oldest open transaction.", [({}, age_ms / 1_000)],
    )  # fmt: skip
    queue = node.transactions.markers.queue
    yield Family(
        "kafkalite_transaction_markers_waiting", GAUGE,
        "Transaction markers that are not written yet, by the node that leads the partition.",
        [
            ({"node": str(node_id)}, count)
            for node_id, count in sorted(queue.waiting_counts().items())
        ],
    )  # fmt: skip
    yield Family(
        "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
        GAUGE, "Transactions with markers that no leader can take now; they are sent again.",
        [({}, queue.delayed_count)],
    )  # fmt: skip
    yield Family(
        "kafkalite_transactions_fenced_total", COUNTER,
        "Transactions that a leader with a newer coordinator epoch refused to end; see the log.",
        [({}, queue.fenced_count)],
    )  # fmt: skip
