"""New leader epochs after a power cut, while nodes are down or restart."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.replica.epoch_renewals import EpochRenewals
from kafkalite.storage.manager import partition_transfer

NOT_LEADER = errors.NotLeaderOrFollower.code


@pytest.fixture
def reboot(monkeypatch):
    """Return a function after which the next start is in another boot of the machine."""
    boots = iter(range(100))

    def reboot():
        name = f"boot {next(boots)}"
        monkeypatch.setattr(partition_transfer, "boot_id", lambda: name)

    reboot()
    return reboot


@pytest.fixture
def written(begun, reboot):
    """Return a cluster of two workers whose partition a-0 holds one record."""
    cluster = begun(2)
    cluster.create("a")
    cluster.produce("a", b"0")
    return cluster


def epoch(cluster):
    return cluster.image.topics["a"].partitions[0].leader_epoch


def epochs_in_log(cluster):
    log = cluster.node(cluster.leader("a")).replicas.leader("a", 0).log
    return list(zip(log.leader_epochs.epochs, log.leader_epochs.starts, strict=True))


def test_power_cut_starts_a_new_leader_epoch(written, reboot):
    for count in (1, 2):
        reboot()
        written.restart(2, killed=True)
        written.settle()
        assert written.produce("a", b"%d" % count).base_offset == count
        assert epoch(written) == count
    assert epochs_in_log(written) == [(0, 0), (1, 1), (2, 2)]


def test_kill_or_clean_shutdown_keeps_the_leader_epoch(written, reboot):
    written.restart(2, killed=True)
    written.settle()
    written.restart(2)
    reboot()  # after a clean shutdown nothing is lost
    written.settle()
    assert written.produce("a", b"1").base_offset == 1
    assert epoch(written) == 0


@pytest.fixture
def cut(begun, reboot):
    """Return two workers after a power cut, without node 0; partition a-0 is on node 1."""
    cluster = begun(2)
    cluster.create("a")
    cluster.produce("a", b"0")
    assert cluster.leader("a") == 1
    reboot()
    cluster.kill(0, stay_down=True)
    cluster.kill(1)
    cluster.until(lambda: 1 in cluster.running)
    cluster.steps(20)
    return cluster


def come_back(cluster):
    cluster.held_down.clear()
    cluster.until(lambda: 0 in cluster.running)
    cluster.settle()


def test_partition_has_no_leader_until_its_epoch_is_renewed(cut):
    assert cut.node(1).replicas.of_topic(next(iter(cut.node(1).image.topics_by_id))) == {}
    assert [*cut.node(1).reconciler.unserved()]
    assert cut.produce("a", b"1", at=1).error_code == NOT_LEADER
    come_back(cut)
    cut.until(lambda: epoch(cut) == 1)
    cut.settle()
    assert cut.produce("a", b"1").base_offset == 1
    assert cut.values("a") == [b"0", b"1"]
    assert epochs_in_log(cut) == [(0, 0), (1, 1)]


def test_node_killed_during_an_epoch_renewal_retries_it(cut):
    cut.kill(1)
    cut.until(lambda: 1 in cut.running)
    cut.steps(20)
    assert cut.produce("a", b"1", at=1).error_code == NOT_LEADER
    come_back(cut)
    cut.until(lambda: epoch(cut) == 1)
    cut.settle()
    assert cut.produce("a", b"1").base_offset == 1


@pytest.fixture
def waiting(cut, monkeypatch):
    """Return the cluster with node 0, whose new epochs wait for `hear()`."""
    request_all = EpochRenewals.request_all
    monkeypatch.setattr(EpochRenewals, "request_all", lambda renewals: None)
    cut.held_down.clear()
    cut.until(lambda: 0 in cut.running)
    workers = cut.supervisor.worker_manager.workers
    cut.until(lambda: all(worker.welcomed for worker in workers.values()))
    cut.steps(50)
    assert epoch(cut) == 0
    cut.hear = lambda: monkeypatch.setattr(EpochRenewals, "request_all", request_all)
    return cut


def test_partition_awaiting_an_epoch_can_be_moved(waiting):
    move = waiting.move_of(waiting.image.topics["a"].topic_id, 1, 2)
    waiting.node(0).local_controller.decide(lambda controller: controller.move([move]))
    waiting.until(lambda: waiting.directories("a-0") == ["nodes/2/a-0"])
    waiting.settle()
    # The move started a later epoch than the one in which records were lost.
    assert waiting.produce("a", b"1").base_offset == 1
    assert epochs_in_log(waiting) == [(0, 0), (1, 1)]


def test_topic_awaiting_an_epoch_can_be_deleted(waiting):
    waiting.delete("a")
    waiting.settle()
    assert waiting.directories("a-0") == []
    waiting.hear()
    waiting.create("a")
    assert waiting.produce("a", b"1").base_offset == 0
    assert epoch(waiting) == 0


def test_all_partitions_of_a_large_topic_get_new_epochs(begun, reboot, monkeypatch):
    monkeypatch.setattr("kafkalite.broker.replica.epoch_renewals.RENEWALS_PER_REQUEST", 3)
    cluster = begun(2)
    cluster.create("a", 20)
    reboot()
    cluster.restart(2, killed=True)
    cluster.settle()
    partitions = cluster.image.topics["a"].partitions.values()
    cluster.until(lambda: {partition.leader_epoch for partition in partitions} == {1})
    cluster.settle()
    assert all(cluster.produce("a", b"0", index).base_offset == 0 for index in range(20))
