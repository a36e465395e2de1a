"""LogManager: data directory lock, creation and deletion of logs, state for the next start."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.config.broker import STORAGE_MIN_FREE_BYTES
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaStorageError, Refusal
from kafkalite.ids import METADATA_ID, NO_ID
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import FAILURE_MARK, DiskFailed
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.files.layout import CLEAN_SHUTDOWN, RECOVERY_CHECKPOINT
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_reader import read
from kafkalite.storage.log.recovery import Recovery
from kafkalite.storage.manager.log_manager import LogManager
from tests.simulation.disk import QuickDisk
from tests.storage.factories import TOPIC_ID, batch, manager, settings, values_of

OTHER_ID = bytes(reversed(TOPIC_ID))


def load(logs: LogManager) -> dict[tuple[str, int], Log]:
    return logs.load(lambda topic: settings())


def crash(logs: LogManager) -> None:
    """Crash as SIGKILL does: nothing is closed or written."""
    for log in logs.logs.values():
        log.release()


def names(data: Path) -> set[str]:
    return {path.name for path in data.iterdir() if path.is_dir()}


def test_cleanly_closed_logs_are_loaded_without_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = manager(tmp_path / "data")
    for partition in range(3):
        log = logs.create("flights", TOPIC_ID, partition, settings())
        for number in range(20 * partition):
            log.append(batch(b"%d" % number), 0)
    cluster_id = logs.cluster_id
    logs.open_metadata().append(batch(b"m"), 0, from_client=False)
    logs.close()

    monkeypatch.setattr(Recovery, "recover", lambda *_: pytest.fail("a clean log was scanned"))
    logs = manager(tmp_path / "data")
    assert logs.cluster_id == cluster_id
    assert logs.open_metadata().end_offset == 1
    loaded = load(logs)
    assert {key: log.end_offset for key, log in loaded.items()} == {
        ("flights", 0): 0, ("flights", 1): 20, ("flights", 2): 40,
    }  # fmt: skip
    assert {log.topic_id for log in loaded.values()} == {TOPIC_ID}
    assert logs.open_metadata().topic_id == METADATA_ID
    logs.close()


def test_clean_shutdown_file_is_used_once(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    logs.create("t", TOPIC_ID, 0, settings()).append(batch(b"a"), 0)
    logs.close()
    assert (tmp_path / CLEAN_SHUTDOWN).exists()
    logs = manager(tmp_path)
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    log = load(logs)["t", 0]
    log.append(batch(b"b"), 0)
    with log.active.path.open("ab") as file:
        file.write(b"torn")
    crash(logs)
    logs = manager(tmp_path)
    assert values_of(load(logs)["t", 0]) == [(0, b"a"), (1, b"b")]
    logs.close()


def test_many_logs_are_recovered(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    for partition in range(20):
        log = logs.create("t", TOPIC_ID, partition, settings())
        for number in range(partition):
            log.append(batch(b"%d" % number), 0)
    crash(logs)
    logs = manager(tmp_path)
    assert {key[1]: log.end_offset for key, log in load(logs).items()} == {
        number: number for number in range(20)
    }
    logs.close()


def test_damaged_log_is_quarantined_and_others_are_served(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    for partition in range(2):
        log = logs.create("t", TOPIC_ID, partition, settings())
        log.append(batch(b"v" * 100), 0)
        flush = log.flush_begin()
        assert flush is not None
        log.flush_end(flush)
    logs.checkpoint()
    crash(logs)
    os.truncate(tmp_path / "t-0" / "00000000000000000000.log", 50)
    logs = manager(tmp_path)
    loaded = load(logs)
    with pytest.raises(KafkaStorageError, match="not served until its files are restored"):
        read(loaded["t", 0], 0, 100, 1)
    assert values_of(loaded["t", 1]) == [(0, b"v" * 100)]
    logs.close()
    # The checkpoint still knows the log: the next start does not accept the shortened file.
    logs = manager(tmp_path)
    assert load(logs)["t", 0].is_quarantined
    logs.close()


def test_log_start_offset_is_restored(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("t", TOPIC_ID, 0, settings())
    for number in range(5):
        log.append(batch(b"%d" % number), 0)
    log.delete_records(3)
    logs.checkpoint()
    crash(logs)
    logs = manager(tmp_path)
    assert load(logs)["t", 0].log_start_offset == 3
    logs.close()


def test_damaged_checkpoint_is_read_from_the_previous_version(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    log = logs.create("t", TOPIC_ID, 0, settings())
    for number in range(5):
        log.append(batch(b"%d" % number), 0)
        log.delete_records(number)
        logs.checkpoint()
    crash(logs)
    path = tmp_path / RECOVERY_CHECKPOINT
    path.write_bytes(path.read_bytes()[:-4])
    logs = manager(tmp_path)
    assert load(logs)["t", 0].log_start_offset == 3
    logs.close()


def test_deleted_log_is_renamed_at_once_and_removed_after_its_delay(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    log = logs.create("t", TOPIC_ID, 0, settings())
    log.append(batch(b"v"), 0)
    held = read(log, 0, 1000, 1)
    assert held is not None
    logs.delete(log)
    (aside,) = names(tmp_path)
    assert layout.is_set_aside(aside, layout.DELETE_DIRECTORY)
    assert logs.tick(clock.monotonic_ms()) <= 1000
    clock.advance(1000)
    logs.tick(clock.monotonic_ms())
    assert names(tmp_path) == set()
    assert len(held.read()) == held.size
    logs.delete(log)
    logs.close()


def test_delete_of_many_logs_flushes_names_once(tmp_path: Path) -> None:
    class CountingDisk(QuickDisk):
        flushed = 0

        def fsync(self, descriptor: int) -> None:
            self.flushed += 1

    clock = ManualClock()
    logs = manager(tmp_path / "data", clock, disk := CountingDisk())
    made = [logs.create("t", TOPIC_ID, number, settings()) for number in range(200)]
    disk.flushed = 0
    logs.delete(*made)
    assert disk.flushed == 1
    clock.advance(1000)
    logs.tick(clock.monotonic_ms())
    assert not names(tmp_path / "data")
    logs.close()


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_deleted_log_that_cannot_be_renamed_is_not_served(tmp_path: Path, call: str) -> None:
    logs = manager(tmp_path)
    log = logs.create("t", TOPIC_ID, 0, settings())

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    setattr(logs._disk, call, refuse)
    logs.delete(log)
    delattr(logs._disk, call)
    assert ("t", 0) not in logs.logs
    logs.create("t", OTHER_ID, 0, settings())
    logs.close()


def test_removed_segment_deleted_by_another_program_is_ignored(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    log = logs.create("t", TOPIC_ID, 0, settings())
    for _ in range(20):
        log.append(batch(b"v" * 100), 0)
    log.delete_records(log.active.base_offset)
    for path in log.directory.glob("*.log.deleted"):
        path.unlink()
    clock.advance(1000)
    logs.tick(clock.monotonic_ms())
    assert not list(log.directory.glob("*.deleted"))
    logs.close()


def test_log_deleted_before_a_crash_stays_deleted(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.delete(logs.create("t", TOPIC_ID, 0, settings()))
    crash(logs)
    logs = manager(tmp_path, clock)
    assert load(logs) == {}
    clock.advance(60_000)
    logs.tick(clock.monotonic_ms())
    assert names(tmp_path) == set()
    logs.close()


def test_stray_log_is_kept_under_another_name(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    log = logs.create("t", TOPIC_ID, 0, settings())
    log.append(batch(b"v"), 0)
    logs.set_stray(log)
    clock.advance(10**9)
    logs.tick(clock.monotonic_ms())
    (aside,) = names(tmp_path)
    assert layout.is_set_aside(aside, layout.STRAY_DIRECTORY)
    assert (tmp_path / aside / log.active.path.name).stat().st_size > 0
    assert load(logs) == {}
    logs.close()


def test_new_topic_does_not_use_the_log_of_an_old_one(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    old = logs.create("t", TOPIC_ID, 0, settings())
    old.append(batch(b"old"), 0)
    new = logs.create("t", OTHER_ID, 0, settings())
    assert (new.end_offset, new.topic_id) == (0, OTHER_ID)
    assert any(layout.is_set_aside(name, layout.STRAY_DIRECTORY) for name in names(tmp_path))
    logs.close()


@pytest.mark.parametrize("flushed", [True, False])
def test_checkpoint_of_a_deleted_topic_is_not_used_for_the_next(
    tmp_path: Path, flushed: bool
) -> None:
    logs = manager(tmp_path)
    old = logs.create("t", TOPIC_ID, 0, settings({keys.SEGMENT_BYTES: 1 << 20}))
    for _ in range(10):
        old.append(batch(b"old"), 0)
    old.delete_records(5)
    flush = old.flush_begin() if flushed else None
    if flush is not None:
        old.flush_end(flush)
    logs.checkpoint()
    logs.delete(old)
    logs.create("t", OTHER_ID, 0, settings()).append(batch(b"new"), 0)
    crash(logs)
    logs = manager(tmp_path)
    again = load(logs)["t", 0]
    assert again.failure is None
    assert values_of(again) == [(0, b"new")]
    logs.close()


def test_log_without_topic_id_belongs_to_the_topic_of_its_name(tmp_path: Path) -> None:
    logs = manager(tmp_path)
    logs.create("t", TOPIC_ID, 0, settings()).append(batch(b"v"), 0)
    logs.close()
    (tmp_path / "t-0" / layout.PARTITION_METADATA).write_text("version: 0\ntopic_id: nonsense")
    logs = manager(tmp_path)
    assert load(logs)["t", 0].topic_id == NO_ID
    again = logs.create("t", TOPIC_ID, 0, settings())
    assert values_of(again) == [(0, b"v")]
    logs.close()
    logs = manager(tmp_path)
    assert load(logs)["t", 0].topic_id == TOPIC_ID
    logs.close()


def test_failure_mark_is_removed_after_all_logs_are_recovered(
    tmp_path: Path,
) -> None:
    logs = manager(tmp_path)
    logs.create("t", TOPIC_ID, 0, settings()).append(batch(b"v"), 0)
    crash(logs)
    (tmp_path / FAILURE_MARK).touch()
    logs = manager(tmp_path)
    assert values_of(load(logs)["t", 0]) == [(0, b"v")]
    assert not (tmp_path / FAILURE_MARK).exists()
    logs.close()


def test_close_after_a_failed_flush_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = manager(tmp_path)
    logs.create("t", TOPIC_ID, 0, settings()).append(batch(b"v"), 0)
    (tmp_path / FAILURE_MARK).touch()
    monkeypatch.setattr(QuickDisk, "fdatasync", lambda *_: pytest.fail("flushed again"))
    logs.close()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_failed_flush_is_known_without_its_mark(tmp_path: Path) -> None:
    class Dead(QuickDisk):
        dead = False

        def fdatasync(self, descriptor: int) -> None:
            if self.dead:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def open(self, path: Path, flags: int) -> OpenFile:
            if self.dead and Path(path).name == FAILURE_MARK:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().open(path, flags)

    logs = manager(tmp_path, disk=(disk := Dead()))
    log = logs.create("t", TOPIC_ID, 0, settings())
    log.append(batch(b"v"), 0)
    logs.flusher = Flusher(disk=disk)
    flush = log.flush_begin()
    assert flush is not None
    disk.dead = True
    logs.flusher.submit([flush])
    logs.flusher.close()
    flush.error = None  # as if it had succeeded
    log.flush_end(flush)
    disk.dead = False
    with pytest.raises(DiskFailed):
        logs.transfer(log, tmp_path / "nodes" / "1")
    logs.close()
    assert not (tmp_path / FAILURE_MARK).exists() and not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_default_min_free_is_a_twentieth_of_the_disk(tmp_path: Path) -> None:
    logs = LogManager(tmp_path, Settings.broker(), ManualClock())
    logs.open_directory("a cluster's", 0)
    found = os.statvfs(tmp_path)
    assert logs._settings[STORAGE_MIN_FREE_BYTES] == -1
    assert logs._min_free() == min(1 << 30, found.f_blocks * found.f_frsize // 20)
    logs.close()


def test_data_directory_without_metadata_log_is_refused(tmp_path: Path) -> None:
    logs = manager(tmp_path / "data")
    logs.open_metadata()
    logs.create("flights", TOPIC_ID, 0, settings())
    logs.close()
    shutil.rmtree(tmp_path / "data" / "__cluster_metadata-0")
    logs = manager(tmp_path / "data")
    with pytest.raises(Refusal, match="metadata log .* is missing"):
        logs.open_metadata()
    logs.close()
