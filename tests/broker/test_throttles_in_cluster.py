"""Throttled replication in a cluster of real nodes, on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kafkalite.broker.replication_metrics import replication_families
from kafkalite.config.resources import Resource
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from tests.broker.conftest import Clients
from tests.broker.test_reassignments_in_cluster import has_replicas, reassign
from tests.broker.test_replication_in_cluster import in_sync

SET, UNSET = 0, 1
RATE = "{}.replication.throttled.rate"
REPLICAS = "{}.replication.throttled.replicas"
VALUE_SIZE = 20_000
VALUE = b"x" * VALUE_SIZE
RECORDS = 20
LIMIT = 50_000
"""Bytes per second: less than the records have."""
BATCH_SIZE_MAX = VALUE_SIZE + 200
WINDOW_S = 11


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """Two workers, and topic `t` with its records on the first one alone.

    A fetch returns one batch, which is the amount by which a quota is exceeded at most.
    """
    cluster = begun(2, **{"replica.fetch.max.bytes": "1"})
    cluster.create("t", assigned=1)
    for _ in range(RECORDS):
        assert cluster.produce("t", VALUE).error_code == 0
    return cluster


def alter(cluster: Clients, kind: Resource, name: str, **values: str | None) -> int:
    """Set or unset configs of a resource; return the error code."""
    configs = [
        {"name": key, "config_operation": SET if value is not None else UNSET, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    response = cluster.request(
        int(name) if kind is Resource.BROKER and name else 1, INCREMENTAL_ALTER_CONFIGS, 1,
        resources=[resource], validate_only=False,
    )  # fmt: skip
    return int(response.responses[0].error_code)


def throttle(
    cluster: Clients, side: str, rate: int | None, replicas: str | None, node: str = ""
) -> None:
    """Set the rate of one side, and the throttled replicas of the topic."""
    text = None if rate is None else str(rate)
    assert alter(cluster, Resource.BROKER, node, **{RATE.format(side): text}) == 0
    assert alter(cluster, Resource.TOPIC, "t", **{REPLICAS.format(side): replicas}) == 0
    cluster.steps(5)


def quota(cluster: Clients, side: str):
    replication = cluster.node(1 if side == "leader" else 2).replication
    return replication.leader_quota if side == "leader" else replication.follower_quota


SIDES = pytest.mark.parametrize(
    ("side", "replicas"), [("leader", "0:1"), ("follower", "0:2"), ("leader", "*")]
)


@SIDES
def test_reassignment_under_a_throttle_has_no_higher_rate(cluster, side, replicas):
    throttle(cluster, side, LIMIT, replicas)
    begun_ms = cluster.clock.monotonic_ms()
    assert reassign(cluster, [1, 2]) == 0
    sizes = []

    def is_done() -> bool:
        elapsed_s = (cluster.clock.monotonic_ms() - begun_ms) / 1_000
        sizes.append(quota(cluster, side).size)
        # A batch more than the quota of the time, or of the first sample.
        assert sizes[-1] <= LIMIT * max(1, elapsed_s) + BATCH_SIZE_MAX
        return has_replicas(cluster, 1, 2)

    cluster.until(is_done, pace_ms=10)
    assert sizes[-1] == cluster.node(1).logs.logs["t", 0].size > RECORDS * VALUE_SIZE
    elapsed_s = (cluster.clock.monotonic_ms() - begun_ms) / 1_000
    # The quota is used: it goes on as soon as the rate has fallen.
    assert sizes[-1] >= LIMIT * (elapsed_s - 2)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_partitions_share_the_rate(begun, side):
    sizes = {"replica.fetch.max.bytes": "1", "replica.fetch.response.max.bytes": "1"}
    cluster = begun(2, **sizes)
    for index in range(5):
        cluster.create(f"t{index}", assigned=1)
        for _ in range(3):
            assert cluster.produce(f"t{index}", VALUE).error_code == 0
        assert alter(cluster, Resource.TOPIC, f"t{index}", **{REPLICAS.format(side): "*"}) == 0
    assert alter(cluster, Resource.BROKER, "", **{RATE.format(side): str(LIMIT)}) == 0
    begun_ms = cluster.clock.monotonic_ms()
    for index in range(5):
        assert reassign(cluster, [1, 2], f"t{index}") == 0

    def is_done() -> bool:
        elapsed_s = (cluster.clock.monotonic_ms() - begun_ms) / 1_000
        assert quota(cluster, side).size <= LIMIT * max(1, elapsed_s) + BATCH_SIZE_MAX
        topics = (cluster.image.topics[f"t{index}"] for index in range(5))
        return all({*topic.partitions[0].isr} == {1, 2} for topic in topics)

    cluster.until(is_done, pace_ms=10)
    assert quota(cluster, side).size > 15 * VALUE_SIZE


@SIDES
def test_removed_throttle_lets_the_reassignment_go_on(cluster, side, replicas):
    throttle(cluster, side, 1, replicas)
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: quota(cluster, side).is_exceeded)
    begun = quota(cluster, side).size
    cluster.steps(600)
    assert quota(cluster, side).size == begun < RECORDS * VALUE_SIZE
    assert alter(cluster, Resource.BROKER, "", **{RATE.format(side): None}) == 0
    at_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: has_replicas(cluster, 1, 2))
    assert cluster.clock.monotonic_ms() - at_ms < WINDOW_S * 1_000


@SIDES
def test_topic_that_is_throttled_no_longer_goes_on(cluster, side, replicas):
    throttle(cluster, side, 1, replicas)
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: quota(cluster, side).is_exceeded)
    assert alter(cluster, Resource.TOPIC, "t", **{REPLICAS.format(side): None}) == 0
    at_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: has_replicas(cluster, 1, 2))
    assert cluster.clock.monotonic_ms() - at_ms < WINDOW_S * 1_000


@SIDES
def test_batch_larger_than_the_rate_gets_through(cluster, side, replicas):
    throttle(cluster, side, VALUE_SIZE // 10, replicas)
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: has_replicas(cluster, 1, 2), pace_ms=1_000)


@SIDES
def test_follower_in_sync_is_not_throttled(cluster, side, replicas):
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: in_sync(cluster, 1, 2) and has_replicas(cluster, 1, 2))
    throttle(cluster, side, 1, replicas)
    before = quota(cluster, side).size
    at_ms = cluster.clock.monotonic_ms()
    for _ in range(RECORDS):
        assert cluster.produce("t", VALUE).error_code == 0
    assert cluster.clock.monotonic_ms() - at_ms < 1_000
    assert quota(cluster, side).size - before > RECORDS * VALUE_SIZE
    assert quota(cluster, side).is_exceeded
    assert in_sync(cluster, 1, 2)


@pytest.mark.parametrize(("side", "replicas"), [("leader", "0:2"), ("follower", "0:1")])
def test_other_replicas_are_not_throttled(cluster, side, replicas):
    throttle(cluster, side, 1, replicas)
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: has_replicas(cluster, 1, 2))
    assert quota(cluster, side).size == 0


def test_rate_of_a_node_overrides_that_of_the_cluster(cluster):
    throttle(cluster, "leader", 1, "*")
    assert alter(cluster, Resource.BROKER, "1", **{RATE.format("leader"): "7000"}) == 0
    cluster.steps(5)
    assert quota(cluster, "leader").rate_max == 7_000
    assert cluster.node(2).replication.leader_quota.rate_max == 1


def test_new_leader_throttles_the_returning_replica(begun):
    cluster = begun(3)
    cluster.create("t", replicas=3)
    cluster.until(lambda: len(cluster.image.topics["t"].partitions[0].isr) == 3)
    throttle(cluster, "leader", 1, "*")
    former = cluster.leader("t")
    cluster.kill(former, stay_down=True)
    cluster.until(lambda: cluster.leader("t") not in (-1, former))
    for _ in range(4):
        cluster.until(lambda: cluster.produce("t", VALUE).error_code == 0)
    leader = cluster.node(cluster.leader("t"))
    cluster.held_down.clear()
    cluster.until(lambda: former in cluster.running)
    cluster.steps(1_000)
    assert former not in cluster.image.topics["t"].partitions[0].isr
    assert leader.replication.leader_quota.is_exceeded
    throttle(cluster, "leader", None, None)
    cluster.until(lambda: former in cluster.image.topics["t"].partitions[0].isr)


@pytest.mark.parametrize(
    ("kind", "name", "key", "value"),
    [
        (Resource.BROKER, "", RATE.format("leader"), "-1"),
        (Resource.BROKER, "1", RATE.format("follower"), "fast"),
        (Resource.TOPIC, "t", REPLICAS.format("leader"), "1:x"),
        (Resource.TOPIC, "t", REPLICAS.format("follower"), "*,0:1"),
    ],
)
def test_invalid_throttle_is_refused(cluster, kind, name, key, value):
    assert alter(cluster, kind, name, **{key: value}) != 0
    assert quota(cluster, "leader").rate_max is None


def test_throttled_replicas_may_name_partitions_that_do_not_exist(cluster):
    throttle(cluster, "leader", LIMIT, "9:1,0:9")
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: has_replicas(cluster, 1, 2))


@pytest.mark.parametrize(("side", "replicas"), [("leader", "0:1"), ("follower", "0:2")])
def test_byte_rate_is_a_metric_of_the_side(cluster, side, replicas):
    throttle(cluster, side, LIMIT, replicas)
    assert reassign(cluster, [1, 2]) == 0
    cluster.until(lambda: quota(cluster, side).is_exceeded)
    node = cluster.node(1 if side == "leader" else 2)
    rates = {
        family.name: family.samples[0][1]
        for family in replication_families(node)
        if family.name.endswith("replication_byte_rate")
    }
    assert rates.pop(f"kafka_server_{side}replication_byte_rate") > LIMIT
    assert list(rates.values()) == [0]
