"""Each call to the disk fails in turn (F8): N = 1, 2, 3 … until a run meets no failure.

A log's life goes through append, roll, retention, flush, close and recovery.  Whichever call
fails, once or from then on, with a full disk, an I/O error or no descriptors left: nothing that was
acknowledged and flushed is lost, reads return only what was written, the error is a retriable
KafkaStorageError or ends the process (DiskFailed), and with a working disk the log serves again.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import DISK, DiskFailed, FreeSpace
from kafkalite.storage.log.log import Log
from tests.simulation.disk import FaultyDisk, FullDisk
from tests.storage.factories import batch, close, open_log, produced, values_of

VALUES = {keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 400, keys.INDEX_INTERVAL_BYTES: 100}
EVERY_CODE = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EDQUOT, errno.EROFS)

SWEEPS = [
    pytest.param(
        code, sticky,
        id=f"{errno.errorcode[code]} {'from then on' if sticky else 'once'}",
        marks=() if (code, sticky) in {
            (errno.ENOSPC, False), (errno.EIO, True), (errno.EMFILE, False),
        } else pytest.mark.faults,
    )
    for code in EVERY_CODE for sticky in (False, True)
]  # fmt: skip


class History:
    """The acknowledgements a producer received."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        self.flushed = 0
        self.refused = 0
        self.sequence = 0

    def append(self, log: Log) -> None:
        value = b"%d" % self.sequence
        placed = log.append(produced(self.sequence, value), 0)
        assert self.acked.get(placed.base_offset, value) == value
        self.acked[placed.base_offset] = value
        self.sequence += 1

    def check(self, log: Log, at_least: int) -> None:
        found = dict(values_of(log))
        assert log.end_offset >= at_least
        for offset, value in self.acked.items():
            if log.log_start_offset <= offset < at_least:
                assert found[offset] == value
        assert all(self.acked.get(offset, value) == value for offset, value in found.items())
        assert len(set(found.values())) == len(found), "a value stands twice"


def live(directory: Path, disk: FaultyDisk, history: History) -> None:
    """Run one life of a log; DiskFailed ends it early, as it would end the process."""
    clock = ManualClock()
    log = None
    while log is None:
        try:
            log = open_log(directory, VALUES, clock, disk)
        except OSError:
            history.refused += 1
            if history.refused > 3:
                return
    for step in range(12):
        try:
            history.append(log)
        except KafkaStorageError as fault:
            assert fault.retriable
            history.refused += 1
        log.write_index_page()
        if step % 4 == 3:
            flush = log.flush_begin()
            if flush is not None:
                flush.run(disk)
                if flush.error is not None:
                    raise DiskFailed(str(flush.error))
                log.flush_end(flush)
                history.flushed = log.durable_offset
    history.check(log, log.end_offset)
    log.delete_records(min(2, log.end_offset))
    clock.advance(10_000)
    log.deferred_deletes.remove_due()
    close(log)


def survives(directory: Path, disk: FaultyDisk) -> None:
    history = History()
    try:
        live(directory, disk, history)
    except (DiskFailed, OSError, KafkaStorageError):
        pass
    directory.mkdir(exist_ok=True)
    log = open_log(directory, VALUES, recovery_point=history.flushed)
    assert log.failure is None
    history.check(log, history.flushed)
    log.append(batch(b"after"), 0)
    assert values_of(log)[-1][1] == b"after"
    close(log)


