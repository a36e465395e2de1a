"""Consumers that read a follower: what it returns, and when it refuses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafkalite.broker.security import READ
from kafkalite.config.replication import RACK_AWARE_SELECTOR
from kafkalite.config.resources import Resource
from kafkalite.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    TopicAuthorizationFailed,
    UnknownLeaderEpoch,
)
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import EARLIEST, LATEST, LIST_OFFSETS
from kafkalite.records.batch import batches
from tests.broker.conftest import Clients
from tests.broker.test_replication_in_cluster import NODES, followers, in_sync, log_of, produce
from tests.broker.transacting import Transactions, create_coordinator
from tests.handlers.denying import Denying
from tests.simulation.cluster import ClientRequest

DEBUGGING = -2
LONG_MS = 60_000
SET, DELETE = 0, 1
READ_COMMITTED = 1


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """A supervisor and three workers with topic `t` on all of them."""
    cluster = begun(3)
    cluster.create("t", replicas=3)
    cluster.until(lambda: in_sync(cluster, *NODES))
    return cluster


def begin_fetch(
    cluster: Clients, node_id: int, offset: int = 0, *, version: int = 17, replica: int = -1,
    epoch: int = -1, wait_ms: int = 0, isolation_level: int = 0, rack: str = "", min_bytes: int = 1,
) -> ClientRequest:  # fmt: skip
    """Send a Fetch of one partition."""
    partition = {
        "partition": 0, "fetch_offset": offset, "current_leader_epoch": epoch,
        "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    topic: dict[str, Any] = {"topic": "t"}
    sender: dict[str, Any] = {"replica_id": replica}
    if version >= 13:
        topic = {"topic_id": cluster.image.topics["t"].topic_id}
    if version >= 15:
        sender = {"replica_state": {"replica_id": replica, "replica_epoch": -1}}
    return cluster.send(
        node_id, FETCH, version, **sender, max_wait_ms=wait_ms, min_bytes=min_bytes,
        max_bytes=1 << 20, isolation_level=isolation_level, session_id=0, session_epoch=-1,
        forgotten_topics_data=[], rack_id=rack, topics=[{**topic, "partitions": [partition]}],
    )  # fmt: skip


def of(cluster: Clients, pending: ClientRequest):
    """Return the response of the only partition, once it is there."""
    cluster.until(lambda: pending.is_done)
    return pending.response.responses[0].partitions[0]


def fetch(cluster: Clients, node_id: int, offset: int = 0, **fields: Any):
    return of(cluster, begin_fetch(cluster, node_id, offset, **fields))


def values(entry) -> list[bytes | None]:
    assert entry.error_code == 0, entry.error_code
    return [record.value for batch in batches(entry.records or b"") for record in batch]


def followed(cluster: Clients, node_id: int):
    topic_id = cluster.image.topics["t"].topic_id
    return cluster.node(node_id).replication.followed.of_topic(topic_id)[0]


def know(cluster: Clients, high_watermark: int, *nodes: int) -> None:
    """Step until these followers know a high watermark."""
    cluster.until(lambda: all(followed(cluster, n).high_watermark == high_watermark for n in nodes))


def offset_of(cluster: Clients, node_id: int, timestamp: int, replica: int) -> tuple[int, int]:
    """Return the error code and the offset that ListOffsets returns."""
    entry = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    response = cluster.request(
        node_id, LIST_OFFSETS, 7, replica_id=replica, isolation_level=0,
        topics=[{"name": "t", "partitions": [entry]}],
    )  # fmt: skip
    found = response.topics[0].partitions[0]
    return found.error_code, found.offset


def expel(cluster: Clients, node_id: int) -> None:
    """Have a follower miss record `b` until it has left the ISR, by its own image, too."""
    partition = followed(cluster, node_id)
    cluster.node(node_id).replication.followed._stop_fetching(partition)
    cluster.begin_produce(partition.leader, "t", b"b")
    cluster.until(lambda: not partition.is_in_sync, pace_ms=500)


@pytest.mark.parametrize("version", [11, 12, 13, 18])
def test_follower_serves_a_consumer_up_to_its_high_watermark(cluster, version):
    produce(cluster, b"a", b"b")
    know(cluster, 2, *followers(cluster))
    for node_id in followers(cluster):
        entry = fetch(cluster, node_id, 1, version=version)
        assert (values(entry), entry.high_watermark, entry.log_start_offset) == ([b"b"], 2, 0)


def test_follower_refuses_consumers_that_do_not_know_of_followers(cluster):
    produce(cluster, b"a")
    entry = fetch(cluster, followers(cluster)[0], version=10)
    assert entry.error_code == NotLeaderOrFollower.code


def test_records_above_the_high_watermark_of_a_follower_are_not_returned(cluster):
    produce(cluster, b"a")
    reader, stopped = followers(cluster)
    know(cluster, 1, reader)
    cluster.running[stopped].paused = True
    cluster.begin_produce(cluster.leader("t"), "t", b"b")
    cluster.until(lambda: log_of(cluster, reader).end_offset == 2)
    for replica in (-1, DEBUGGING):
        assert values(fetch(cluster, reader, 0, replica=replica)) == [b"a"]
        for offset in (1, 2):
            assert values(fetch(cluster, reader, offset, replica=replica)) == []
        entry = fetch(cluster, reader, 3, replica=replica)
        assert entry.error_code == OffsetOutOfRange.code
    cluster.running[stopped].paused = False
    know(cluster, 2, reader)
    assert values(fetch(cluster, reader, 0)) == [b"a", b"b"]


def test_fetch_below_the_log_start_of_a_follower_is_out_of_range(cluster):
    produce(cluster, b"a", b"b")
    reader = followers(cluster)[0]
    know(cluster, 2, reader)
    log_of(cluster, reader).delete_records(1)
    assert fetch(cluster, reader, 0).error_code == OffsetOutOfRange.code
    assert values(fetch(cluster, reader, 1)) == [b"b"]


@pytest.mark.parametrize("min_bytes", [1, 10])
def test_fetch_waits_at_a_follower_until_its_high_watermark_grows(cluster, min_bytes):
    produce(cluster, b"a")
    reader = followers(cluster)[0]
    know(cluster, 1, reader)
    pending = begin_fetch(cluster, reader, 1, wait_ms=LONG_MS, min_bytes=min_bytes)
    cluster.settle()
    assert not pending.is_done
    begin_ms = cluster.clock.monotonic_ms()
    produce(cluster, b"b")
    assert values(of(cluster, pending)) == [b"b"]
    assert cluster.clock.monotonic_ms() - begin_ms < LONG_MS


@pytest.mark.parametrize(
    ("distance", "error"), [(-1, FencedLeaderEpoch), (0, None), (1, UnknownLeaderEpoch)]
)
def test_follower_checks_the_leader_epoch(cluster, distance, error):
    produce(cluster, b"a")
    cluster.kill(cluster.leader("t"), stay_down=True)
    cluster.until(lambda: in_sync(cluster, *[n for n in NODES if n in cluster.running]))
    reader = followers(cluster)[0]
    know(cluster, 1, reader)
    partition = cluster.image.topics["t"].partitions[0]
    assert partition.leader_epoch > 0
    entry = fetch(cluster, reader, epoch=partition.leader_epoch + distance)
    assert entry.error_code == (error.code if error is not None else 0)
    if error is FencedLeaderEpoch:
        known = entry.current_leader
        assert known.leader_id == partition.leader
        assert known.leader_epoch == partition.leader_epoch


def test_fetch_that_waits_at_a_follower_ends_when_that_leads(cluster):
    produce(cluster, b"a")
    waiting = {
        node_id: begin_fetch(cluster, node_id, 1, wait_ms=LONG_MS)
        for node_id in followers(cluster)
    }
    cluster.settle()
    assert not any(pending.is_done for pending in waiting.values())
    cluster.kill(cluster.leader("t"), stay_down=True)
    for pending in waiting.values():
        entry = of(cluster, pending)
        assert entry.error_code == NotLeaderOrFollower.code
        assert entry.current_leader.leader_id == cluster.leader("t")


def test_fetch_that_waits_at_a_follower_ends_when_its_topic_is_deleted(cluster):
    pending = begin_fetch(cluster, followers(cluster)[0], 0, wait_ms=LONG_MS)
    cluster.settle()
    assert not pending.is_done
    cluster.delete("t")
    assert of(cluster, pending).error_code


def test_follower_out_of_sync_serves_a_debugging_consumer_only(cluster):
    produce(cluster, b"a")
    reader = followers(cluster)[0]
    know(cluster, 1, reader)
    pending = begin_fetch(cluster, reader, 1, wait_ms=10 * LONG_MS)
    end_ms = cluster.clock.monotonic_ms() + 10 * LONG_MS
    expel(cluster, reader)
    assert values(of(cluster, pending)) == []
    assert cluster.clock.monotonic_ms() < end_ms
    assert fetch(cluster, reader).error_code == NotLeaderOrFollower.code
    assert values(fetch(cluster, reader, replica=DEBUGGING)) == [b"a"]
    assert values(fetch(cluster, cluster.leader("t"), replica=DEBUGGING)) == [b"a", b"b"]


def test_follower_that_truncates_its_log_refuses_readers(cluster):
    produce(cluster, b"a")
    reader, stopped = followers(cluster)
    know(cluster, 1, reader)
    log = log_of(cluster, reader)
    cluster.running[stopped].paused = True
    cluster.begin_produce(cluster.leader("t"), "t", b"b")
    cluster.until(lambda: log.end_offset == 2)
    log.truncation_begin(1)
    assert log.is_truncating
    for replica in (-1, DEBUGGING):
        entry = fetch(cluster, reader, replica=replica)
        assert entry.error_code == NotLeaderOrFollower.code
    log.finish_truncation()
    assert values(fetch(cluster, reader)) == [b"a"]


def test_list_offsets_at_a_follower_is_for_debugging_consumers(cluster):
    produce(cluster, b"a")
    leader = cluster.leader("t")
    reader, stopped = followers(cluster)
    know(cluster, 1, reader)
    cluster.running[stopped].paused = True
    cluster.begin_produce(leader, "t", b"b")
    cluster.until(lambda: log_of(cluster, reader).end_offset == 2)
    assert offset_of(cluster, reader, LATEST, -1) == (NotLeaderOrFollower.code, -1)
    assert offset_of(cluster, leader, LATEST, -1) == (0, 1)
    for node_id in (reader, leader):
        assert offset_of(cluster, node_id, LATEST, DEBUGGING) == (0, 2)
        assert offset_of(cluster, node_id, EARLIEST, DEBUGGING) == (0, 0)
        assert offset_of(cluster, node_id, 0, DEBUGGING) == (0, 0)
    assert offset_of(cluster, 0, LATEST, DEBUGGING) == (NotLeaderOrFollower.code, -1)


def test_reading_a_follower_needs_permission(cluster):
    produce(cluster, b"a")
    reader = followers(cluster)[0]
    cluster.node(reader).authorizer = Denying(READ)
    for replica in (-1, DEBUGGING):
        entry = fetch(cluster, reader, replica=replica)
        assert entry.error_code == TopicAuthorizationFailed.code


def test_follower_returns_committed_transactions_to_a_read_committed_consumer(begun):
    cluster = begun(3)
    cluster.create("t", replicas=3)
    create_coordinator(cluster)
    cluster.until(lambda: in_sync(cluster, *NODES))
    produce(cluster, b"a")
    app = Transactions(cluster)
    app.init()
    app.add(("t", 0))
    app.produce("t", value=b"b")
    produce(cluster, b"c")
    reader = followers(cluster)[0]
    know(cluster, 3, reader)

    def committed():
        return fetch(cluster, reader, isolation_level=READ_COMMITTED)

    entry = committed()
    assert (values(entry), entry.last_stable_offset, entry.high_watermark) == ([b"a"], 1, 3)
    assert values(fetch(cluster, reader, 1)) == [b"b", b"c"]
    pending = begin_fetch(cluster, reader, 1, wait_ms=LONG_MS, isolation_level=READ_COMMITTED)
    cluster.settle()
    assert not pending.is_done
    aborted = app.producer
    app.end(is_commit=False)
    woken = of(cluster, pending)
    for entry in (woken, fetch(cluster, reader, 2, isolation_level=READ_COMMITTED)):
        assert entry.last_stable_offset == 4
        found = [(each.producer_id, each.first_offset) for each in entry.aborted_transactions]
        assert found == [(aborted.producer_id, 1)]


# -- the replica that a consumer with a rack reads -------------------------------------------------

SELECTING = {"replica.selector.class": RACK_AWARE_SELECTOR}


def set_racks(cluster: Clients, racks: dict[int, str | None]) -> None:
    """Set broker.rack of nodes while they run, and wait until every node knows it."""
    resources = [
        {
            "resource_type": Resource.BROKER,
            "resource_name": str(node_id),
            "configs": [{
                "name": "broker.rack",
                "config_operation": SET if rack is not None else DELETE,
                "value": rack,
            }],
        }
        for node_id, rack in racks.items()
    ]  # fmt: skip
    response = cluster.request(
        0, INCREMENTAL_ALTER_CONFIGS, 1, resources=resources, validate_only=False
    )
    assert not any(each.error_code for each in response.responses), response
    known = [cluster.node(n).image for n in (0, *NODES)]
    cluster.until(
        lambda: all(image.nodes[n].rack == rack for image in known for n, rack in racks.items())
    )


@pytest.fixture
def selecting(begun: Callable[..., Clients]) -> Clients:
    """The same with Kafka's selector; the leader is in rack `a`, and one follower in `b`."""
    cluster = begun(3, **SELECTING)
    cluster.create("t", replicas=3)
    cluster.until(lambda: in_sync(cluster, *NODES))
    set_racks(cluster, {cluster.leader("t"): "a", followers(cluster)[1]: "b"})
    produce(cluster, b"a")
    know(cluster, 1, *followers(cluster))
    return cluster


