"""Batches of idempotent producers after one that was refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.broker.replica.refused_batches import KEPT_MAX, KEPT_MS, RefusedBatches
from kafkalite.broker.replica.replica_manager import ACKS_ALL, ReplicaManager
from kafkalite.clock import ManualClock
from kafkalite.coordination.topic_names import LENGTH_MAX
from kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
)
from kafkalite.records.batch import Record, build
from kafkalite.storage.state.producer_state import SEQUENCE_MAX, BatchMetadata, ProducerStateEntry

TOPIC = b"\1" * 16


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


def partition(index: int = 0, producers: dict[int, ProducerStateEntry] | None = None):
    """Return a partition whose log knows these producers."""
    log = SimpleNamespace(producers=producers or {})
    return SimpleNamespace(topic="t", topic_id=TOPIC, index=index, log=log)


def known(epoch: int, last_sequence: int) -> dict[int, ProducerStateEntry]:
    entry = ProducerStateEntry(7, epoch)
    entry.batches.append(BatchMetadata(last_sequence, last_sequence, 0, 0, 0))
    return {7: entry}


def error_of(refused: RefusedBatches, *words: int, **kept: Any) -> KafkaError | None:
    try:
        refused.check(partition(**kept), batch(*words))
    except KafkaError as error:
        return error
    return None


@pytest.mark.parametrize("topic", ["t", TOPIC], ids=["by name", "by id"])
def test_batch_after_a_refused_one_has_its_error(refused, topic):
    refused.add(topic, 0, batch(5), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 6), NotLeaderOrFollower)
    assert error_of(refused, 6, 8) is None  # another producer
    assert error_of(refused, 6, index=1) is None  # another partition
    assert isinstance(error_of(refused, 7), NotLeaderOrFollower)


@pytest.mark.parametrize("words", [(5,), (4,), (6, 7, 1)], ids=["it", "earlier", "later epoch"])
def test_what_does_not_follow_a_refused_batch_is_taken(refused, words):
    refused.add("t", 0, batch(5), NotLeaderOrFollower())
    assert error_of(refused, *words) is None
    assert isinstance(error_of(refused, 6), NotLeaderOrFollower)  # the log does not have it yet


@pytest.mark.parametrize(
    ("producers", "is_awaited"),
    [(known(0, 4), True), (known(0, 5), False), (known(0, 9), False), (known(1, 0), False)],
    ids=["the one before", "it", "later ones", "a later epoch"],
)
def test_refused_batch_that_another_leader_took_is_not_awaited(refused, producers, is_awaited):
    refused.add("t", 0, batch(5), NotLeaderOrFollower())
    error = error_of(refused, 10, producers=producers)
    assert isinstance(error, NotLeaderOrFollower) if is_awaited else error is None
    assert len(refused) == is_awaited


def test_each_of_several_refused_batches_is_awaited_in_turn(refused):
    for sequence in (5, 6, 7):
        refused.add("t", 0, batch(sequence), NotLeaderOrFollower())
    log = known(0, 5)  # which a former leader has taken
    assert isinstance(error_of(refused, 7, producers=log), NotLeaderOrFollower)
    assert isinstance(error_of(refused, 8, producers=log), NotLeaderOrFollower)
    assert error_of(refused, 6, producers=log) is None
    assert error_of(refused, 5, producers=log) is None  # a duplicate
    assert error_of(refused, 7, producers=known(0, 6)) is None and len(refused) == 1
    assert error_of(refused, 8, producers=known(0, 7)) is None and len(refused) == 0


def test_first_of_several_refused_batches_is_awaited(refused):
    refused.add("t", 0, batch(5), NotEnoughReplicas())
    refused.add("t", 0, batch(6), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 6), NotEnoughReplicas)


def test_sequences_wrap_around(refused):
    refused.add("t", 0, batch(SEQUENCE_MAX), NotLeaderOrFollower())
    assert isinstance(error_of(refused, 0), NotLeaderOrFollower)


def test_refused_batch_that_never_comes_again_is_missing_after_a_while(refused, clock):
    refused.add("t", 0, batch(5), NotLeaderOrFollower())
    clock.advance(KEPT_MS // 2)
    refused.add("t", 0, batch(6), NotLeaderOrFollower())  # this does not prolong it
    clock.advance(KEPT_MS // 2 + 1)
    assert error_of(refused, 7) is None
    refused.add("t", 1, batch(5), NotLeaderOrFollower())
    assert len(refused) == 1  # the first is dropped


@pytest.mark.parametrize(
    ("refused_batch", "error"),
    [(batch(5), InvalidRequest()), (batch(-1, -1, -1), NotLeaderOrFollower()),
     (b"short", NotLeaderOrFollower())],
    ids=["not retriable", "not idempotent", "no batch"],
)  # fmt: skip
def test_what_cannot_come_again_is_not_kept(refused, refused_batch, error):
    refused.add("t", 0, refused_batch, error)
    assert len(refused) == 0


def test_batch_of_an_impossible_topic_name_is_not_kept(refused):
    refused.add("t" * (LENGTH_MAX + 1), 0, batch(5), NotLeaderOrFollower())
    assert len(refused) == 0


def test_number_of_refused_batches_is_bounded(refused):
    for producer_id in range(KEPT_MAX + 5):
        refused.add("t", 0, batch(5, producer_id), NotLeaderOrFollower())
    assert len(refused) == KEPT_MAX
    assert error_of(refused, 6, 0) is None


def test_kept_error_has_no_frames_of_the_request(refused):
    with pytest.raises(NotLeaderOrFollower):
        try:
            raise NotLeaderOrFollower()
        except NotLeaderOrFollower as error:
            refused.add("t", 0, batch(5), error)
            raise
    (kept,) = refused._refused.values()
    assert kept.error.__traceback__ is None


@pytest.mark.parametrize(("is_allowed", "kept"), [(True, 1), (False, 0)])
def test_batch_of_a_client_without_permission_is_not_kept(clock, is_allowed, kept):
    scheduler: Any = None
    image: Any = SimpleNamespace(name="t", partitions={0: None})
    replicas = ReplicaManager(scheduler, scheduler, scheduler, lambda topic: image)
    client: Any = SimpleNamespace(may=lambda *words: is_allowed)
    for topic in ("t", TOPIC):
        with pytest.raises(NotLeaderOrFollower):
            replicas.append(client, ACKS_ALL, topic, 0, batch(5))
    assert len(replicas.refused) == 2 * kept
