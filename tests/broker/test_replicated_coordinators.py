"""Internal topics with several replicas: node 0 leads them, workers follow, and any may be lost."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Callable

import pytest

from kafkalite import errors
from kafkalite.broker.coordinator.coordinator_host import COMMIT_WAIT_MS
from kafkalite.coordination.transaction import TransactionState
from kafkalite.protocol.schemas.configs import DESCRIBE_CONFIGS
from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
)
from tests.broker.conftest import Clients
from tests.broker.test_groups_in_cluster import beat, commit, committed, coordinator, member
from tests.broker.test_reassignments_in_cluster import reassign
from tests.broker.test_replication_in_cluster import another_boot
from tests.broker.test_share_groups_in_cluster import COUNT, Member, delivered, share_cluster
from tests.broker.transacting import Transactions

OFFSETS, STATES, SHARES = "__consumer_offsets", "__transaction_state", "__share_group_state"
SETTINGS = {
    f"{topic}.replication.factor": "3"
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
}
NOT_AVAILABLE = errors.CoordinatorNotAvailable.code
NOT_COORDINATOR = errors.NotCoordinator.code
REFUSED = {
    NOT_AVAILABLE, NOT_COORDINATOR, errors.CoordinatorLoadInProgress.code,
}  # fmt: skip


def is_in_sync(cluster: Clients, *nodes: int, topic: str = OFFSETS) -> bool:
    """Return whether node 0 leads a partition with these nodes in sync, and knows it."""
    partition = cluster.image.topics[topic].partitions[0]
    led = cluster.node(0).replicas.of_topic(topic).get(0)
    return (
        {*partition.isr} == {*nodes}
        and partition.leader == 0
        and led is not None
        and led.replication is not None
        and led.replication.isr.partition == partition
    )


def is_led(cluster: Clients, topic: str = OFFSETS) -> bool:
    return cluster.leader(topic) >= 0


def content(cluster: Clients, node_id: int, topic: str = OFFSETS) -> bytes:
    """Return the bytes of a replica's log."""
    log = cluster.running[node_id].logs.logs[topic, 0]
    return b"".join(segment.path.read_bytes() for segment in log.segments)


def remove_log(cluster: Clients, node_id: int, topic: str = OFFSETS) -> None:
    """Remove the directory of a node that does not run."""
    nodes = cluster.directory / "nodes" / str(node_id) if node_id else cluster.directory
    shutil.rmtree(nodes / f"{topic}-0")


def late_commit(cluster: Clients, offset: int) -> int:
    """Commit an offset while too few replicas fetch; return the error code."""
    part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    pending = cluster.send(
        0, OFFSET_COMMIT, 5, group_id="g", topics=[{"name": "t", "partitions": [part]}],
        generation_id_or_member_epoch=-1, member_id="",
    )  # fmt: skip
    cluster.steps(10)
    assert not pending.is_done
    cluster.clock.advance(COMMIT_WAIT_MS)
    cluster.until(lambda: pending.is_done)
    return int(pending.response.topics[0].partitions[0].error_code)


def until_committed(cluster: Clients, offset: int) -> None:
    """Wait until the coordinator returns this offset; meanwhile it may only refuse."""

    def is_served() -> bool:
        found = committed(cluster)
        assert found == {"t": offset} or -found in REFUSED, found
        return found == {"t": offset}

    cluster.until(is_served)


@pytest.fixture
def cluster(begun: Callable[..., Clients]) -> Clients:
    """A supervisor and two workers with three replicas of the internal topics, and topic `t`."""
    cluster = begun(2, **SETTINGS)
    assert coordinator(cluster, 1)[0] == 0
    cluster.create("t")
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    return cluster


def test_internal_topic_has_its_factor_and_node_0_leads(cluster):
    partition = cluster.image.topics[OFFSETS].partitions[0]
    assert partition.leader == partition.replicas[0] == 0
    assert {*partition.replicas} == {0, 1, 2}
    assert cluster.image.topics[OFFSETS].config["min.insync.replicas"] == "2"


