"""Two-phase commit: InitProducerId version 6 (KIP-939), through the dispatcher of a real node."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite import errors
from kafkalite.broker.security import TWO_PHASE_COMMIT, WRITE
from kafkalite.protocol.schemas.cluster import API_VERSIONS, UPDATE_FEATURES
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transaction_records import NO_TIMEOUT_MS, TransactionState
from kafkalite.protocol.schemas.transactions import DESCRIBE_TRANSACTIONS, INIT_PRODUCER_ID
from kafkalite.records.batch import Record, batches, build
from kafkalite.storage.log.log_reader import read
from kafkalite.transport.connection import Disconnect
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import find
from tests.handlers.transacting import complete, end, hold_markers, stored

ENABLED = {"transaction.two.phase.commit.enable": "true"}
NONE = (-1, -1)
FENCED = errors.ProducerFenced.code
BUSY = errors.ConcurrentTransactions.code
DENIED = errors.TransactionalIdAuthorizationFailed.code


def init(
    broker: InProcess,
    *,
    name: str | None = "payments",
    timeout_ms: int = 60_000,
    pair: tuple[int, int] = NONE,
    enable: bool = True,
    keep: bool = False,
) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Return the error code, the producer's pair, and that of the Ongoing transaction."""
    answer = broker.request(
        INIT_PRODUCER_ID, 6, transactional_id=name, transaction_timeout_ms=timeout_ms,
        producer_id=pair[0], producer_epoch=pair[1], enable_2pc=enable, keep_prepared_txn=keep,
    )  # fmt: skip
    ongoing = answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch
    return answer.error_code, (answer.producer_id, answer.producer_epoch), ongoing


def produce(broker: InProcess, pair: tuple[int, int], value: bytes, sequence: int = 0) -> int:
    """Produce a record of a transaction, which adds its partition; return the error code."""
    batch = build(
        [Record(timestamp=broker.clock.wall_ms(), value=value)],
        producer_id=pair[0], producer_epoch=pair[1], base_sequence=sequence, transactional=True,
    )  # fmt: skip
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    wire = broker.send(
        PRODUCE, 12, transactional_id="payments", acks=-1, timeout_ms=1_000, topic_data=data
    )

    def is_answered() -> bool:
        broker.clock.advance(10)
        return wire.sent is not None

    broker.until(is_answered)
    (topic,) = broker.response(wire, PRODUCE, 12).responses
    code: int = topic.partition_responses[0].error_code
    return code


def written(broker: InProcess) -> list[Any]:
    """Return (producer id, epoch, value) of each record; of a marker, its type as value."""
    log = broker.node.replicas.leader("t", 0).log
    found = read(log, 0, 1 << 20, log.end_offset)
    assert found is not None
    return [
        (
            batch.header.producer_id,
            batch.header.producer_epoch,
            record.key[3] == 1 if batch.header.is_control else record.value,
        )
        for batch in batches(found.read())
        for record in batch
    ]


@pytest.fixture
def enabled(tmp_path):
    node = InProcess(tmp_path / "data", **ENABLED)
    find(node, key_type=1)
    node.create("t")
    yield node
    node.close()


# -- the key is false ----------------------------------------------------------------------------


def test_version_6_is_unsupported_unless_two_phase_commit_is_enabled(transactional):
    with pytest.raises(Disconnect, match="unsupported version 6 of InitProducerId"):
        init(transactional)


def test_version_6_is_advertised_while_two_phase_commit_is_enabled(transactional):
    def highest() -> int:
        software = {"client_software_name": "a", "client_software_version": "1"}
        (found,) = (
            each.max_version
            for each in transactional.request(API_VERSIONS, 3, **software).api_keys
            if each.api_key == INIT_PRODUCER_ID.key
        )
        assert isinstance(found, int)
        return found

    assert highest() == 5
    transactional.restart(**ENABLED)
    assert highest() == 6


# -- the key is true -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
def test_restarted_producer_ends_the_transaction_it_has_kept(enabled, is_commit):
    _, first, ongoing = init(enabled)
    assert ongoing == NONE
    assert produce(enabled, first, b"a") == 0
    enabled.restart()
    code, second, ongoing = init(enabled, keep=True)
    assert (code, second, ongoing) == (0, (first[0], 1), first)
    code, third, ongoing = init(enabled, keep=True)
    assert (code, third, ongoing) == (0, (first[0], 2), first)
    for old in (first, second):
        assert end(enabled, 5, old, committed=is_commit)[0] == FENCED
    code, *after = end(enabled, 5, third, committed=is_commit)
    assert (code, after) == (0, [first[0], 3])
    enabled.until(lambda: not stored(enabled).state.title.startswith("Prepare"))
    assert written(enabled) == [(*first, b"a"), (first[0], 1, is_commit)]
    partition = enabled.node.replicas.leader("t", 0)
    assert partition.last_stable_offset == partition.high_watermark == 2
    # The response was lost.
    assert end(enabled, 5, third, committed=is_commit) == (0, *after)
    # The producer continues with its next transaction.
    assert produce(enabled, tuple(after), b"b") == 0
    assert written(enabled)[-1] == (*after, b"b")


