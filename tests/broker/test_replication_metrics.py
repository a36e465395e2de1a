"""Metrics of replication: what the nodes of a cluster count when a follower is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafkalite.broker.replication_metrics import replication_families
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS
from tests.broker.conftest import Clients

MANAGER = "kafka_server_replicamanager_{}"
BYTES = "kafka_server_brokertopicmetrics_replicationbytes{}_total"
NODES = (1, 2, 3)


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """A supervisor and three workers with topic `t` on all of them."""
    cluster = begun(3)
    cluster.create("t", replicas=3)
    cluster.until(lambda: len(isr(cluster)) == len(NODES))
    return cluster


def isr(cluster: Clients) -> tuple[int, ...]:
    return cluster.image.topics["t"].partitions[0].isr


def total(cluster: Clients, name: str) -> float:
    """Return the sum of a metric over the running workers."""
    return sum(
        value
        for node_id in NODES
        if node_id in cluster.running
        for family in replication_families(cluster.node(node_id))
        if family.name == name
        for _, value in family.samples
    )


def test_lost_follower_is_counted_as_under_replicated(cluster):
    assert total(cluster, MANAGER.format("underreplicatedpartitions")) == 0
    leader = cluster.leader("t")
    cluster.kill(next(n for n in NODES if n != leader), stay_down=True)
    cluster.until(lambda: len(isr(cluster)) == 2)
    cluster.steps(3)
    assert total(cluster, MANAGER.format("underreplicatedpartitions")) == 1
    assert total(cluster, MANAGER.format("underminisrpartitioncount")) == 0


def test_partitions_at_and_below_the_minimum_of_in_sync_replicas_are_counted(begun):
    cluster = begun(3)
    cluster.create("t", replicas=3, min_insync_replicas="2")
    cluster.until(lambda: len(isr(cluster)) == len(NODES))
    leader = cluster.leader("t")
    first, second = (n for n in NODES if n != leader)
    cluster.kill(first, stay_down=True)
    cluster.until(lambda: len(isr(cluster)) == 2)
    cluster.until(lambda: total(cluster, MANAGER.format("atminisrpartitioncount")) == 1)
    cluster.kill(second, stay_down=True)
    cluster.until(lambda: len(isr(cluster)) == 1)
    cluster.until(lambda: total(cluster, MANAGER.format("underminisrpartitioncount")) == 1)
    assert total(cluster, MANAGER.format("atminisrpartitioncount")) == 0


def test_returning_follower_is_counted_as_an_expansion(cluster):
    leader = cluster.leader("t")
    cluster.kill(next(n for n in NODES if n != leader))
    cluster.until(lambda: len(isr(cluster)) == 2)
    cluster.until(lambda: len(isr(cluster)) == 3)
    cluster.until(lambda: total(cluster, MANAGER.format("isrexpands_total")) == 1)
    assert total(cluster, MANAGER.format("isrshrinks_total")) == 0  # the controller removed it


def test_bytes_of_both_followers_are_counted_and_not_as_consumers(cluster):
    assert cluster.produce("t", b"a").error_code == 0
    size = cluster.node(cluster.leader("t")).logs.logs["t", 0].size
    assert total(cluster, BYTES.format("in")) == total(cluster, BYTES.format("out")) == 2 * size
    leader = cluster.node(cluster.leader("t"))
    assert leader.replicas.traffic["t"].bytes_out == 0


def test_lag_is_zero_once_all_followers_have_all_records(cluster):
    assert cluster.produce("t", b"a").error_code == 0
    cluster.until(lambda: total(cluster, "kafkalite_followers_max_lag") == 0)
    cluster.until(lambda: total(cluster, "kafka_server_replicafetchermanager_maxlag") == 0)


def test_log_directories_tell_the_lag_of_a_follower(cluster):
    assert cluster.produce("t", b"a").error_code == 0
    follower = next(n for n in NODES if n != cluster.leader("t"))
    topic_id = cluster.image.topics["t"].topic_id
    followed = cluster.node(follower).replication.followed.of_topic(topic_id)[0]
    followed.replication.leader_high_watermark = 8
    (directory,) = cluster.request(follower, DESCRIBE_LOG_DIRS, 4, topics=None).results
    (topic,) = [each for each in directory.topics if each.name == "t"]
    assert [each.offset_lag for each in topic.partitions] == [7]
