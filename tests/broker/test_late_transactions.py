"""Transactions that no coordinator ends: they are found, and aborted if it does not know them."""

from __future__ import annotations

import os
from unittest.mock import ANY

import pytest

from kafkalite.broker.replica import late_transactions
from kafkalite.broker.replica.late_transactions import (
    CHECK_MS,
    LATE_MS,
    LateTransaction,
    OrphanTransaction,
)
from kafkalite.protocol.schemas.transaction_records import TransactionState
from kafkalite.records.batch import batches
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.manager.recovery_points import BOOT_ID
from tests.broker.transacting import (
    UNVERIFIED,
    Transactions,
    create_coordinator,
    create_state_topic,
    is_stable,
    markers,
)

TIMEOUT_MAX_MS = 900_000
COMPLETE = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


@pytest.fixture
def transacting(begun):
    """Return a function that writes records of a transaction to partitions of a cluster.

    The coordinator knows only those of `added`.
    """

    def begin(workers=2, added=(), written=(("t", 0),), enable_2pc=False):
        cluster = begun(workers, **UNVERIFIED)
        create_coordinator(cluster)
        cluster.create("t", 2, at=0)
        transaction = Transactions(cluster)
        assert transaction.init(TIMEOUT_MAX_MS, enable_2pc=enable_2pc) == 0
        if added:
            transaction.add(*added)
        for topic, partition in written:
            transaction.produce(topic, partition)
        return transaction

    return begin


def late_counts(cluster) -> int:
    return sum(there.node.late_transactions.partition_count for there in cluster.running.values())


def pass_checks(cluster, count: int = 1) -> None:
    """Run so many checks of each node to their end."""
    for _ in range(count):
        cluster.clock.advance(CHECK_MS)
        cluster.steps(30)


def become_late(cluster) -> None:
    """Let the time pass after which open transactions are late, but not that of a check."""
    pass_checks(cluster)  # from now on it is known
    for _ in range(0, TIMEOUT_MAX_MS + LATE_MS, 5_000):
        cluster.clock.advance(5_000)
        cluster.steps(2)


@pytest.mark.parametrize("workers", [0, 2])
def test_transaction_without_coordinator_is_aborted_once_it_is_late(transacting, workers):
    transaction = transacting(workers)
    cluster = transaction.cluster
    pass_checks(cluster, 3)
    assert not markers(cluster, "t") and late_counts(cluster) == 0
    become_late(cluster)
    pass_checks(cluster, 2)
    assert markers(cluster, "t") == [(transaction.producer.epoch, 0, False)]
    assert is_stable(cluster, "t")
    pass_checks(cluster)
    assert late_counts(cluster) == 0


def test_transaction_of_two_phase_commit_is_late_and_left_alone(transacting):
    transaction = transacting(added=[("t", 0)], enable_2pc=True)
    cluster = transaction.cluster
    become_late(cluster)
    pass_checks(cluster, 2)
    assert not markers(cluster, "t") and late_counts(cluster) == 1
    transaction.end()
    transaction.wait_for(TransactionState.COMPLETE_COMMIT)
    assert is_stable(cluster, "t")


@pytest.mark.parametrize("known", [0, 1])
def test_transaction_behind_many_that_are_known_is_aborted(transacting, monkeypatch, known):
    monkeypatch.setattr(late_transactions, "REPORT_COUNT_MAX", 1)
    transaction = transacting(added=[("t", 0)][known:], enable_2pc=True)
    cluster = transaction.cluster
    cluster.create("u", 2, at=0)
    at_same_node = [each for each in (0, 1) if cluster.leader("u", each) == cluster.leader("t")]
    places = [("t", 0), ("u", at_same_node[0])]
    if known:
        transaction.add(places[known])
    transaction.produce(*places[1])
    become_late(cluster)
    pass_checks(cluster, 4)
    unknown = places[1 - known]
    assert is_stable(cluster, *unknown) and markers(cluster, *unknown)[0][2] is False
    assert not markers(cluster, *places[known])


def cut_power(cluster, *, lost_markers=()) -> None:
    """Kill all processes, and start them on another boot of the machine, with the last batch of
    these partitions of `t` lost."""
    for node_id in list(cluster.running):
        cluster.kill(node_id)
    for index in lost_markers:
        (log,) = cluster.directory.rglob(f"t-{index}/*.log")
        *_, last = batches(log.read_bytes())
        assert last.header.is_control
        os.truncate(log, log.stat().st_size - last.header.size)
    for path in cluster.directory.rglob(f"{layout.RECOVERY_CHECKPOINT}*"):
        content = checkpoint.unsealed(path.read_bytes())
        path.write_bytes(checkpoint.sealed({**content, BOOT_ID: "an earlier one"}))
    cluster.desired_nodes.clear()
    cluster.listeners_closed()
    cluster.begin(2)


