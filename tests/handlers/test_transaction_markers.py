"""WriteTxnMarkers and reads of both isolation levels, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker import stepping
from kafkalite.broker.handlers.transactions import producers
from kafkalite.broker.replica import delayed_fetch
from kafkalite.broker.security import ALTER, CLUSTER_ACTION, WRITE
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import DELETE_RECORDS, LIST_OFFSETS
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS, WRITE_TXN_MARKERS
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.segment import aborted_lookup
from kafkalite.storage.segment.aborted_lookup import AbortedLookup
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, MAX_TIMESTAMP = -1, -3


def produce(
    node: InProcess, producer_id=7, sequence=0, epoch=0, transactional=True, index=0, **fields
):
    """Produce a record of a transaction and return the partition's response."""
    batch = build(
        [Record(timestamp=node.clock.wall_ms(), value=b"v")], producer_id=producer_id,
        producer_epoch=epoch, base_sequence=sequence, transactional=transactional,
    )  # fmt: skip
    request = {"transactional_id": "id", "acks": -1, "timeout_ms": 1_000, **fields}
    data = [{"name": "a", "partition_data": [{"index": index, "records": batch}]}]
    response = node.request(PRODUCE, 9, topic_data=data, **request)
    (entry,) = response.responses[0].partition_responses
    return entry


def marker(producer_id=7, epoch=0, commit=True, coordinator_epoch=0, partitions=(0,), **fields):
    return {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": "a", "partition_indexes": list(partitions)}],
        **fields,
    }


def write(node: InProcess, *markers: dict, version=2) -> list[list[int]]:
    """Write markers and return the error codes of the partitions of each."""
    response = node.request(WRITE_TXN_MARKERS, version, markers=list(markers))
    assert [each.producer_id for each in response.markers] == [
        each["producer_id"] for each in markers
    ]
    return [
        [partition.error_code for topic in each.topics for partition in topic.partitions]
        for each in response.markers
    ]


def fetch(node: InProcess, offset: int, isolation_level: int, version=12, **fields):
    partitions = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
    request = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    response = node.request(
        FETCH, version, replica_id=-1, session_epoch=-1, isolation_level=isolation_level,
        topics=[{"topic": "a", "partitions": partitions}], **request,
    )  # fmt: skip
    (entry,) = response.responses[0].partitions
    return entry


def listed(node: InProcess, timestamp: int, isolation_level: int) -> int:
    partitions = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
    response = node.request(
        LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation_level,
        topics=[{"name": "a", "partitions": partitions}],
    )  # fmt: skip
    return int(response.topics[0].partitions[0].offset)


def end_offset(node: InProcess, isolation_level: int) -> int:
    return listed(node, LATEST, isolation_level)


def record_count(entry) -> int:
    return sum(len(batch.records()) for batch in batches(entry.records))


@pytest.fixture
def unverified(tmp_path):
    """Yield a node that accepts the first records of a transaction without its coordinator."""
    node = InProcess(tmp_path / "data", **{"transaction.partition.verification.enable": "false"})
    node.create("a", 2)
    yield node
    node.close()


@pytest.mark.parametrize("version", [1, 2])
def test_markers_of_every_version_end_transactions(unverified, version):
    assert produce(unverified, 7).error_code == 0
    assert produce(unverified, 8).error_code == 0
    assert write(unverified, marker(7), marker(8, commit=False), version=version) == [[0], [0]]
    entry = fetch(unverified, 0, READ_COMMITTED)
    assert (entry.high_watermark, entry.last_stable_offset) == (4, 4)
    assert [(each.producer_id, each.first_offset) for each in entry.aborted_transactions] == [
        (8, 1)
    ]


def test_open_transaction_ends_read_committed_reads(unverified):
    produce(unverified, transactional=False, producer_id=8)
    produce(unverified)
    entry = fetch(unverified, 0, READ_COMMITTED)
    assert (entry.high_watermark, entry.last_stable_offset) == (2, 1)
    assert record_count(entry) == 1
    assert entry.aborted_transactions == []
    entry = fetch(unverified, 0, READ_UNCOMMITTED)
    assert record_count(entry) == 2
    assert entry.aborted_transactions is None
    assert end_offset(unverified, READ_COMMITTED) == 1
    assert end_offset(unverified, READ_UNCOMMITTED) == 2


