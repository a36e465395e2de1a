"""Partitions with three replicas in a cluster of real nodes: one clock, an in-memory bus.

Every process can be killed, stopped or cut off at any step; what it wrote is in its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import contextmanager
from unittest import mock

import pytest

from kafkalite.errors import (
    BY_CODE,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RequestTimedOut,
)
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LATEST, LIST_OFFSETS
from kafkalite.protocol.schemas.topics import ELECT_LEADERS
from kafkalite.storage.manager import partition_transfer
from tests.broker.conftest import Clients, produced

NODES = (1, 2, 3)


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """A supervisor and three workers with topic `t` on all of them."""
    cluster = begun(3)
    cluster.create("t", replicas=3)
    cluster.until(lambda: in_sync(cluster, *NODES))
    return cluster


def in_sync(cluster: Clients, *nodes: int) -> bool:
    """Return whether these nodes are the in-sync replicas, and one of them leads and knows it."""
    partition = cluster.image.topics["t"].partitions[0]
    if {*partition.isr} != {*nodes} or partition.leader not in nodes:
        return False
    led = cluster.node(partition.leader).replicas.of_topic("t").get(0)
    return led is not None and led.replication.isr.partition == partition


def log_of(cluster: Clients, node_id: int):
    return cluster.running[node_id].logs.logs["t", 0]


def content(cluster: Clients, node_id: int) -> bytes:
    """Return the bytes of a replica's log."""
    log = log_of(cluster, node_id)
    return b"".join(segment.path.read_bytes() for segment in log.segments)


def followers(cluster: Clients) -> list[int]:
    leader = cluster.leader("t")
    return [node_id for node_id in NODES if node_id != leader and node_id in cluster.running]


def produce(cluster: Clients, *values: bytes) -> None:
    for value in values:
        assert cluster.produce("t", value).error_code == 0


def test_produce_with_acks_all_is_on_every_replica(cluster):
    produce(cluster, b"a", b"b")
    contents = {content(cluster, node_id) for node_id in NODES}
    assert len(contents) == 1
    assert b"a" in contents.pop()
    assert cluster.values("t") == [b"a", b"b"]


def test_high_watermark_reaches_every_follower(cluster):
    produce(cluster, b"a")

    def known() -> set[int]:
        topic_id = cluster.image.topics["t"].topic_id
        return {
            cluster.node(n).replication.followed.of_topic(topic_id)[0].high_watermark
            for n in followers(cluster)
        }

    cluster.until(lambda: known() == {1})


def test_killed_leader_is_replaced_and_nothing_is_lost(cluster):
    produce(cluster, b"a")
    former = cluster.leader("t")
    cluster.kill(former, stay_down=True)
    rest = [node_id for node_id in NODES if node_id != former]
    cluster.until(lambda: in_sync(cluster, *rest))
    produce(cluster, b"b")
    assert cluster.values("t") == [b"a", b"b"]
    cluster.start(former)
    cluster.until(lambda: in_sync(cluster, *NODES))
    assert content(cluster, former) == content(cluster, cluster.leader("t"))


def test_last_of_three_replicas_has_everything(cluster):
    produce(cluster, b"a")
    for _ in range(2):
        cluster.kill(cluster.leader("t"), stay_down=True)
        cluster.until(lambda: in_sync(cluster, *followers_and_leader(cluster)))
        produce(cluster, b"next")
    assert cluster.values("t") == [b"a", b"next", b"next"]
    for node_id in sorted(cluster.held_down):
        cluster.start(node_id)
    cluster.until(lambda: in_sync(cluster, *NODES))
    assert len({content(cluster, node_id) for node_id in NODES}) == 1


def followers_and_leader(cluster: Clients) -> list[int]:
    return [node_id for node_id in NODES if node_id in cluster.running]


def test_acks_all_needs_the_minimum_of_in_sync_replicas(begun):
    cluster = begun(3)
    cluster.create("t", replicas=3, min_insync_replicas="2")
    cluster.until(lambda: in_sync(cluster, *NODES))
    produce(cluster, b"a")
    for node_id in followers(cluster):
        cluster.kill(node_id, stay_down=True)
    leader = cluster.leader("t")
    cluster.until(lambda: in_sync(cluster, leader))
    assert cluster.produce("t", b"b").error_code == NotEnoughReplicas.code
    assert cluster.values("t") == [b"a"]
    cluster.start(min(cluster.held_down))
    cluster.until(lambda: in_sync(cluster, leader, *followers(cluster)))
    produce(cluster, b"c")
    assert cluster.values("t") == [b"a", b"c"]