@pytest.mark.parametrize(("code", "sticky"), SWEEPS)
def test_log_survives_the_failure_of_each_disk_call(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    seen: set[str] = set()
    for fail_at in range(1, 1000):
        directory = tmp_path / "t-0"
        disk = FaultyDisk(fail_at, code, sticky=sticky, torn=True)
        survives(directory, disk)
        shutil.rmtree(directory)
        if not disk.failed:
            break
        seen.update(disk.failed)
    else:
        pytest.fail("the sweep did not come to its end")
    assert seen >= {"open", "pwritev", "pwrite", "fdatasync", "fsync", "ftruncate", "rename"}


@pytest.mark.parametrize(("code", "sticky"), SWEEPS)
def test_recovery_survives_the_failure_of_each_disk_call(
    tmp_path: Path, code: int, sticky: bool
) -> None:
    made = tmp_path / "made"
    history = History()
    log = open_log(made, VALUES)
    for _ in range(10):
        history.append(log)
    log.release()
    with log.active.path.open("r+b") as file:
        file.truncate(log.active.size)
        file.seek(0, os.SEEK_END)
        file.write(b"torn")
    for fail_at in range(1, 1000):
        directory = tmp_path / "t-0"
        shutil.copytree(made, directory)
        disk = FaultyDisk(fail_at, code, sticky=sticky, torn=True)
        try:
            first = open_log(directory, VALUES, disk=disk, recovery_point=5)
            history.check(first, 10)
            first.release()
        except (OSError, DiskFailed, KafkaStorageError):
            assert disk.failed
        history.check(open_log(directory, VALUES, recovery_point=5), 10)
        shutil.rmtree(directory)
        if not disk.failed:
            break
    else:
        pytest.fail("the sweep did not come to its end")


def test_full_disk_refuses_appends_until_there_is_space(
    tmp_path: Path,
) -> None:
    disk = FullDisk(room=1 << 20)
    log = open_log(tmp_path, VALUES, disk=disk)
    history = History()
    for _ in range(5):
        history.append(log)
    for room in range(150):
        disk.room = room
        with pytest.raises(KafkaStorageError) as refused:
            while True:
                history.append(log)
        assert refused.value.retriable
        history.check(log, log.end_offset)
        assert log.active.path.stat().st_size == log.active.size, "torn bytes were left"
    disk.room = 1 << 20
    history.append(log)
    history.check(log, log.end_offset)
    assert log.failure is None


def test_log_is_recovered_and_read_on_a_full_disk(tmp_path: Path) -> None:
    history = History()
    log = open_log(tmp_path, VALUES)
    for _ in range(10):
        history.append(log)
    log.release()
    with log.active.path.open("ab") as file:
        file.write(b"torn")
    disk = FullDisk(room=0)
    again = open_log(tmp_path, VALUES, disk=disk)
    history.check(again, 10)
    disk.room = 1 << 20
    history.append(again)
    history.check(again, 11)


def test_appends_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    space = FreeSpace(tmp_path, kept_free=found.f_blocks * found.f_frsize)
    log = open_log(tmp_path, shared={"space": space})
    with pytest.raises(KafkaStorageError, match=r"storage\.min\.free\.bytes") as refused:
        log.append(batch(b"v"), 0)
    assert refused.value.retriable
    assert log.size == 0
    space.kept_free = 0
    log.append(batch(b"v"), 0)


def test_free_space_is_measured_once_per_quantum(tmp_path: Path) -> None:
    class Counting(type(DISK)):
        asked = 0

        def fstatvfs(self, descriptor: int) -> os.statvfs_result:
            self.asked += 1
            return os.fstatvfs(descriptor)

    disk = Counting()
    space = FreeSpace(tmp_path, 0, disk)
    for _ in range(1000):
        space.take(1000)
    assert disk.asked == 1


def test_write_error_other_than_full_disk_fails_the_log(tmp_path: Path) -> None:
    disk = FaultyDisk(1, errno.EIO, only=["pwritev"])
    log = open_log(tmp_path, disk=disk)
    with pytest.raises(DiskFailed):
        log.append(batch(b"a"), 0)
    with pytest.raises(KafkaStorageError):
        log.append(batch(b"b"), 0)
    assert log.finish() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs, which needs root")
def test_real_full_disk_behaves_like_the_simulated_one(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=256k tmpfs {small} 2>/dev/null") != 0:
        pytest.skip("this machine does not let us mount")
    try:
        log = open_log(small / "t-0", {keys.SEGMENT_BYTES: 1 << 20, keys.DURABILITY: "fsync"})
        with pytest.raises(KafkaStorageError) as refused:
            for _ in range(1000):
                log.append(batch(os.urandom(3000)), 0)
        assert refused.value.retriable
        assert len(values_of(log)) == log.end_offset > 20
        log.delete_records(log.end_offset // 2)
        os.truncate(log.active.path, log.active.size)
        (small / "ballast").write_bytes(b"")
        os.system(f"mount -o remount,size=1m {small}")
        log.append(batch(b"x" * 3000), 0)
        close(log)
        again = open_log(small / "t-0")
        assert again.end_offset == log.end_offset
        again.release()
        del log, again
    finally:
        os.system(f"umount -l {small}")
