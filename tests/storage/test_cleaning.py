"""The log cleaner's work on files: what is kept, compared with twins and with a dictionary (P8, P9,
P10)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite._ext import cleaner
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.records.batch import Record, RecordBatch, batches, build
from kafkalite.records.compression import Codec
from kafkalite.records.control import TransactionMarker
from kafkalite.storage.compaction.cleaning import CleaningCancelled, clean
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK_FULL_ERRORS
from kafkalite.storage.log.log import Log
from kafkalite.storage.state.verification import NOT_REQUIRED
from tests.simulation.disk import QuickDisk
from tests.storage import cleaning_harness as harness
from tests.storage.cleaning_harness import (
    DELETE_RETENTION_MS,
    SLOT_SIZE,
    batches_of,
    clean_all,
    files_of,
    job_of,
    latest,
    no_throttle,
    records_of,
    run_pass,
)
from tests.storage.factories import NOW, found_since, open_log
from tests.twins import cleaner as twin
from tests.twins import segment_walk as walk_twin

KEYS = [b"", b"a", b"key-2", b"key-number-3", b"k" * 17, b"k" * 130, b"k" * 300]
COMPACT = {keys.CLEANUP_POLICY: ("compact",), keys.SEGMENT_BYTES: 600}


def put(log: Log, *records: tuple[bytes | None, bytes | None], **how: Any) -> int:
    """Append a batch of (key, value) records; return its base offset."""
    timestamp = how.pop("timestamp", NOW)
    content = build(
        [Record(timestamp=timestamp + i, key=k, value=v) for i, (k, v) in enumerate(records)], **how
    )
    return log.append(content, 0, guard=NOT_REQUIRED).base_offset


def put_txn(log: Log, producer_id: int, sequence: int, *records: Any, epoch: int = 0) -> int:
    return put(
        log, *records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        transactional=True,
    )  # fmt: skip


def end_txn(log: Log, producer_id: int, *, commit: bool, epoch: int = 0) -> int:
    return log.append_marker(TransactionMarker(producer_id, epoch, commit, 0), 0).base_offset


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_of(log)]


def control_batches(log: Log) -> list[RecordBatch]:
    return [batch for batch in batches_of(log) if batch.header.is_control]


# -- twins ---------------------------------------------------------------------------------------


@given(key=st.binary(max_size=2000) | st.sampled_from([bytes(n) for n in range(0, 700, 7)]))
@settings(max_examples=200, deadline=None)
def test_digest_matches_its_twin(key):
    assert cleaner.digest(key) == twin.digest(key)


record_lists = st.lists(
    st.builds(
        Record,
        timestamp=st.integers(NOW - 5, NOW + 100_000),
        key=st.sampled_from(KEYS) | st.none(),
        value=st.binary(max_size=20) | st.none(),
        headers=st.just(()) | st.just((("h", b"1"), ("i", None))),
    ),
    min_size=1, max_size=80,
)  # fmt: skip


@st.composite
def segments(draw):
    """Return batches of one segment, whose offsets and record offsets have gaps."""
    found, offset = [], 100
    for records in draw(st.lists(record_lists, min_size=1, max_size=6)):
        offset += draw(st.sampled_from([0, 0, 3]))
        placed = []
        for record in records:
            placed.append(record._replace(offset=offset))
            offset += draw(st.sampled_from([1, 1, 1, 2]))
        found.append(RecordBatch(build(placed, base_offset=placed[0].offset)))
        offset = found[-1].header.last_offset + 1
    return found


def expected_of(found, offsets, end, now_ms):
    """Return the segment that the twins make of these batches."""
    content = b""
    for batch in found:
        kept = twin.filtered(batch, offsets, end, now_ms, now_ms + DELETE_RETENTION_MS)
        if not kept and batch is found[-1]:
            kept = twin.emptied(batch)
        content += kept
    return content


@given(
    found=segments(), slots=st.integers(2, 10), first=st.integers(100, 130),
    shorter=st.integers(0, 40), interval=st.sampled_from([0, 100, 4096]), data=st.data(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_pass_over_a_segment_matches_its_twins(found, slots, first, shorter, interval, data):
    sources_end = found[-1].header.last_offset + 1
    upper = max(first, sources_end - shorter)
    capacity = min(max(1, int(slots * 0.9)), slots - 1)
    with tempfile.TemporaryDirectory() as path:
        directory, now_ms = Path(path), NOW
        for _ in range(2):
            content = b"".join(map(bytes, found))
            (directory / layout.file_name(100, layout.LOG)).write_bytes(content)
            job = job_like(directory, 100, len(content), sources_end)._replace(
                first_dirty_offset=first, upper_offset=upper, now_ms=now_ms,
                map_bytes=SLOT_SIZE * slots, index_interval_bytes=interval,
            )  # fmt: skip
            offsets, end = twin.last_offsets(found, first, upper, capacity)
            result = clean(job, no_throttle, QuickDisk())
            if end <= first:
                assert result.groups == ()
                return
            # A full map ends at the next key that it lacks; a twin stops there too.
            assert result.end_offset == end or (end == sources_end == upper)
            expected = expected_of(found, offsets, end, now_ms)
            assert written(directory, layout.LOG) == expected
            scanned = walk_twin.scan(expected, 100, interval)
            assert written(directory, layout.OFFSET_INDEX) == scanned[9]
            assert written(directory, layout.TIME_INDEX)[: len(scanned[10])] == scanned[10]
            found = list(batches(expected))
            now_ms += data.draw(st.sampled_from([1, 2 * DELETE_RETENTION_MS]))


def job_like(directory, base_offset, size, sources_end):
    """Return a job for a directory of one segment without a log."""
    return harness.CleaningJob(
        str(directory), (harness.SourceSegment(base_offset, size),), sources_end, base_offset,
        sources_end, sources_end, sources_end + 1, (), {}, NOW, DELETE_RETENTION_MS, 1 << 30,
        1 << 20, 100, SLOT_SIZE * 100, 0.9, 1 << 19,
    )  # fmt: skip


def written(directory, suffix):
    return (directory / (layout.file_name(100, suffix) + layout.CLEANED)).read_bytes()


# -- records -------------------------------------------------------------------------------------


def test_latest_value_of_each_key_is_kept_at_its_offset(tmp_path):
    log = open_log(tmp_path, COMPACT)
    for i in range(50):
        put(log, (b"a", b"%d" % i), (b"b%d" % (i % 3), b"%d" % i))
    log.roll()
    put(log, (b"a", b"dirty"))
    result = run_pass(log)
    assert pairs(log) == [
        (95, b"b2", b"47"), (97, b"b0", b"48"), (98, b"a", b"49"), (99, b"b1", b"49"),
        (100, b"a", b"dirty"),
    ]  # fmt: skip
    assert result.end_offset == 100
    assert result.counts.records_read == 100
    assert result.counts.records_written == 4
    assert found_since(log, NOW).offset == 95


@pytest.mark.parametrize("codec", Codec)
def test_rewritten_batch_keeps_codec_and_is_decoded(tmp_path, codec):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"), (b"b", b"2" * 90), (b"c", None), codec=codec)
    put(log, (b"a", b"3"), codec=codec)
    log.roll()
    run_pass(log)
    first, second = batches_of(log)
    assert first.header.codec == codec
    assert (first.header.count, first.header.last_offset_delta) == (2, 2)
    assert first.header.delete_horizon_ms == NOW + DELETE_RETENTION_MS
    assert [record.timestamp for record in first.records()] == [NOW + 1, NOW + 2]
    assert second.records()[0].value == b"3"


def test_keyless_records_are_dropped_and_counted(tmp_path):
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 600})
    put(log, (None, b"1"), (b"", b"2"), (None, b"3"))
    put(log, (b"a", b"4"))
    log.roll()
    result = run_pass(log)
    assert result.counts.keyless_dropped == 2
    assert pairs(log) == [(1, b"", b"2"), (3, b"a", b"4")]


def test_tombstone_is_kept_until_its_delete_horizon(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"), (b"a", None))
    put(log, (b"b", b"2"))
    log.roll()
    run_pass(log, now_ms=NOW)
    assert pairs(log) == [(1, b"a", None), (2, b"b", b"2")]
    log.cleaner_offset = 0
    run_pass(log, now_ms=NOW + DELETE_RETENTION_MS - 1)
    assert pairs(log) == [(1, b"a", None), (2, b"b", b"2")]
    log.cleaner_offset = 0
    run_pass(log, now_ms=NOW + DELETE_RETENTION_MS)
    assert pairs(log) == [(2, b"b", b"2")]


def test_tombstone_is_kept_for_the_longest_retention(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"a", None))
    log.roll()
    for _ in range(2):
        log.cleaner_offset = 0
        run_pass(log, now_ms=NOW + DELETE_RETENTION_MS, delete_retention_ms=(1 << 63) - 1)
        assert [(r.key, r.value, r.timestamp) for r in records_of(log)] == [(b"a", None, NOW)]


def test_read_at_a_removed_offset_returns_the_next_batch(tmp_path):
    log = open_log(tmp_path, COMPACT)
    for i in range(40):
        put(log, (b"a", b"%d" % i), timestamp=NOW + i)
    log.roll()
    put(log, (b"b", b"x"), timestamp=NOW + 100)
    run_pass(log)
    assert [batch.header.base_offset for batch in batches_of(log, 3)][-2:] == [39, 40]
    found = found_since(log, NOW + 3)
    assert (found.offset, found.timestamp) == (39, NOW + 39)
    assert found_since(log, NOW + 41).offset == 40


def test_segments_are_joined_and_end_where_the_next_one_begins(tmp_path):
    log = open_log(tmp_path, COMPACT)
    for i in range(60):
        put(log, (b"a", b"%d" % i))
    log.roll()
    run_pass(log)
    count = len(log.segments)
    log.cleaner_offset = 0
    run_pass(log)
    assert len(log.segments) < count
    ends = [segment.end_offset() for segment in log.segments[:-1]]
    assert ends == [segment.base_offset for segment in log.segments[1:]]


def test_map_of_two_slots_cleans_further_with_each_pass(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, *[(b"%d" % (i % 5), b"%d" % i) for i in range(20)])
    log.roll()
    ends = []
    while not ends or ends[-1] < 20:
        ends.append(run_pass(log, slots=2).end_offset)
    assert ends == sorted(set(ends))
    assert pairs(log) == [(i, b"%d" % (i % 5), b"%d" % i) for i in range(15, 20)]


def test_partly_mapped_segment_is_not_clean(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"0"), (b"b", b"1"))
    put(log, (b"a", b"2"), (b"c", b"3"))
    log.roll()
    result = run_pass(log, slots=2)
    assert result.end_offset == 1
    clean_all(log, slots=2)
    assert [record.offset for record in records_of(log)] == [1, 2, 3]


def test_last_batch_of_a_live_producer_is_kept_empty(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=0)
    put(log, (b"a", b"2"), (b"a", b"3"), producer_id=7, producer_epoch=2, base_sequence=1)
    put(log, (b"a", b"4"))
    log.roll()
    run_pass(log)
    first, _ = batches_of(log)
    assert (first.header.base_offset, first.header.last_offset, len(first)) == (1, 2, 61)
    assert (first.header.base_timestamp, first.header.count) == (-1, 0)
    log.release()
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    found = open_log(tmp_path, COMPACT, cleaner_offset=log.cleaner_offset)
    (producer,) = found.producers
    assert producer.batches[-1].last_sequence == 2


def test_batch_that_ends_at_the_high_watermark_is_kept_empty(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    put(log, (b"a", b"3"))
    log.roll()
    run_pass(log, high_watermark=2)
    assert [(batch.header.base_offset, batch.header.count) for batch in batches_of(log)] == [
        (1, 0), (2, 1),
    ]  # fmt: skip


# -- transactions --------------------------------------------------------------------------------


def test_aborted_records_are_dropped_and_hide_no_committed_ones(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"old"))
    put_txn(log, 7, 0, (b"a", b"aborted"), (b"b", b"aborted"))
    end_txn(log, 7, commit=False)
    put(log, (b"z", b"end"))
    log.roll()
    put(log, (b"z", b"dirty"))
    run_pass(log)
    assert pairs(log) == [(0, b"a", b"old"), (4, b"z", b"end"), (5, b"z", b"dirty")]
    assert latest(records_of(log, committed=False))[b"a"].value == b"old"


def test_markers_are_dropped_in_two_passes(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 7, 0, (b"a", b"1"))
    end_txn(log, 7, commit=True)
    put_txn(log, 8, 0, (b"a", b"2"))
    end_txn(log, 8, commit=False)
    put(log, (b"a", b"3"))
    log.roll()
    horizons = []
    for pass_number in range(4):
        log.cleaner_offset = 0
        run_pass(log, now_ms=NOW + 2 * DELETE_RETENTION_MS * pass_number, producers={})
        horizons.append([batch.header.delete_horizon_ms for batch in control_batches(log)])
    set_at = NOW + 3 * DELETE_RETENTION_MS
    assert horizons == [[None, None], [set_at, set_at], [], []]
    assert not list(tmp_path.glob("*.txnindex"))


@pytest.mark.parametrize("early_ms", [1, 0])
def test_marker_is_kept_until_its_delete_horizon(tmp_path, early_ms):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 7, 0, (b"a", b"1"))
    end_txn(log, 7, commit=True)
    put(log, (b"a", b"2"))
    log.roll()
    for now_ms in (NOW, NOW, NOW + DELETE_RETENTION_MS - early_ms):
        log.cleaner_offset = 0
        run_pass(log, now_ms=now_ms, producers={})
    horizons = [batch.header.delete_horizon_ms for batch in control_batches(log)]
    assert horizons == [NOW + DELETE_RETENTION_MS] * early_ms


def test_commit_marker_is_dropped_while_an_earlier_transaction_has_records(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 7, 0, (b"a", b"kept"))
    kept = end_txn(log, 7, commit=True)
    put_txn(log, 7, 1, (b"b", b"1"))
    end_txn(log, 7, commit=True)
    put(log, (b"b", b"2"))
    log.roll()
    for pass_number in range(4):
        log.cleaner_offset = 0
        run_pass(log, now_ms=NOW + 2 * DELETE_RETENTION_MS * pass_number, producers={})
    assert [batch.header.base_offset for batch in control_batches(log)] == [kept]


def test_marker_behind_the_mapped_part_is_unchanged(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1"))
    put_txn(log, 8, 0, (b"b", b"aborted"))
    end_txn(log, 8, commit=False)
    put(log, (b"c", b"1"))
    log.roll()
    for upper_offset in (log.end_offset, 1):
        log.cleaner_offset = 0
        run_pass(log, producers={}, upper_offset=upper_offset)
    (marker,) = control_batches(log)
    assert (marker.header.count, marker.header.delete_horizon_ms) == (1, None)
    log.cleaner_offset = 0
    run_pass(log, producers={})
    (marker,) = control_batches(log)
    assert marker.header.delete_horizon_ms == NOW + DELETE_RETENTION_MS


def test_marker_of_a_live_producer_without_data_is_kept_empty(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 7, 0, (b"a", b"1"))
    fencing = end_txn(log, 7, commit=True, epoch=1)
    put(log, (b"a", b"2"))
    log.roll()
    assert job_of(log).producers[7] == (-1, 1)
    for pass_number in range(4):
        log.cleaner_offset = 0
        run_pass(log, now_ms=NOW + 2 * DELETE_RETENTION_MS * pass_number)
    (left,) = control_batches(log)
    assert (left.header.base_offset, left.header.count) == (fencing, 0)
    assert (left.header.producer_id, left.header.producer_epoch) == (7, 1)


def test_abort_marker_is_kept_while_an_empty_batch_of_it_is_left(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 8, 0, (b"a", b"2"))
    end_txn(log, 8, commit=False)
    put(log, (b"a", b"3"))
    log.roll()
    for pass_number in range(4):
        log.cleaner_offset = 0
        run_pass(log, now_ms=NOW + 2 * DELETE_RETENTION_MS * pass_number)
    assert [batch.header.count for batch in batches_of(log)] == [0, 1, 1]
    assert control_batches(log)[0].header.delete_horizon_ms is None
    (entry,) = job_of(log).aborted
    assert entry[:3] == (8, 0, 1)


def test_entry_of_an_aborted_transaction_goes_with_its_marker(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put_txn(log, 8, 0, (b"a", b"2"))
    put(log, (b"b", b"0"))
    log.roll()
    end_txn(log, 8, commit=False)
    log.roll()
    before = job_of(log).aborted
    run_pass(log)
    assert job_of(log).aborted == before
    # The last record of the mapped part is in the first segment: the marker is not looked at.
    log.cleaner_offset = 0
    run_pass(log, upper_offset=2)
    assert job_of(log).aborted == before


def test_nothing_is_cleaned_past_the_last_stable_offset(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"0"))
    put_txn(log, 8, 0, (b"a", b"1"))
    log.roll()
    result = run_pass(log, upper_offset=log.end_offset)
    assert result.end_offset == 1
    assert [record.offset for record in records_of(log)] == [0, 1]


# -- cancelling and damage -----------------------------------------------------------------------


def test_cancelled_pass_deletes_its_files(tmp_path):
    log = open_log(tmp_path, COMPACT)
    for i in range(40):
        put(log, (b"a", b"%d" % i))
    log.roll()
    before = files_of(tmp_path)
    calls = cancelled_at = 0

    def cancel_later(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls == cancelled_at:
            raise CleaningCancelled

    for number in (1, 3, 8):
        calls, cancelled_at = 0, number
        with pytest.raises(CleaningCancelled):
            clean(job_of(log), cancel_later, QuickDisk())
        assert files_of(tmp_path) == before


def test_pass_leaves_the_space_free_that_appends_need(tmp_path):
    log = open_log(tmp_path, COMPACT)
    for i in range(20):
        put(log, (b"a", b"%d" % i))
    log.roll()
    with pytest.raises(OSError, match="storage.min.free.bytes") as full:
        clean(job_of(log, kept_free_bytes=1 << 62), no_throttle, QuickDisk())
    assert full.value.errno in DISK_FULL_ERRORS
    assert not list(tmp_path.glob("*.cleaned"))
    run_pass(log)


def test_pass_over_dropped_batches_calls_the_throttle_for_each_window(tmp_path):
    log = open_log(tmp_path, {**COMPACT, keys.SEGMENT_BYTES: 1 << 20})
    for i in range(200):
        put_txn(log, 7, i, (b"%d" % i, bytes(1000)))
    end_txn(log, 7, commit=False)
    log.roll()
    sizes: list[int] = []
    clean(job_of(log, io_buffer_bytes=1), sizes.append, QuickDisk())
    assert sum(sizes) > 2 * 200_000
    assert max(sizes) < 40_000


def test_damaged_segment_is_not_cleaned(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"a", b"1" * 100))
    put(log, (b"a", b"2"))
    log.roll()
    path = log.segments[0].path
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(KafkaStorageError, match="is damaged at byte 0"):
        clean(job_of(log), no_throttle, QuickDisk())
    assert not list(tmp_path.glob("*.cleaned"))


def test_aborted_transactions_are_found_from_below_the_log_start(tmp_path):
    log = open_log(tmp_path, COMPACT)
    put(log, (b"z", b"0"))
    log.roll()
    put_txn(log, 8, 0, (b"a", b"aborted"))
    end_txn(log, 8, commit=False)
    log.roll()
    log.delete_records(1)
    (segment,) = log.segments.with_aborted(0)
    assert segment.base_offset == 1
    run_pass(log)
    assert latest(records_of(log, committed=False)) == {}
