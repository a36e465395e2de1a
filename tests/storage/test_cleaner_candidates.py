"""The part of a log that the cleaner may clean, and when it should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import CorruptMessage
from kafkalite.records.batch import Record, build
from kafkalite.storage.compaction import cleaning_files
from kafkalite.storage.compaction.cleaning_job import (
    CleanedGroup,
    CleanedSegment,
    CleaningCounts,
    CleaningResult,
    SourceSegment,
)
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.cleaner_candidates import (
    CleanableRange,
    OffsetMapLimits,
    aborted_in,
    cleanable_range,
    is_due,
    job_of,
    live_producers,
)
from kafkalite.storage.segment.transaction_index import AbortedTransaction
from tests.storage.factories import NOW, open_log, settings

COMPACTED = {keys.CLEANUP_POLICY: ("compact",), keys.SEGMENT_BYTES: 1 << 20}
LATER = NOW + 1_000_000
LIMITS = OffsetMapLimits(1 << 20, 0.9, 1 << 16)


def segmented(tmp_path: Path, *timestamps: int) -> Log:
    """Return a log with a segment of 10 records at each of these times, and an empty active one."""
    log = open_log(tmp_path, COMPACTED)
    for timestamp in timestamps:
        for number in range(10):
            log.append(build([Record(timestamp=timestamp, key=b"%d" % number, value=b"v")]), 0)
        log.roll()
    return log


def found_in(log: Log, stable: int | None = None, now_ms: int = LATER) -> CleanableRange:
    return cleanable_range(log, log.end_offset if stable is None else stable, now_ms)


@pytest.mark.parametrize(("high_watermark", "count"), [(0, 0), (15, 1), (20, 2), (30, 3)])
def test_segments_at_the_high_watermark_are_not_cleaned(
    tmp_path: Path, high_watermark: int, count: int
) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW)
    log.committed_limit = lambda: high_watermark
    found = found_in(log)
    assert found.first_uncleanable_offset == high_watermark
    assert found.cleanable_size == sum(segment.size for segment in log.segments[:count])


def test_closed_segments_of_a_log_that_was_never_cleaned_are_dirty(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW)
    found = found_in(log)
    assert found[:2] == (0, 30)
    assert (found.clean_size, found.cleanable_size, found.dirty_ratio) == (0, log.size, 1.0)
    assert is_due(log, found)


def test_active_segment_is_not_cleanable(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW)
    log.append(build([Record(timestamp=NOW, key=b"k")]), 0)
    assert found_in(log).first_uncleanable_offset == 10
    log = open_log(tmp_path / "other", COMPACTED)
    log.append(build([Record(timestamp=NOW, key=b"k")]), 0)
    found = found_in(log)
    assert (found[:2], found.dirty_ratio) == ((0, 0), 0.0)
    assert not is_due(log, found)


def test_dirty_ratio_compares_what_follows_the_checkpoint_with_the_whole(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW, NOW)
    log.cleaner_offset = 30
    found = found_in(log)
    assert found[:2] == (30, 40)
    assert found.dirty_ratio == pytest.approx(0.25)
    assert not is_due(log, found)
    log.reconfigure(settings({**COMPACTED, keys.MIN_CLEANABLE_DIRTY_RATIO: 0.25}))
    assert not is_due(log, found), "the ratio must exceed the minimum"
    log.reconfigure(settings({**COMPACTED, keys.MIN_CLEANABLE_DIRTY_RATIO: 0.24}))
    assert is_due(log, found)


def test_segment_cleaned_in_part_counts_as_clean_and_as_dirty(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW)
    log.cleaner_offset = 5
    found = found_in(log)
    assert found.clean_size == log.segments[0].size
    assert found.cleanable_size == log.size


@pytest.mark.parametrize(("checkpoint", "first_dirty"), [(-1, 10), (4, 10), (12, 12), (99, 10)])
def test_checkpoint_outside_the_log_is_ignored(
    tmp_path: Path, checkpoint: int, first_dirty: int
) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW)
    log.log_start_offset = 10
    log.cleaner_offset = checkpoint
    assert found_in(log).first_dirty_offset == first_dirty


def test_cleaning_stops_at_the_last_stable_offset(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW)
    found = found_in(log, stable=15)
    assert found[:2] == (0, 15)
    assert found.cleanable_size == log.segments[0].size, "rounded down to a segment"
    job = job_of(log, found, LIMITS, last_stable_offset=15, high_watermark=30, now_ms=LATER)
    assert [source.base_offset for source in job.sources] == [0, 10]
    assert (job.sources_end, job.upper_offset, job.last_stable_offset) == (20, 15, 15)
    assert not is_due(log, found_in(log, stable=7))


def test_last_stable_offset_before_the_first_dirty_one_leaves_nothing_to_clean(
    tmp_path: Path,
) -> None:
    log = segmented(tmp_path, NOW, NOW, NOW)
    log.cleaner_offset = 20
    found = found_in(log, stable=5)
    assert (found[:2], found.cleanable_size) == ((20, 20), 0)


def test_segment_without_a_time_is_not_overdue(tmp_path: Path) -> None:
    lag = {**COMPACTED, keys.MAX_COMPACTION_LAG_MS: 100, keys.MIN_CLEANABLE_DIRTY_RATIO: 1.0}
    log = segmented(tmp_path, 0, NOW)
    log.reconfigure(settings(lag))
    assert found_in(log, now_ms=NOW + 100).overdue_ms == 0
    assert found_in(log, now_ms=NOW + 101).overdue_ms == 1


def test_young_segment_and_all_after_it_wait_for_the_minimum_lag(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW + 500, NOW + 100)
    log.reconfigure(settings({**COMPACTED, keys.MIN_COMPACTION_LAG_MS: 600}))
    assert found_in(log, now_ms=NOW + 1_000).first_uncleanable_offset == 10
    assert found_in(log, now_ms=NOW + 1_100).first_uncleanable_offset == 30
    assert found_in(log, now_ms=NOW + 600).first_uncleanable_offset == 10
    assert found_in(log, now_ms=NOW + 599).first_uncleanable_offset == 0


def test_log_is_due_once_the_maximum_lag_has_passed(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW + 50, NOW + 20)
    log.cleaner_offset = 10
    lag = {**COMPACTED, keys.MAX_COMPACTION_LAG_MS: 100, keys.MIN_CLEANABLE_DIRTY_RATIO: 1.0}
    log.reconfigure(settings(lag))
    in_time, late = found_in(log, now_ms=NOW + 120), found_in(log, now_ms=NOW + 121)
    assert (in_time.overdue_ms, is_due(log, in_time)) == (0, False)
    assert (late.overdue_ms, is_due(log, late)) == (1, True)


def test_job_and_result_cross_a_file(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW, NOW)
    records = [Record(timestamp=NOW, key=key) for key in (b"a", b"b")]
    log.append(build(records, producer_id=7, producer_epoch=3, base_sequence=0), 0)
    found = found_in(log)
    job = job_of(log, found, LIMITS, last_stable_offset=20, high_watermark=21, now_ms=LATER)
    producers = [*live_producers(log)]
    assert producers == [(7, (21, 3))]
    aborted = [AbortedTransaction(7, 1, 5, 6), AbortedTransaction(8, 2, 9, 10)]
    descriptor = os.memfd_create("job")
    cleaning_files.write_job(
        descriptor, job, cleaning_files.packed_producers(producers), cleaning_files.packed(aborted)
    )
    expected = job._replace(aborted=tuple(aborted), producers=dict(producers))
    assert cleaning_files.read_job(descriptor) == expected
    group = CleanedGroup((SourceSegment(0, 5), SourceSegment(10, 5)), (CleanedSegment(0, 20, 4),))
    result = CleaningResult(20, (group,), CleaningCounts(records_read=20, map_utilization=0.5))
    cleaning_files.write_result(descriptor, result)
    assert cleaning_files.read_result(descriptor) == result
    os.close(descriptor)


def last_characters(content: bytes) -> str:
    return content[-40:].decode() or "empty"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"end_offset": -1, "groups": [], "counts": []}',
     b'{"end_offset": 1, "groups": [[[], []]], "counts": []}',
     b'{"end_offset": 1, "groups": [[[[0, "x"]], [[0, 1, 2]]]], "counts": []}',
     b'{"end_offset": 1, "groups": [], "counts": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}',
     b'{"end_offset": 1, "groups": [], "counts": ["1"]}',
     b'{"end_offset": 1, "groups": [], "counts": [1, 2, 3, 4, 5, 6, 7, "x"]}',
     b'{"end_offset": 1, "groups": [], "counts": [1, 2, 3, 4, 5, 6, 7, NaN]}',
     b"[" * 100_000],
    ids=last_characters,
)  # fmt: skip
def test_invalid_result_is_refused(content: bytes) -> None:
    descriptor = os.memfd_create("job")
    os.write(descriptor, content)
    with pytest.raises(CorruptMessage):
        cleaning_files.read_result(descriptor)
    os.close(descriptor)


def test_segment_without_aborted_transactions_has_none(tmp_path: Path) -> None:
    log = segmented(tmp_path, NOW)
    assert [*aborted_in(log.segments[0], 10)] == []