@pytest.mark.parametrize("version", [11, 12, 18])
@pytest.mark.parametrize("offset", [0, 1])
def test_leader_names_the_follower_of_the_rack_at_once(selecting, version, offset):
    cluster = selecting
    pending = begin_fetch(
        cluster, cluster.leader("t"), offset, version=version, rack="b", wait_ms=LONG_MS
    )
    begin_ms = cluster.clock.monotonic_ms()
    entry = of(cluster, pending)
    assert cluster.clock.monotonic_ms() - begin_ms < LONG_MS
    assert (entry.preferred_read_replica, values(entry)) == (followers(cluster)[1], [])
    assert (entry.high_watermark, entry.log_start_offset) == (1, 0)
    entry = fetch(cluster, entry.preferred_read_replica, version=version, rack="b")
    assert (entry.preferred_read_replica, values(entry)) == (-1, [b"a"])


@pytest.mark.parametrize("rack", ["", "a", "elsewhere"])
def test_leader_serves_consumers_of_its_own_and_of_other_racks(selecting, rack):
    entry = fetch(selecting, selecting.leader("t"), rack=rack)
    assert (entry.preferred_read_replica, values(entry)) == (-1, [b"a"])


def test_leader_names_no_follower_without_a_selector(cluster):
    set_racks(cluster, {cluster.leader("t"): "a", followers(cluster)[0]: "b"})
    produce(cluster, b"a")
    entry = fetch(cluster, cluster.leader("t"), rack="b")
    assert (entry.preferred_read_replica, values(entry)) == (-1, [b"a"])