def test_waiting_read_committed_fetch_is_completed_by_the_marker(unverified):
    produce(unverified)
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    wire = unverified.send(
        FETCH, 12, replica_id=-1, max_wait_ms=10_000, min_bytes=1, max_bytes=1 << 20,
        session_epoch=-1, isolation_level=READ_COMMITTED,
        topics=[{"topic": "a", "partitions": partitions}],
    )  # fmt: skip
    for _ in range(3):
        unverified.reactor.tick(0)
    assert wire.sent is None
    write(unverified, marker(commit=False))
    unverified.until(lambda: wire.sent is not None)
    (entry,) = unverified.response(wire, FETCH, 12).responses[0].partitions
    assert record_count(entry) == 2
    assert len(entry.aborted_transactions) == 1


def test_each_partition_of_a_marker_has_its_own_error(unverified):
    produce(unverified)
    missing = {"name": "none", "partition_indexes": [0]}
    request = marker(partitions=(0, 1, 9))
    request["topics"].append(missing)
    unknown = errors.UnknownTopicOrPartition.code
    assert write(unverified, request) == [[0, 0, unknown, unknown]]


def test_marker_of_an_old_epoch_or_coordinator_is_refused(unverified):
    produce(unverified, epoch=3)
    assert write(unverified, marker(epoch=2)) == [[errors.InvalidProducerEpoch.code]]
    assert write(unverified, marker(epoch=3, transaction_version=2)) == [
        [errors.InvalidProducerEpoch.code]
    ]
    assert write(unverified, marker(epoch=4, transaction_version=2, coordinator_epoch=5)) == [[0]]
    assert write(unverified, marker(epoch=4, coordinator_epoch=4)) == [
        [errors.TransactionCoordinatorFenced.code]
    ]


@pytest.mark.parametrize("field", ["producer_id", "producer_epoch", "transaction_version"])
def test_marker_with_a_negative_field_is_not_written(unverified, field):
    """Apache Kafka responds with UNKNOWN_SERVER_ERROR."""
    refused = marker() | {field: -1}
    assert write(unverified, refused) == [[errors.UnknownServerError.code]]
    assert end_offset(unverified, READ_UNCOMMITTED) == 0


def test_marker_of_an_unknown_producer_needs_a_coordinator_epoch(unverified):
    fenced = errors.TransactionCoordinatorFenced.code
    assert write(unverified, marker(coordinator_epoch=-2)) == [[fenced]]
    assert write(unverified, marker(coordinator_epoch=-1)) == [[0]]


def test_marker_needs_alter_or_cluster_action_on_the_cluster(unverified):
    unverified.node.authorizer = Denying(ALTER)
    assert write(unverified, marker()) == [[0]]
    unverified.node.authorizer = Denying(ALTER, CLUSTER_ACTION)
    assert write(unverified, marker()) == [[errors.ClusterAuthorizationFailed.code]]


def test_marker_is_in_the_response_once_it_is_committed(tmp_path):
    node = InProcess(tmp_path / "data", durability="fsync")
    node.create("a", 1)
    wire = node.send(WRITE_TXN_MARKERS, 2, markers=[marker()])
    partition = node.node.replicas.leader("a", 0)
    assert partition.log.end_offset == 1
    assert wire.sent is None
    node.until(lambda: wire.sent is not None)
    assert partition.high_watermark == 1
    node.close()


def test_first_records_of_a_transaction_are_refused_without_its_coordinator(broker):
    broker.create("a", 1)
    assert produce(broker).error_code == errors.NotEnoughReplicas.code
    assert end_offset(broker, READ_UNCOMMITTED) == 0


def test_records_of_a_transaction_without_its_id_are_refused(unverified):
    refused = errors.TransactionalIdAuthorizationFailed.code
    assert produce(unverified, transactional_id=None).error_code == refused
    assert end_offset(unverified, READ_UNCOMMITTED) == 0
    assert produce(unverified).error_code == 0
    assert produce(unverified, sequence=1, transactional_id=None).error_code == refused
    assert end_offset(unverified, READ_UNCOMMITTED) == 1


@pytest.mark.parametrize("first", [True, False])
def test_request_with_records_of_a_transaction_without_its_id_is_refused_whole(unverified, first):
    data = [
        {"name": "a", "partition_data": [
            {"index": index, "records": build(
                [Record(timestamp=unverified.clock.wall_ms(), value=b"v")], producer_id=7,
                producer_epoch=0, base_sequence=0, transactional=is_transactional,
            )}
            for index, is_transactional in enumerate([first, not first])
        ]},
    ]  # fmt: skip
    response = unverified.request(
        PRODUCE, 9, topic_data=data, acks=-1, timeout_ms=5000, transactional_id=None
    )
    codes = [each.error_code for each in response.responses[0].partition_responses]
    assert codes == [errors.TransactionalIdAuthorizationFailed.code] * 2


