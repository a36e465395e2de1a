"""A log is appended to, rolled, read and truncated by direct calls, with small segments."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import pytest

from kafkalite._ext.record_batch import correct_max_timestamp
from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import (
    CorruptMessage,
    InvalidTimestamp,
    InvalidTxnState,
    KafkaStorageError,
    MessageTooLarge,
    OffsetOutOfRange,
    RecordListTooLarge,
)
from kafkalite.records.batch import Codec, Record, RecordBatch, batches, build
from kafkalite.storage.log.log import Log, LogAppendResult
from kafkalite.storage.log.log_reader import available, read
from kafkalite.storage.log.timestamps import TimestampOffset, search_max_timestamp
from kafkalite.storage.segment.segment import PREALLOCATED_FIRST
from tests.storage.factories import (
    NOW,
    batch,
    close,
    found_since,
    open_log,
    records_of,
    searched,
    settings,
    values_of,
)


def files(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name.endswith(suffix))


def filled(directory: Path, count: int = 30, **how: object) -> Log:
    log = open_log(directory, **how)
    for number in range(count):
        log.append(batch(b"value %d" % number), 0)
    return log


def test_append_assigns_consecutive_offsets(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.append(batch(b"a", b"b"), 0) == LogAppendResult(0, 1, -1, 0, False)
    assert log.append(batch(b"c"), 0) == LogAppendResult(2, 2, -1, 0, False)
    assert log.end_offset == 3
    assert values_of(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_leader_epoch_is_written_into_the_batch_and_the_cache(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(b"a"), 3)
    log.append(batch(b"b"), 5)
    found = read(log, 0, 10_000, 2)
    assert found is not None
    assert [whole.header.leader_epoch for whole in batches(found.read())] == [3, 5]
    assert [log.end_of_epoch(epoch) for epoch in (2, 3, 4, 5, 6)] == [
        (2, 0), (3, 1), (3, 1), (5, 2), (-1, -1),
    ]  # fmt: skip


def test_append_does_not_modify_the_given_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(b"first"), 0)
    mine = batch(b"a")
    log.append(mine, 9)
    assert mine == batch(b"a")


def test_read_finds_every_offset_in_every_segment(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    assert len(log.segments) > 4
    for offset in range(60):
        assert values_of(log, offset)[0] == (offset, b"value %d" % offset)


def test_read_stops_before_the_upper_offset(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    for upper in range(41):
        seen, offset = [], 0
        while (found := read(log, offset, 1 << 20, upper)) is not None:
            for whole in batches(found.read()):
                seen.append(whole.header.base_offset)
            offset = seen[-1] + 1
        assert seen == list(range(upper))


def test_read_returns_the_first_batch_whole_or_none(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(b"x" * 500), 0)
    found = read(log, 0, 1, 1)
    assert found is not None
    assert found.size == log.size
    assert read(log, 0, 1, 1, whole_first=False) is None


def test_read_outside_the_log_raises_offset_out_of_range(tmp_path: Path) -> None:
    log = filled(tmp_path, 3)
    log.delete_records(1)
    assert read(log, 3, 100, 3) is None
    for offset in (0, 4, -1):
        with pytest.raises(OffsetOutOfRange):
            read(log, offset, 100, 3)


def test_available_equals_the_size_of_a_read(tmp_path: Path) -> None:
    log = filled(tmp_path, 40)
    for offset in range(log.active.base_offset, 40):
        for upper in range(offset, 41):
            found = read(log, offset, 1 << 20, upper)
            assert available(log, offset, upper, 1 << 20) == (found.size if found else 0)
    assert available(log, 0, 40, 12345) == 12345


def test_segment_rolls_before_segment_bytes_is_exceeded(tmp_path: Path) -> None:
    log = filled(tmp_path, 60)
    assert all(segment.size <= 1000 for segment in log.segments)
    assert files(tmp_path, ".log") == [
        f"{segment.base_offset:020d}.log" for segment in log.segments
    ]


def test_segment_rolls_when_its_records_span_segment_ms(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_MS: 100, keys.SEGMENT_BYTES: 1 << 20})
    for late in (0, 100, 101, 150, 300):
        log.append(batch(b"v", timestamp=NOW + late), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


@pytest.mark.parametrize(("policy", "rolled"), [(("delete",), 1), (("compact",), 3)])
def test_compacted_segment_rolls_after_the_maximum_compaction_lag(
    tmp_path: Path, policy: tuple[str, ...], rolled: int
) -> None:
    values = {
        keys.SEGMENT_BYTES: 1 << 20, keys.SEGMENT_MS: 1_000, keys.MAX_COMPACTION_LAG_MS: 100,
        keys.CLEANUP_POLICY: policy,
    }  # fmt: skip
    log = open_log(tmp_path, values)
    for late in (0, 100, 101, 150, 300):
        log.append(build([Record(timestamp=NOW + late, key=b"k")]), 0)
    assert len(log.segments) == rolled


def test_segment_without_timestamps_rolls_by_the_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, {keys.SEGMENT_MS: 100, keys.SEGMENT_BYTES: 1 << 20}, clock)
    log.append(batch(b"v", timestamp=-1), 0)
    clock.advance(100)
    log.append(batch(b"v", timestamp=-1), 0)
    clock.advance(1)
    log.append(batch(b"v", timestamp=-1), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segment_rolls_when_its_offset_index_is_full(tmp_path: Path) -> None:
    log = open_log(
        tmp_path,
        {keys.SEGMENT_INDEX_BYTES: 48, keys.SEGMENT_BYTES: 1 << 20, keys.INDEX_INTERVAL_BYTES: 0},
    )
    for _ in range(20):
        log.append(batch(b"v"), 0)
    assert len(log.segments) > 2
    assert all(segment.offset_index.count <= 6 for segment in log.segments)
    close(log)
    assert all((tmp_path / name).stat().st_size <= 48 for name in files(tmp_path, ".timeindex"))


def test_segment_rolls_before_its_relative_offsets_overflow(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    log.append(batch(b"v"), 0)
    log.end_offset = log.flush_state.durable_offset = (1 << 31) - 2
    log.append(batch(b"a", b"b"), 0)
    log.append(batch(b"c"), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 1 << 31]
    assert records_of(log, 1 << 31)[0].value == b"c"


def test_batch_above_max_message_bytes_or_segment_size_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.MAX_MESSAGE_BYTES: 300})
    with pytest.raises(MessageTooLarge):
        log.append(batch(b"x" * 300), 0)
    log = open_log(tmp_path, {keys.MAX_MESSAGE_BYTES: 5000})
    with pytest.raises(RecordListTooLarge):
        log.append(batch(b"x" * 1000), 0)
    assert log.end_offset == 0


def test_damaged_and_transactional_batches_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    flipped = bytearray(batch(b"value"))
    flipped[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append(flipped, 0)
    with pytest.raises(InvalidTxnState):
        log.append(
            batch(b"v", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), 0
        )
    assert log.size == 0


def test_timestamp_too_far_ahead_is_reported_by_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.MESSAGE_TIMESTAMP_AFTER_MAX_MS: 1})
    log.append(batch(b"a", b"b"), 0)
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(batch(b"a", b"b", b"c"), 0)
    assert [index for index, _ in refused.value.record_errors] == [2]


def test_append_corrects_the_max_timestamp_of_the_header(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    log.append(batch(b"a"), 0)
    claiming = bytearray(batch(b"b", timestamp=NOW + 7))
    correct_max_timestamp(claiming, 2**63 - 1)
    log.append(claiming, 0)
    assert (log.active.max_timestamp, len(log.segments)) == (NOW + 7, 1)
    log.append(batch(b"c"), 0)
    assert (log.active.max_timestamp, len(log.segments)) == (NOW + 7, 1)


def test_segment_that_cannot_be_read_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    log.append(batch(b"a"), 0)
    found = log.active.find(0)
    assert found is not None

    def pread(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(KafkaStorageError, match="cannot be read at byte 0"):
        log.active.read(found)


def test_timestamp_too_far_behind_is_reported_even_if_compressed(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.MESSAGE_TIMESTAMP_BEFORE_MAX_MS: 1000})
    late = batch(b"a", b"b", timestamp=NOW - 1001, codec=Codec.GZIP)
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(late, 0)
    assert [index for index, _ in refused.value.record_errors] == [0]
    log.append(batch(b"a", timestamp=-1), 0)


BEFORE_1970 = -86_400_000


@pytest.mark.parametrize("kept_in", ["producer", "uncompressed", "gzip", "lz4"])
@pytest.mark.parametrize("codec", Codec)
def test_append_accepts_timestamps_before_1970_unless_it_recompresses(
    tmp_path: Path, kept_in: str, codec: Codec
) -> None:
    log = open_log(tmp_path, {keys.COMPRESSION_TYPE: kept_in, keys.SEGMENT_BYTES: 1 << 20})
    sent = batch(b"a", b"b", timestamp=BEFORE_1970, codec=codec)
    if kept_in in ("producer", {Codec.NONE: "uncompressed"}.get(codec, codec.name.lower())):
        log.append(sent, 0)
        assert [record.timestamp for record in records_of(log)] == [BEFORE_1970, BEFORE_1970 + 1]
        log.append(batch(b"c"), 0)
        assert log.active.max_timestamp == NOW
        found = found_since(log, 0)
        assert found is not None and (found.offset, found.timestamp) == (2, NOW)
    else:
        with pytest.raises(InvalidTimestamp) as refused:
            log.append(sent, 0)
        assert [index for index, _ in refused.value.record_errors] == [0, 1]


@pytest.mark.parametrize("codec", Codec)
def test_timestamp_before_max_ms_applies_before_1970(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path, {keys.MESSAGE_TIMESTAMP_BEFORE_MAX_MS: NOW - BEFORE_1970 - 1})
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(batch(b"a", b"b", timestamp=BEFORE_1970, codec=codec), 0)
    assert [index for index, _ in refused.value.record_errors] == [0]
    log.append(batch(b"a", timestamp=BEFORE_1970 + 1, codec=codec), 0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_append_sets_no_max_timestamp_for_records_before_1970(tmp_path: Path, codec: Codec) -> None:
    log = open_log(tmp_path)
    claiming = bytearray(batch(b"a", timestamp=BEFORE_1970, codec=codec))
    correct_max_timestamp(claiming, NOW)
    log.append(claiming, 0)
    found = read(log, 0, 1 << 20, 1)
    assert found is not None
    (stored,) = batches(found.read())
    assert (stored.header.max_timestamp, log.active.max_timestamp) == (-1, -1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_log_append_time_sets_the_timestamps_of_records(tmp_path: Path, codec: Codec) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, {keys.MESSAGE_TIMESTAMP_TYPE: "LogAppendTime"}, clock)
    clock.advance(5000)
    placed = log.append(batch(b"a", b"b", timestamp=12, codec=codec), 0)
    assert placed.append_time_ms == clock.wall_ms()
    assert {record.timestamp for record in records_of(log)} == {clock.wall_ms()}


@pytest.mark.parametrize(
    ("name", "codec"),
    [("gzip", Codec.GZIP), ("lz4", Codec.LZ4), ("snappy", Codec.SNAPPY), ("zstd", Codec.ZSTD),
     ("uncompressed", Codec.NONE)],
)  # fmt: skip
def test_compression_type_of_the_topic_recompresses_batches(
    tmp_path: Path, name: str, codec: Codec
) -> None:
    log = open_log(tmp_path, {keys.COMPRESSION_TYPE: name, keys.SEGMENT_BYTES: 1 << 20})
    for given in Codec:
        log.append(batch(b"a" * 200, b"b" * 200, codec=given), 0)
    found = read(log, 0, 1 << 20, log.end_offset)
    assert found is not None
    assert {RecordBatch(whole.view).header.codec for whole in batches(found.read())} == {codec}
    assert [value for _, value in values_of(log)] == [b"a" * 200, b"b" * 200] * 5


def test_timestamp_search_returns_the_first_record_not_before_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    times = [5, 9, 7, 30, 12, 40, 35, 41, 60, 2] * 4
    for when in times:
        log.append(batch(b"v", timestamp=NOW + when), 0)
    for wanted in range(62):
        first = next((i for i, when in enumerate(times) if when >= wanted), None)
        found = found_since(log, NOW + wanted)
        assert (None if found is None else found.offset) == first
    assert searched(search_max_timestamp(log)) == TimestampOffset(NOW + 60, 8, 0)


def test_timestamp_search_works_in_recovered_segments(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path, {keys.INDEX_INTERVAL_BYTES: 1 << 20})
    for late in range(30):
        log.append(batch(b"v" * 50, timestamp=NOW + late), 0)
    log.release()
    log = open_log(tmp_path)
    close(log)
    log = open_log(tmp_path)
    assert len(log.segments) > 2
    for late in range(30):
        found = found_since(log, NOW + late)
        assert found is not None
        assert found.offset == late


def test_timestamp_search_of_a_deleted_record_returns_a_later_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    falling = [Record(timestamp=NOW + late, value=b"v") for late in (100, 0)]
    log.append(build(falling), 0)
    log.append(batch(b"v", timestamp=NOW + 200), 0)
    log.delete_records(1)
    found = found_since(log, NOW + 50)
    assert found is not None
    assert (found.offset, found.timestamp) == (2, NOW + 200)


def test_timestamp_search_skips_deleted_records(tmp_path: Path) -> None:
    log = filled(tmp_path, 10)
    log.delete_records(7)
    found = found_since(log, NOW)
    assert found is not None
    assert found.offset == 7


def test_delete_records_moves_log_start_and_removes_whole_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    log = filled(tmp_path, 60, clock=clock)
    assert log.delete_records(33) == 33
    assert log.delete_records(12) == 33
    assert values_of(log)[0] == (33, b"value 33")
    assert log.segments[0].base_offset <= 33 < log.segments[1].base_offset
    assert files(tmp_path, ".log.deleted")
    assert log.deferred_deletes.remove_due() == clock.monotonic_ms() + 1000
    clock.advance(1000)
    assert log.deferred_deletes.remove_due() is None
    assert not files(tmp_path, ".deleted")
    with pytest.raises(OffsetOutOfRange):
        log.delete_records(61)


def test_removed_segment_stays_readable_for_a_reader(tmp_path: Path) -> None:
    clock = ManualClock()
    log = filled(tmp_path, 60, clock=clock)
    held = read(log, 0, 100, 60)
    assert held is not None
    log.delete_records(60)
    clock.advance(1000)
    log.deferred_deletes.remove_due()
    assert next(iter(batches(held.read()))).records()[0].value == b"value 0"


def test_retention_by_size_keeps_at_least_retention_bytes(tmp_path: Path) -> None:
    log = filled(tmp_path, 60, values={keys.RETENTION_BYTES: 2500})
    before = log.size
    log.retain()
    assert 2500 <= log.size < before
    assert log.size - log.segments[0].size < 2500
    assert log.log_start_offset == log.segments[0].base_offset


@pytest.mark.parametrize("reason", [keys.RETENTION_MS, keys.RETENTION_BYTES])
def test_retention_keeps_what_is_not_committed(tmp_path: Path, reason: Any) -> None:
    clock = ManualClock()
    log = filled(tmp_path, 60, clock=clock, values={reason: 0})
    clock.advance(10)
    second, third = (segment.base_offset for segment in log.segments[1:3])
    for high_watermark, start in ((0, 0), (third - 1, second), (third, third), (60, 60)):
        log.committed_limit = lambda found=high_watermark: found  # type: ignore[misc]
        log.retain()
        assert log.log_start_offset == log.segments[0].base_offset == start


@pytest.mark.parametrize("policy", [("compact",), ()])
def test_retention_without_the_policy_delete_removes_only_below_the_log_start(
    tmp_path: Path, policy: tuple[str, ...]
) -> None:
    log = filled(tmp_path, values={keys.RETENTION_BYTES: 0})
    bases = [segment.base_offset for segment in log.segments]
    log.log_start_offset = bases[2]
    old = {keys.RETENTION_BYTES: 0, keys.RETENTION_MS: 0}
    log.reconfigure(settings({**old, keys.CLEANUP_POLICY: policy}))
    log.retain()
    assert [segment.base_offset for segment in log.segments] == bases[2:]
    log.reconfigure(settings({**old, keys.CLEANUP_POLICY: ("compact", "delete")}))
    log.retain()
    assert [segment.base_offset for segment in log.segments] == [30]


def test_retention_by_time_uses_record_timestamps(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, {keys.RETENTION_MS: 1000}, clock)
    for number in range(40):
        log.append(batch(b"v", timestamp=NOW - 5000 + 200 * number), 0)
    log.retain()
    assert log.log_start_offset > 0
    assert log.segments[0].largest_timestamp >= NOW - 1000
    assert log.end_offset == 40


def test_expired_active_segment_is_rolled_and_removed(tmp_path: Path) -> None:
    clock = ManualClock()
    log = filled(tmp_path, 3, values={keys.RETENTION_MS: 1000}, clock=clock)
    clock.advance(2000)
    log.retain()
    assert (log.log_start_offset, log.end_offset, log.size) == (3, 3, 0)
    log.append(batch(b"next", timestamp=clock.wall_ms()), 0)
    assert values_of(log) == [(3, b"next")]


def test_retention_stops_at_the_durable_offset(tmp_path: Path) -> None:
    clock = ManualClock()
    values = {keys.RETENTION_MS: 1000, keys.DURABILITY: "fsync"}
    log = filled(tmp_path, 20, values=values, clock=clock)
    log.flush()
    for _ in range(40):
        log.append(batch(b"not flushed"), 0)
    clock.advance(10_000)
    log.retain()
    assert 0 < log.log_start_offset <= 20


def test_preallocation_grows_with_the_segment_and_is_released(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 1 << 20})
    log.append(batch(b"v"), 0)
    path = log.active.path
    assert path.stat().st_size == PREALLOCATED_FIRST, "a small partition takes little room"
    while log.size < 300_000:
        log.append(batch(bytes(10_000)), 0)
    assert path.stat().st_size > 400_000, "the more there is, the further ahead"
    while log.size < 900_000:
        log.append(batch(bytes(10_000)), 0)
    assert path.stat().st_size <= 1 << 20, "never further than the segment may grow"
    size = log.size
    close(log)
    assert path.stat().st_size == size


def test_durability_os_does_not_preallocate_a_small_log(tmp_path: Path) -> None:
    values = {keys.DURABILITY: "os", keys.SEGMENT_BYTES: 1 << 20}
    log = open_log(tmp_path, values)
    path = log.active.path
    while log.size < PREALLOCATED_FIRST:
        log.append(batch(bytes(10_000)), 0)
        assert path.stat().st_size == log.size
    log.append(batch(bytes(10_000)), 0)
    assert log.size < path.stat().st_size < 3 * PREALLOCATED_FIRST, "as much again as there is"
    log.append(batch(b"after it"), 0)
    crashed = records_of(log)
    log = open_log(tmp_path, values)
    assert records_of(log) == crashed
    size = log.size
    close(log)
    assert path.stat().st_size == size


def test_closed_log_leaves_no_descriptor_open(tmp_path: Path) -> None:
    gc.collect()  # descriptors left by earlier tests do not count
    before = len(os.listdir("/proc/self/fd"))
    log = filled(tmp_path, 60)
    records_of(log)
    found_since(log, NOW + 1)
    close(log)
    del log
    assert len(os.listdir("/proc/self/fd")) == before
