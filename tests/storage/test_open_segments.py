"""OpenSegments: the number of open files is bounded, however many segments are read."""

from __future__ import annotations

import gc
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.open_segments import OpenSegments
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from tests.storage.factories import (
    NOW,
    batch,
    close,
    found_since,
    manager,
    open_below,
    open_log,
    settings,
    values_of,
)


def of_segments(directory: Path, count: int, open_segments: OpenSegments) -> Log:
    """Return a log of `count` closed segments, with one batch each."""
    log = open_log(directory, {keys.RETENTION_MS: 10**9}, shared={"open_segments": open_segments})
    for number in range(count):
        log.append(batch(b"%d" % number, timestamp=NOW + number), 0)
        log.roll()
    return log


def test_few_segments_stay_open_after_reads(tmp_path: Path) -> None:
    log = of_segments(tmp_path, 50, open_segments := OpenSegments(5))
    expected = [(number, b"%d" % number) for number in range(50)]
    for _ in range(2):
        assert values_of(log) == expected
        assert len(open_segments) == 5
        assert len(open_below(tmp_path)) <= 3 * 6
    for offset in random.Random(1).choices(range(50), k=200):
        found = read(log, offset, 1000, 50)
        assert found is not None and found.read().endswith(b"%d\0" % offset)
    assert len(open_segments) == 5
    del found
    log.release()
    assert len(open_segments) == 0 and not open_below(tmp_path)


def test_least_recently_used_segment_is_closed_first(tmp_path: Path) -> None:
    log = of_segments(tmp_path, 4, OpenSegments(2))
    for offset in (0, 1, 0, 2):
        assert read(log, offset, 1000, 4) is not None
    names = {Path(path).name for path in open_below(tmp_path) if path.endswith(".log")}
    assert names == {log.segments[number].path.name for number in (0, 2)}


def test_slice_of_a_deleted_segment_stays_readable(tmp_path: Path) -> None:
    log = of_segments(tmp_path, 4, OpenSegments(1))
    slices = [read(log, offset, 1000, 4) for offset in range(4)]
    assert [held is not None and held.read()[-2:-1] for held in slices] == [b"0", b"1", b"2", b"3"]


def test_rolling_log_keeps_few_files_open(tmp_path: Path) -> None:
    log = of_segments(tmp_path, 100, OpenSegments(3))
    assert len(open_below(tmp_path)) <= 3 * 4
    log.flush()
    assert log.durable_offset == 100
    assert len(open_below(tmp_path)) <= 3 * 4


def test_retention_leaves_no_segment_open(tmp_path: Path) -> None:
    end = close(of_segments(tmp_path, 30, OpenSegments(3)))
    open_segments = OpenSegments(3)
    log = open_log(
        tmp_path, {keys.RETENTION_MS: 10**9}, end=end, shared={"open_segments": open_segments}
    )
    assert not open_below(tmp_path)
    log.retain()
    assert len(log.segments) == 31
    assert not open_below(tmp_path)
    assert len(values_of(log)) == 30
    assert len(open_segments) == 3
    assert found_since(log, NOW + 20) is not None
    assert len(open_below(tmp_path)) <= 3 * 4


def test_removed_segments_are_not_held(tmp_path: Path) -> None:
    log = of_segments(tmp_path, 10, open_segments := OpenSegments(20))
    assert len(open_segments) == 10
    log.delete_records(10)
    assert len(open_segments) == 0
    assert len(open_below(tmp_path)) <= 3


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Limit the process to about `count` more descriptors than are open now."""
    gc.collect()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + count, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def many_logs(directory: Path, count: int) -> tuple[OpenSegments, list[Log]]:
    open_segments = OpenSegments(5)
    values = {keys.SEGMENT_BYTES: 1 << 20}
    logs = [
        open_log(directory / str(number), values, shared={"open_segments": open_segments})
        for number in range(count)
    ]
    return open_segments, logs


def test_more_logs_than_descriptors_can_be_written_and_read(tmp_path: Path) -> None:
    _, logs = many_logs(tmp_path, 200)
    with descriptors(32 + 60):
        for number in range(4):
            for log in logs:
                log.append(batch(b"%d" % number), 0)
                log.flush()
        expected = [(number, b"%d" % number) for number in range(4)]
        for log in logs:
            assert values_of(log) == expected
            assert found_since(log, NOW) is not None


def test_indexes_of_more_logs_than_descriptors_can_be_written(tmp_path: Path) -> None:
    _, logs = many_logs(tmp_path, 60)
    with descriptors(32 + 40):
        for log in logs:
            for number in range(5):
                log.append(batch(b"%d" % number * 100), 0)
            log.flush()
            log.active.write_indexes()
            assert log.active.offset_index.written and log.active.time_index.written


def test_unflushed_log_keeps_its_descriptor(tmp_path: Path) -> None:
    _, logs = many_logs(tmp_path, 100)
    with descriptors(32 + 40):
        unflushed = logs[:30]
        for log in unflushed:
            log.append(batch(b"not on the disk"), 0)
        for log in logs[30:]:
            log.append(batch(b"on the disk"), 0)
            log.flush()
        assert all(log.active.descriptor >= 0 for log in unflushed)
        held = open_below(tmp_path)
        assert all(str(log.active.path) in held for log in unflushed)
        with pytest.raises(KafkaStorageError, match="too many open files"):  # no open file is idle
            for log in logs[30:]:
                log.append(batch(b"not on the disk"), 0)
        for log in unflushed:
            log.flush()
        for log in logs[30:]:
            log.append(batch(b"on the disk"), 0)
            log.flush()


def test_slice_of_an_idle_log_stays_readable(tmp_path: Path) -> None:
    _, logs = many_logs(tmp_path, 60)
    with descriptors(32 + 40):
        logs[0].append(batch(b"first"), 0)
        logs[0].flush()
        held = read(logs[0], 0, 1000, 1)
        for log in logs[1:]:
            log.append(batch(b"other"), 0)
            log.flush()
        assert logs[0].active._file is None
        assert held is not None and b"first" in held.read()


def test_log_with_more_segments_than_descriptors_is_readable(tmp_path: Path) -> None:
    with descriptors(150):
        logs = manager(tmp_path)
        log = logs.create("t", bytes(range(16)), 0, settings())
        for number in range(200):
            log.append(batch(b"%d" % number), 0)
            log.roll()
        assert values_of(log) == [(number, b"%d" % number) for number in range(200)]
        logs.close()
