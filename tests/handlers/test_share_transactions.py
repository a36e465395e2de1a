"""Share groups and transactions: what groups of both isolation levels acquire."""

from __future__ import annotations

import pytest

from kafkalite.coordination.share.state_requests import StateInitialization
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.share import SHARE_FETCH
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.segment import aborted_lookup
from tests.handlers.test_share_fetches import (
    ACCEPT,
    Member,
    alter,
    open_state_topic,
    produce,
    summary,
    wait_for_load,
)


@pytest.fixture
def topic_id(broker):
    """A topic whose share partition starts at offset 0."""
    topic_id = broker.create("t", 1)
    open_state_topic(broker)
    key = SharePartitionKey("g", topic_id, 0)
    done = broker.node.share_coordinators.outcomes([StateInitialization(key, 1, 0)])
    broker.until(lambda: done.settled)
    return topic_id


@pytest.fixture
def member(broker, topic_id):
    """A member whose session has the partition, loaded."""
    member = Member(broker, topic_id)
    member.poll(0)
    wait_for_load(broker, topic_id, 0)
    return member


class Transactions:
    """Producers that write transactions to partition 0 of `t`."""

    def __init__(self, broker):
        self.replicas = broker.node.replicas
        self.replicas.verifies_transactions = False
        self.partition = self.replicas.leader("t", 0)
        self.broker = broker

    def write(self, producer_id, *values):
        """Append a batch in the producer's transaction."""
        records = [Record(timestamp=self.broker.clock.wall_ms(), value=value) for value in values]
        batch = build(
            records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        response = self.broker.request(
            PRODUCE, 9, transactional_id="id", acks=-1, timeout_ms=1_000, topic_data=data
        )
        assert response.responses[0].partition_responses[0].error_code == 0

    def end(self, producer_id, *, is_commit):
        """End the producer's transaction."""
        self.replicas.append_marker(self.partition, TransactionMarker(producer_id, 0, is_commit, 0))
        self.broker.reactor.tick(0)


def test_read_committed_group_gets_no_records_of_aborted_or_open_transactions(
    broker, topic_id, member
):
    alter(broker, share_isolation_level="read_committed")
    transactions = Transactions(broker)
    transactions.write(1, b"a", b"b")
    transactions.write(2, b"c", b"d")
    transactions.end(1, is_commit=True)  # offset 4
    transactions.end(2, is_commit=False)  # offset 5
    produce(broker, "t", b"e")
    transactions.write(3, b"f", b"g")  # offsets 7 and 8
    produce(broker, "t", b"h")
    delivered = {(0, 1, 1), (6, 6, 1)}
    assert offsets_of(member) == delivered
    assert offsets_of(member) == set()
    for first, last, _ in delivered:
        assert member.acknowledge(first, last, ACCEPT) == 0
    assert summary(broker, topic_id).start_offset == 7
    wire = member.begin_fetch(wait_ms=10_000)
    assert wire.sent is None, "an open transaction ends what is committed"
    transactions.end(3, is_commit=True)
    response = member.respond(wire, SHARE_FETCH, 2)
    (result,) = response.responses[0].partitions
    found = [tuple(each.values())[:2] for each in result.acquired_records]
    assert (found[0][0], found[-1][1]) == (7, 9)


def offsets_of(member):
    """Return the ranges of partition 0 that some fetches acquire, without markers."""
    found = set()
    for _ in range(4):
        found |= {*member.poll().get(0, [])}
    return found


def test_read_uncommitted_group_gets_records_of_all_transactions(broker, topic_id, member):
    transactions = Transactions(broker)
    transactions.write(1, b"a", b"b")
    transactions.end(1, is_commit=False)
    transactions.write(2, b"c")
    offsets = {
        offset for first, last, _ in offsets_of(member) for offset in range(first, last + 1)
    }
    assert {0, 1, 3} <= offsets


def test_share_fetch_continues_a_lookup_in_steps(broker, member, monkeypatch):
    alter(broker, share_isolation_level="read_committed")
    transactions = Transactions(broker)
    for producer_id in range(100):
        transactions.write(producer_id, b"aborted")
    produce(broker, "t", b"a")
    for producer_id in range(100):
        transactions.end(producer_id, is_commit=False)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 1)
    monkeypatch.setattr(aborted_lookup, "BLOCK_COUNT", 8)
    response = member.fetch(0)
    (result,) = response.responses[0].partitions
    assert [tuple(each.values())[:2] for each in result.acquired_records] == [(100, 100)]
