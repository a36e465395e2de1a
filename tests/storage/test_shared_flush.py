"""Recovery of many logs: one flush for all of them, and no write to files that are correct."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kafkalite.config import topic as keys
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import FAILURE_MARK, WriteBackFailed
from kafkalite.storage.files.file_system import EXT4
from kafkalite.storage.files.flusher import flush_all
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.manager.log_manager import LogManager
from tests.simulation.disk import CALLS, QuickDisk
from tests.storage.factories import TOPIC_ID, batch, manager, settings, values_of

COUNT = 20
NFS = 0x6969
"""A file system type (statfs(2), f_type) that is flushed file by file."""
DURABILITIES = ("fsync", "interval", "os")


class CountingDisk(QuickDisk):
    """A disk that counts the calls that change it or wait for it."""

    def __init__(self, type_number: int = EXT4) -> None:
        self.count: Counter[str] = Counter()
        self.type_number = type_number
        for name in set(CALLS) - {"open"}:
            setattr(self, name, self._counting(name))

    def _counting(self, name: str) -> Any:
        call = getattr(super(), name)

        def counted(*arguments: Any) -> Any:
            self.count[name] += 1
            return call(*arguments)

        return counted

    def type_of(self, descriptor: int) -> int:
        return self.type_number


def killed(data: Path, durability: str, *, unflushed: bool = False) -> dict[str, bytes]:
    """Have a node write COUNT logs and die after a checkpoint; return their files."""
    logs = manager(data, disk=CountingDisk())
    logs.load(lambda topic: config(durability))
    made = [logs.create("t", TOPIC_ID, i, config(durability)) for i in range(COUNT)]
    for log in made:
        log.leader_epochs.assign(0, 0)
        log.append(batch(b"one", b"two"), 0)
    flushes = {flush: log for log in made if (flush := log.flush_begin()) is not None}
    flush_all(list(flushes), QuickDisk())
    for flush, log in flushes.items():
        log.flush_end(flush)
    logs.checkpoint()
    for log in made if unflushed else ():
        log.append(batch(b"three"), 0)
    for log in made:
        log.release()
    return contents(data)


def config(durability: str) -> Any:
    return settings({keys.DURABILITY: durability, keys.SEGMENT_BYTES: 1 << 20})


def contents(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.glob("t-*/*")}


def loaded(data: Path, durability: str, disk: QuickDisk) -> list[Log]:
    logs = opened(data, disk)
    return list(logs.load(lambda topic: config(durability)).values())


def opened(data: Path, disk: QuickDisk) -> LogManager:
    logs = manager(data, disk=disk)
    if isinstance(disk, CountingDisk):
        disk.count.clear()
    return logs


@pytest.mark.parametrize("durability", DURABILITIES)
def test_recovery_writes_nothing_to_correct_logs(tmp_path: Path, durability: str) -> None:
    before = killed(tmp_path, durability)
    disk = CountingDisk()
    logs = loaded(tmp_path, durability, disk)
    assert len(logs) == COUNT and all(log.end_offset == 2 for log in logs)
    assert disk.count.total() == 0 and {log.durable_offset for log in logs} == {2}
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("durability", "flushed"), [("fsync", 3), ("interval", 3), ("os", 2)])
def test_unflushed_logs_share_a_flush_unless_left_to_the_kernel(
    tmp_path: Path, durability: str, flushed: int
) -> None:
    killed(tmp_path, durability, unflushed=True)
    disk = CountingDisk()
    logs = loaded(tmp_path, durability, disk)
    assert [len(values_of(log)) for log in logs] == [3] * COUNT
    assert {log.durable_offset for log in logs} == {flushed}
    assert disk.count == Counter({"syncfs": 1} if flushed == 3 else {})


@pytest.mark.parametrize("durability", DURABILITIES)
def test_unflushed_logs_share_a_flush_after_a_reboot(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(tmp_path, durability, unflushed=True)
    monkeypatch.setattr(partition_transfer, "boot_id", lambda: "the next")
    disk = CountingDisk()
    logs = loaded(tmp_path, durability, disk)
    assert {log.durable_offset for log in logs} == {3}
    assert disk.count["syncfs"] == 1
    assert not disk.count["fdatasync"] and not disk.count["fsync"]


def test_logs_are_flushed_one_by_one_if_syncfs_is_not_usable(tmp_path: Path) -> None:
    killed(tmp_path, "fsync", unflushed=True)
    disk = CountingDisk(type_number=NFS)
    logs = loaded(tmp_path, "fsync", disk)
    assert {log.durable_offset for log in logs} == {3}
    assert not disk.count["syncfs"] and disk.count["fdatasync"] >= COUNT


def test_truncated_log_is_flushed_at_once(tmp_path: Path) -> None:
    killed(tmp_path, "os", unflushed=True)
    torn = next((tmp_path / "t-3").glob(f"*{layout.LOG}"))
    os.truncate(torn, torn.stat().st_size - 5)
    disk = CountingDisk()
    logs = loaded(tmp_path, "os", disk)
    assert {log.partition: log.durable_offset for log in logs}[3] == 2
    assert (disk.count["ftruncate"], disk.count["fdatasync"], disk.count["fsync"]) == (1, 1, 1)


def test_recovery_keeps_preallocated_space(tmp_path: Path) -> None:
    killed(tmp_path, "os", unflushed=True)
    path = next((tmp_path / "t-3").glob(f"*{layout.LOG}"))
    size = path.stat().st_size
    os.truncate(path, 1 << 16)
    disk = CountingDisk()
    log = {log.partition: log for log in loaded(tmp_path, "os", disk)}[3]
    assert (log.size, log.active.allocated, disk.count["ftruncate"]) == (size, 1 << 16, 0)
    log.append(batch(b"four"), 0)
    log.release()
    assert path.stat().st_size == 1 << 16
    log = {log.partition: log for log in loaded(tmp_path, "os", disk)}[3]
    assert [value for _, value in values_of(log)] == [b"one", b"two", b"three", b"four"]


def test_failed_shared_flush_ends_the_process_with_a_mark(
    tmp_path: Path,
) -> None:
    class FailingDisk(CountingDisk):
        def syncfs(self, descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    killed(tmp_path, "fsync", unflushed=True)
    disk = FailingDisk()
    del disk.__dict__["syncfs"]
    with pytest.raises(WriteBackFailed):
        loaded(tmp_path, "fsync", disk)
    assert (tmp_path / FAILURE_MARK).exists()


def test_write_back_error_reported_to_another_process_ends_the_process(tmp_path: Path) -> None:
    """The kernel reports a failed write-back once; the other process leaves a mark for all."""
    killed(tmp_path, "fsync", unflushed=True)
    logs = opened(tmp_path, CountingDisk())
    (tmp_path / FAILURE_MARK).touch()
    with pytest.raises(WriteBackFailed):
        logs.load(lambda topic: config("fsync"))


@pytest.mark.parametrize("durability", DURABILITIES)
def test_recovery_on_a_full_disk_writes_leader_epochs_later(
    tmp_path: Path, durability: str
) -> None:
    class FullDisk(CountingDisk):
        full = True

        def open(self, path: Any, flags: int) -> Any:
            if self.full and str(path).endswith(f"{layout.LEADER_EPOCHS}.tmp"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().open(path, flags)

    killed(tmp_path, durability, unflushed=True)
    for path in tmp_path.glob(f"t-*/{layout.LEADER_EPOCHS}"):
        path.write_bytes(b"")
    (tmp_path / layout.RECOVERY_CHECKPOINT).unlink(missing_ok=True)
    disk = FullDisk()
    found = loaded(tmp_path, durability, disk)
    assert len(found) == COUNT
    for log in found:
        assert log.leader_epochs.unsaved and log.durable_offset < log.end_offset
        assert [value for _, value in values_of(log)] == [b"one", b"two", b"three"]
    disk.full = False
    for log in found:
        log.flush()
        assert not log.leader_epochs.unsaved and log.durable_offset == log.end_offset
        assert b"0 0" in (log.directory / layout.LEADER_EPOCHS).read_bytes()