def test_factor_is_at_most_the_number_of_nodes(begun):
    cluster = begun(1, **SETTINGS)
    coordinator(cluster, 1)
    assert {*cluster.image.topics[OFFSETS].partitions[0].replicas} == {0, 1}


def test_default_factor_is_one(begun):
    cluster = begun(2)
    coordinator(cluster, 1)
    assert cluster.image.topics[OFFSETS].partitions[0].replicas == (0,)
    assert cluster.directories(f"{OFFSETS}-0") == [f"{OFFSETS}-0"]
    resource = {"resource_type": 2, "resource_name": OFFSETS, "configuration_keys": None}
    (described,) = cluster.request(0, DESCRIBE_CONFIGS, 4, resources=[resource]).results
    (minimum,) = [each for each in described.configs if each.name == "min.insync.replicas"]
    assert minimum.value == "1"


def test_partitions_spread_over_the_workers(begun):
    cluster = begun(4, **SETTINGS, **{"offsets.topic.num.partitions": "8"})
    coordinator(cluster, 1)
    partitions = cluster.image.topics[OFFSETS].partitions.values()
    assert {each.leader for each in partitions} == {0}
    assert [cluster.image.replica_count(n) for n in (1, 2, 3, 4)] == [4, 4, 4, 4]


def test_committed_offset_is_on_every_replica(cluster):
    assert commit(cluster, 7) == 0
    assert len({content(cluster, node_id) for node_id in (0, 1, 2)}) == 1
    assert committed(cluster) == {"t": 7}


def test_commit_waits_for_the_high_watermark(cluster):
    for node_id in (1, 2):
        cluster.running[node_id].paused = True
    assert late_commit(cluster, 7) == NOT_AVAILABLE
    for node_id in (1, 2):
        cluster.running[node_id].paused = False
    until_committed(cluster, 7)


def test_read_does_not_return_an_offset_that_is_not_committed(cluster):
    assert commit(cluster, 7) == 0
    for node_id in (1, 2):
        cluster.running[node_id].paused = True
    assert late_commit(cluster, 8) == NOT_AVAILABLE
    read = cluster.send(0, OFFSET_FETCH, 5, group_id="g", topics=None)
    cluster.steps(10)
    assert not read.is_done
    cluster.clock.advance(COMMIT_WAIT_MS)
    cluster.until(lambda: read.is_done)
    assert read.response.error_code == NOT_AVAILABLE


def test_too_few_replicas_in_sync_refuse_commits_and_serve_reads(cluster):
    assert commit(cluster, 7) == 0
    for node_id in (1, 2):
        cluster.kill(node_id, stay_down=True)
    cluster.until(lambda: is_in_sync(cluster, 0))
    assert commit(cluster, 8) == NOT_AVAILABLE
    assert committed(cluster) == {"t": 7}
    cluster.start(1)
    cluster.until(lambda: is_in_sync(cluster, 0, 1))
    assert commit(cluster, 9) == 0
    assert committed(cluster) == {"t": 9}


def test_killed_supervisor_leads_again_with_its_log(cluster):
    joined = member(cluster)
    assert commit(cluster, 7, joined) == 0
    epoch = cluster.image.topics[OFFSETS].partitions[0].leader_epoch
    node_epoch = cluster.image.nodes[0].node_epoch
    cluster.kill(0)
    cluster.settle()
    until_committed(cluster, 7)
    assert beat(cluster, joined) == 0
    assert cluster.image.topics[OFFSETS].partitions[0].leader_epoch > epoch
    assert cluster.image.nodes[0].node_epoch == node_epoch + 1
    assert commit(cluster, 8, joined) == 0
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert len({content(cluster, node_id) for node_id in (0, 1, 2)}) == 1


def test_lost_log_of_node_0_is_fetched_again(cluster):
    assert commit(cluster, 7) == 0
    cluster.kill(0, stay_down=True)
    remove_log(cluster, 0)
    cluster.start(0)
    cluster.settle()
    until_committed(cluster, 7)
    assert commit(cluster, 8) == 0
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert len({content(cluster, node_id) for node_id in (0, 1, 2)}) == 1


