"""Control records in a log: types and versions of markers, and the time that they note."""

from __future__ import annotations

import struct

from kafkalite.clock import ManualClock
from kafkalite.config.broker import PRODUCER_ID_EXPIRATION_MS
from kafkalite.records.batch import Record, build
from tests.storage.factories import NOW, open_log
from tests.storage.replicated import placed
from tests.storage.test_log_transactions import aborted, add, end, stable


def control_batch(producer_id: int, control_type: int, value: bytes, base_offset: int) -> bytes:
    """Return a control batch as a leader of another version may have appended it."""
    record = Record(timestamp=NOW, key=struct.pack(">hh", 0, control_type), value=value)
    content = build(
        [record], producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )
    return placed(content, base_offset)


def test_control_record_of_an_unknown_type_ends_no_transaction(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    log.append_replicated(control_batch(7, 2, struct.pack(">hi", 0, 5), 1))
    assert (stable(log), log.end_offset, aborted(log)) == (0, 2, [])
    (producer,) = log.producers
    assert (producer.txn_first_offset, producer.coordinator_epoch) == (0, -1)


def test_marker_value_of_a_newer_version_is_read_as_version_0(tmp_path):
    log = open_log(tmp_path)
    add(log, 7, 0)
    log.append_replicated(control_batch(7, 0, struct.pack(">hi", 1, 5) + b"more", 1))
    assert (stable(log), aborted(log)) == (2, [(7, 0, 1, 2)])
    (producer,) = log.producers
    assert (producer.txn_first_offset, producer.coordinator_epoch) == (-1, 5)
    assert producer.last_timestamp == NOW


def test_marker_is_the_last_time_that_a_producer_was_active(tmp_path):
    clock = ManualClock()
    log = open_log(tmp_path, {PRODUCER_ID_EXPIRATION_MS: 1_000}, clock=clock)
    add(log, 7, 0)
    (producer,) = log.producers
    before_ms = producer.last_timestamp
    clock.advance(500)
    end(log, 7, commit=True)
    assert producer.last_timestamp == clock.wall_ms() > before_ms
    log.producers.expire(clock.wall_ms() + 999)
    assert [each.producer_id for each in log.producers] == [7]
    log.producers.expire(clock.wall_ms() + 1_000)
    assert not log.producers