def test_leader_checks_the_epoch_and_the_permission_first(selecting):
    cluster = selecting
    leader = cluster.leader("t")
    epoch = cluster.image.topics["t"].partitions[0].leader_epoch
    assert fetch(cluster, leader, rack="b", epoch=epoch + 1).error_code == UnknownLeaderEpoch.code
    cluster.node(leader).authorizer = Denying(READ)
    entry = fetch(cluster, leader, rack="b")
    assert (entry.error_code, entry.preferred_read_replica) == (TopicAuthorizationFailed.code, -1)


def test_leader_does_not_name_a_follower_that_lacks_the_offset(selecting):
    cluster = selecting
    leader = cluster.leader("t")
    reader = followers(cluster)[1]
    cluster.running[reader].paused = True
    cluster.begin_produce(leader, "t", b"b")
    cluster.until(lambda: log_of(cluster, leader).end_offset == 2)
    assert fetch(cluster, leader, 1, rack="b").preferred_read_replica == reader
    entry = fetch(cluster, leader, 2, rack="b")
    assert (entry.error_code, entry.preferred_read_replica) == (0, -1)
    assert fetch(cluster, leader, 3, rack="b").error_code == OffsetOutOfRange.code
    log_of(cluster, leader).delete_records(1)
    assert fetch(cluster, leader, 0, rack="b").error_code == OffsetOutOfRange.code


