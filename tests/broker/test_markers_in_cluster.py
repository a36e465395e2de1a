"""Transaction markers from the coordinator at node 0 to the leaders, and what may die meanwhile.

A process dies at each point between the decision and the Complete record: the transaction must end
as it was decided, and the last stable offset reach the log end.  tests/faults/test_fault_table.py
lists the points.
"""

from __future__ import annotations

import pytest

from kafkalite.errors import ConcurrentTransactions, KafkaStorageError
from kafkalite.protocol.schemas import bus
from kafkalite.protocol.schemas.transaction_records import TransactionRecord, TransactionState
from kafkalite.records.batch import batches
from kafkalite.storage.log.log_reader import read
from tests.broker.transacting import (
    STATE_TOPIC,
    UNVERIFIED,
    Transactions,
    create_coordinator,
    is_stable,
    markers,
)

PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
COMPLETE = {True: COMPLETE_COMMIT, False: COMPLETE_ABORT}
PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]


@pytest.fixture
def transacting(begun):
    """Return a function that begins a transaction in three partitions of two workers."""

    def begin(workers=2, version=2, **settings):
        cluster = begun(workers, **UNVERIFIED, **settings)
        create_coordinator(cluster)
        cluster.create("t", 3, at=0)
        transaction = Transactions(cluster, version=version)
        assert transaction.init() == 0
        transaction.add(*PARTITIONS)
        for topic, partition in PARTITIONS:
            transaction.produce(topic, partition)
        assert not any(is_stable(cluster, *each) for each in PARTITIONS)
        return transaction

    return begin


def has_ended(transaction, is_commit=True, partitions=PARTITIONS) -> bool:
    """Return whether the transaction has ended so in each partition."""
    cluster = transaction.cluster
    return transaction.state is COMPLETE[is_commit] and all(
        is_stable(cluster, *each) and markers(cluster, *each)[-1][2] == is_commit
        for each in partitions
    )


def hold_markers(cluster, *, written: bool = False) -> list[bytes]:
    """Drop WriteMarkers to the workers, or their responses, until the returned list is cleared.

    The list has one entry more than messages were dropped.
    """
    dropped: list[bytes] = [b"holding"]
    kind = bus.MARKERS_WRITTEN if written else bus.WRITE_MARKERS
    deliver = cluster.deliver

    def filtered() -> None:
        queues = cluster.bus.to_server if written else cluster.bus.to_worker
        for queue in queues.values() if dropped else ():
            for frame in [each for each in queue if bus.read_frame(each).kind is kind]:
                queue.remove(frame)
                dropped.append(frame)
        deliver()

    cluster.deliver = filtered
    return dropped


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("is_commit", [False, True])
def test_end_writes_a_marker_to_each_partition(transacting, workers, version, is_commit):
    transaction = transacting(workers, version)
    cluster, epoch = transaction.cluster, transaction.producer.epoch
    transaction.end(is_commit)
    cluster.until(lambda: has_ended(transaction, is_commit))
    marked_epoch = epoch + (version == 2)
    for each in PARTITIONS:
        assert markers(cluster, *each) == [(marked_epoch, 0, is_commit)]
    assert not transaction.host.machine.describe("id").partitions
    transaction.add(("t", 0))  # the next transaction begins
    assert transaction.state is TransactionState.ONGOING


def test_empty_abort_of_version_2_completes_without_markers(transacting):
    transaction = transacting()
    transaction.end()
    transaction.wait_for(COMPLETE_COMMIT)
    transaction.end(False)
    transaction.wait_for(COMPLETE_ABORT)
    assert [len(markers(transaction.cluster, *each)) for each in PARTITIONS] == [1, 1, 1]


def test_timeout_aborts_in_each_partition(transacting):
    transaction = transacting()
    transaction.cluster.clock.advance(60_000)
    transaction.cluster.until(lambda: has_ended(transaction, False))
    epochs = {markers(transaction.cluster, *each)[0][0] for each in PARTITIONS}
    assert epochs == {transaction.producer.epoch + 1}


@pytest.mark.parametrize("version", [0, 2])
def test_init_of_another_producer_aborts_in_each_partition(transacting, version):
    transaction = transacting(version=version)
    other = Transactions(transaction.cluster)
    assert other.init() == ConcurrentTransactions.code
    transaction.cluster.until(lambda: has_ended(transaction, False))
    assert other.init() == 0
    assert other.producer.epoch == transaction.producer.epoch + 2


