"""Metrics of replication: the partitions led with followers, and those that are followed.

Kafka's names are used where it has the metric.  Partitions are counted when the page is written, by
one pass over those of this node that have several replicas; requests only add bytes.

Left out: the lag of each partition (`kafkalite replica list` shows it); KafkaController's rates of
elections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.metrics import COUNTER, GAUGE, Family

if TYPE_CHECKING:
    from kafkalite.broker.node import Node
    from kafkalite.broker.replica.followed_partitions import FollowedPartitions
    from kafkalite.broker.replica.partition import Partition

MANAGER = "kafka_server_replicamanager"


class LedCounts(NamedTuple):
    """Numbers of partitions that are led here, with followers."""

    under_replicated: int
    under_min_isr: int
    at_min_isr: int
    reassigning: int
    max_lag: int
    """Records that the last of all in-sync followers does not have yet."""


def count_led(partitions: Iterable[Partition]) -> LedCounts:
    """Count the partitions that need attention; those without followers never do."""
    under_replicated = under_min_isr = at_min_isr = reassigning = max_lag = 0
    for partition in partitions:
        replication = partition.replication
        if replication is None:
            continue
        isr = replication.isr
        image = isr.partition
        spare = len(image.isr) - image.effective_min_isr(isr.rules.min_isr)
        under_replicated += len(image.isr) < image.original_factor
        under_min_isr += spare < 0
        at_min_isr += spare == 0
        reassigning += image.is_reassigned
        max_lag = max(max_lag, partition.log.end_offset - isr.slowest_end_offset)
    return LedCounts(under_replicated, under_min_isr, at_min_isr, reassigning, max_lag)


def count_offline(followed: FollowedPartitions) -> int:
    """Return the number of followed partitions whose log failed."""
    return sum(each.log.failure is not None for each in followed)


def replication_families(node: Node) -> Iterator[Family]:
    """Yield the metrics of replication on this node."""
    led, followed = count_led(node.replicas), node.replication.followed
    for name, help_text, count in (
        (
            "underreplicatedpartitions",
            "Partitions led by this node with fewer in-sync replicas than replicas.",
            led.under_replicated,
        ),
        (
            "underminisrpartitioncount",
            "Partitions led by this node that refuse acks=all: too few replicas are in sync.",
            led.under_min_isr,
        ),
        (
            "atminisrpartitioncount",
            "Partitions led by this node that would refuse acks=all without one in-sync replica.",
            led.at_min_isr,
        ),
        (
            "reassigningpartitions",
            "Partitions led by this node whose replicas are being changed.",
            led.reassigning,
        ),
    ):
        yield _one(f"{MANAGER}_{name}", GAUGE, help_text, count)
    proposals = node.replication.proposals
    for name, help_text, count in (
        ("isrshrinks", "Followers' removals from in-sync replicas, proposed.", proposals.shrinks),
        ("isrexpands", "Followers' returns to in-sync replicas, proposed.", proposals.expands),
        ("failedisrupdates", "Proposals that the controller refused.", proposals.failures),
    ):
        yield _one(f"{MANAGER}_{name}_total", COUNTER, help_text, count)
    yield Family(
        "kafka_server_replicafetchermanager_maxlag", GAUGE,
        "Committed records that the slowest partition followed by this node does not have yet.",
        [({"clientId": "Replica"}, max((each.lag for each in followed), default=0))],
    )  # fmt: skip
    yield _one(
        "kafkalite_followers_max_lag", GAUGE,
        "Records that the slowest in-sync follower of a partition led by this node does not have.",
        led.max_lag,
    )  # fmt: skip
    yield _one(
        "kafkalite_replica_fetch_failures_total", COUNTER,
        "Fetches of followed partitions that failed and are retried.", followed.failures,
    )  # fmt: skip
    yield from _traffic(node)


def _traffic(node: Node) -> Iterator[Family]:
    topics = node.replicas.traffic.values()
    bytes_out = sum(each.replication_bytes_out for each in topics)
    for name, help_text, size in (
        ("in", "Bytes fetched by this node as a follower.", node.replication.followed.bytes_in),
        (
            "out",
            "Bytes fetched by followers.",
            bytes_out + node.replicas.other_traffic.replication_bytes_out,
        ),
    ):
        name = f"kafka_server_brokertopicmetrics_replicationbytes{name}_total"
        yield _one(name, COUNTER, help_text, size)
    for side, quota in (
        ("leader", node.replication.leader_quota),
        ("follower", node.replication.follower_quota),
    ):
        yield _one(
            f"kafka_server_{side}replication_byte_rate", GAUGE,
            f"Bytes per second of throttled replicas of this node as a {side}.", quota.byte_rate,
        )  # fmt: skip


def _one(name: str, kind: str, help_text: str, value: float) -> Family:
    return Family(name, kind, help_text, [({}, value)])
