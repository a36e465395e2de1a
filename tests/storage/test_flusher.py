"""The Flusher: a completed flush is on the disk, and a failed flush is never retried."""

from __future__ import annotations

import errno
import os
import select
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.records.batch import batches
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import file_system, layout
from kafkalite.storage.files.disk import DISK, FAILURE_MARK, Disk, DiskFailed, WriteBackFailed
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.flusher import SYNCFS_FROM, Flusher, flush_all
from kafkalite.storage.files.write_back import flush_directory, share_file_system, write_back_failed
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_flushes import LogFlush
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from tests.process.waiting import until
from tests.simulation.disk import FaultyDisk, QuickDisk, ReportingDisk
from tests.storage.factories import TOPIC_ID, batch, manager, open_below, open_log, settings

OVERLAYFS, NFS, FUSE = 0x794C7630, 0x6969, 0x65735546


class CountingDisk(QuickDisk):
    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.synced: list[int] = []
        self.whole = 0

    def fdatasync(self, descriptor: int) -> None:
        self.synced.append(descriptor)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))

    def syncfs(self, descriptor: int) -> None:
        self.whole += 1
        if self.code:
            raise OSError(self.code, os.strerror(self.code))


def begun(log: Log) -> LogFlush:
    log.append(batch(b"v"), 0)
    flush = log.flush_begin()
    assert flush is not None
    return flush


def collected(flusher: Flusher, count: int) -> list[LogFlush]:
    done: list[LogFlush] = []
    while len(done) < count:
        assert select.select([flusher], [], [], 30)[0], "no flush came back"
        done += flusher.collect()
    return done


def test_completed_flush_moves_the_durable_offset_to_its_target(tmp_path: Path) -> None:
    flusher = Flusher()
    log = open_log(tmp_path)
    flush = begun(log)
    log.append(batch(b"later"), 0)
    flusher.submit([flush])
    (done,) = collected(flusher, 1)
    assert log.durable_offset == 0
    log.flush_end(done)
    assert (log.durable_offset, log.unflushed_size) == (1, log.size - flush.target.position)
    assert log.flush_begin() is not None
    flusher.close()


def test_read_up_to_the_durable_offset_returns_only_flushed_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.SEGMENT_BYTES: 1 << 20})
    for _ in range(5):
        log.append(batch(b"flushed"), 0)
    size = log.size
    flush = begun(log)
    log.append(batch(b"later"), 0)
    log.flush_end(flush)
    found = read(log, 0, 1 << 20, log.durable_offset)
    assert found is not None
    assert size < found.size < log.size
    assert [whole.header.base_offset for whole in batches(found.read())] == [0, 1, 2, 3, 4, 5]


def test_flushes_may_complete_in_any_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first, second = begun(log), begun(log)
    log.flush_end(second)
    log.flush_end(first)
    assert (log.durable_offset, log.unflushed_size) == (2, 0)
    assert log.flush_begin() is None


def test_concurrent_flushes_write_the_epochs_file_once(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"a"), 1)
    first = log.flush_begin()
    log.append(batch(b"b"), 2)
    second = log.flush_begin()
    assert first is not None and second is not None
    assert first.epochs and not second.epochs
    for flush in (second, first):  # the older one completes last
        flush.run(QuickDisk())
        log.flush_end(flush)
    log.append(batch(b"c"), 2)
    log.flush()
    found = LeaderEpochCache.load(tmp_path / "t-0" / layout.LEADER_EPOCHS)
    assert found is not None and (found.epochs, found.starts) == ([1, 2], [0, 1])


class RefusingDisk(QuickDisk):
    """A disk without room for a replacement of the epochs file."""

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code

    def open(self, path: str | Path, flags: int) -> OpenFile:
        if str(path).endswith(f"{layout.LEADER_EPOCHS}.tmp"):
            raise OSError(self.error_code, os.strerror(self.error_code))
        return super().open(path, flags)


@pytest.mark.parametrize("error_code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_epochs_file_on_a_full_disk_is_not_a_write_back_failure(
    tmp_path: Path, error_code: int
) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"a"), 1)
    flush = log.flush_begin()
    assert flush is not None and flush.epochs
    flush_all([flush], RefusingDisk(error_code))
    assert flush.error is None and not list(tmp_path.rglob(FAILURE_MARK))
    with pytest.raises(KafkaStorageError, match="cannot be flushed"):
        log.flush_end(flush)
    assert log.durable_offset == 0 and log.leader_epochs.unsaved and not log.is_flushing
    log.flush()
    found = LeaderEpochCache.load(tmp_path / "t-0" / layout.LEADER_EPOCHS)
    assert log.durable_offset == 1 and found is not None and found.epochs == [1]


