"""TransactionCoordinator: two-phase commit, with transactions that are kept (KIP-939)."""

from __future__ import annotations

import pytest

from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidTransactionTimeout,
    ProducerFenced,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transaction_records import NO_TIMEOUT_MS, TransactionState
from tests.coordination.transactions import LIMITS, TIMEOUT_MS, TransactionHarness


@pytest.fixture
def host() -> TransactionHarness:
    return TransactionHarness()


def test_restarted_producer_keeps_and_commits_its_transaction(host):
    first = host.init(enable_2pc=True)
    assert host.kept == (None, None)
    host.add(first)
    second = host.init(enable_2pc=True, keep_prepared=True)
    assert host.kept == first
    host.reload()
    third = host.init(enable_2pc=True, keep_prepared=True)
    assert host.kept == first
    assert first.epoch < second.epoch < third.epoch
    for old in (first, second):
        with pytest.raises(ProducerFenced):
            host.end(old, is_commit=True)
    after = host.end(third, is_commit=True)
    host.reload()
    with pytest.raises(ConcurrentTransactions):
        host.end(third, is_commit=True)
    host.complete()
    assert host.end(third, is_commit=True) == after
    host.add(after)
    assert host.machine.describe("id").producer_epoch == after.epoch > third.epoch


def test_kept_transaction_has_a_new_producer_id_after_a_power_cut(host):
    first = host.init(enable_2pc=True)
    host.add(first)
    host.machine.replace_producer_ids()
    second = host.init(enable_2pc=True, keep_prepared=True)
    assert host.kept == first
    assert second.producer_id != first.producer_id and second.epoch == 0
    after = host.end(second, is_commit=True)
    host.complete()
    assert after == host.machine.describe("id")[:2] == (second.producer_id, 1)


def test_transaction_with_two_phase_commit_never_times_out(host):
    host.init(timeout_ms=-1, enable_2pc=True)
    assert host.machine.describe("id").timeout_ms == NO_TIMEOUT_MS
    host.add(host.init(timeout_ms=0, enable_2pc=True))
    for _ in range(2):
        # Also with a timeout that ends as far away as a timeout can.
        assert host.tick(NO_TIMEOUT_MS) == 0
        assert host.tick(NO_TIMEOUT_MS) == 0
        assert host.state() is TransactionState.ONGOING
        host.reload()


def test_producer_without_two_phase_commit_aborts_a_transaction_without_a_timeout(host):
    host.add(host.init(enable_2pc=True))
    with pytest.raises(ConcurrentTransactions):
        host.init()
    host.complete()
    host.init()
    assert host.machine.describe("id").timeout_ms == TIMEOUT_MS


def test_abort_of_a_kept_transaction_fences_its_producers_once_version_0_is_finalized(host):
    host.add(host.init(enable_2pc=True))
    kept = [host.init(enable_2pc=True, keep_prepared=True) for _ in range(3)]
    host.machine.reconfigure(LIMITS._replace(transaction_version=0), host.now_ms)
    with pytest.raises(ConcurrentTransactions):
        host.init()  # aborts it
    host.reload()
    host.complete()
    host.reload()
    assert host.machine.describe("id").producer_epoch > kept[-1].epoch
    assert host.init().epoch > kept[-1].epoch + 1


@pytest.mark.parametrize(
    "version, options, error",
    [
        (0, {"keep_prepared": True}, UnsupportedVersion),
        (1, {"keep_prepared": True, "enable_2pc": True}, UnsupportedVersion),
        (2, {"keep_prepared": True, "timeout_ms": 0}, InvalidTransactionTimeout),
        (2, {"timeout_ms": NO_TIMEOUT_MS}, InvalidTransactionTimeout),
    ],
)
def test_options_are_refused(version, options, error):
    host = TransactionHarness(LIMITS._replace(transaction_version=version))
    with pytest.raises(error):
        host.init(**options)
    assert not host.log
