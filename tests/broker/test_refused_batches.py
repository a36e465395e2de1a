"""Batches of idempotent producers after one that was refused."""

from __future__ import annotations

import pytest

from kafkalite.broker.replica.refused_batches import KEPT_MAX, KEPT_MS, RefusedBatches
from kafkalite.clock import ManualClock
from kafkalite.errors import (
    InvalidRequest,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from kafkalite.records.batch import Record, build
from kafkalite.storage.state.producer_state import SEQUENCE_MAX

TOPIC = b"\1" * 16
GAP = OutOfOrderSequenceNumber("a gap")


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    return build(
        [Record(value=b"x")], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def refused(clock: ManualClock) -> RefusedBatches:
    return RefusedBatches(clock.monotonic_ns)


def error_of(refused: RefusedBatches, *words: int) -> OutOfOrderSequenceNumber:
    return refused.error_of(TOPIC, 0, batch(*words), GAP)


def test_batch_after_a_refused_one_has_its_error(refused):
    refused.add(TOPIC, 0, batch(5), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 6), NotLeaderOrFollower)
    assert error_of(refused, 5) is GAP and error_of(refused, 4) is GAP
    assert error_of(refused, 6, 8) is GAP  # another producer
    assert error_of(refused, 6, 7, 1) is GAP  # another epoch of it
    assert refused.error_of(TOPIC, 1, batch(6), GAP) is GAP  # another partition


def test_first_of_several_refused_batches_is_awaited(refused):
    refused.add(TOPIC, 0, batch(5), NotEnoughReplicas())
    refused.add(TOPIC, 0, batch(6), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 6), NotEnoughReplicas)
    refused.appended(TOPIC, 0, batch(5))
    assert error_of(refused, 7) is GAP and len(refused) == 0


def test_sequences_wrap_around(refused):
    refused.add(TOPIC, 0, batch(SEQUENCE_MAX), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 0), NotLeaderOrFollower)


def test_refused_batch_that_never_comes_again_is_missing_after_a_while(refused, clock):
    refused.add(TOPIC, 0, batch(5), NotLeaderOrFollower())
    clock.advance(KEPT_MS // 2)
    refused.add(TOPIC, 0, batch(6), NotLeaderOrFollower())  # this does not prolong it
    clock.advance(KEPT_MS // 2 + 1)
    assert error_of(refused, 7) is GAP


@pytest.mark.parametrize(
    ("refused_batch", "error"),
    [(batch(5), InvalidRequest()), (batch(-1, -1, -1), NotLeaderOrFollower()),
     (b"short", NotLeaderOrFollower())],
    ids=["not retriable", "not idempotent", "no batch"],
)  # fmt: skip
def test_what_cannot_come_again_is_not_kept(refused, refused_batch, error):
    refused.add(TOPIC, 0, refused_batch, error)
    assert len(refused) == 0


def test_number_of_refused_batches_is_bounded(refused):
    for producer_id in range(KEPT_MAX + 5):
        refused.add(TOPIC, 0, batch(5, producer_id), NotLeaderOrFollower())
    assert len(refused) == KEPT_MAX
    assert error_of(refused, 6, 0) is GAP
