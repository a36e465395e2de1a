"""Metrics of share groups: their dead letters, with the names of Kafka's beans (KIP-1191)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkalite.metrics import COUNTER, Family

if TYPE_CHECKING:
    from kafkalite.broker.node import Node


def share_families(node: Node) -> Iterator[Family]:
    """Yield the metrics of the share groups whose partitions this node leads."""
    counts = node.share_partitions.dead_letters.counts
    for name, help_text, by_group in (
        ("deadletterqueuerecordcount_total", "Dead letters written.", counts.records),
        (
            "deadletterqueuetotalproducerequests_total", "Batches of dead letters sent.",
            counts.produces,
        ),
        (
            "deadletterqueuefailedproducerequests_total",
            "Batches of dead letters that were given up.", counts.failed_produces,
        ),
    ):  # fmt: skip
        samples = [({"group": group_id}, count) for group_id, count in by_group.items()]
        yield Family(f"kafka_server_sharegroupmetrics_{name}", COUNTER, help_text, samples)
