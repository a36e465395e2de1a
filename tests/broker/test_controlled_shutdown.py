"""Shutdown of one node of a cluster: others lead its partitions before it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafkalite.process.shutdown import Shutdown
from tests.broker.conftest import Clients
from tests.broker.test_leader_elections_in_cluster import in_sync


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    cluster = begun(3)
    cluster.create("t", 3, replicas=3, min_insync_replicas="2")
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    cluster.settle()
    return cluster


def begin_shutdown(cluster: Clients, node_id: int) -> list[int]:
    """Begin to shut down a node; its id is in the returned list when its process may end."""
    ended: list[int] = []
    shutdown = Shutdown(cluster.running[node_id].remote, lambda: ended.append(node_id))
    shutdown.begin()
    return ended


def leaders(cluster: Clients, at: int = 0) -> set[int]:
    partitions = cluster.node(at).image.topics["t"].partitions.values()
    return {partition.leader for partition in partitions}


def test_others_lead_and_know_it_before_a_node_ends(cluster):
    ended = begin_shutdown(cluster, 1)
    assert not ended
    cluster.until(lambda: ended)
    assert [leaders(cluster, at) for at in (2, 3)] == [{2, 3}, {2, 3}]
    assert cluster.image.nodes[1].shutting_down
    cluster.end_one(1)
    cluster.until(lambda: in_sync(cluster, 1, 2, 3))
    assert not cluster.image.nodes[1].shutting_down


def test_nodes_shut_down_one_after_another(cluster):
    first, second = begin_shutdown(cluster, 1), begin_shutdown(cluster, 2)
    cluster.until(lambda: first)
    cluster.steps(100)
    assert not second
    cluster.end_one(1)
    cluster.until(lambda: second)
    assert all({*p.isr} == {1, 3} for p in cluster.image.topics["t"].partitions.values())


def test_wait_for_a_replica_that_is_not_in_sync_is_bounded(cluster):
    cluster.running[3].paused = True
    cluster.busy.add(1000 + cluster.incarnations[3])
    cluster.until(lambda: in_sync(cluster, 1, 2), pace_ms=20)
    ended = begin_shutdown(cluster, 1)
    cluster.until(lambda: ended, pace_ms=20)
    assert 1 not in leaders(cluster)


def test_end_of_the_whole_broker_moves_nothing(cluster):
    before = leaders(cluster)
    cluster.supervisor._replicated.shutdowns.end_broker()
    ended = begin_shutdown(cluster, 1)
    cluster.until(lambda: ended)
    assert leaders(cluster) == before == {1, 2, 3}


def test_node_that_waits_ends_with_the_broker(cluster):
    first, second = begin_shutdown(cluster, 1), begin_shutdown(cluster, 2)
    cluster.until(lambda: first)
    assert not second
    cluster.supervisor._replicated.shutdowns.end_broker()
    cluster.until(lambda: second)


def test_node_ends_at_once_without_a_supervisor(cluster):
    ended: list[int] = []
    shutdown = Shutdown(cluster.running[1].remote, lambda: ended.append(1))
    shutdown.begin()
    shutdown.connection_changed(False)
    assert ended == [1]


def test_second_signal_ends_a_node_at_once(cluster):
    ended: list[int] = []
    shutdown = Shutdown(cluster.running[1].remote, lambda: ended.append(1))
    shutdown.begin()
    shutdown.begin()
    assert ended == [1]