def test_lost_log_of_node_0_is_fetched_again_when_the_whole_broker_starts(cluster):
    assert commit(cluster, 7) == 0
    cluster.end()
    remove_log(cluster, 0)
    cluster.begin(None)
    until_committed(cluster, 7)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))


def test_clean_restart_keeps_offsets_and_leader(cluster):
    assert commit(cluster, 7) == 0
    cluster.restart(None)
    until_committed(cluster, 7)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))


def test_no_coordinator_while_a_worker_leads(cluster):
    assert commit(cluster, 7) == 0
    cluster.kill(0, stay_down=True)
    remove_log(cluster, 0)
    cluster.start(0)
    assert cluster.leader(OFFSETS) != 0
    found = cluster.send(0, FIND_COORDINATOR, 3, key="g", key_type=0)
    cluster.until(lambda: found.is_done)
    assert found.response.error_code == NOT_AVAILABLE
    assert committed(cluster) == -NOT_COORDINATOR
    assert cluster.request(0, LIST_GROUPS, 4).error_code in REFUSED
    assert committed(cluster, at=cluster.leader(OFFSETS)) == -NOT_COORDINATOR
    until_committed(cluster, 7)


def test_lost_log_of_a_worker_is_fetched_again(cluster):
    assert commit(cluster, 7) == 0
    cluster.kill(1, stay_down=True)
    remove_log(cluster, 1)
    cluster.until(lambda: is_in_sync(cluster, 0, 2))
    assert commit(cluster, 8) == 0
    cluster.start(1)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert content(cluster, 1) == content(cluster, 0)


def test_any_single_survivor_has_the_offsets(cluster):
    """Each replica in turn is the only one whose log is left."""
    for survivor in (1, 2, 0):
        assert commit(cluster, survivor) == 0
        cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
        cluster.end()
        for lost in {0, 1, 2} - {survivor}:
            remove_log(cluster, lost)
        cluster.begin(None)
        until_committed(cluster, survivor)
        cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))


def test_failed_log_of_node_0_is_replaced(cluster):
    assert commit(cluster, 7) == 0
    led = cluster.node(0).replicas.leader(OFFSETS, 0)
    led.log.failure = "the disk is broken"
    cluster.node(0).replicas._log_failed(led)
    cluster.until(lambda: cluster.leader(OFFSETS) != 0)
    until_committed(cluster, 7)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert commit(cluster, 8) == 0
    assert committed(cluster) == {"t": 8}


@pytest.fixture
def uncollected():
    gc.disable()
    yield
    gc.enable()


def test_state_of_a_closed_coordinator_is_freed_without_a_collection(cluster, uncollected):
    assert commit(cluster, 7) == 0
    host = cluster.node(0).groups.host_of("g")
    machine = weakref.ref(host.machine)
    led = host.partition
    del host
    led.log.failure = "the disk is broken"
    cluster.node(0).replicas._log_failed(led)
    cluster.until(lambda: cluster.leader(OFFSETS) != 0)
    until_committed(cluster, 7)
    cluster.clock.advance(COMMIT_WAIT_MS)  # a timer has it until then
    cluster.steps(10)
    assert machine() is None


def test_factor_of_an_existing_topic_grows_and_shrinks(begun):
    cluster = begun(2)
    coordinator(cluster, 1)
    cluster.create("t")
    assert commit(cluster, 7) == 0
    assert reassign(cluster, [0, 1, 2], OFFSETS) == 0
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert commit(cluster, 8) == 0
    assert len({content(cluster, node_id) for node_id in (0, 1, 2)}) == 1
    for node_id in (1, 2):
        cluster.kill(node_id, stay_down=True)
    cluster.until(lambda: is_in_sync(cluster, 0))
    assert commit(cluster, 9) == NOT_AVAILABLE  # the minimum in sync is 2 now
    for node_id in (1, 2):
        cluster.start(node_id)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert reassign(cluster, [0], OFFSETS) == 0
    cluster.until(lambda: cluster.directories(f"{OFFSETS}-0") == [f"{OFFSETS}-0"])
    assert commit(cluster, 10) == 0
    cluster.restart(None)
    assert committed(cluster) == {"t": 10}


