"""Verification of a transaction's first records, through the dispatcher of a real node.

In most tests the coordinator is a stand-in, which responds when the test says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kafkalite import errors
from kafkalite.broker.future import Future
from kafkalite.broker.replica import transaction_verifier, verification_queue
from kafkalite.broker.replica.transaction_verifier import RequestTransaction, VerificationRequest
from kafkalite.coordination.features import TRANSACTION_VERSION
from kafkalite.coordination.topic_names import TRANSACTION_STATE
from kafkalite.coordination.transaction import NO_PRODUCER, ProducerEpoch
from kafkalite.coordination.transaction_coordinator import InitOptions
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from kafkalite.records.batch import Record, build
from kafkalite.records.control import TransactionMarker
from tests.handlers.conftest import InProcess, Wire
from tests.handlers.grouping import find

ADDING, VERIFYING = 12, 10
"""Versions of Produce: a transaction's first records add their partition, or are verified."""


class Coordinator:
    """A stand-in for the transaction coordinator."""

    def __init__(self) -> None:
        self.requests: list[VerificationRequest] = []
        """All requests so far."""
        self.messages: list[tuple[list[VerificationRequest], Future[Any]]] = []
        """The messages without a response."""

    def ask(self, requests: list[VerificationRequest]) -> Future[Any]:
        self.requests += requests
        response: Future[Any] = Future()
        self.messages.append((requests, response))
        return response

    def respond(self, error: type[errors.KafkaError] | None = None) -> None:
        """Respond to the oldest message."""
        requests, response = self.messages.pop(0)
        code = error.code if error is not None else 0
        response.resolve([[code] * len(request.partitions) for request in requests])


class Verified(NamedTuple):
    """A node and its coordinator."""

    node: InProcess
    coordinator: Coordinator

    def tick(self) -> None:
        for _ in range(3):
            self.node.reactor.tick(0)

    def send(self, sequence=0, *, producer=(7, 0), version=VERIFYING, index=0, **fields) -> Wire:
        """Send a record of a transaction without waiting for the response."""
        parts = [(index, batch_of(self.node, sequence, producer))]
        return send(self.node, parts, version, **fields)

    def codes(self, *wires: Wire, version=VERIFYING) -> list[Any]:
        """Return the error code of each response; None if there is none yet."""
        self.tick()
        return [
            code_of(self.node, wire, version) if wire.sent is not None else None for wire in wires
        ]

    @property
    def log(self) -> Any:
        return self.node.node.replicas.leader("t", 0).log

    def asked(self) -> list[VerificationRequest]:
        """Return the requests since the last call."""
        self.tick()
        requests, self.coordinator.requests[:] = [*self.coordinator.requests], []
        return requests


def batch_of(node: InProcess, sequence=0, producer=(7, 0), *, transactional=True) -> bytes:
    return build(
        [Record(timestamp=node.clock.wall_ms(), value=b"%d" % sequence)],
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence,
        transactional=transactional,
    )  # fmt: skip


def send(node: InProcess, parts, version=VERIFYING, *, acks=-1, transactional_id="id") -> Wire:
    data = [{"index": index, "records": batch} for index, batch in parts]
    topic = {"name": "t", "partition_data": data}
    return node.send(
        PRODUCE, version, transactional_id=transactional_id, acks=acks, timeout_ms=1_000,
        topic_data=[topic],
    )  # fmt: skip


def codes_of(node: InProcess, wire: Wire, version: int) -> list[int]:
    (topic,) = node.response(wire, PRODUCE, version).responses
    return [entry.error_code for entry in topic.partition_responses]


def code_of(node: InProcess, wire: Wire, version: int) -> int:
    (code,) = codes_of(node, wire, version)
    return code


@pytest.fixture
def verified(tmp_path):
    node = InProcess(tmp_path / "data")
    node.create("t", 3)
    coordinator = Coordinator()
    node.node.replicas.verifier.send = coordinator.ask
    yield Verified(node, coordinator)
    node.close()


# -- order ---------------------------------------------------------------------------------------


def test_batches_in_flight_wait_behind_the_first_and_keep_their_order(verified):
    wires = [verified.send(sequence) for sequence in range(5)]
    assert verified.codes(*wires) == [None] * 5
    assert verified.log.end_offset == 0
    (request,) = verified.asked()
    assert request == ("id", ProducerEpoch(7, 0), False, [("t", 0)])
    verified.coordinator.respond()
    assert verified.codes(*wires) == [0] * 5
    assert verified.log.end_offset == 5
    assert [batch.base_sequence for each in verified.log.producers for batch in each.batches] == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    assert verified.codes(verified.send(5)) == [0]
    assert verified.asked() == []


