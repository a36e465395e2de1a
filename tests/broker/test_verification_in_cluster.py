"""Verification of transactions by the workers: the coordinator is on node 0."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite import errors
from kafkalite.coordination.topic_names import TRANSACTION_STATE
from kafkalite.coordination.transaction import NO_PRODUCER, ProducerEpoch
from kafkalite.coordination.transaction_coordinator import InitOptions
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build
from tests.broker.conftest import Clients, produced
from tests.simulation.cluster import ClientRequest

VERIFYING, ADDING = 11, 12


def coordinator(cluster: Clients) -> Any:
    return cluster.node(0).transactions.host_of("id")


def response(cluster: Clients, future: Any) -> Any:
    """Return what a Future resolves to, or its error."""
    cluster.until(lambda: future.settled)
    found: list[Any] = []
    future.then(lambda value, error: found.append(error or value))
    return found[0]


def begin(cluster: Clients) -> ProducerEpoch:
    """Return the producer of the transactional id."""
    found: list[Any] = []

    def is_initialized() -> bool:
        request = coordinator(cluster).request(
            lambda machine, token, _, wall_ms: machine.init_producer_id(
                "id", NO_PRODUCER, InitOptions(60_000), token, wall_ms
            )
        )
        found[:] = [response(cluster, request)]
        return isinstance(found[0], dict)

    cluster.until(is_initialized)
    return ProducerEpoch(found[0]["producer_id"], found[0]["producer_epoch"])


def send(
    cluster: Clients, producer: ProducerEpoch, sequence: int, version: int, *, at: int = 1
) -> ClientRequest:
    """Send a record of a transaction without waiting for the response."""
    batch = build(
        [Record(timestamp=1_000, value=b"%d" % sequence)], producer_id=producer.producer_id,
        producer_epoch=producer.epoch, base_sequence=sequence, transactional=True,
    )  # fmt: skip
    partitions = [{"index": 0, "records": batch}]
    return cluster.send(
        at, PRODUCE, version, transactional_id="id", acks=-1, timeout_ms=5_000,
        topic_data=[{"name": "t", "partition_data": partitions}],
    )  # fmt: skip


def codes(cluster: Clients, *pending: ClientRequest) -> list[int]:
    cluster.until(lambda: all(each.is_done for each in pending))
    return [produced(each).error_code for each in pending]


@pytest.fixture
def cluster(begun):
    made = begun(2)
    pending = made.begin_create(1, "t", assigned=1)
    made.until(lambda: pending.is_done and made.leader("t") == 1)
    found = made.request(0, FIND_COORDINATOR, 3, key="id", key_type=1)
    assert found.error_code == 0
    made.until(lambda: made.leader(TRANSACTION_STATE) == 0)
    made.settle()
    return made


def test_records_at_a_worker_add_their_partition(cluster):
    producer = begin(cluster)
    pending = [send(cluster, producer, sequence, ADDING) for sequence in range(5)]
    assert codes(cluster, *pending) == [0] * 5
    assert cluster.values("t") == [b"0", b"1", b"2", b"3", b"4"]
    assert coordinator(cluster).machine.describe("id").partitions == {("t", 0)}


def test_records_at_a_worker_are_verified(cluster):
    producer = begin(cluster)
    refused = errors.TransactionAbortable.code
    assert codes(cluster, send(cluster, producer, 0, VERIFYING)) == [refused]
    assert cluster.values("t") == []


def test_fenced_producer_at_a_worker_is_refused(cluster):
    fenced = begin(cluster)
    begin(cluster)
    expected = errors.InvalidProducerEpoch.code
    assert codes(cluster, send(cluster, fenced, 0, ADDING)) == [expected]


def test_death_of_the_supervisor_is_retriable_and_nothing_is_appended_twice(cluster):
    producer = begin(cluster)
    sent = send(cluster, producer, 0, ADDING)
    cluster.tick(1)  # the worker asks
    cluster.kill(0)
    (first,) = codes(cluster, sent)
    assert first in (0, errors.NotEnoughReplicas.code)
    found: list[int] = []

    def is_accepted() -> bool:
        found[:] = codes(cluster, send(cluster, producer, 0, ADDING))
        return found == [0]

    cluster.until(is_accepted)
    assert cluster.values("t") == [b"0"]
    assert coordinator(cluster).machine.describe("id").partitions == {("t", 0)}


def test_partition_that_moves_while_a_batch_waits_refuses_it(cluster):
    producer = begin(cluster)
    cluster.running[0].paused = True
    sent = send(cluster, producer, 0, ADDING)
    cluster.steps(20)
    assert not sent.is_done
    cluster.running[0].paused = False
    cluster.move("t", 2)
    (code,) = codes(cluster, sent)
    assert code in (0, errors.NotLeaderOrFollower.code)
    cluster.until(lambda: cluster.leader("t") == 2)
    cluster.settle()
    assert codes(cluster, send(cluster, producer, 0, ADDING, at=2)) == [0]
    assert cluster.values("t") == [b"0"]