def test_records_of_a_former_leader_that_no_other_has_are_truncated(cluster):
    produce(cluster, b"a")
    former = cluster.leader("t")
    for node_id in followers(cluster):
        cluster.running[node_id].paused = True
    pending = cluster.begin_produce(former, "t", b"only here")
    cluster.until(lambda: log_of(cluster, former).end_offset == 2)
    assert not pending.is_done
    cluster.kill(former, stay_down=True)
    for node_id in NODES:
        if node_id in cluster.running:
            cluster.running[node_id].paused = False
    cluster.until(lambda: in_sync(cluster, *[each for each in NODES if each != former]))
    produce(cluster, b"b")
    cluster.start(former)
    cluster.until(lambda: in_sync(cluster, *NODES))
    assert content(cluster, former) == content(cluster, cluster.leader("t"))
    assert cluster.values("t") == [b"a", b"b"]


def test_produce_waits_for_a_stopped_follower_until_it_leaves_the_isr(cluster):
    stopped = followers(cluster)[0]
    cluster.running[stopped].paused = True
    cluster.busy.add(1000 + cluster.incarnations[stopped])
    pending = cluster.begin_produce(cluster.leader("t"), "t", b"a")
    cluster.until(lambda: pending.is_done, pace_ms=5)
    assert produced(pending).error_code in (0, RequestTimedOut.code)
    rest = [node_id for node_id in NODES if node_id != stopped]
    cluster.until(lambda: in_sync(cluster, *rest), pace_ms=10)
    produce(cluster, b"b")
    cluster.running[stopped].paused = False
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=10)


def test_replication_continues_without_a_supervisor(cluster):
    leader = cluster.leader("t")
    cluster.kill(0, stay_down=True)
    assert cluster.produce("t", b"a", at=leader).error_code == 0
    assert len({content(cluster, node_id) for node_id in NODES}) == 1


def test_follower_that_dies_without_a_supervisor_stalls_produce_until_it_returns(cluster):
    leader, victim = cluster.leader("t"), followers(cluster)[0]
    cluster.kill(0, stay_down=True)
    cluster.kill(victim, stay_down=True)
    pending = cluster.begin_produce(leader, "t", b"a")
    cluster.steps(200)
    assert not pending.is_done
    cluster.start(0)
    cluster.until(lambda: pending.is_done)
    assert produced(pending).error_code == 0


@pytest.mark.parametrize("killed", [False, True])
def test_restart_of_the_whole_broker_keeps_every_replica(cluster, killed):
    produce(cluster, b"a", b"b")
    cluster.restart(None, killed=killed)
    cluster.until(lambda: in_sync(cluster, *NODES))
    produce(cluster, b"c")
    assert cluster.values("t") == [b"a", b"b", b"c"]
    assert len({content(cluster, node_id) for node_id in NODES}) == 1


@pytest.mark.parametrize("same_boot", [False, True])
def test_topic_whose_logs_were_never_made_gets_a_leader_after_a_restart(begun, same_boot):
    cluster = begun(3)
    cluster.create("before", replicas=3)
    for node_id in NODES:
        cluster.running[node_id].paused = True
    pending = cluster.begin_create(0, "t", replicas=3)
    cluster.until(lambda: "t" in cluster.image.topics)
    assert not pending.is_done
    if same_boot:
        cluster.restart(None, killed=True)
    else:
        with another_boot():
            cluster.restart(None, killed=True)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    produce(cluster, b"a")


@contextmanager
def another_boot():
    """Have the host appear to have been started again."""
    with mock.patch.object(partition_transfer, "boot_id", lambda: "another"):
        yield


def test_leader_with_the_greatest_log_is_elected_after_another_boot(cluster):
    produce(cluster, b"a")
    former, lagging = cluster.leader("t"), followers(cluster)
    for node_id in lagging:
        cluster.running[node_id].paused = True
    cluster.begin_produce(former, "t", b"only here")
    cluster.until(lambda: log_of(cluster, former).end_offset == 2)
    with another_boot():
        cluster.restart(None, killed=True)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    assert cluster.values("t") == [b"a", b"only here"]
    assert len({content(cluster, node_id) for node_id in NODES}) == 1


def test_leader_whose_log_fails_is_replaced_and_fetches_its_records_again(cluster):
    produce(cluster, b"a")
    former = cluster.leader("t")
    rest = [node_id for node_id in NODES if node_id != former]
    log_of(cluster, former).failure = "a test says so"
    cluster.node(former).replicas._log_failed(
        cluster.node(former).replicas.of_topic("t")[0]
    )
    cluster.until(lambda: cluster.leader("t") in rest)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    produce(cluster, b"b")
    assert cluster.values("t") == [b"a", b"b"]
    assert len({content(cluster, node_id) for node_id in NODES}) == 1
    assert cluster.directories("t-0*-stray")


