"""A log whose files cannot be opened or read: the error affects that log and no other."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.log import segment_grants
from kafkalite.storage.log.background_flush import BackgroundFlush
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_flushes import LogFlush
from kafkalite.storage.log.log_reader import read
from tests.simulation.disk import FaultyDisk
from tests.storage.factories import batch, found_since, manager, open_log, settings, values_of

CODES = (errno.EIO, errno.ENOENT, errno.EACCES, errno.EMFILE)


def closed_log(directory: Path, disk: FaultyDisk) -> Log:
    """Return a log of some batches, not flushed, whose files are not open."""
    disk.armed = False
    log = open_log(directory, {keys.DURABILITY: "fsync"}, disk=disk)
    for number in range(20):
        log.append(batch(b"%d" % number * 10), 0)
    assert len(log.segments) > 1
    for segment in log.segments:
        segment.write_indexes()
        segment.release()
    disk.armed = True
    return log


@pytest.mark.parametrize("code", CODES)
def test_file_that_cannot_be_opened_raises_storage_error(tmp_path: Path, code: int) -> None:
    disk = FaultyDisk(1, code, sticky=True, only=("open",))
    log = closed_log(tmp_path / "t-0", disk)
    for failing in (
        lambda: log.append(batch(b"more"), 0),
        lambda: read(log, 0, 1000, log.end_offset),
        lambda: read(log, 19, 1000, log.end_offset),
        lambda: segment_grants.grant(log, 0, 100, log.end_offset),
        lambda: found_since(log, 0),
        log.flush_begin,
        log.roll,
    ):
        with pytest.raises(KafkaStorageError, match="cannot"):
            failing()
    log.active.offset_index.tail += bytes(8 * 600)  # enough to be written immediately
    log.active.offset_index.count += 600
    log.write_index_page()
    assert disk.failed
    log.active.offset_index.truncate(log.active.offset_index.written)
    disk.armed = False
    log.append(batch(b"more"), 0)
    assert len(values_of(log)) == 21
    log.flush()
    assert log.durable_offset == log.end_offset


@pytest.mark.parametrize("code", CODES)
def test_replica_whose_file_cannot_be_opened_has_failed(tmp_path: Path, code: int) -> None:
    disk = FaultyDisk(1, code, sticky=True, only=("open",))
    log = closed_log(tmp_path / "t-0", disk)
    log.is_replicated = True
    with pytest.raises(KafkaStorageError, match="cannot be opened"):
        log.append(batch(b"more"), 0)
    assert (log.failure is None) == (code == errno.EMFILE)  # which may be over in a moment


def test_unreadable_index_raises_storage_error(tmp_path: Path) -> None:
    disk = FaultyDisk(1, errno.EIO)
    log = closed_log(tmp_path / "t-0", disk)
    disk.armed = False
    index = log.segments[0].offset_index
    assert index.written
    index._file = OpenFile(index.path, os.O_WRONLY)  # pread: EBADF
    for failing in (index.entries, lambda: index.last_at(100)):
        with pytest.raises(KafkaStorageError, match="cannot be read"):
            failing()


def test_grant_of_an_unreadable_batch_raises_storage_error(tmp_path: Path) -> None:
    log = closed_log(tmp_path / "t-0", disk := FaultyDisk(1, errno.EIO))
    disk.armed = False
    first = log.segments[0]
    first._file = OpenFile(first.path, os.O_WRONLY)
    first._descriptor = first._file.fileno()
    with pytest.raises(KafkaStorageError, match="cannot be read"):
        segment_grants._header(first, 0)


def test_flush_of_a_removed_directory_takes_the_log_offline(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", {keys.DURABILITY: "fsync"})
    log.append(batch(b"a"), 0)
    flush = log.flush_begin()
    assert flush is not None
    shutil.rmtree(log.directory)
    flush.run(log._disk)
    assert flush.error is None, "every process of the file system would end"
    log.flush_end(flush)
    assert log.durable_offset == 0
    assert log.failure is not None and "was removed" in log.failure
    with pytest.raises(KafkaStorageError):
        log.append(batch(b"b"), 0)


def test_flush_error_of_an_existing_directory_is_reported(tmp_path: Path) -> None:
    disk = FaultyDisk(1, errno.EIO, only=("fsync",))
    disk.armed = False
    log = open_log(tmp_path / "t-0", {keys.DURABILITY: "fsync"}, disk=disk)
    log.append(batch(b"a"), 0)
    disk.armed = True
    flush = log.flush_begin()
    assert flush is not None
    flush.run(disk)
    assert flush.error is not None and not flush.is_lost


def test_roll_in_a_removed_directory_raises_storage_error(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path / "t-0", {keys.DURABILITY: "fsync"})
    log.append(batch(b"a"), 0)
    shutil.rmtree(log.directory)
    with pytest.raises(KafkaStorageError, match="cannot"):
        log.roll()


class Submitted:
    """A flusher that runs submitted work only on request."""

    def __init__(self) -> None:
        self.flushes: list[LogFlush] = []

    def submit(self, flushes: list[LogFlush]) -> None:
        self.flushes += flushes


@pytest.mark.parametrize(("code", "count"), [(errno.EIO, 2), (errno.EMFILE, 0)])
def test_background_flush_continues_after_an_unopenable_log(
    tmp_path: Path, code: int, count: int
) -> None:
    values = {keys.DURABILITY: "os", keys.SEGMENT_BYTES: 1 << 20}
    disk = FaultyDisk(1, code, sticky=True, only=("open",))
    disk.armed = False
    broken = open_log(tmp_path / "broken-0", values, disk=disk)
    logs = [broken] + [open_log(tmp_path / f"t-{number}", values) for number in range(2)]
    for log in logs:
        log.append(batch(b"a"), 0)
    broken.active.release()
    disk.armed = True
    flusher, background = Submitted(), BackgroundFlush()
    background.add(logs, flusher, closed_only=False)  # type: ignore[arg-type]
    while flusher.flushes:
        flush = flusher.flushes.pop()
        flush.run(log._disk)
        assert flush.done is not None
        flush.done(flush)
    assert sum(log.durable_offset == 1 for log in logs) == count


@pytest.mark.parametrize("written", [True, False])
def test_close_with_a_removed_directory_is_clean_for_others(tmp_path: Path, written: bool) -> None:
    logs = manager(tmp_path)
    made = [logs.create(name, name.encode().ljust(16), 0, settings()) for name in ("lost", "whole")]
    for log in made if written else made[1:]:
        log.append(batch(b"a"), 0)
    shutil.rmtree(made[0].directory)
    logs.close()
    ends = (tmp_path / layout.CLEAN_SHUTDOWN).read_text()
    assert "whole-0" in ends and "lost-0" not in ends
    again = manager(tmp_path)
    loaded = again.load(lambda topic: settings())
    assert {topic for topic, _ in loaded} == {"whole"}
    assert values_of(loaded["whole", 0]) == [(0, b"a")]
    again.close()