def test_many_transactions_are_completed_together(begun):
    cluster = begun(2, **UNVERIFIED)
    create_coordinator(cluster)
    cluster.create("t", 3, at=0)
    several = [Transactions(cluster, f"id-{number}") for number in range(30)]
    for each in several:
        assert each.init() == 0
        each.add(*PARTITIONS)
    before = several[0].host.journal.end_offset
    log = several[0].host.partition.log
    for each in several:
        each.begin_end()
    cluster.until(lambda: all(each.state is COMPLETE_COMMIT for each in several))
    assert log.end_offset == before + 60
    assert len(markers(cluster, "t", 1)) == 30
    counts = [message.count for message in completions(log, before + 30)]
    assert len(counts) < 10, "a batch each"


def test_markers_are_sent_and_completed_without_waiting_for_a_later_tick(transacting):
    """The producer's next request follows on the same channels, and must find it complete."""
    transaction = transacting()
    cluster = transaction.cluster
    transaction.begin_end()
    cluster.tick(0)
    for identity in [*cluster.bus.to_worker]:
        cluster.deliver_down(identity, 100)
    for node_id in (1, 2):
        cluster.tick(node_id)
    assert all(markers(cluster, *each) for each in PARTITIONS)
    assert transaction.state is PREPARE_COMMIT
    for identity in [*cluster.bus.to_server]:
        cluster.deliver_up(identity, 100)
    assert transaction.state is COMPLETE_COMMIT


def completions(log, offset):
    """Return the headers of the batches from an offset on."""
    return [batch.header for batch in batches(read(log, offset, 1 << 20, log.end_offset).read())]


# -- crash points ----------------------------------------------------------------------------------


def test_commit_completes_after_a_supervisor_died_with_prepare_unflushed(transacting):
    transaction = transacting(durability="fsync")
    cluster = transaction.cluster
    partition = transaction.host.partition
    sent = transaction.begin_end()
    while partition.log.end_offset == partition.high_watermark:
        cluster.step()
    assert not sent and transaction.state is PREPARE_COMMIT
    assert not any(markers(cluster, *each) for each in PARTITIONS)
    cluster.kill(0)
    # The process is dead, the machine is not: the record is in the page cache.
    cluster.until(lambda: 0 in cluster.running and has_ended(transaction))


def test_commit_completes_after_a_supervisor_died_between_markers(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    paused = cluster.running[cluster.leader("t", 0)]
    paused.paused = True
    transaction.begin_end()
    there = [each for each in PARTITIONS if cluster.leader(*each) != paused.peer.node_id]
    cluster.until(lambda: all(markers(cluster, *each) for each in there))
    assert transaction.state is PREPARE_COMMIT
    cluster.kill(0)
    paused.paused = False
    cluster.until(lambda: 0 in cluster.running and has_ended(transaction))
    # Sent again with the higher coordinator epoch.
    assert [each[1] for each in markers(cluster, *there[0])] == [0, 1]
    assert markers(cluster, "t", 0)[-1][1] == 1


def test_coordinator_epoch_grows_with_each_start(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    for epoch in (1, 2):
        cluster.kill(0)
        cluster.until(lambda: 0 in cluster.running and cluster.is_settled())
        assert cluster.image.topics[STATE_TOPIC].partitions[0].leader_epoch == epoch
        assert transaction.host.partition.leader_epoch == epoch
    cluster.restart(2, killed=True)
    cluster.settle()
    transaction.end()
    cluster.until(lambda: has_ended(transaction))
    assert markers(cluster, "t", 0)[0][1] == 3


@pytest.mark.parametrize("version", [0, 2])
def test_coordinator_that_lost_its_last_records_completes_the_transaction(transacting, version):
    """The partitions have the markers of the next transaction; the coordinator is in Prepare."""
    transaction = transacting(version=version)
    cluster = transaction.cluster
    transaction.begin_end()
    prepared = transaction.stored()
    transaction.wait_for(COMPLETE_COMMIT)
    other = Transactions(cluster)
    assert other.init() == 0
    other.add(*PARTITIONS)
    for topic, partition in PARTITIONS:
        other.produce(topic, partition)
    other.end()
    other.wait_for(COMPLETE_COMMIT)
    transaction.host.write([TransactionRecord("id", prepared)])
    cluster.kill(0)
    cluster.until(lambda: 0 in cluster.running and has_ended(transaction))
    assert [len(markers(cluster, *each)) for each in PARTITIONS] == [2, 2, 2]


@pytest.mark.parametrize("appended", [False, True])
def test_marker_is_sent_again_to_a_worker_that_died_with_it(transacting, appended):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster, written=appended)
    node_id = cluster.leader("t", 0)
    transaction.begin_end()
    cluster.until(lambda: len(held) > 2)
    assert bool(markers(cluster, "t", 0)) == appended
    cluster.kill(node_id)
    held.clear()
    cluster.until(lambda: node_id in cluster.running and has_ended(transaction))
    assert len(markers(cluster, "t", 0)) == 1 + appended


@pytest.mark.parametrize("appended", [False, True])
def test_commit_completes_after_supervisor_and_worker_died_at_once(transacting, appended):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster, written=appended)
    transaction.begin_end()
    cluster.until(lambda: len(held) > 2)
    cluster.kill(cluster.leader("t", 0))
    cluster.kill(0)
    held.clear()
    cluster.until(lambda: 0 in cluster.running and cluster.is_settled())
    cluster.until(lambda: has_ended(transaction))