def test_other_partitions_and_producers_are_not_delayed(verified):
    held = verified.send()
    plain = send(verified.node, [(0, batch_of(verified.node, 0, (8, 0), transactional=False))])
    other = verified.send(producer=(9, 0), transactional_id="other")
    assert verified.codes(held, plain, other) == [None, 0, None]
    later = verified.send(index=1)
    verified.coordinator.respond()
    assert verified.codes(held, other, later) == [0, 0, None]


def test_request_with_several_partitions_waits_for_each(verified):
    parts = [(index, batch_of(verified.node)) for index in range(3)]
    wire = send(verified.node, parts)
    (request,) = verified.asked()
    assert request.partitions == [("t", 0), ("t", 1), ("t", 2)]
    assert wire.sent is None
    verified.coordinator.respond()
    verified.tick()
    assert codes_of(verified.node, wire, VERIFYING) == [0, 0, 0]


def test_error_is_that_of_all_batches_which_waited_for_the_response(verified):
    first, second, newer = (verified.send(0), verified.send(1), verified.send(0, producer=(7, 1)))
    verified.tick()
    verified.coordinator.respond(errors.TransactionAbortable)
    refused = errors.InvalidTxnState.code
    assert verified.codes(first, second, newer) == [refused, refused, None]
    assert [request.producer.epoch for request in verified.asked()] == [0, 1]
    verified.coordinator.respond()
    assert verified.codes(newer) == [0]
    assert verified.log.end_offset == 1


