"""Idempotent producers: a retry returns the old offset, a sequence gap is refused; in a log that is
rolled, closed, crashed and reopened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkalite._ext.record_batch import CONTROL, TRANSACTIONAL
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.config.broker import (
    PRODUCER_ID_EXPIRATION_MS,
    PRODUCER_STATE_MAX_PER_PARTITION,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import InvalidConfig, InvalidProducerEpoch, OutOfOrderSequenceNumber
from kafkalite.records.control import ControlType, TransactionMarker
from kafkalite.storage.files import layout
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.producer_state import SEQUENCE_MAX, ProducerStateManager, after
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.storage.factories import NOW, batch, close, open_log, produced, values_of


def write(log: Log, count: int, first: int = 0, **how: int) -> None:
    for sequence in range(first, first + count):
        log.append(produced(sequence, b"%d" % sequence, **how), 0)


def test_retries_of_the_last_five_batches_return_their_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 8)
    for sequence in range(3, 8):
        again = log.append(produced(sequence, b"%d" % sequence), 0)
        assert (again.base_offset, again.last_offset, again.duplicate) == (sequence, sequence, True)
    assert log.end_offset == 8
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(2, b"2"), 0)


def test_retry_returns_the_timestamp_of_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 1)
    assert log.append(produced(0, b"0"), 0).append_time_ms == NOW


def test_sequence_gap_or_other_batch_length_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 3)
    for wrong in (produced(4), produced(2, b"a", b"b"), produced(0, b"a", b"b", b"c")):
        with pytest.raises(OutOfOrderSequenceNumber):
            log.append(wrong, 0)
    assert log.end_offset == 3


def test_new_producer_epoch_starts_at_zero_and_fences_the_old(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 3)
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(3, epoch=1), 0)
    log.append(produced(0, epoch=1), 0)
    with pytest.raises(InvalidProducerEpoch):
        log.append(produced(3, epoch=0), 0)
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(2, epoch=1), 0)  # the sequence exists in the old epoch only
    assert not log.append(produced(1, epoch=1), 0).duplicate


def test_unknown_producer_may_begin_with_any_sequence(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append(produced(41), 0).base_offset == 0
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(43), 0)


def test_sequence_wraps_to_zero_after_the_maximum(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(produced(SEQUENCE_MAX - 1, b"a", b"b", b"c"), 0)
    assert log.append(produced(1, b"d"), 0).base_offset == 3
    assert log.append(produced(SEQUENCE_MAX - 1, b"a", b"b", b"c"), 0).duplicate
    assert after(SEQUENCE_MAX, 1) == 0
    log.append(produced(SEQUENCE_MAX, producer_id=9), 0)
    assert log.append(produced(0, producer_id=9), 0).base_offset == 5


def test_refused_batch_does_not_change_the_producer(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.MAX_MESSAGE_BYTES: 200})
    write(log, 2)
    with pytest.raises(Exception, match="max.message.bytes"):
        log.append(produced(2, b"x" * 300), 0)
    assert not log.append(produced(2), 0).duplicate


def test_idle_producer_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, {PRODUCER_ID_EXPIRATION_MS: 1000}, clock)
    write(log, 2)
    clock.advance(999)
    log.retain()
    assert len(log.producers) == 1
    clock.advance(2)
    log.retain()
    assert len(log.producers) == 0


def test_producers_with_open_transactions_are_not_looked_through_for_each_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path, {PRODUCER_STATE_MAX_PER_PARTITION: 100})
    looked, evict = [], ProducerStateManager._evict
    monkeypatch.setattr(
        ProducerStateManager, "_evict", lambda *given: looked.append(1) or evict(*given)
    )
    for number in range(1_000):
        log.producers.replay(number, 0, TRANSACTIONAL, 1_000, number, 0, 0)
    assert len(log.producers) == 1_000 and len(looked) < 100
    for number in range(1_000):
        log.producers.replay(
            1_000 + number, 0, TRANSACTIONAL | CONTROL, 1_000, number, 0, -1, ControlType.ABORT
        )
    for number in range(300):
        log.producers.replay(2_000 + number, 0, 0, 1_000, 1_000 + number, 0, 0)
    assert len(log.producers) <= 100


@pytest.mark.parametrize("how", ["closed", "crashed", "crashed without any snapshot"])
def test_producer_state_is_restored_at_open(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path)
    for sequence in range(40):
        log.append(produced(sequence, b"%d" % sequence), 0)
        log.append(produced(100 + sequence, b"other", producer_id=8), 0)
    end = close(log) if how == "closed" else None
    log.release()
    if how.endswith("snapshot"):
        for path in tmp_path.glob("*" + layout.SNAPSHOT):
            path.unlink()
    log = open_log(tmp_path, end=end)
    assert log.append(produced(39, b"39"), 0).base_offset == 78
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(41), 0)
    assert not log.append(produced(40), 0).duplicate
    assert not log.append(produced(140, producer_id=8), 0).duplicate


def test_all_five_batches_are_restored_after_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    write(log, 30)
    log.release()
    log = open_log(tmp_path)
    for sequence in range(25, 30):
        assert log.append(produced(sequence, b"%d" % sequence), 0).base_offset == sequence


@pytest.mark.parametrize("segment_size", [1 << 20, 1000])
def test_all_five_batches_are_restored_after_two_crashes(
    tmp_path: Path, segment_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may be slower than the second crash, and a snapshot holds only the last batch."""
    monkeypatch.setattr("kafkalite.storage.log.recovery.SAVED_SIZE_MIN", 0)
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: segment_size})
    write(log, 30)
    for _ in range(3):
        log.release()
        log = open_log(tmp_path, {keys.SEGMENT_BYTES: segment_size}, recovery_point=30)
    assert log.producers.snapshots()[-1] == 30
    for sequence in range(25, 30):
        assert log.append(produced(sequence, b"%d" % sequence), 0).base_offset == sequence