def test_complete_record_that_cannot_be_written_is_retried(transacting, monkeypatch):
    transaction = transacting()
    cluster = transaction.cluster
    transaction.end()
    log = transaction.host.partition.log

    def refuse(*_, **__):
        raise KafkaStorageError("the disk is full")

    monkeypatch.setattr(log, "append", refuse)
    cluster.until(lambda: all(markers(cluster, *each) for each in PARTITIONS))
    cluster.steps(600)
    assert transaction.state is PREPARE_COMMIT and not counted(cluster)
    monkeypatch.undo()
    cluster.until(lambda: has_ended(transaction))
    assert [len(markers(cluster, *each)) for each in PARTITIONS] == [1, 1, 1]


def test_markers_without_a_response_are_sent_again(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster)
    transaction.begin_end()
    cluster.until(lambda: len(held) > 2)
    held.clear()
    begin_ms = cluster.clock.monotonic_ms()
    cluster.until(lambda: has_ended(transaction), pace_ms=20)
    assert 1_500 < cluster.clock.monotonic_ms() - begin_ms < 2_500


def test_commit_completes_after_a_supervisor_died_before_complete(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster, written=True)
    transaction.begin_end()
    cluster.until(lambda: all(markers(cluster, *each) for each in PARTITIONS))
    assert transaction.state is PREPARE_COMMIT
    cluster.kill(0)
    held.clear()
    cluster.until(lambda: 0 in cluster.running and has_ended(transaction))
    assert [each[1] for each in markers(cluster, "t", 0)] == [0, 1]


def test_marker_follows_a_partition_that_moves_after_prepare(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster)
    transaction.begin_end()
    cluster.until(lambda: len(held) > 2)
    before = cluster.leader("t", 0)
    cluster.move("t", 3 - before)
    cluster.until(lambda: cluster.leader("t", 0) != before and cluster.is_settled())
    held.clear()
    cluster.until(lambda: has_ended(transaction), pace_ms=5)


def test_marker_of_a_deleted_topic_counts_as_written(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    held = hold_markers(cluster)
    transaction.begin_end()
    cluster.until(lambda: len(held) > 2)
    cluster.delete("t", at=0)
    held.clear()
    cluster.until(lambda: transaction.state is COMPLETE_COMMIT, pace_ms=5)


def test_prepared_transaction_waits_for_a_leader_that_is_down(transacting):
    transaction = transacting()
    cluster = transaction.cluster
    node_id = cluster.leader("t", 0)
    cluster.kill(node_id, stay_down=True)
    transaction.end()
    cluster.until(lambda: counted(cluster) == 1)
    cluster.steps(200)
    assert transaction.state is PREPARE_COMMIT
    cluster.held_down.clear()
    cluster.until(lambda: has_ended(transaction), pace_ms=5)


def counted(cluster) -> int:
    return len(cluster.node(0).transactions.markers.queue)
