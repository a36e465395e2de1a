"""Verification of transactions in a log: guards, the order of the checks, what removes a guard."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.config.broker import PRODUCER_ID_EXPIRATION_MS
from kafkalite.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log import Log
from kafkalite.storage.verification import (
    COUNT_MAX,
    NOT_REQUIRED,
    VerificationEntries,
    VerificationGuard,
)
from tests.storage.factories import NOW, batch, open_log

VERIFIED, ADDED = False, True
"""The request to the coordinator: of Produce 11 and older, and of Produce 12 and newer."""


def begin(log: Log, sequence=0, epoch=0, *, is_implicit=VERIFIED, producer_id=7) -> Any:
    return log.producers.begin_verification(
        producer_id, epoch, sequence, NOW, is_implicit=is_implicit
    )


def add(log: Log, guard: VerificationGuard | None, sequence=0, epoch=0, *, from_client=True):
    """Append one record of a transaction."""
    content = batch(
        b"v", producer_id=7, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return log.append(content, 0, guard=guard, from_client=from_client)


def end(log: Log, epoch: int, version: int) -> None:
    log.append_marker(TransactionMarker(7, epoch, False, 0, version), 0)


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path)


@pytest.mark.parametrize("from_client", [True, False])
def test_first_records_of_a_transaction_need_the_guard(log, from_client):
    guard = begin(log)
    for other in (None, VerificationGuard()):
        with pytest.raises(InvalidTxnState):
            add(log, other, from_client=from_client)
    assert add(log, guard, from_client=from_client).base_offset == 0
    assert not log.producers.verifications
    assert begin(log, 1) is None
    assert add(log, None, 1, from_client=from_client).base_offset == 1


def test_marker_before_the_response_removes_the_guard(log):
    guard = begin(log)
    end(log, 0, 0)
    with pytest.raises(InvalidTxnState):
        add(log, guard)
    later = begin(log)
    with pytest.raises(InvalidTxnState):
        add(log, guard)
    assert add(log, later).base_offset == 1


def test_marker_with_the_raised_epoch_keeps_the_guard_of_the_next_transaction(log):
    add(log, NOT_REQUIRED)
    guard = begin(log, epoch=1, is_implicit=ADDED)
    end(log, 1, 2)
    assert add(log, guard, epoch=1).base_offset == 2


def test_marker_with_the_raised_epoch_removes_the_guard_of_its_own_transaction(log):
    guard = begin(log, is_implicit=ADDED)
    end(log, 1, 2)
    assert not log.producers.verifications
    with pytest.raises(InvalidProducerEpoch):
        add(log, guard)


def test_marker_with_the_same_epoch_removes_the_guard_of_a_verified_transaction(log):
    add(log, NOT_REQUIRED, epoch=1)
    end(log, 1, 0)
    begin(log, 1, epoch=1)
    end(log, 1, 0)
    assert not log.producers.verifications


@pytest.mark.parametrize("from_client", [True, False])
def test_older_epoch_is_refused_before_the_request_and_before_the_append(log, from_client):
    guard = begin(log)
    add(log, NOT_REQUIRED, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        begin(log)
    with pytest.raises(InvalidProducerEpoch):
        add(log, guard, from_client=from_client)


def test_missing_verification_comes_before_the_sequence(log):
    add(log, NOT_REQUIRED)
    end(log, 0, 0)
    with pytest.raises(InvalidTxnState):
        add(log, None, 5)
    with pytest.raises(OutOfOrderSequenceNumber):
        add(log, begin(log, 5), 5)


def test_repeated_batch_needs_no_guard(log):
    add(log, NOT_REQUIRED)
    end(log, 0, 0)
    assert add(log, None).duplicate


def test_first_sequence_of_an_unknown_producer_is_0_if_the_request_added_the_partition(log):
    with pytest.raises(OutOfOrderSequenceNumber):
        add(log, begin(log, 3, is_implicit=ADDED), 3)
    guard = begin(log, is_implicit=ADDED)
    assert add(log, guard).base_offset == 0


def test_unknown_producer_continues_with_any_sequence_if_the_request_verified(log):
    assert add(log, begin(log, 3), 3).base_offset == 0


def test_batch_after_a_missing_one_is_refused(log):
    guard = begin(log, 3)
    assert begin(log, 4) is guard
    with pytest.raises(OutOfOrderSequenceNumber):
        add(log, guard, 4)
    assert begin(log, 2) is guard
    with pytest.raises(OutOfOrderSequenceNumber):
        add(log, guard, 3)
    assert add(log, guard, 2).base_offset == 0


def test_lowest_sequence_begins_again_with_a_higher_epoch(log):
    guard = begin(log, 3)
    assert begin(log, 9, epoch=1) is guard
    assert begin(log, 2) is guard  # of the older epoch
    assert add(log, guard, 9, epoch=1).base_offset == 0


def test_records_with_a_newer_epoch_than_the_open_transaction_need_the_guard(log):
    add(log, NOT_REQUIRED)
    with pytest.raises(InvalidTxnState):
        add(log, None, epoch=1)
    assert add(log, begin(log, epoch=1), epoch=1).base_offset == 1


def test_unused_guard_expires_with_its_producer(tmp_path):
    log = open_log(tmp_path, {PRODUCER_ID_EXPIRATION_MS: 1_000})
    guard = begin(log)
    log.producers.expire(NOW + 999)
    assert log.producers.verifications.matches(7, guard)
    log.producers.expire(NOW + 1_000)
    assert not log.producers.verifications


def test_number_of_guards_is_bounded():
    entries = VerificationEntries()
    guards = [entries.begin(each, 0, 0, NOW, is_implicit=True) for each in range(COUNT_MAX + 1)]
    assert len(entries) == COUNT_MAX
    assert not entries.matches(0, guards[0])
    assert all(entries.matches(each, guards[each]) for each in range(1, COUNT_MAX + 1))