def test_drained_worker_is_replaced_as_a_replica(begun):
    cluster = begun(3, **{**SETTINGS, "offsets.topic.replication.factor": "2"})
    coordinator(cluster, 1)
    cluster.create("t")
    assert commit(cluster, 7) == 0
    (drained,) = {*cluster.image.topics[OFFSETS].partitions[0].replicas} - {0}
    assert not cluster.order("drain", drained)["error_code"]
    cluster.until(lambda: cluster.image.replica_count(drained) == 0, pace_ms=5)
    (other,) = {*cluster.image.topics[OFFSETS].partitions[0].replicas} - {0}
    cluster.until(lambda: is_in_sync(cluster, 0, other))
    assert commit(cluster, 8) == 0
    assert content(cluster, other) == content(cluster, 0)


@pytest.mark.parametrize("replicas", [[1, 0], [1], [1, 2]])
def test_node_0_stays_the_first_replica(cluster, replicas):
    assert reassign(cluster, replicas, OFFSETS) == errors.InvalidReplicaAssignment.code
    assert cluster.image.topics[OFFSETS].partitions[0].replicas == (0, 1, 2)


def test_worker_shutdown_waits_until_node_0_is_in_sync(cluster):
    partition = cluster.image.topics[OFFSETS].partitions[0]
    assert partition.leader == 0
    cluster.kill(0, stay_down=True)
    remove_log(cluster, 0)
    cluster.start(0)
    leader = cluster.leader(OFFSETS)
    assert leader != 0
    ended = cluster.running[leader].remote.shut_down(15_000)
    cluster.until(lambda: ended.settled)
    assert {0} < {*cluster.image.topics[OFFSETS].partitions[0].isr}


def test_transaction_state_survives_the_loss_of_node_0s_log(cluster):
    cluster.request(1, FIND_COORDINATOR, 3, key="id", key_type=1)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2, topic=STATES))
    producer = Transactions(cluster)
    assert producer.init() == 0
    producer.add(("t", 0))
    producer.produce("t")
    epoch = cluster.image.topics[STATES].partitions[0].leader_epoch
    cluster.kill(0, stay_down=True)
    remove_log(cluster, 0, STATES)
    cluster.start(0)
    cluster.settle()
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2, topic=STATES))
    cluster.until(lambda: not cluster.node(0).transactions.error_code)
    assert producer.state is TransactionState.ONGOING
    assert producer.host.partition.leader_epoch > epoch
    producer.end()
    producer.wait_for(TransactionState.COMPLETE_COMMIT)


def test_share_states_survive_the_loss_of_node_0s_log(begun):
    cluster = begun(2, **SETTINGS)
    shares = share_cluster(cluster)
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2, topic=SHARES))
    member = Member(shares)
    assert member.poll() == delivered(range(COUNT))
    assert member.acknowledge(0, 2) == 0
    cluster.kill(0, stay_down=True)
    remove_log(cluster, 0, SHARES)
    cluster.start(0)
    cluster.settle()
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2, topic=SHARES))
    cluster.kill(member.leader)
    cluster.settle()
    assert Member(shares, "n" * 22).poll() == delivered(range(3, COUNT))


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("lost", [None, 0, 1])
def test_offsets_survive_another_boot(begun, durability, lost):
    """Node 0 reports the ends of its logs like any other; a log may be missing as well."""
    cluster = begun(2, durability=durability, **{**SETTINGS, "durable.copies": "minisr"})
    coordinator(cluster, 1)
    cluster.create("t")
    cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
    assert commit(cluster, 7) == 0
    for node_id in list(cluster.running):
        cluster.kill(node_id)
    cluster.desired_nodes.clear()
    cluster.listeners_closed()
    if lost is not None:
        remove_log(cluster, lost)
    with another_boot():
        cluster.begin(None)
        if durability == "os" and lost is not None:
            cluster.until(lambda: is_led(cluster), pace_ms=100)  # after RECOVERY_WAIT_MS
        until_committed(cluster, 7)
        cluster.until(lambda: is_in_sync(cluster, 0, 1, 2))