def test_transaction_lost_by_its_coordinator_is_aborted_after_a_power_cut(transacting):
    transaction = transacting(added=[("t", 1)], written=[("t", 0), ("t", 1)])
    cluster = transaction.cluster
    cut_power(cluster)
    pass_checks(cluster, 2)
    assert is_stable(cluster, "t") and markers(cluster, "t")[0][2] is False
    # The coordinator knows this one: its producer ends it.
    assert not is_stable(cluster, "t", 1) and not markers(cluster, "t", 1)
    transaction.end()
    transaction.wait_for(TransactionState.COMPLETE_COMMIT)
    assert is_stable(cluster, "t", 1) and markers(cluster, "t", 1)[0][2] is True


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("goes_on", [False, True])
def test_x16_marker_lost_in_a_power_cut_is_written_again(begun, version, is_commit, goes_on):
    cluster = begun(2, **UNVERIFIED, durability="os")
    create_coordinator(cluster)
    cluster.create("t", 2)
    transaction = Transactions(cluster, version=version)
    assert transaction.init() == 0
    transaction.add(("t", 0), ("t", 1))
    for partition in (0, 1):
        transaction.produce("t", partition)
    ended_with = transaction.producer.epoch
    transaction.end(is_commit)
    transaction.wait_for(COMPLETE[is_commit])
    cut_power(cluster, lost_markers=[1])
    assert not is_stable(cluster, "t", 1)
    if goes_on:  # the coordinator's record has another state then
        assert transaction.init() == 0
        assert transaction.state is TransactionState.EMPTY
    pass_checks(cluster, 2)
    assert is_stable(cluster, "t", 1)
    assert [each[2] for each in markers(cluster, "t", 0)] == [is_commit]
    assert markers(cluster, "t", 1) == [(ended_with, ANY, is_commit)]


@pytest.mark.parametrize("durability, is_replaced", [("os", True), ("fsync", False)])
def test_x16_transactional_id_gets_a_new_producer_id_after_a_power_cut(
    begun, durability, is_replaced
):
    cluster = begun(2, durability=durability)
    create_coordinator(cluster)
    transaction = Transactions(cluster)
    assert transaction.init() == 0
    first = transaction.producer
    cut_power(cluster)
    assert transaction.init() == 0
    second = transaction.producer
    assert (second.producer_id != first.producer_id) is is_replaced
    assert second.epoch == (0 if is_replaced else first.epoch + 1)
    cluster.restart(2, killed=True)
    assert transaction.init() == 0
    assert transaction.producer == (second.producer_id, second.epoch + 1)


def test_restart_without_power_cut_aborts_nothing(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    cluster.restart(2, killed=True)
    pass_checks(cluster, 3)
    assert not markers(cluster, "t")


def test_transaction_is_left_alone_while_a_coordinator_is_not_loaded(transacting, monkeypatch):
    transaction = transacting()
    cluster = transaction.cluster
    monkeypatch.setattr(transaction.host, "is_loading", True)
    become_late(cluster)
    pass_checks(cluster, 2)
    assert not markers(cluster, "t") and late_counts(cluster) == 1
    monkeypatch.undo()
    pass_checks(cluster, 2)
    assert is_stable(cluster, "t")


def test_coordinators_without_requests_are_loaded_for_the_check(begun):
    cluster = begun(2, **UNVERIFIED)
    create_state_topic(cluster.node(0), partitions=2)
    cluster.create("t", at=0)
    transaction = Transactions(cluster)
    assert transaction.init(TIMEOUT_MAX_MS) == 0
    transaction.produce("t")
    become_late(cluster)
    pass_checks(cluster, 2)
    assert is_stable(cluster, "t")


def test_transaction_written_to_after_the_report_is_left_alone(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    node = cluster.node(cluster.leader("t"))
    partition = node.replicas.leader("t", 0)
    reported = LateTransaction(
        partition.topic_id, 0, *transaction.producer, first_offset=0, last_offset=0
    )
    later = reported._replace(last_offset=-1)
    for changed in (later, reported._replace(producer_epoch=5), reported._replace(partition=7)):
        node.late_transactions._end_orphans([OrphanTransaction(changed, False)], None)
    assert partition.log.end_offset == 1
    node.late_transactions._end_orphans([OrphanTransaction(reported, False)], None)
    assert partition.log.end_offset == 2 and is_stable(cluster, "t")


def test_orphan_of_a_producer_that_a_coordinator_has_marked_before_is_ended(transacting):
    transaction = transacting(written=())
    cluster, producer = transaction.cluster, transaction.producer
    node = cluster.node(cluster.leader("t"))
    partition = node.replicas.leader("t", 0)
    marker = TransactionMarker(*producer, False, coordinator_epoch=5)
    node.replicas.append_marker(partition, marker)
    transaction.produce("t", 0)
    reported = LateTransaction(partition.topic_id, 0, *producer, first_offset=1, last_offset=1)
    node.late_transactions._end_orphans([OrphanTransaction(reported, False)], None)
    assert partition.log.end_offset == 3 and is_stable(cluster, "t")


def test_report_without_a_response_is_repeated(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    cluster.kill(0, stay_down=True)
    become_late(cluster)
    pass_checks(cluster, 5)
    assert not markers_at_worker(cluster)
    cluster.held_down.clear()
    cluster.until(lambda: 0 in cluster.running and cluster.is_settled())
    pass_checks(cluster, 4)
    assert is_stable(cluster, "t")


def markers_at_worker(cluster) -> int:
    (led,) = [
        partition
        for there in cluster.workers
        for partition in there.node.replicas
        if (partition.topic, partition.index) == ("t", 0)
    ]
    return led.log.end_offset - 1
