"""Replicas that need attention: how many partitions, and what to do.

    offline           no leader: neither produce nor fetch is possible
    under min ISR     produce requests with acks=all are refused
    under-replicated  served, but a replica is down or does not keep up

The counts come from the metrics pages of the broker's nodes, so that no request is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from kafkalite.metrics import Read
from kafkalite.process.status.ready import Ready

OFFLINE = "kafka_controller_kafkacontroller_offlinepartitionscount"
UNDER_MIN_ISR = "kafka_server_replicamanager_underminisrpartitioncount"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"


class ReplicaHealth(NamedTuple):
    """Numbers of partitions that need attention; one may count in the last two."""

    offline: int
    under_min_isr: int
    under_replicated: int


class ReplicaProblem(NamedTuple):
    """A sentence about such partitions, and one that says what to do."""

    found: str
    advice: str
    is_error: bool
    """True if clients are refused."""


def health_of(pages: Iterable[Read]) -> ReplicaHealth | None:
    """Return the counts of all nodes' pages; None if the controller's page is missing."""
    counts: dict[str, float] = {}
    for page in pages:
        for family in page.families:
            if family.name in (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED):
                here = sum(value for _, value in family.samples)
                counts[family.name] = counts.get(family.name, 0) + here
    if OFFLINE not in counts:
        return None
    found = (int(counts.get(name, 0)) for name in (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED))
    return ReplicaHealth(*found)


def local_health(ready: Ready) -> ReplicaHealth | None:
    """Return the counts of a broker on this machine; None if its pages cannot be read."""
    import time

    from kafkalite.metrics import read_pages
    from kafkalite.process.run_directory import bus_path

    with suppress(OSError):
        return health_of(read_pages(bus_path(ready).parent, time.monotonic_ns() // 1_000_000))
    return None


def problems(health: ReplicaHealth) -> Iterator[ReplicaProblem]:
    """Yield what is wrong with replicas, the worst first."""
    if health.offline:
        yield ReplicaProblem(
            f"{partitions(health.offline)} without a leader: not served",
            "see which with `kafkalite replica list --unhealthy`, and start the nodes of their"
            " replicas; if those logs are lost for good, `kafkalite replica elect TOPIC --unclean`"
            " takes another replica, and loses records",
            True,
        )
    if health.under_min_isr:
        yield ReplicaProblem(
            f"{partitions(health.under_min_isr)} below min.insync.replicas: acks=all is refused",
            "see which with `kafkalite replica list --unhealthy`; a replica joins again by itself"
            " once its node runs and has caught up",
            True,
        )
    if health.under_replicated:
        yield ReplicaProblem(
            f"{partitions(health.under_replicated)} under-replicated: a replica is not in sync",
            "it catches up by itself; if the number does not fall, see which nodes with `kafkalite"
            " replica list --unhealthy`, and their lines in the broker's log",
            False,
        )


def partitions(count: int) -> str:
    """Return a number of partitions in words."""
    return f"{count:,} partition{'s' if count != 1 else ''}"