def test_restored_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkalite.storage.log.recovery.RESTORED_SIZE", 1000)
    monkeypatch.setattr("kafkalite.storage.log.recovery.SAVED_SIZE_MIN", 0)
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    write(log, 5)
    write(log, 100, producer_id=8)
    size = log.size
    log.release()
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    found = log.active.produced_before(size, 1000)
    assert 1 < len(found) < 20 and found[-1][0] == 104
    assert log.active.produced_before(size, size)[0][0] == 0
    log.release()
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20}, recovery_point=105)
    assert log.append(produced(4, b"4"), 0).duplicate
    assert log.append(produced(98, b"98", producer_id=8), 0).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(3, b"3"), 0)


def test_recovery_starts_at_the_last_snapshot_before_its_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalite.storage.log.checkpoint_snapshots.SNAPSHOT_EVERY", 1000)
    monkeypatch.setattr("kafkalite.storage.log.checkpoint_snapshots.SNAPSHOT_EVERY_PRODUCER", 0)
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    for first in range(0, 200, 10):
        write(log, 10, first)
        log.take_snapshot_if_due()
        log.flush()
    between = log.producers.snapshots()
    assert len(between) == 2
    # Damage below both snapshots is not read; above the first one it is.
    content = bytearray(log.active.path.read_bytes())
    content[100] ^= 1
    log.active.path.write_bytes(content)
    log.release()
    again = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20}, recovery_point=between[1] - 1)
    assert (again.failure, again.end_offset) == (None, 200)
    for sequence in range(195, 200):
        assert again.append(produced(sequence, b"%d" % sequence), 0).duplicate


def test_producer_without_retained_records_survives_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.RETENTION_BYTES: 0})
    write(log, 1)
    log.retain()
    assert (log.log_start_offset, log.size) == (1, 0)
    log.release()
    assert open_log(tmp_path).append(produced(0, b"0"), 0).duplicate


def test_truncated_records_are_removed_from_all_state(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 20)
    end = log.active.boundary(log.active.base_offset + 1)
    log.append(produced(20, b"20"), 9)
    path, kept = log.active.path, log.active.base_offset + 1
    close(log)
    os.truncate(path, end or 0)
    log = open_log(tmp_path)
    assert log.end_offset == kept < 20
    assert max(log.producers.snapshots()) <= kept
    assert log.end_of_epoch(9) == (-1, -1)
    assert not log.append(produced(kept, b"another"), 0).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(19), 0)


def test_producer_snapshot_with_a_wrong_crc_is_skipped(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    write(log, 40)
    end = close(log)
    for path in tmp_path.glob("*" + layout.SNAPSHOT):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    log = open_log(tmp_path, end=end)
    assert log.append(produced(39, b"39"), 0).duplicate
    assert len(values_of(log)) == 40


def test_copied_transaction_is_open_until_its_marker(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    how = {"producer_id": 3, "producer_epoch": 0, "transactional": True}
    content = batch(b"a", base_sequence=0, **how)
    log.append(content, 0, from_client=False, guard=NOT_REQUIRED)
    assert [producer.txn_first_offset for producer in log.producers] == [0]
    log.append(TransactionMarker(3, 0, True, 0).batch(NOW), 0, from_client=False)
    assert [producer.txn_first_offset for producer in log.producers] == [-1]


def test_least_recent_producers_are_evicted_above_the_maximum(tmp_path: Path) -> None:
    log = open_log(tmp_path, {PRODUCER_STATE_MAX_PER_PARTITION: 20})
    for producer_id in range(20):
        log.append(produced(0, b"first", producer_id=producer_id), 0)
    log.append(produced(1, b"again", producer_id=0), 0)
    log.append(produced(0, b"first", producer_id=20), 0)
    known = {producer.producer_id for producer in log.producers}
    assert known == {0, *range(3, 21)}, "a tenth is forgotten at once, and the active one is not"
    assert log.append(produced(1, b"again", producer_id=0), 0).duplicate
    # As in Kafka for an expired producer: any sequence is accepted.
    assert not log.append(produced(7, b"later", producer_id=1), 0).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(7, b"gap", producer_id=5), 0)
    close(log)


def test_producers_with_open_transactions_are_never_evicted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for producer_id in range(12):
        log.append(produced(0, b"v", producer_id=producer_id), 0)
        if producer_id < 3:
            next(p for p in log.producers if p.producer_id == producer_id).txn_first_offset = 0
    log.reconfigure(log.config.settings.replacing({PRODUCER_STATE_MAX_PER_PARTITION: 5}))
    assert {producer.producer_id for producer in log.producers} == {0, 1, 2, 10, 11}
    log.reconfigure(log.config.settings.replacing({PRODUCER_STATE_MAX_PER_PARTITION: 1}))
    assert {producer.producer_id for producer in log.producers} == {0, 1, 2}
    log.append(produced(0, b"v", producer_id=12), 0)
    assert len(log.producers) == 4
    close(log)


def test_producer_state_is_bounded_so_that_a_snapshot_fits_a_tick() -> None:
    key = PRODUCER_STATE_MAX_PER_PARTITION.name
    assert Settings.broker({key: "50000"})[PRODUCER_STATE_MAX_PER_PARTITION] == 50_000
    with pytest.raises(InvalidConfig):
        Settings.broker({key: "50001"})
