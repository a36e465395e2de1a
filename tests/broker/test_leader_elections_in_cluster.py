"""Preferred leaders, and elections at a client's request, in a cluster of real nodes."""

from __future__ import annotations

from kafkalite.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
)
from kafkalite.protocol.schemas.topics import ELECT_LEADERS
from tests.broker.conftest import Clients

PREFERRED, UNCLEAN = 0, 1


def in_sync(cluster: Clients, *nodes: int, topic: str = "t") -> bool:
    partitions = cluster.image.topics[topic].partitions.values()
    return all({*partition.isr} == {*nodes} for partition in partitions)


def elect(cluster: Clients, kind: int, at: int) -> int:
    """Return the error code of an election for partition t-0, requested at a node."""
    response = cluster.request(
        at, ELECT_LEADERS, 2, election_type=kind, timeout_ms=1_000,
        topic_partitions=[{"topic": "t", "partitions": [0]}],
    )  # fmt: skip
    assert response.error_code == 0
    return int(response.replica_election_results[0].partition_result[0].error_code)


def test_leaderships_come_back_after_a_failure(begun):
    cluster = begun(3)
    cluster.create("t", 6, replicas=3)
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    preferred = [p.replicas[0] for p in cluster.image.topics["t"].partitions.values()]
    cluster.kill(1, stay_down=True)
    cluster.until(lambda: in_sync(cluster, 2, 3))
    cluster.start(1)

    def leaders() -> list[int]:
        return [cluster.leader("t", index) for index in range(6)]

    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    assert 1 not in leaders()
    cluster.until(lambda: leaders() == preferred, pace_ms=20)
    cluster.settle()
    assert cluster.produce("t", b"a", preferred.index(1)).error_code == 0


def test_leaderships_stay_if_the_key_says_so(begun):
    cluster = begun(3, **{"auto.leader.rebalance.enable": "false"})
    cluster.create("t", replicas=3)
    preferred = cluster.leader("t")
    cluster.kill(preferred)
    cluster.until(lambda: in_sync(cluster, 1, 2, 3) and cluster.leader("t") != preferred)
    passed_ms = cluster.clock.monotonic_ms() + 6_000
    cluster.until(lambda: cluster.clock.monotonic_ms() > passed_ms, pace_ms=20)
    assert cluster.leader("t") != preferred


def test_client_elects_the_preferred_leader(begun):
    cluster = begun(3, **{"auto.leader.rebalance.enable": "false"})
    cluster.create("t", replicas=3)
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    preferred = cluster.leader("t")
    other = preferred % 3 + 1
    assert elect(cluster, PREFERRED, at=other) == ElectionNotNeeded.code
    cluster.kill(preferred, stay_down=True)
    cluster.until(lambda: cluster.leader("t") != preferred)
    assert elect(cluster, PREFERRED, at=other) == PreferredLeaderNotAvailable.code
    cluster.start(preferred)
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    assert elect(cluster, PREFERRED, at=other) == 0
    assert cluster.leader("t") == preferred


def test_client_elects_a_leader_that_lacks_records(begun):
    cluster = begun(2)
    cluster.create("t", replicas=2)
    cluster.until(lambda: in_sync(cluster, 1, 2))
    leader = cluster.leader("t")
    behind = 3 - leader
    cluster.produce("t", b"a")
    cluster.kill(behind, stay_down=True)
    cluster.until(lambda: in_sync(cluster, leader))
    cluster.produce("t", b"lost")
    cluster.kill(leader, stay_down=True)
    cluster.until(lambda: cluster.leader("t") == -1)
    assert elect(cluster, UNCLEAN, at=0) == EligibleLeadersNotAvailable.code
    cluster.start(behind)
    cluster.until(lambda: cluster.node(behind).controller.node_epoch is not None)
    assert elect(cluster, UNCLEAN, at=behind) == 0
    cluster.until(lambda: cluster.leader("t") == behind)
    cluster.until(lambda: cluster.values("t") == [b"a"])