def test_flush_of_leader_epochs_that_fails_is_a_write_back_failure(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append(batch(b"a"), 1)
    flush = log.flush_begin()
    assert flush is not None
    flush_all([flush], RefusingDisk(errno.EIO))
    assert flush.error is not None and flush.error.errno == errno.EIO


def test_flush_covers_all_segments_and_names_since_the_last(tmp_path: Path) -> None:
    disk = CountingDisk()
    log = open_log(tmp_path, disk=disk)
    log.flush_end(begun(log))
    while len(log.segments) < 3:
        log.append(batch(b"x" * 200), 0)
    flush = log.flush_begin()
    assert flush is not None
    paths = {Path(file.path).name for file in flush.files}
    assert {segment.path.name for segment in log.segments} <= paths
    assert sum(name.endswith("index") for name in paths) == 4
    assert flush.directories
    log.flush_end(flush)
    assert begun(log).directories == []


def test_many_dirty_files_are_flushed_by_one_syncfs(tmp_path: Path) -> None:
    disk = CountingDisk()
    flusher = Flusher(disk=disk, file_system=FileSystem(tmp_path, disk))
    logs = [open_log(tmp_path / str(n), disk=disk) for n in range(SYNCFS_FROM)]
    flushes = [begun(log) for log in logs]
    disk.synced.clear()
    flusher.submit(flushes)
    assert set(collected(flusher, len(flushes))) == set(flushes)
    assert (disk.whole, disk.synced) == (1, [])
    flusher.close()


@pytest.mark.parametrize("count", [1, SYNCFS_FROM])
def test_failed_flush_is_fatal_and_not_retried(tmp_path: Path, count: int) -> None:
    disk = CountingDisk()
    flusher = Flusher(threads=2, disk=disk, file_system=FileSystem(tmp_path, disk))
    flushes = [begun(open_log(tmp_path / str(n), disk=disk)) for n in range(count)]
    disk.synced.clear()
    disk.code = errno.EIO
    flusher.submit(flushes)
    with pytest.raises(DiskFailed, match="must end"):
        collected(flusher, count)
    assert len(disk.synced) + disk.whole == 1
    assert (tmp_path / FAILURE_MARK).exists()
    with pytest.raises(DiskFailed):
        flusher.collect()
    assert flushes[0].state.durable_offset == 0
    flusher.close()


def test_group_commit_reports_an_error_that_another_process_saw_first(tmp_path: Path) -> None:
    disk = ReportingDisk()
    other = disk.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    flusher = Flusher(disk=disk, file_system=FileSystem(tmp_path, disk))
    flushes = [begun(open_log(tmp_path / str(n), disk=disk)) for n in range(SYNCFS_FROM)]
    disk.fail_write_back()
    with pytest.raises(OSError, match="Input/output"):
        disk.syncfs(other.fileno())
    # The last flush has a file that was opened after the error was reported elsewhere.
    flushes.append(begun(open_log(tmp_path / "new", disk=disk)))
    flusher.submit(flushes)
    with pytest.raises(WriteBackFailed):
        collected(flusher, len(flushes))
    flusher.close()


def test_concurrent_group_commits_all_report_one_error(tmp_path: Path) -> None:
    disk = ReportingDisk()
    held = FileSystem(tmp_path, disk)
    flushes = [begun(open_log(tmp_path / str(n), disk=disk)) for n in range(3 * SYNCFS_FROM)]
    groups = [flushes[n::3] for n in range(3)]
    disk.fail_write_back()
    threads = [threading.Thread(target=flush_all, args=(g, disk, held)) for g in groups[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    flush_all(groups[2], disk, held)
    assert [flush.error and flush.error.errno for flush in flushes] == [errno.EIO] * len(flushes)


def test_flush_of_names_alone_is_not_shared_where_syncfs_cannot_be_trusted(
    tmp_path: Path,
) -> None:
    disk = ReportingDisk(OVERLAYFS)
    flushes = [begun(open_log(tmp_path / str(n), disk=disk)) for n in range(SYNCFS_FROM + 1)]
    flushes[0].files.clear()
    disk.fail_write_back()
    disk.synced.clear()
    flush_all(flushes, disk, FileSystem(tmp_path, disk))
    assert [flush.error for flush in flushes] == [None] * len(flushes)
    assert len(disk.synced) > len(flushes)


@pytest.mark.parametrize("type_number", [OVERLAYFS, NFS, FUSE, -1])
def test_files_are_flushed_one_by_one_where_syncfs_cannot_be_trusted(
    tmp_path: Path, type_number: int
) -> None:
    disk = ReportingDisk(type_number)
    flusher = Flusher(disk=disk, file_system=FileSystem(tmp_path, disk))
    logs = [open_log(tmp_path / str(n), disk=disk) for n in range(SYNCFS_FROM)]
    disk.fail_write_back()  # syncfs would raise
    flushes = [begun(log) for log in logs]
    disk.synced.clear()
    flusher.submit(flushes)
    collected(flusher, len(flushes))
    assert set(disk.synced) >= {log.active.descriptor for log in logs}
    flusher.close()


def test_file_system_of_an_old_kernel_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FileSystem(tmp_path, ReportingDisk()).can_sync
    monkeypatch.setattr(file_system, "kernel_version", lambda: (5, 7))
    assert not FileSystem(tmp_path, ReportingDisk()).can_sync


def test_paths_on_another_file_system_are_flushed_one_by_one(tmp_path: Path) -> None:
    disk = ReportingDisk()
    held = FileSystem(tmp_path, disk)
    (tmp_path / "file").touch()
    disk.synced.clear()
    held.sync_paths([tmp_path, tmp_path / "file"])
    assert len(disk.synced) == 0
    held.device = -1
    held.sync_paths([tmp_path, tmp_path / "file"])
    assert len(disk.synced) == 2


def test_failed_flush_marks_the_directories_of_all_nodes(tmp_path: Path) -> None:
    for node_id in (1, 2):
        (tmp_path / "nodes" / str(node_id)).mkdir(parents=True)
    log = open_log(tmp_path / "nodes" / "1" / "t-0")
    with pytest.raises(WriteBackFailed, match="must end"):
        raise write_back_failed(DISK, log.directory, OSError(errno.EIO, "Input/output error"))
    marked = {path.parent for path in tmp_path.rglob(FAILURE_MARK)}
    assert marked == {tmp_path, tmp_path / "nodes" / "1", tmp_path / "nodes" / "2"}


def two_log_directories(root: Path) -> tuple[Path, Path]:
    """Return two log directories: node 1's logs are in the first, node 2's in the second."""
    (root / "a/nodes/1").mkdir(parents=True)
    (root / "b/nodes/2").mkdir(parents=True)
    (root / "a/nodes/2").symlink_to(root / "b/nodes/2")
    return root / "a", root / "b"


def test_failed_flush_marks_all_log_directories_on_the_file_system(tmp_path: Path) -> None:
    a, b = two_log_directories(tmp_path)
    write_back_failed(DISK, a / "nodes/1/t-0", OSError(errno.EIO, "Input/output error"))
    marked = {path.parent for path in tmp_path.rglob(FAILURE_MARK)}
    assert marked == {a, a / "nodes/1", b, b / "nodes/2"}


def test_failed_flush_of_an_unmounted_directory_marks_no_other(tmp_path: Path) -> None:
    a, b = two_log_directories(tmp_path)
    b.rename(tmp_path / "unmounted")
    write_back_failed(DISK, a / "nodes/2/*", OSError(errno.ENOENT, "No such file or directory"))
    assert not [*tmp_path.rglob(FAILURE_MARK)]
    assert not share_file_system(a / "nodes/1", a / "nodes/2")
    assert not share_file_system(a, a / "nodes/2")
    assert share_file_system(a, a / "nodes/3")  # in the same log directory


def test_failed_flush_of_names_marks_the_directories_of_all_nodes(tmp_path: Path) -> None:
    (tmp_path / "nodes" / "1").mkdir(parents=True)
    with pytest.raises(WriteBackFailed, match="must end"):
        flush_directory(FaultyDisk(1, errno.EIO, only=["fsync"]), tmp_path / "nodes" / "1")
    marked = {path.parent for path in tmp_path.rglob(FAILURE_MARK)}
    assert marked == {tmp_path, tmp_path / "nodes" / "1"}


def test_threads_start_with_the_first_flush() -> None:
    before = threading.active_count()
    flusher = Flusher()
    assert threading.active_count() == before
    flusher.submit([])
    assert threading.active_count() == before
    flusher.close()
    flusher.close()


def test_real_disk_calls_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path, {keys.DURABILITY: "fsync"}, disk=Disk())
    flush = begun(log)
    flush.run(DISK)
    assert flush.error is None
    DISK.syncfs(log.active.descriptor)
    with pytest.raises(OSError, match="Bad file"):
        DISK.syncfs(-1)


class DeletingDisk(QuickDisk):
    """A disk that deletes a log while its directory is being flushed."""

    def __init__(self, delete: Callable[[], None]) -> None:
        self.delete: Callable[[], None] | None = delete

    def open(self, path: str | Path, flags: int) -> OpenFile:
        if self.delete is not None:
            delete, self.delete = self.delete, None
            delete()
        return super().open(path, flags)


@pytest.mark.parametrize("while_flushing", [True, False])
def test_flush_of_a_deleted_log_is_not_a_failure(tmp_path: Path, while_flushing: bool) -> None:
    log = open_log(tmp_path / "t-0")
    flush = begun(log)

    def delete() -> None:
        log.release()
        log.directory.rename(tmp_path / "deleted")

    if while_flushing:
        flush.run(DeletingDisk(delete))
    else:
        delete()
        flush.run(QuickDisk())
    assert flush.error is None
    assert not log.directory.exists()


def test_flush_of_names_alone_joins_a_group_commit(tmp_path: Path) -> None:
    logs = [open_log(tmp_path / f"t-{number}", {keys.SEGMENT_BYTES: 200}) for number in range(8)]
    for log in logs:
        log.flush_end(begun(log))
        for _ in range(8):
            log.append(batch(b"v" * 100), 0)
    logs[0].delete_records(logs[0].active.base_offset)
    flushes = [flush for log in logs if (flush := log.flush_begin(closed_only=True)) is not None]
    assert not flushes[0].files and len(flushes) == 8
    flusher = Flusher(disk=CountingDisk())
    flusher.submit(flushes)
    assert {flush.directory for flush in collected(flusher, 8)} == {log.directory for log in logs}
    flusher.close()


def test_exception_on_a_flusher_thread_is_raised_by_collect(tmp_path: Path) -> None:
    class Broken(QuickDisk):
        def fdatasync(self, descriptor: int) -> None:
            raise LookupError("a bug")

    flusher = Flusher(disk=Broken())
    flusher.submit([begun(open_log(tmp_path))])
    with pytest.raises(LookupError):
        collected(flusher, 1)
    flusher.close()


def test_idle_thread_holds_no_file_open(tmp_path: Path) -> None:
    flusher = Flusher()
    log = open_log(tmp_path / "log")
    flusher.submit([begun(log)])
    for done in collected(flusher, 1):
        log.flush_end(done)
    del done
    log.release()
    del log
    until(lambda: not open_below(tmp_path))
    flusher.close()


class OnceFailingDisk(QuickDisk):
    """A disk whose first flush blocks and is then the only one to get the error, as on one file
    descriptor."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def fdatasync(self, descriptor: int) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(30)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_both_flushes_of_a_log_report_the_error(tmp_path: Path) -> None:
    disk = OnceFailingDisk()
    log = open_log(tmp_path / "t-0", {keys.SEGMENT_BYTES: 1 << 20})
    flushes = [begun(log), begun(log)]
    threads = []
    for flush in flushes:
        threads.append(threading.Thread(target=flush.run, args=[disk]))
        threads[-1].start()
        assert disk.begun.wait(30)
    disk.go_on.set()
    for thread in threads:
        thread.join()
    assert all(flush.error is not None and flush.error.errno == errno.EIO for flush in flushes)


@pytest.mark.parametrize("deleted_before", ["the epochs are written", "their file is opened"])
def test_epochs_of_a_deleted_log_are_not_written_to_a_new_log(
    tmp_path: Path, deleted_before: str
) -> None:
    logs = manager(tmp_path)
    old = logs.create("t", TOPIC_ID, 0, settings())
    old.append(batch(b"a"), 5)
    flush = old.flush_begin()
    assert flush is not None and flush.epochs is not None

    class Deleting(QuickDisk):
        """A disk that deletes and recreates the log just when its epochs are written."""

        made: Log | None = None

        def open(self, path: str | Path, flags: int) -> OpenFile:
            if str(path).endswith(f"{layout.LEADER_EPOCHS}.tmp") and self.made is None:
                logs.delete(old)
                if deleted_before == "their file is opened":  # and is removed before the write
                    (aside,) = tmp_path.glob("t-0.*-delete")
                    shutil.rmtree(aside)
                self.made = logs.create("t", bytes(reversed(TOPIC_ID)), 0, settings())
            return super().open(path, flags)

    disk = Deleting()
    flush.run(disk)
    assert disk.made is not None
    assert (flush.error, flush.is_lost) == (None, False)
    assert (disk.made.directory / layout.LEADER_EPOCHS).read_bytes() == b""
    logs.close()