def send(cluster: Clients, node_id: int, sequence: int) -> str:
    """Produce a batch of an idempotent producer at a node; return the name of the error, or ''."""
    entry = cluster.produce(
        "t", b"%d" % sequence, at=node_id, producer_id=9, producer_epoch=0, base_sequence=sequence
    )
    return BY_CODE[entry.error_code].__name__ if entry.error_code else ""


def fail_over(cluster: Clients) -> int:
    """Kill the leader of the topic; return the next one, which serves it."""
    former = cluster.leader("t")
    cluster.kill(former, stay_down=True)
    cluster.until(lambda: cluster.leader("t") not in (former, -1))
    leader = cluster.leader("t")
    cluster.until(lambda: cluster.node(leader).replicas.of_topic("t"))
    return leader


def test_batches_after_one_that_came_too_early_are_awaited_in_order(cluster):
    """A client may know the next leader before that node does, and has sent several batches."""
    assert send(cluster, cluster.leader("t"), 0) == ""
    for node_id in followers(cluster):
        assert send(cluster, node_id, 1) == "NotLeaderOrFollower"
    leader = fail_over(cluster)
    assert [send(cluster, leader, n) for n in (2, 3)] == ["NotLeaderOrFollower"] * 2
    assert [send(cluster, leader, n) for n in (1, 2, 3)] == [""] * 3
    assert send(cluster, leader, 5) == "OutOfOrderSequenceNumber"
    assert cluster.values("t") == [b"0", b"1", b"2", b"3"]


def test_batch_that_was_refused_is_not_awaited_once_another_leader_has_it(cluster):
    former = cluster.leader("t")
    assert send(cluster, former, 0) == ""
    for node_id in followers(cluster):
        assert send(cluster, node_id, 1) == "NotLeaderOrFollower"
    assert send(cluster, former, 1) == ""
    assert send(cluster, fail_over(cluster), 2) == ""
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_first_batch_of_a_producer_is_not_lost_if_it_came_too_early(cluster):
    """A log without any record of a producer takes any sequence, and earlier ones as duplicates."""
    for node_id in followers(cluster):
        assert send(cluster, node_id, 0) == "NotLeaderOrFollower"
    leader = fail_over(cluster)
    assert send(cluster, leader, 1) == "NotLeaderOrFollower"
    assert [send(cluster, leader, n) for n in (0, 1)] == ["", ""]
    assert cluster.values("t") == [b"0", b"1"]


def test_list_offsets_waits_for_the_high_watermark_of_a_new_leader(cluster):
    produce(cluster, b"a")
    former = cluster.leader("t")
    cluster.kill(former, stay_down=True)
    cluster.until(lambda: cluster.leader("t") not in (former, -1))
    leader = cluster.leader("t")
    for node_id in followers(cluster):
        cluster.running[node_id].paused = True
    cluster.until(lambda: cluster.node(leader).replicas.of_topic("t"))
    led = cluster.node(leader).replicas.of_topic("t")[0]
    led.high_watermark = led.replication.isr.high_watermark = 0
    entry = {"partition_index": 0, "timestamp": LATEST, "current_leader_epoch": -1}

    def code(version: int) -> int:
        response = cluster.request(
            leader, LIST_OFFSETS, version, replica_id=-1, isolation_level=0,
            topics=[{"name": "t", "partitions": [entry]}],
        )  # fmt: skip
        return response.topics[0].partitions[0].error_code

    assert code(4) == LeaderNotAvailable.code
    assert code(5) == OffsetNotAvailable.code
    for node_id in followers(cluster):
        cluster.running[node_id].paused = False
    cluster.until(lambda: code(5) == 0)


def test_last_known_leader_that_has_lost_its_log_is_not_elected(cluster):
    produce(cluster, b"a")
    last = 0
    for _ in NODES:
        last = cluster.leader("t")
        cluster.kill(last, stay_down=True)
        cluster.until(lambda last=last: cluster.leader("t") != last)
    (found,) = cluster.directories(f"nodes/{last}/t-0")
    shutil.rmtree(cluster.directory / found)
    for node_id in NODES:
        cluster.start(node_id)
    cluster.until(lambda: cluster.is_settled())
    cluster.steps(300)
    partition = cluster.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (-1, ())
    assert [log_of(cluster, n).end_offset for n in NODES if n != last] == [1, 1]
    pending = cluster.send(
        0, ELECT_LEADERS, 2, election_type=1, timeout_ms=1_000,
        topic_partitions=[{"topic": "t", "partitions": [0]}],
    )  # fmt: skip
    cluster.until(lambda: pending.is_done)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    assert len({content(cluster, node_id) for node_id in NODES}) == 1