def test_batch_behind_a_refused_one_is_out_of_order(verified):
    too_large = build(
        [Record(timestamp=verified.node.clock.wall_ms(), value=bytes(2 << 20))],
        producer_id=7, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    first, second = send(verified.node, [(0, too_large)]), verified.send(1)
    verified.tick()
    verified.coordinator.respond()
    expected = [errors.MessageTooLarge.code, errors.OutOfOrderSequenceNumber.code]
    assert verified.codes(first, second) == expected
    assert verified.codes(verified.send(0)) == [None]


# -- while a batch waits -------------------------------------------------------------------------


def test_marker_that_comes_before_the_response_refuses_the_batch(verified):
    wire = verified.send()
    verified.tick()
    verified.node.node.replicas.append_marker(
        verified.node.node.replicas.leader("t", 0), TransactionMarker(7, 0, False, 0)
    )
    verified.coordinator.respond()
    assert verified.codes(wire) == [errors.InvalidTxnState.code]
    assert verified.log.end_offset == 1


def test_marker_that_fences_the_producer_refuses_the_batch(verified):
    wire = verified.send(version=ADDING)
    verified.tick()
    verified.node.node.replicas.append_marker(
        verified.node.node.replicas.leader("t", 0), TransactionMarker(7, 1, False, 0, 2)
    )
    next_wire = verified.send(producer=(7, 1), version=ADDING)
    verified.coordinator.respond()
    fenced = errors.InvalidProducerEpoch.code
    assert verified.codes(wire, next_wire, version=ADDING) == [fenced, None]
    verified.coordinator.respond()
    assert verified.codes(next_wire, version=ADDING) == [0]


def test_closed_connection_does_not_stop_the_append(verified):
    wire, second = verified.send(0), verified.send(1)
    verified.tick()
    wire.disconnect()
    verified.coordinator.respond()
    assert verified.codes(second) == [0]
    assert verified.log.end_offset == 2
    assert verified.node.node.replicas.verification_queue.held_size == 0


def test_deleted_partition_refuses_the_batch(verified):
    wire = verified.send()
    verified.tick()
    verified.node.request(DELETE_TOPICS, 1, topic_names=["t"], timeout_ms=1_000)
    verified.coordinator.respond()
    assert verified.codes(wire) == [errors.UnknownTopicOrPartition.code]


def test_held_batches_are_bounded(verified, monkeypatch):
    size = len(batch_of(verified.node))
    monkeypatch.setattr(verification_queue, "HELD_SIZE_MAX", 2 * size)
    wires = [verified.send(sequence) for sequence in range(3)]
    assert verified.codes(*wires) == [None, None, errors.NotEnoughReplicas.code]
    verified.coordinator.respond()
    assert verified.codes(*wires[:2]) == [0, 0]


def test_acks_0_is_appended_without_a_response(verified):
    wire = verified.send(acks=0)
    verified.tick()
    verified.coordinator.respond()
    verified.tick()
    assert (wire.sent, wire.closed, verified.log.end_offset) == (None, False, 1)


# -- refused without a request to the coordinator ------------------------------------------------


def test_damaged_batch_is_refused_at_once(verified):
    damaged = bytearray(batch_of(verified.node))
    damaged[-1] ^= 1
    assert verified.codes(send(verified.node, [(0, bytes(damaged))])) == [
        errors.CorruptMessage.code
    ]
    short = send(verified.node, [(0, bytes(damaged[:40]))])
    assert verified.codes(short) != [0]
    assert verified.asked() == []


def test_older_epoch_is_refused_at_once(verified):
    replicas = verified.node.node.replicas
    replicas.append_marker(replicas.leader("t", 0), TransactionMarker(7, 5, False, 0))
    assert verified.codes(verified.send(producer=(7, 4))) == [errors.InvalidProducerEpoch.code]
    assert verified.asked() == []


def test_id_that_no_producer_can_have_is_refused_without_a_request(verified):
    wire = verified.send(version=ADDING, transactional_id="x" * (1 << 15))
    assert verified.codes(wire, version=ADDING) == [errors.InvalidProducerIdMapping.code]
    assert not verified.coordinator.requests


@pytest.mark.parametrize("other", [(8, 0), (7, 1)])
def test_request_of_several_producers_is_refused_as_a_whole(verified, other):
    batches = [batch_of(verified.node), batch_of(verified.node, 0, other)]
    wire = send(verified.node, [*enumerate(batches)])
    verified.tick()
    assert codes_of(verified.node, wire, VERIFYING) == [errors.InvalidProducerIdMapping.code] * 2
    assert verified.asked() == []
    plain = batch_of(verified.node, 0, other, transactional=False)
    send(verified.node, [(0, batches[0]), (1, plain)])
    assert len(verified.asked()) == 1


def test_disabled_verification_still_adds_partitions(tmp_path):
    node = InProcess(tmp_path / "data", **{"transaction.partition.verification.enable": "false"})
    node.create("t", 2)
    verified = Verified(node, Coordinator())
    node.node.replicas.verifier.send = verified.coordinator.ask
    assert verified.codes(verified.send()) == [0]
    assert verified.asked() == []
    wire = verified.send(version=ADDING, index=1)
    assert [request.adds for request in verified.asked()] == [True]
    verified.coordinator.respond()
    assert verified.codes(wire, version=ADDING) == [0]
    node.close()


# -- errors --------------------------------------------------------------------------------------


UNREACHABLE = [
    errors.CoordinatorLoadInProgress, errors.CoordinatorNotAvailable, errors.NotCoordinator,
    errors.NetworkException, errors.RequestTimedOut,
]  # fmt: skip


@pytest.mark.parametrize(
    "version, error, expected",
    [
        *((9, error, errors.NotEnoughReplicas) for error in UNREACHABLE),
        *((12, error, errors.NotEnoughReplicas) for error in UNREACHABLE),
        (12, errors.ProducerFenced, errors.InvalidProducerEpoch),
        (9, errors.ProducerFenced, errors.InvalidProducerEpoch),
        (10, errors.TransactionAbortable, errors.InvalidTxnState),
        (11, errors.TransactionAbortable, errors.TransactionAbortable),
        (11, errors.ConcurrentTransactions, errors.NotEnoughReplicas),
        (12, errors.InvalidProducerIdMapping, errors.InvalidProducerIdMapping),
    ],
)  # fmt: skip
def test_error_of_the_coordinator_is_one_that_the_client_knows(verified, version, error, expected):
    wire = verified.send(version=version)
    verified.tick()
    verified.coordinator.respond(error)
    assert verified.codes(wire, version=version) == [expected.code]


@pytest.mark.parametrize(
    "version, error, expected",
    [
        (3, errors.NetworkException, errors.CoordinatorLoadInProgress),
        (5, errors.RequestTimedOut, errors.CoordinatorLoadInProgress),
        (3, errors.NotCoordinator, errors.CoordinatorNotAvailable),
        (3, errors.TransactionAbortable, errors.InvalidTxnState),
        (4, errors.TransactionAbortable, errors.TransactionAbortable),
        (3, errors.ProducerFenced, errors.InvalidProducerEpoch),
        (5, errors.ConcurrentTransactions, errors.ConcurrentTransactions),
        (3, errors.KafkaStorageError, errors.CoordinatorNotAvailable),
    ],
)
def test_error_of_a_commit_is_one_that_the_client_knows(version, error, expected):
    transaction = RequestTransaction.of_commit("id", version)
    assert transaction.adds == (version >= 5)
    assert type(transaction.commit_error(error())) is expected


def test_error_of_a_failed_message_is_retriable_and_the_retry_is_verified(verified):
    wire = verified.send()
    verified.tick()
    verified.coordinator.messages.pop()[1].fail(errors.RequestTimedOut())
    assert verified.codes(wire) == [errors.NotEnoughReplicas.code]
    retried = verified.send()
    verified.tick()
    verified.coordinator.respond()
    assert verified.codes(retried) == [0]
    assert verified.node.node.replicas.verifier.failed_count == 1


# -- messages ------------------------------------------------------------------------------------


def test_requests_of_a_tick_go_as_one_message(verified):
    for producer_id in range(3):
        verified.send(producer=(producer_id, 0), transactional_id=f"id-{producer_id}")
    assert len(verified.asked()) == 3
    assert [len(requests) for requests, _ in verified.coordinator.messages] == [3]


def test_requests_of_one_producer_are_merged_while_one_is_in_flight(verified):
    wires = [verified.send(index=index) for index in (0,)]
    assert [request.partitions for request in verified.asked()] == [[("t", 0)]]
    wires += [verified.send(index=index) for index in (1, 2)]
    assert verified.asked() == []
    verified.coordinator.respond()
    assert verified.codes(*wires) == [0, None, None]
    assert [request.partitions for request in verified.asked()] == [[("t", 1), ("t", 2)]]
    verified.coordinator.respond()
    assert verified.codes(*wires) == [0, 0, 0]


@pytest.mark.parametrize("epochs", [(1, 2), (2, 1)])
def test_older_epoch_among_pending_requests_is_fenced(verified, epochs):
    verified.send(index=0)
    verified.tick()
    wires = [
        verified.send(index=index, producer=(7, epoch)) for index, epoch in enumerate(epochs, 1)
    ]
    fenced = errors.InvalidProducerEpoch.code
    assert verified.codes(*wires) == [None if epoch == 2 else fenced for epoch in epochs]
    verified.coordinator.respond()
    assert [request.producer.epoch for request in verified.asked()][-1] == 2
    verified.coordinator.respond()
    assert 0 in verified.codes(*wires)


def test_message_has_a_bounded_number_of_requests(verified, monkeypatch):
    monkeypatch.setattr(transaction_verifier, "REQUESTS_MAX", 2)
    wires = [
        verified.send(producer=(producer_id, 0), transactional_id=f"id-{producer_id}")
        for producer_id in range(3)
    ]
    assert len(verified.asked()) == 2
    verified.coordinator.respond()
    assert verified.asked() == []
    verified.node.clock.advance(transaction_verifier.PAUSE_MS)
    assert len(verified.asked()) == 1
    verified.coordinator.respond()
    assert verified.codes(*wires) == [0, 0, 0]


def test_addition_is_repeated_until_the_previous_transaction_is_completed(verified):
    wire = verified.send(version=ADDING)
    for _ in range(3):
        assert len(verified.asked()) == 1
        verified.coordinator.respond(errors.ConcurrentTransactions)
        assert verified.asked() == []
        verified.node.clock.advance(20)
    assert len(verified.asked()) == 1
    verified.coordinator.respond()
    assert verified.codes(wire, version=ADDING) == [0]


def test_repeated_addition_fails_after_the_maximum(verified):
    wire = verified.send(version=ADDING)
    count = 0
    while wire.sent is None:
        count += len(verified.asked())
        verified.coordinator.respond(errors.ConcurrentTransactions)
        verified.node.clock.advance(20)
        verified.tick()
    assert count == 6
    expected = [errors.ConcurrentTransactions.code]
    assert verified.codes(wire, version=ADDING) == expected


# -- with the coordinator ------------------------------------------------------------------------


@pytest.fixture
def coordinated(transactional):
    """Return a node with its coordinator, and a transactional id of producer id and epoch."""
    transactional.create("t", 3)
    assert find(transactional, key="id", key_type=1).error_code == 0
    transactional.until(
        lambda: TRANSACTION_STATE in {each.topic for each in transactional.node.replicas}
    )
    return transactional


def request(node: InProcess, decide) -> Any:
    """Return the coordinator's response to a decision."""
    response = node.node.transactions.host_of("id").request(decide)
    node.until(lambda: response.settled)
    found: list[Any] = []
    response.then(lambda value, error: found.append(error or value))
    return found[0]


def begin(node: InProcess) -> ProducerEpoch:
    """Return the producer of the transactional id."""
    response: list[Any] = []

    def is_initialized() -> bool:
        response[:] = [
            request(node, lambda machine, token, _, wall_ms: machine.init_producer_id(
                "id", NO_PRODUCER, InitOptions(60_000), token, wall_ms
            ))
        ]  # fmt: skip
        return isinstance(response[0], dict)

    node.until(is_initialized)
    return ProducerEpoch(response[0]["producer_id"], response[0]["producer_epoch"])


def partitions_of(node: InProcess) -> set[tuple[str, int]]:
    """Return the partitions of the transaction."""
    described = node.node.transactions.host_of("id").machine.describe("id")
    return set(described.partitions)


@pytest.mark.parametrize(
    "version, expected", [(10, errors.InvalidTxnState), (11, errors.TransactionAbortable)]
)
def test_partition_that_was_not_added_is_refused(coordinated, version, expected):
    producer = begin(coordinated)
    wire = send(coordinated, [(0, batch_of(coordinated, 0, producer))], version)
    coordinated.until(lambda: wire.sent is not None)
    assert codes_of(coordinated, wire, version) == [expected.code]
    assert partitions_of(coordinated) == set()


def test_partition_that_was_added_is_accepted(coordinated):
    producer = begin(coordinated)
    request(coordinated, lambda machine, token, now_ms, wall_ms: machine.add_partitions(
        "id", producer, frozenset({("t", 1)}), 0, token, now_ms, wall_ms
    ))  # fmt: skip
    parts = [(index, batch_of(coordinated, 0, producer)) for index in range(2)]
    wire = send(coordinated, parts)
    coordinated.until(lambda: wire.sent is not None)
    assert codes_of(coordinated, wire, VERIFYING) == [errors.InvalidTxnState.code, 0]


def test_new_clients_add_their_partitions(coordinated):
    producer = begin(coordinated)
    parts = [(index, batch_of(coordinated, 0, producer)) for index in range(2)]
    wire = send(coordinated, parts, ADDING)
    coordinated.until(lambda: wire.sent is not None)
    assert codes_of(coordinated, wire, ADDING) == [0, 0]
    assert partitions_of(coordinated) == {("t", 0), ("t", 1)}


def test_new_clients_are_refused_while_version_0_is_finalized(coordinated):
    producer = begin(coordinated)
    level = {"feature": TRANSACTION_VERSION, "max_version_level": 0, "upgrade_type": 2}
    assert coordinated.request(UPDATE_FEATURES, 2, feature_updates=[level]).error_code == 0
    wire = send(coordinated, [(0, batch_of(coordinated, 0, producer))], ADDING)
    coordinated.until(lambda: wire.sent is not None)
    assert codes_of(coordinated, wire, ADDING) == [errors.UnsupportedVersion.code]
    assert partitions_of(coordinated) == set()


def test_topic_of_a_request_with_topic_ids_is_added_by_its_name(coordinated):
    producer = begin(coordinated)
    topic_id = coordinated.node.replicas.leader("t", 2).topic_id
    partitions = [{"index": 2, "records": batch_of(coordinated, 0, producer)}]
    response = coordinated.request(
        PRODUCE, 13, transactional_id="id", acks=-1, timeout_ms=1_000,
        topic_data=[{"topic_id": topic_id, "partition_data": partitions}],
    )  # fmt: skip
    assert [entry.error_code for entry in response.responses[0].partition_responses] == [0]
    assert partitions_of(coordinated) == {("t", 2)}


@pytest.mark.parametrize(
    "change, expected",
    [
        ((0, -1), errors.InvalidProducerEpoch),
        ((0, 1), errors.InvalidProducerEpoch),
        ((1, 0), errors.InvalidProducerIdMapping),
    ],
)
def test_other_producers_of_the_transactional_id_are_refused(coordinated, change, expected):
    begin(coordinated)
    producer = begin(coordinated)
    other = (producer.producer_id + change[0], producer.epoch + change[1])
    wire = send(coordinated, [(0, batch_of(coordinated, 0, other))])
    coordinated.until(lambda: wire.sent is not None)
    assert codes_of(coordinated, wire, VERIFYING) == [expected.code]


def test_without_a_coordinator_the_request_is_retriable(broker):
    broker.create("t")
    wire = send(broker, [(0, batch_of(broker))])
    broker.until(lambda: wire.sent is not None)
    assert codes_of(broker, wire, VERIFYING) == [errors.NotEnoughReplicas.code]
