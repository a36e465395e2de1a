"""Truncation of a follower's log in a cluster of real nodes, held while something else happens."""

from __future__ import annotations

import pytest

from tests.broker.conftest import Clients
from tests.broker.test_replication_in_cluster import (
    NODES,
    cluster,
    content,
    in_sync,
    log_of,
    produce,
)
from tests.storage.factories import batch

__all__ = ["cluster"]


def held_truncation(cluster: Clients) -> int:
    """Let a former leader begin to truncate a record that only it has; return its node id.  Its
    flusher is held."""
    produce(cluster, b"a")
    former = cluster.leader("t")
    others = [node_id for node_id in NODES if node_id != former]
    for node_id in others:
        cluster.running[node_id].paused = True
    cluster.begin_produce(former, "t", b"only here")
    cluster.until(lambda: log_of(cluster, former).end_offset == 2)
    cluster.kill(former, stay_down=True)
    for node_id in others:
        cluster.running[node_id].paused = False
    cluster.until(lambda: in_sync(cluster, *others))
    produce(cluster, b"b")
    cluster.start(former)
    cluster.until(lambda: former in cluster.running)
    hold(cluster, former)
    return former


def hold(cluster: Clients, node_id: int) -> None:
    cluster.running[node_id].flusher.held = True
    cluster.until(lambda: is_truncating(cluster, node_id))


def is_truncating(cluster: Clients, node_id: int) -> bool:
    log = cluster.running[node_id].logs.logs.get(("t", 0))
    return log is not None and log.is_truncating


def test_log_that_is_truncated_is_not_fetched_until_it_is(cluster):
    former = held_truncation(cluster)
    produce(cluster, b"c")
    cluster.steps(100)
    assert is_truncating(cluster, former)
    assert log_of(cluster, former).end_offset == 1
    assert b"only here" in content(cluster, former)
    cluster.running[former].flusher.let_go()
    cluster.until(lambda: in_sync(cluster, *NODES))
    assert content(cluster, former) == content(cluster, cluster.leader("t"))
    assert cluster.values("t") == [b"a", b"b", b"c"]


def test_leader_that_changes_during_a_truncation_is_followed_after_it(cluster):
    former = held_truncation(cluster)
    leader = cluster.leader("t")
    cluster.kill(leader, stay_down=True)
    last = next(each for each in NODES if each not in (former, leader))
    cluster.until(lambda: in_sync(cluster, last))
    produce(cluster, b"c")
    cluster.steps(100)
    assert is_truncating(cluster, former)
    cluster.running[former].flusher.let_go()
    cluster.until(lambda: in_sync(cluster, former, last))
    assert content(cluster, former) == content(cluster, last)
    assert cluster.values("t") == [b"a", b"b", b"c"]


def test_follower_that_is_elected_during_a_truncation_leads_the_truncated_log(cluster):
    produce(cluster, b"a")
    first = cluster.leader("t")
    replicas = cluster.image.topics["t"].partitions[0].replicas
    second, third = [each for each in replicas if each != first]
    cluster.kill(first, stay_down=True)
    # As if its fetch had been faster than that of the other one.
    log_of(cluster, third).append(batch(b"only here"), 0)
    cluster.running[third].flusher.held = True
    cluster.until(lambda: is_truncating(cluster, third))
    assert cluster.leader("t") == second
    cluster.kill(second, stay_down=True)
    cluster.until(lambda: in_sync(cluster, third))
    assert not is_truncating(cluster, third)
    cluster.running[third].flusher.let_go()
    produce(cluster, b"next")
    for node_id in (first, second):
        cluster.start(node_id)
    cluster.until(lambda: in_sync(cluster, *NODES))
    (found,) = {content(cluster, node_id) for node_id in NODES}
    assert b"next" in found and b"only here" not in found


@pytest.mark.parametrize("is_made_again", [False, True])
def test_topic_is_deleted_during_a_truncation(cluster, is_made_again):
    former = held_truncation(cluster)
    cluster.delete("t")
    cluster.until(lambda: ("t", 0) not in cluster.running[former].logs.logs)
    if is_made_again:
        cluster.create("t", replicas=3)
    cluster.running[former].flusher.let_go()
    if is_made_again:
        cluster.until(lambda: in_sync(cluster, *NODES))
        produce(cluster, b"new")
        assert cluster.values("t") == [b"new"]
    else:
        cluster.until(lambda: not cluster.directories("t-0"))
    assert not cluster.deaths


@pytest.mark.parametrize("killed", [False, True])
def test_node_ends_during_a_truncation(cluster, killed):
    former = held_truncation(cluster)
    cluster.restart(None, killed=killed)
    cluster.until(lambda: in_sync(cluster, *NODES))
    assert content(cluster, former) == content(cluster, cluster.leader("t"))
    assert cluster.values("t") == [b"a", b"b"]
