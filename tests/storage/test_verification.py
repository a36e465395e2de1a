"""Verification of transactions in a log: guards, the order of the checks, what removes a guard."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kafkalite.config.broker import PRODUCER_ID_EXPIRATION_MS
from kafkalite.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequenceNumber
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.verification import (
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
    assert not log.producers.verifications.entries
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
    assert not log.producers.verifications.entries
    with pytest.raises(InvalidProducerEpoch):
        add(log, guard)


def test_marker_with_the_same_epoch_removes_the_guard_of_a_verified_transaction(log):
    add(log, NOT_REQUIRED, epoch=1)
    end(log, 1, 0)
    begin(log, 1, epoch=1)
    end(log, 1, 0)
    assert not log.producers.verifications.entries


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


def test_late_batch_of_the_open_transaction_keeps_the_guard_of_the_next(log):
    add(log, NOT_REQUIRED)
    guard = begin(log, epoch=1, is_implicit=ADDED)
    assert add(log, None, 1).base_offset == 1
    end(log, 1, 2)
    assert add(log, guard, epoch=1).base_offset == 3


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
    assert not log.producers.verifications.entries


def test_number_of_guards_is_bounded():
    entries = VerificationEntries()
    guards = [entries.begin(each, 0, 0, NOW, is_implicit=True) for each in range(COUNT_MAX + 1)]
    assert len(entries.entries) == COUNT_MAX
    assert not entries.matches(0, guards[0])
    assert all(entries.matches(each, guards[each]) for each in range(1, COUNT_MAX + 1))


class Waiting(NamedTuple):
    """A batch whose verification was requested."""

    epoch: int
    sequence: int
    guard: VerificationGuard | None
    marker_count: int
    """Number of markers in the log before the request."""


class AnyOrder(RuleBasedStateMachine):
    """Requests, responses, appends and markers in any order, against a model of the coordinator.

    A batch that begins a transaction in the log needs a marker that will end it: the coordinator
    has the partition in the transaction, or has decided its end and not written the marker yet.
    """

    @initialize(version=st.sampled_from([1, 1, 2]))
    def begin(self, version: int) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.log = open_log(Path(self.place.name) / "t-0")
        self.version = version
        self.epoch = 0
        self.is_ongoing = self.has_partition = version == 1
        self.marker: TransactionMarker | None = None
        """Decided and not written."""
        self.markers: list[TransactionMarker] = []
        """Written once or more often."""
        self.marker_count = 0
        self.next_sequence: Counter[int] = Counter()
        """By epoch."""
        self.asked: list[Waiting] = []
        self.verified: list[Waiting] = []

    def teardown(self) -> None:
        self.log.release()
        self.place.cleanup()

    # -- the leader ----------------------------------------------------------------------

    @rule(older=st.sampled_from([0, 0, 0, 1]), is_verified=st.booleans())
    def ask(self, older: int, is_verified: bool) -> None:
        """A batch of this epoch or of the one before comes."""
        epoch = max(0, self.epoch - older)
        sequence = self.next_sequence[epoch]
        try:
            guard = begin(self.log, sequence, epoch, is_implicit=self.version == 2)
        except InvalidProducerEpoch:
            return
        self.asked.append(Waiting(epoch, sequence, guard, self.marker_count))
        if is_verified:
            self.verify(len(self.asked) - 1)

    @precondition(lambda self: self.verified)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """A response comes."""
        waiting = self.verified.pop(data.draw(st.integers(0, len(self.verified) - 1)))
        was_open = self.log.producers.has_open_transaction(7, waiting.epoch)
        try:
            appended = add(self.log, waiting.guard, waiting.sequence, waiting.epoch)
        except InvalidProducerEpoch:
            return
        except InvalidTxnState:
            assert self.marker_count > waiting.marker_count, "no marker has ended the transaction"
            return
        except OutOfOrderSequenceNumber:
            assert waiting.sequence < self.next_sequence[waiting.epoch], "it is no old repetition"
            return
        if appended.duplicate:
            return
        self.next_sequence[waiting.epoch] = waiting.sequence + 1
        assert was_open or self.will_end(waiting.epoch)

    def will_end(self, epoch: int) -> bool:
        """Return whether a marker will end a transaction that begins now."""
        if self.is_ongoing and self.has_partition and self.epoch == epoch:
            return True
        if self.marker is None:
            return False
        return self.marker.producer_epoch - epoch >= (1 if self.version == 2 else 0)

    # -- the coordinator -----------------------------------------------------------------

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def verify_one(self, data: st.DataObject) -> None:
        self.verify(data.draw(st.integers(0, len(self.asked) - 1)))

    def verify(self, position: int) -> None:
        waiting = self.asked.pop(position)
        if waiting.epoch != self.epoch:
            return
        if self.marker is not None:
            self.asked.append(waiting)  # repeated
            return
        if self.version == 2:
            self.is_ongoing = self.has_partition = True
        if self.has_partition:
            self.verified.append(waiting)

    @precondition(lambda self: self.version == 1 and self.marker is None)
    @rule(here=st.sampled_from([True, True, False]))
    def add_partition(self, here: bool) -> None:
        """The client adds this partition to its transaction, or another one."""
        self.is_ongoing = True
        self.has_partition |= here

    @precondition(lambda self: self.is_ongoing)
    @rule(
        is_fenced=st.sampled_from([False, False, True]),
        is_written=st.sampled_from([True, True, False]),
    )
    def end(self, is_fenced: bool, is_written: bool) -> None:
        if self.version == 2 or is_fenced:
            self.epoch += 1
        if self.has_partition:
            self.marker = TransactionMarker(7, self.epoch, False, 0, 2 * (self.version == 2))
        self.is_ongoing = self.has_partition = False
        if is_written and self.marker is not None:
            self.write()

    @precondition(lambda self: self.marker is not None)
    @rule()
    def write(self) -> None:
        assert self.marker is not None
        self.log.append_marker(self.marker, 0)
        self.marker_count += 1
        self.markers.append(self.marker)
        self.marker = None

    @precondition(lambda self: self.markers)
    @rule(data=st.data())
    def write_again(self, data: st.DataObject) -> None:
        """A marker comes that was written before."""
        try:
            self.log.append_marker(data.draw(st.sampled_from(self.markers)), 0)
        except InvalidProducerEpoch:
            return
        self.marker_count += 1


AnyOrder.TestCase.settings = hypothesis_settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
TestAnyOrder = AnyOrder.TestCase