def test_replica_with_other_committed_records_is_set_aside_after_an_unclean_election(cluster):
    produce(cluster, b"a")
    first = followers(cluster)[0]
    cluster.kill(first, stay_down=True)
    cluster.until(lambda: in_sync(cluster, *[each for each in NODES if each != first]))
    produce(cluster, b"b")
    cluster.clock.advance(6_000)  # the high watermarks are written to the disk
    cluster.steps(20)
    rest = [node_id for node_id in NODES if node_id != first]
    for _ in rest:
        leader = cluster.leader("t")
        cluster.kill(leader, stay_down=True)
        cluster.until(lambda leader=leader: cluster.leader("t") != leader)
    cluster.start(first)
    cluster.until(lambda: cluster.node(first).controller.node_epoch is not None)
    assert cluster.leader("t") == -1
    pending = cluster.send(
        0, ELECT_LEADERS, 2, election_type=1, timeout_ms=1_000,
        topic_partitions=[{"topic": "t", "partitions": [0]}],
    )  # fmt: skip
    cluster.until(lambda: pending.is_done)
    cluster.until(lambda: in_sync(cluster, first))
    produce(cluster, b"c")
    for node_id in rest:
        cluster.start(node_id)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    assert cluster.values("t") == [b"a", b"c"]
    assert len({content(cluster, node_id) for node_id in NODES}) == 1
    assert len(cluster.directories("t-0*-stray")) == len(rest)


@pytest.mark.parametrize(("durability", "leads"), [("fsync", False), ("os", True)])
def test_missing_log_after_another_boot_is_waited_for(begun, durability, leads):
    cluster = begun(3)
    cluster.create("t", replicas=3, durability=durability)
    cluster.until(lambda: in_sync(cluster, *NODES))
    produce(cluster, b"a")
    leader = cluster.leader("t")
    victim = followers(cluster)[0]
    for node_id in (0, *NODES):
        cluster.kill(node_id)
    (found,) = cluster.directories(f"nodes/{victim}/t-0")
    shutil.rmtree(cluster.directory / found)
    cluster.desired_nodes.clear()
    cluster.listeners_closed()
    with another_boot():
        cluster.begin(None)
    for _ in range(2):
        cluster.steps(200)
        assert cluster.leader("t") == -1
        assert not cluster.directories(f"nodes/{victim}/t-0")
    cluster.clock.advance(31_000)
    cluster.steps(20)
    if leads:
        cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
        assert cluster.values("t") == [b"a"]
    else:
        assert cluster.leader("t") == -1
    assert leader


def test_followers_that_restart_tell_what_they_have_flushed(begun):
    cluster = begun(3)
    cluster.create(
        "t", replicas=3, durability="fsync", min_insync_replicas="2", durable_copies="minisr"
    )
    cluster.until(lambda: in_sync(cluster, *NODES))
    produce(cluster, b"a")
    for node_id in followers(cluster):
        cluster.begin_produce(cluster.leader("t"), "t", b"not flushed there yet")
        cluster.steps(2)
        cluster.kill(node_id)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    produce(cluster, b"b")
    for node_id in NODES:
        assert log_of(cluster, node_id).flush_begin() is None


def test_power_and_one_disk_fail_at_once_and_nothing_is_lost(begun):
    cluster = begun(3)
    cluster.create(
        "t", replicas=3, durability="fsync", min_insync_replicas="2", durable_copies="minisr"
    )
    cluster.until(lambda: cluster.image.topics["t"].partitions[0].flushed_copies == 2)
    produce(cluster, b"a")
    leader = cluster.leader("t")
    for node_id in (0, *NODES):
        cluster.kill(node_id)
    shutil.rmtree(cluster.directory / f"nodes/{leader}/t-0")
    cluster.desired_nodes.clear()
    cluster.listeners_closed()
    with another_boot():
        cluster.begin(None)
    cluster.until(lambda: in_sync(cluster, *NODES), pace_ms=5)
    assert cluster.values("t") == [b"a"]


def test_delete_of_a_topic_removes_every_replica(cluster):
    produce(cluster, b"a")
    cluster.delete("t")
    cluster.until(lambda: not cluster.directories("t-0"))


def test_fetch_beyond_the_end_of_a_replicated_log_is_out_of_range(cluster):
    produce(cluster, b"a")
    assert fetch(cluster, cluster.leader("t"), offset=9).error_code == OffsetOutOfRange.code


def test_client_that_claims_to_be_a_follower_is_refused(cluster):
    produce(cluster, b"a")
    response = fetch(cluster, cluster.leader("t"), replica=followers(cluster)[0])
    assert response.error_code == NotLeaderOrFollower.code


def fetch(cluster: Clients, node_id: int, offset: int = 0, replica: int = -1):
    """Send a Fetch of one partition; return the partition's response."""
    topic_id = cluster.image.topics["t"].topic_id
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    response = cluster.request(
        node_id, FETCH, 17, replica_state={"replica_id": replica, "replica_epoch": 1},
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[{"topic_id": topic_id, "partitions": [partition]}],
    )  # fmt: skip
    return response.responses[0].partitions[0]