def test_records_of_another_principals_transaction_are_refused(unverified):
    unverified.node.authorizer = Denying(WRITE, names="id")
    assert produce(unverified).error_code == errors.TransactionalIdAuthorizationFailed.code


def test_describe_producers_has_the_open_transaction(unverified):
    def described():
        topics = [{"name": "a", "partition_indexes": [0]}]
        response = unverified.request(DESCRIBE_PRODUCERS, 0, topics=topics)
        (found,) = response.topics[0].partitions[0].active_producers
        return found.producer_epoch, found.current_txn_start_offset, found.coordinator_epoch

    produce(unverified)
    assert described() == (0, 0, -1)
    write(unverified, marker(epoch=1, coordinator_epoch=6, commit=False))
    assert described() == (1, -1, 6)


def test_offset_of_a_timestamp_is_below_the_last_stable_offset(unverified):
    assert produce(unverified, 8, transactional=False).error_code == 0
    unverified.clock.advance(1_000)
    begun_ms = unverified.clock.wall_ms()
    assert produce(unverified, 7).error_code == 0
    for timestamp, offset in ((begun_ms, 1), (MAX_TIMESTAMP, 1), (begun_ms - 1_000, 0)):
        assert listed(unverified, timestamp, READ_UNCOMMITTED) == offset
        assert listed(unverified, timestamp, READ_COMMITTED) == (offset if offset < 1 else -1)
    write(unverified, marker(7))
    assert listed(unverified, begun_ms, READ_COMMITTED) == 1


@pytest.mark.parametrize("offset", [2, -1])
def test_records_of_an_open_transaction_can_be_deleted(unverified, offset):
    for sequence in range(3):
        assert produce(unverified, sequence=sequence).error_code == 0
    asked = [{"name": "a", "partitions": [{"partition_index": 0, "offset": offset}]}]
    response = unverified.request(DELETE_RECORDS, 2, topics=asked, timeout_ms=1_000)
    (deleted,) = response.topics[0].partitions
    start = offset if offset > 0 else 3
    assert (deleted.error_code, deleted.low_watermark) == (0, start)
    entry = fetch(unverified, start, READ_COMMITTED)
    assert (entry.last_stable_offset, entry.high_watermark) == (start, 3)
    assert not entry.records
    write(unverified, marker(commit=False))
    entry = fetch(unverified, start, READ_COMMITTED)
    assert (entry.last_stable_offset, entry.log_start_offset) == (4, start)
    assert [(each.producer_id, each.first_offset) for each in entry.aborted_transactions] == [
        (7, 0)
    ]


def test_producers_of_a_partition_are_described_in_steps(unverified, monkeypatch):
    monkeypatch.setattr(producers, "ENTRIES_AT_ONCE", 2)
    for producer_id in range(9):
        assert produce(unverified, producer_id).error_code == 0
    monkeypatch.setattr(stepping, "STEP_MS", 0)
    topics = [{"name": "a", "partition_indexes": [0, 1]}]
    wire = unverified.send(DESCRIBE_PRODUCERS, 0, topics=topics)
    steps = 0
    while wire.sent is None:
        steps += 1
        assert steps < 50
        unverified.clock.advance(stepping.STEP_PAUSE_MS)
        unverified.reactor.tick(0)
    assert steps >= 8
    first, second = unverified.response(wire, DESCRIBE_PRODUCERS, 0).topics[0].partitions
    found = [(each.producer_id, each.current_txn_start_offset) for each in first.active_producers]
    assert found == [(number, number) for number in range(9)]
    assert second.active_producers == []


def test_aborted_records_are_skipped_after_a_restart(unverified):
    for sequence in range(5):
        produce(unverified, sequence=sequence)
    write(unverified, marker(commit=False))
    produce(unverified, 8)
    unverified.restart()
    entry = fetch(unverified, 0, READ_COMMITTED)
    assert (entry.high_watermark, entry.last_stable_offset) == (7, 6)
    assert [(each.producer_id, each.first_offset) for each in entry.aborted_transactions] == [
        (7, 0)
    ]
    write(unverified, marker(8))
    assert fetch(unverified, 0, READ_COMMITTED).last_stable_offset == 8


