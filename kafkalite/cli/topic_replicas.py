"""Replicas of topics: what librdkafka does not request, and what replicas on one host protect from.

Eligible leader replicas (ELR, KIP-966) have left the in-sync replicas, and still have every record
that was acknowledged with acks=all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kafkalite.cli.clients import ClusterClients
from kafkalite.cli.reading import PartitionKey
from kafkalite.cli.wire import WireClient
from kafkalite.errors import Refusal
from kafkalite.protocol.schemas.cluster import DESCRIBE_TOPIC_PARTITIONS

PARTITIONS_AT_ONCE = 2_000

MIN_INSYNC_REPLICAS = "min.insync.replicas"
REPLICAS_WITH_MINIMUM = 3
"""Number of replicas from which on a new topic gets MIN_INSYNC_REPLICAS=2: then a record that was
acknowledged with acks=all is on two of them."""

ONE_HOST = (
    "The replicas of a partition are on one host: when a process ends, another replica takes over;"
    " when a disk is lost, only if the replicas are in log directories on several disks (kafkalite"
    " status names them).  They do not protect against the loss of the host."
)


class EligibleReplicas(NamedTuple):
    """Replicas of a partition that may lead it without loss, though they are not in sync."""

    elr: tuple[int, ...]
    last_known: tuple[int, ...]


def eligible_replicas(
    cluster: ClusterClients, topics: Sequence[str]
) -> dict[PartitionKey, EligibleReplicas]:
    """Return the eligible leader replicas by partition, without those that are not known.

    Brokers before Kafka 4 do not know them; nor are they requested over TLS or SASL (wire.py).
    """
    wire = WireClient(cluster)
    found: dict[PartitionKey, EligibleReplicas] = {}
    cursor: dict[str, Any] | None = None
    request = {
        "topics": [{"name": name} for name in sorted({*topics})],
        "response_partition_limit": PARTITIONS_AT_ONCE,
    }
    while topics:
        try:
            response = wire.request(DESCRIBE_TOPIC_PARTITIONS, {**request, "cursor": cursor})
        except Refusal:
            return found
        for topic in response.topics:
            for each in topic.partitions:
                found[topic.name, each.partition_index] = EligibleReplicas(
                    tuple(each.eligible_leader_replicas or ()), tuple(each.last_known_elr or ())
                )
        following = response.next_cursor
        if following is None:
            return found
        cursor = {
            "topic_name": following.topic_name, "partition_index": following.partition_index,
        }  # fmt: skip
    return found


def with_minimum(configs: Iterable[tuple[str, str]], replication_factor: int) -> dict[str, str]:
    """Return the configs of a new topic, with a minimum of in-sync replicas if none is given."""
    given = dict(configs)
    if replication_factor >= REPLICAS_WITH_MINIMUM:
        given.setdefault(MIN_INSYNC_REPLICAS, "2")
    return given


def are_on_one_host(partitions: Iterable[Sequence[Any]]) -> bool:
    """Return whether partitions have several replicas, those of each on one host.

    Each partition is given as the nodes of its replicas.
    """
    hosts = [[node.host for node in replicas] for replicas in partitions]
    return any(len(each) > 1 and len({*each}) == 1 for each in hosts)