def test_next_transaction_may_begin_while_the_markers_are_written(enabled):
    _, first, _ = init(enabled)
    assert produce(enabled, first, b"a") == 0
    _, kept, _ = init(enabled, keep=True)
    hold_markers(enabled)
    _, *after = end(enabled, 5, kept)
    assert produce(enabled, tuple(after), b"b") == BUSY
    complete(enabled)
    enabled.until(lambda: stored(enabled).state is TransactionState.COMPLETE_COMMIT)
    assert stored(enabled)[:2] == tuple(after)


def test_nothing_can_be_written_to_a_kept_transaction(enabled):
    _, first, _ = init(enabled)
    assert produce(enabled, first, b"a") == 0
    _, kept, _ = init(enabled, keep=True)
    assert produce(enabled, kept, b"b") == errors.InvalidTxnState.code
    assert written(enabled) == [(*first, b"a")]


def test_init_without_keeping_aborts_a_kept_transaction(enabled):
    _, first, _ = init(enabled)
    assert produce(enabled, first, b"a") == 0
    _, kept, _ = init(enabled, keep=True)
    assert init(enabled, keep=False) == (BUSY, NONE, NONE)
    enabled.until(lambda: stored(enabled).state is TransactionState.COMPLETE_ABORT)
    assert written(enabled) == [(*first, b"a"), (first[0], 1, False)]
    assert end(enabled, 5, kept, committed=True)[0] == errors.InvalidTxnState.code
    assert init(enabled) == (0, (first[0], 3), NONE)
    assert end(enabled, 5, kept, committed=True)[0] == FENCED


@pytest.mark.parametrize("keep", [True, False])
def test_init_without_a_transaction_has_no_ongoing_pair(enabled, keep):
    code, first, ongoing = init(enabled, keep=keep)
    assert (code, ongoing) == (0, NONE)
    assert init(enabled, keep=keep) == (0, (first[0], 1), NONE)


def test_timeout_of_two_phase_commit_is_none_whatever_is_requested(enabled):
    for timeout_ms in (-1, 0, 60_000, NO_TIMEOUT_MS):
        assert init(enabled, timeout_ms=timeout_ms)[0] == 0
    (described,) = enabled.request(
        DESCRIBE_TRANSACTIONS, 0, transactional_ids=["payments"]
    ).transaction_states
    assert described.transaction_timeout_ms == NO_TIMEOUT_MS
    code = errors.InvalidTransactionTimeout.code
    assert init(enabled, timeout_ms=NO_TIMEOUT_MS, enable=False) == (code, NONE, NONE)
    assert init(enabled, timeout_ms=0, enable=False, keep=True) == (code, NONE, NONE)


def test_transaction_of_two_phase_commit_does_not_time_out(enabled):
    _, pair, _ = init(enabled)
    assert produce(enabled, pair, b"a") == 0
    for _ in range(3):
        enabled.clock.advance(900_000)
        enabled.reactor.tick(0)
    assert stored(enabled).state is TransactionState.ONGOING
    assert end(enabled, 5, pair)[0] == 0


def test_two_phase_commit_requires_its_own_operation(enabled, monkeypatch):
    monkeypatch.setattr(enabled.node, "authorizer", Denying(TWO_PHASE_COMMIT))
    assert init(enabled) == (DENIED, NONE, NONE)
    assert init(enabled, enable=False)[0] == 0
    monkeypatch.setattr(enabled.node, "authorizer", Denying(WRITE))
    assert init(enabled) == (DENIED, NONE, NONE)


def test_init_refuses_in_the_order_of_kafka(transactional):
    transactional.restart(**ENABLED)
    invalid, unsupported = errors.InvalidRequest.code, errors.UnsupportedVersion.code
    bad_timeout = errors.InvalidTransactionTimeout.code
    transactional.node.authorizer = Denying(TWO_PHASE_COMMIT, names="secret")
    half = (-1, 3)
    assert init(transactional, name="secret", pair=half, keep=True)[0] == DENIED
    assert init(transactional, name="", pair=half)[0] == invalid
    assert init(transactional, name="a", timeout_ms=0, enable=False)[0] == bad_timeout
    assert init(transactional, name="a", timeout_ms=0)[0] == errors.NotCoordinator.code
    levels = [{"feature": "transaction.version", "max_version_level": 1, "upgrade_type": 2}]
    assert transactional.request(UPDATE_FEATURES, 2, feature_updates=levels).error_code == 0
    assert init(transactional, name="", keep=True)[0] == invalid
    found = init(transactional, name="a", timeout_ms=0, enable=False, keep=True)
    assert found == (unsupported, NONE, NONE)


def test_without_a_transactional_id_the_options_have_no_effect(enabled):
    code, pair, ongoing = init(enabled, name=None, keep=True)
    assert (code, pair[1], ongoing) == (0, 0, NONE)