def abort_in_turn(node: InProcess, count: int) -> None:
    for producer_id in range(count):
        assert produce(node, producer_id).error_code == 0
        assert write(node, marker(producer_id, commit=False)) == [[0]]


def test_fetch_returns_a_bounded_number_of_aborted_transactions(unverified, monkeypatch):
    monkeypatch.setattr(delayed_fetch, "ABORTED_MAX", 100)
    abort_in_turn(unverified, 400)
    offset, met = 0, set()
    while offset < 800:
        entry = fetch(unverified, offset, READ_COMMITTED)
        listed = {(each.producer_id, each.first_offset) for each in entry.aborted_transactions}
        assert len(listed) <= 100
        for each in batches(entry.records):
            record = each.header.producer_id, each.header.base_offset
            assert each.header.is_control or record in listed
            offset = each.header.last_offset + 1
        met |= listed
    assert met == {(number, 2 * number) for number in range(400)}


def abort_together(node: InProcess, count: int) -> None:
    for producer_id in range(count):
        assert produce(node, producer_id).error_code == 0
    for producer_id in range(count):
        assert write(node, marker(producer_id, commit=False)) == [[0]]


def test_fetch_lists_no_transaction_without_a_batch_in_it(unverified, monkeypatch):
    monkeypatch.setattr(delayed_fetch, "ABORTED_MAX", 100)
    abort_together(unverified, 350)
    offset = 0
    while offset < 700:
        entry = fetch(unverified, offset, READ_COMMITTED)
        listed = {each.producer_id for each in entry.aborted_transactions}
        found = [each.header for each in batches(entry.records)]
        assert len(entry.aborted_transactions) == len(found) == 100 or offset == 700 - len(found)
        assert {header.producer_id for header in found} == listed
        offset = found[-1].last_offset + 1


@pytest.fixture
def lookup_steps(monkeypatch):
    """The budgets of the steps of lookups, each of which reads one block."""
    steps = []
    step = AbortedLookup.step

    def counted(self, budget):
        steps.append(budget.left)
        return step(self, budget)

    monkeypatch.setattr(AbortedLookup, "step", counted)
    monkeypatch.setattr(aborted_lookup, "BUDGET", 1)
    return steps


@pytest.mark.parametrize("max_wait_ms", [0, 1_000])
def test_fetch_returns_records_after_a_lookup_in_steps(unverified, lookup_steps, max_wait_ms):
    abort_together(unverified, 150)
    entry = fetch(unverified, 149, READ_COMMITTED, max_wait_ms=max_wait_ms)
    assert lookup_steps == [1] * 2
    assert len(entry.aborted_transactions) == 150 and record_count(entry) == 151


def test_waiting_fetch_returns_records_after_a_lookup_in_steps(unverified, lookup_steps):
    abort_together(unverified, 150)
    size = 151 * 96  # more than 151 batches and the list of 150 transactions
    partitions = [{"partition": 0, "fetch_offset": 149, "partition_max_bytes": 1 << 20}]
    wire = unverified.send(
        FETCH, 12, replica_id=-1, max_wait_ms=60_000, min_bytes=size, max_bytes=size,
        session_epoch=-1, isolation_level=READ_COMMITTED,
        topics=[{"topic": "a", "partitions": partitions}],
    )  # fmt: skip
    unverified.until(lambda: unverified.node.replicas.leader("a", 0).waiting)
    for _ in range(50):
        assert produce(unverified, -1, sequence=-1, epoch=-1, transactional=False).error_code == 0
    unverified.until(lambda: wire.sent is not None)
    (entry,) = unverified.response(wire, FETCH, 12).responses[0].partitions
    assert len(lookup_steps) >= 4
    assert len(entry.aborted_transactions) == 150 and len(entry.records) == size


def test_partition_behind_many_aborted_transactions_is_read_later(unverified, monkeypatch):
    monkeypatch.setattr(delayed_fetch, "ABORTED_MAX", 3)
    abort_in_turn(unverified, 3)
    assert produce(unverified, 9, index=1).error_code == 0
    assert write(unverified, marker(9, commit=False, partitions=[1])) == [[0]]
    partitions = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for index in (0, 1)
    ]
    response = unverified.request(
        FETCH, 12, replica_id=-1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1,
        isolation_level=READ_COMMITTED, topics=[{"topic": "a", "partitions": partitions}],
    )  # fmt: skip
    first, second = response.responses[0].partitions
    assert len(first.aborted_transactions) == 3 and record_count(first) == 6
    assert not second.aborted_transactions and not second.records
