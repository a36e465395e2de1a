"""Partition transfers between workers: what clients see, and which processes may fail meanwhile."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.controller.reassigner import MOVING_MAX
from kafkalite.broker.replica.reconciler import ARRIVAL_WARNING_MS
from kafkalite.config.resources import Resource
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.storage.files import layout
from tests.broker.conftest import produced
from tests.broker.test_settings import alter

NOT_LEADER = errors.NotLeaderOrFollower.code


@pytest.fixture
def written(begun):
    """Return three workers; partition a-0 is on node 1 and holds one record of producer 7."""
    cluster = begun(3)
    cluster.create("a")
    cluster.produce("a", b"0", producer_id=7, producer_epoch=0, base_sequence=0)
    return cluster


def test_transferred_partition_keeps_records_and_raises_the_epoch(written):
    written.move("a", 2)
    written.settle()
    assert written.image.topics["a"].partitions[0][:2] == (2, 1)
    assert written.directories("a-0") == ["nodes/2/a-0"]
    assert written.produce("a", b"1").base_offset == 1
    assert written.values("a") == [b"0", b"1"]


def test_producer_retry_after_a_transfer_is_a_duplicate(written):
    written.move("a", 2)
    written.settle()
    again = written.produce("a", b"0", producer_id=7, producer_epoch=0, base_sequence=0)
    assert (again.error_code, again.base_offset) == (0, 0)
    gap = written.produce("a", b"2", producer_id=7, producer_epoch=0, base_sequence=2)
    assert gap.error_code == errors.OutOfOrderSequenceNumber.code
    assert written.values("a") == [b"0"]


def test_arrived_partition_opened_by_a_change_of_its_topic_is_kept(written):
    """The next check for arrivals must not replace the Partition that requests wait on."""
    topic_id = written.image.topics["a"].topic_id
    written.running[1].paused = True
    written.move("a", 2)
    reconciler = written.node(2).reconciler
    written.until(lambda: reconciler.awaited)
    written.fenced.clear()
    reconciler._check_arrivals, check = lambda: None, reconciler._check_arrivals
    for _ in range(5):  # the scheduled check, which does nothing and schedules none
        written.tick(2)
        written.clock.advance(ARRIVAL_WARNING_MS // 100)
    written.running[1].paused = False
    written.until(
        lambda: written.directories("a-0*") == [f"nodes/2/{layout.arrived('a', 0, topic_id)}"]
    )
    assert alter(written, 3, Resource.TOPIC, "a", retention_ms="12345678") == 0
    opened = written.node(2).replicas.of_topic
    written.until(lambda: opened(topic_id))
    (partition,) = opened(topic_id).values()
    check()
    assert opened(topic_id) == {0: partition}
    assert not reconciler.awaited
    assert written.values("a") == [b"0"]


def test_old_leader_returns_the_new_leader(written):
    written.move("a", 3)
    written.settle()
    entry = written.produce("a", b"1", at=1)
    assert entry.error_code == NOT_LEADER
    assert (entry.current_leader.leader_id, entry.current_leader.leader_epoch) == (3, 1)


def test_waiting_fetch_completes_when_its_partition_moves(written):
    partition = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1 << 20}
    pending = written.send(
        1, FETCH, 12, replica_id=-1, max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20,
        isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
        topics=[{"topic": "a", "partitions": [partition]}],
    )  # fmt: skip
    written.steps(5)
    assert not pending.is_done
    written.move("a", 2)
    written.until(lambda: pending.is_done)
    (entry,) = pending.response.responses[0].partitions
    assert entry.error_code == NOT_LEADER
    assert entry.current_leader.leader_id == 2


def test_partition_in_transfer_has_no_leader(begun):
    written = begun(3, durability="fsync")
    written.create("a")
    pending = written.begin_produce(1, "a", b"0")
    written.running[1].flusher.held = True
    late = written.begin_produce(1, "a", b"1")
    written.until(lambda: pending.is_done or written.running[1].flusher._begun)
    written.move("a", 2)
    written.steps(50)
    for node_id in (1, 2):
        assert written.produce("a", b"x", at=node_id).error_code == NOT_LEADER
    assert written.directories("a-0*") == ["nodes/1/a-0"]
    assert not late.is_done
    written.running[1].flusher.let_go()
    written.settle()
    assert produced(late).error_code == 0, "it was written before, and flushed as was promised"
    assert written.values("a") == [b"0", b"1"]


@pytest.mark.parametrize("fallen", [0, 1, 2])
@pytest.mark.parametrize("steps", range(6))
def test_transfer_completes_if_a_node_is_killed(written, fallen, steps):
    written.move("a", 2)
    written.steps(steps)
    written.kill(fallen)
    written.settle()
    assert written.image.topics["a"].partitions[0][:2] == (2, 1)
    assert written.directories("a-0*") == ["nodes/2/a-0"]
    assert written.values("a") == [b"0"]


@pytest.mark.parametrize("steps", range(5))
def test_transfer_completes_if_all_nodes_are_killed(written, steps):
    written.move("a", 2)
    written.steps(steps)
    written.restart(None, killed=True)
    assert written.leader("a") == 2
    assert written.values("a") == [b"0"]


@pytest.mark.parametrize("steps", range(5))
def test_topic_deleted_during_a_transfer_is_deleted(written, steps):
    written.move("a", 2)
    written.steps(steps)
    written.delete("a", at=3)
    written.settle()
    awaited = [there.node.reconciler for there in written.workers]
    written.until(lambda: not any(each.awaited for each in awaited), pace_ms=10)
    left = written.directories("a-0*")
    assert len(left) == 1
    assert left[0].endswith("-delete")


def held_back(cluster, topic_id):
    """Have node 1 transfer a partition to node 2 late, after its topic was deleted and recreated:
    node 2 then gets a directory of the deleted topic."""
    cluster.running[1].flusher.held = True
    cluster.begin_produce(1, "a", b"late")
    cluster.move("a", 2)
    cluster.until(lambda: (topic_id, 0) in cluster.node(2).reconciler.awaited)
    cluster.bus.cut.add(cluster.running[1].identity)
    cluster.disconnect(1)
    # A request waits for a node that hangs until the request's timeout.
    for pending in (cluster.begin_delete(2, "a"), cluster.begin_create(2, "a", assigned=2)):
        cluster.until(lambda pending=pending: pending.is_done, pace_ms=5)
    assert cluster.produce("a", b"new", at=2).error_code == 0
    cluster.running[1].flusher.let_go()
    cluster.until(lambda: cluster.directories("nodes/1/a-0") == [])


def test_late_log_of_a_deleted_topic_does_not_replace_the_new_one(begun):
    cluster = begun(2, durability="fsync")
    held_back(cluster, cluster.create("a"))
    cluster.bus.cut.clear()
    cluster.settle()
    cluster.until(lambda: not cluster.node(2).reconciler.awaited, pace_ms=10)
    assert cluster.values("a") == [b"new"]
    assert cluster.directories("nodes/2/*stray") == []


def test_late_log_found_at_start_does_not_replace_the_new_one(begun):
    cluster = begun(2, durability="fsync")
    held_back(cluster, cluster.create("a"))
    cluster.kill(2)
    cluster.bus.cut.clear()
    cluster.settle()
    assert cluster.values("a") == [b"new"]


def test_partition_moved_back_before_its_transfer_is_led_again(begun):
    """The mover makes no such decision; a start with other workers may."""
    cluster = begun(2, durability="fsync")
    topic_id = cluster.create("a")
    cluster.running[1].flusher.held = True
    pending = cluster.begin_produce(1, "a", b"0")
    for from_node, to_node in ((1, 2), (2, 1)):
        moves = [cluster.move_of(topic_id, from_node, to_node)]
        controller = cluster.node(0).local_controller
        controller.decide(lambda machine, moves=moves: machine.move(moves))
        cluster.steps(5)
    cluster.running[1].flusher.let_go()
    cluster.settle()
    cluster.until(lambda: pending.is_done)
    assert produced(pending).error_code == 0
    assert cluster.produce("a", b"1").error_code == 0
    assert cluster.values("a") == [b"0", b"1"]
    assert cluster.directories("a-0*") == ["nodes/1/a-0"]


def test_partition_without_log_is_not_moved(begun):
    """A node that is assigned a partition without a log would wait for it for ever."""
    cluster = begun(3)
    cluster.running[1].paused = True
    cluster.begin_create(2, "a", 3)
    cluster.until(lambda: "a" in cluster.image.topics)
    (index,) = [i for i, p in cluster.image.topics["a"].partitions.items() if p.leader == 1]
    cluster.move("a", 2, index)
    cluster.steps(100)
    assert cluster.leader("a", index) == 1
    cluster.running[1].paused = False
    cluster.settle()
    assert cluster.leader("a", index) == 2
    assert cluster.produce("a", b"x", index).error_code == 0


def test_missing_partition_is_logged_once(written, caplog):
    written.running[1].paused = True
    written.move("a", 2)
    written.until(lambda: written.node(2).reconciler.awaited)
    written.fenced.clear()
    for _ in range(300):
        written.tick(2)
        written.clock.advance(ARRIVAL_WARNING_MS // 100)
    said = [record for record in caplog.records if "is in no node's directory" in record.message]
    assert len(said) == 1


# -- operator requests ---------------------------------------------------------------------------


def test_drained_worker_leads_nothing_and_can_be_removed(begun):
    cluster = begun(3)
    cluster.create("a", 9)
    report = cluster.order("drain", 2)
    assert len(report["moves"]) == 3
    cluster.settle()
    assert cluster.image.led_count(2) == 0
    assert cluster.order("remove", 2)["error_code"] == 0
    cluster.settle()
    assert cluster.desired_nodes == {1, 3}
    assert cluster.directories("nodes/2") == []


def test_drain_and_remove_can_be_requested_together(begun):
    cluster = begun(3)
    reports = [cluster.begin_order(verb, 3) for verb in ("drain", "remove", "list")]
    cluster.until(lambda: all(reports))
    assert [report[0].fields["error_code"] for report in reports] == [0, 0, 0]
    cluster.settle()
    assert cluster.deaths == []
    assert cluster.desired_nodes == {1, 2}


def test_rebalance_gives_a_new_worker_its_share(begun):
    cluster = begun(2)
    cluster.create("a", 6)
    cluster.order("add")
    cluster.settle()
    assert cluster.image.led_count(3) == 0
    assert len(cluster.order("rebalance", dry_run=True)["moves"]) == 2
    assert cluster.image.led_count(3) == 0
    cluster.order("rebalance")
    cluster.settle()
    assert [cluster.image.led_count(n) for n in (1, 2, 3)] == [2, 2, 2]
    assert cluster.order("rebalance", dry_run=True)["moves"] == []


def test_drain_continues_under_the_next_supervisor(begun):
    cluster = begun(3)
    cluster.create("a", 30)
    cluster.order("drain", 1)
    cluster.kill(0)
    cluster.settle()
    assert cluster.image.led_count(1) == 0


@pytest.mark.parametrize(
    ("verb", "node_id", "sentence"),
    [
        ("remove", 0, "supervisor"),
        ("remove", 9, "no node 9"),
        ("remove", 1, "still leads"),
        ("drain", 0, "supervisor"),
        ("drain", -1, "no node -1"),
        ("sing", 1, "Unknown node command 'sing'; use one of list,"),
        ("?" * 32_000, 1, "Unknown node command"),
    ],
)
def test_invalid_node_command_is_refused_with_a_message(begun, verb, node_id, sentence):
    cluster = begun(2)
    cluster.create("a", 2)
    report = cluster.order(verb, node_id)
    assert report["error_code"] == errors.InvalidRequest.code
    assert sentence in report["error_message"]
    assert len(report["nodes"]) == 3


def test_refused_move_is_not_awaited(begun):
    cluster = begun(3)
    topic_id = cluster.create("d", worker_dedicated="true")
    cluster.settle()
    cluster.running[3].paused = True
    cluster.begin_create(1, "a")
    cluster.steps(20)
    cluster.supervisor.reassigner.plan([cluster.move_of(topic_id, cluster.leader("d"), 3)])
    cluster.steps(20)
    assert cluster.order("list")["moves_left"] == 0
    assert cluster.leader("d") == 4


def test_node_awaiting_a_partition_returns_leader_not_available(written):
    written.running[1].paused = True
    written.move("a", 2)
    written.until(lambda: written.node(2).reconciler.awaited)
    asked = {"topics": [{"name": "a"}], "allow_auto_topic_creation": False}
    (partition,) = written.request(2, METADATA, 9, **asked).topics[0].partitions
    assert partition.error_code == errors.LeaderNotAvailable.code
    (partition,) = written.request(3, METADATA, 9, **asked).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (0, 2)
    written.running[1].paused = False
    written.settle()
    (partition,) = written.request(2, METADATA, 9, **asked).topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 2, 1)


def test_concurrent_transfers_are_bounded(begun):
    cluster = begun(2)
    cluster.create("a", 60)
    cluster.order("drain", 1)
    most = 0
    while cluster.image.led_count(1):
        cluster.step()
        most = max(most, len(cluster.supervisor.reassigner._moving))
    assert 1 < most <= MOVING_MAX
