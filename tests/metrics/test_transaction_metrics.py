"""Metrics of transactions, as a node's page has them."""

from __future__ import annotations

from unittest import mock

import pytest

from kafkalite.broker.future import Future
from kafkalite.coordination.machine import DecisionResult
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.protocol.schemas.transaction_records import (
    Transaction,
    TransactionRecord,
    TransactionState,
)
from kafkalite.records.batch import Record, build
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.broker.transacting import create_state_topic

WAITING = "kafkalite_transaction_markers_waiting"
AGE = "kafkalite_transaction_oldest_age_seconds"
QUEUE = "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize"


def write(broker, transactional_id: str, start_ms: int, state: TransactionState) -> None:
    """Have the coordinator store a transaction with a partition of topic `a`."""
    transaction = Transaction(7, 0, 900_000, state, frozenset({("a", 0)}), start_ms, start_ms)
    record = TransactionRecord(transactional_id, transaction)
    host = broker.node.transactions.host_of(transactional_id)
    host.decide(lambda machine: DecisionResult(None, [record]))


@pytest.fixture
def coordinating(metered):
    """A node with metrics and a transaction coordinator."""
    create_state_topic(metered.broker.node)
    metered.broker.until(lambda: metered.broker.node.replicas.led_count)
    return metered


def test_transactions_are_counted_by_state_with_the_age_of_the_oldest(coordinating):
    sample = coordinating.sample
    assert sample("kafkalite_transactions", state="Ongoing") == 0
    assert sample(AGE) == 0
    broker = coordinating.broker
    now_ms = broker.clock.wall_ms()
    write(broker, "old", now_ms - 90_000, TransactionState.ONGOING)
    write(broker, "new", now_ms - 30_000, TransactionState.ONGOING)
    write(broker, "ended", now_ms - 95_000, TransactionState.COMPLETE_COMMIT)
    sample = coordinating.sample
    assert sample("kafkalite_transactions", state="Ongoing") == 2
    assert sample("kafkalite_transactions", state="CompleteCommit") == 1
    assert 90 <= sample(AGE) < 110
    write(broker, "old", now_ms, TransactionState.COMPLETE_ABORT)
    assert 30 <= coordinating.sample(AGE) < 60


def test_markers_that_cannot_be_sent_are_counted(coordinating):
    broker = coordinating.broker
    broker.create("a")
    partition = broker.node.replicas.leader("a", 0)
    with mock.patch.object(broker.node.transactions.markers.queue, "_send", lambda *_: False):
        write(broker, "id", broker.clock.wall_ms(), TransactionState.PREPARE_ABORT)
        assert coordinating.sample(QUEUE) == 1
    broker.clock.advance(10_000)
    broker.until(lambda: partition.log.end_offset)
    sample = coordinating.sample
    assert sample(QUEUE) == 0 and sample(WAITING, node="0") == 0
    assert sample("kafkalite_transactions", state="CompleteAbort") == 1


def test_last_stable_offset_lag_counts_the_records_of_open_transactions(metered):
    broker = metered.broker
    broker.create("a")
    partition = broker.node.replicas.leader("a", 0)
    for number, transactional in enumerate((False, True, False)):
        batch = build(
            [Record(timestamp=1, value=b"v")], producer_id=number, producer_epoch=0,
            base_sequence=0, transactional=transactional,
        )  # fmt: skip
        partition.append(batch, guard=NOT_REQUIRED)
    sample = metered.sample
    assert sample("kafka_cluster_partition_laststableoffsetlag", topic="a", partition="0") == 2


def test_verifications_are_timed_and_their_failures_counted(metered):
    name = "kafka_server_addpartitionstotxnmanager_verification"
    verifier = metered.broker.node.replicas.verifier
    assert metered.sample(f"{name}failurerate_total") == 0
    verifier.send = lambda requests: Future.of([[0] if each.adds else [120] for each in requests])
    for adds in (True, False):
        verifier.verify("id", ProducerEpoch(7, 0), ("a", 0), adds=adds)
    metered.broker.reactor.tick(0)
    assert metered.sample(f"{name}failurerate_total") == 1
    assert sum(metered.sample(f"{name}timems")[1:]) == 2