def test_leader_does_not_name_a_follower_that_is_not_in_sync(selecting):
    cluster = selecting
    reader = followers(cluster)[1]
    expel(cluster, reader)
    entry = fetch(cluster, cluster.leader("t"), rack="b")
    assert (entry.preferred_read_replica, values(entry)) == (-1, [b"a", b"b"])


def test_leader_names_the_follower_with_the_most_records(selecting):
    cluster = selecting
    behind, reader = followers(cluster)
    set_racks(cluster, {behind: "b"})
    cluster.running[behind].paused = True
    cluster.begin_produce(cluster.leader("t"), "t", b"b")
    cluster.until(lambda: log_of(cluster, reader).end_offset == 2)
    led = cluster.node(cluster.leader("t")).replicas.of_topic("t")[0]
    cluster.until(lambda: len({each[0] for each in led.replication.isr.in_sync_with(0)}) == 2)
    assert fetch(cluster, cluster.leader("t"), rack="b").preferred_read_replica == reader


def test_racks_of_nodes_survive_a_restart_and_can_be_removed(begun):
    cluster = begun(3)
    set_racks(cluster, {0: "zero", 2: "two"})
    cluster.restart(3)
    cluster.settle()
    assert [cluster.image.nodes[n].rack for n in (0, *NODES)] == ["zero", None, "two", None]
    set_racks(cluster, {0: None, 2: None})
    assert [cluster.image.nodes[n].rack for n in (0, *NODES)] == [None] * 4
