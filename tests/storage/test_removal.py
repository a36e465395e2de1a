"""Deferred deletes: files are removed off the event loop, in bounded steps; so are name flushes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.storage.files import deferred_delete as module
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.flusher import Flusher
from tests.simulation.disk import QuickDisk
from tests.storage.factories import TOPIC_ID, batch, manager, open_log, settings
from tests.storage.test_housekeeping import collect, collect_from


class NotedDisk(QuickDisk):
    """A disk that records each call that changes names, with its thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, threading.Thread]] = []
        self.synced: list[threading.Thread] = []

    def unlink(self, path: Path) -> None:
        self.calls.append(("unlink", Path(path).name, threading.current_thread()))
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        self.calls.append(("rmdir", Path(path).name, threading.current_thread()))
        os.rmdir(path)

    def truncate(self, path: Path, size: int) -> None:
        self.calls.append((f"truncate {size}", Path(path).name, threading.current_thread()))
        os.truncate(path, size)

    def fsync(self, descriptor: int) -> None:
        self.synced.append(threading.current_thread())


@pytest.fixture
def flusher():
    made = Flusher(disk=NotedDisk())
    yield made
    made.close()


def test_removal_unlinks_on_a_flusher_thread_in_steps(tmp_path, flusher, monkeypatch) -> None:
    monkeypatch.setattr(module, "STEP_FILES_MAX", 4)
    clock, disk = ManualClock(), flusher._disk
    directory = tmp_path / "t-0-delete"
    directory.mkdir()
    for number in range(9):
        (directory / f"{number}.log").write_bytes(b"content")
    deferred_deletes = DeferredDeletes(clock, disk)
    deferred_deletes.add([directory], 1_000)
    assert deferred_deletes.remove_due(flusher) == clock.monotonic_ms() + 1_000
    assert not disk.calls
    clock.advance(1_000)
    deferred_deletes.remove_due(flusher)
    for _ in range(3):
        before = len(disk.calls)
        collect_from(flusher)
        assert len(disk.calls) - before <= 2 * 4
    assert not directory.exists()
    assert {call for call, _, _ in disk.calls} == {"unlink", "rmdir"}
    assert threading.current_thread() not in {thread for _, _, thread in disk.calls}


def test_removal_step_ends_with_the_file_that_reaches_its_bytes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "STEP_BYTES_MAX", 10)
    files = [tmp_path / f"{number}.log.deleted" for number in range(5)]
    for path in files:
        path.write_bytes(b"7 bytes")
    removal = module.FileRemoval(module.deque(files), set())
    removal.run(QuickDisk())
    assert [path.exists() for path in files] == [False, False, True, True, True]


def test_removal_truncates_a_granted_file_in_steps(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "TRUNCATE_BYTES", 3)
    disk, granted = NotedDisk(), tmp_path / "granted"
    granted.write_bytes(b"content")
    deferred_deletes = DeferredDeletes(ManualClock(), disk)
    deferred_deletes.note_grant(disk.open(granted, os.O_RDONLY))
    deferred_deletes.add([granted], 0)
    deferred_deletes.remove_due()
    assert [call for call, _, _ in disk.calls] == [
        "truncate 4", "truncate 1", "truncate 0", "unlink",
    ]  # fmt: skip


def test_removal_includes_files_that_become_due_during_it(tmp_path, flusher) -> None:
    clock = ManualClock()
    deferred_deletes = DeferredDeletes(clock, flusher._disk)
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_bytes(b"content")
    deferred_deletes.add([first], 0)
    deferred_deletes.add([second], 10)
    deferred_deletes.remove_due(flusher)
    clock.advance(10)
    assert deferred_deletes.remove_due(flusher) == clock.monotonic_ms() + module.RECHECK_MS
    collect_from(flusher)
    collect_from(flusher)
    assert not first.exists() and not second.exists()
    assert deferred_deletes.remove_due(flusher) is None


def test_deleted_segments_found_at_open_are_removed_after_it(tmp_path: Path) -> None:
    clock, disk = ManualClock(), NotedDisk()
    left = tmp_path / "00000000000000000007.log.deleted"
    left.write_bytes(b"content")
    deferred_deletes = DeferredDeletes(clock, disk)
    log = open_log(tmp_path, clock=clock, disk=disk, shared={"deferred_deletes": deferred_deletes})
    assert left.exists() and not disk.calls
    clock.advance(60_000)
    deferred_deletes.remove_due()
    assert not left.exists()
    log.release()


def test_deletes_flush_names_together_off_the_event_loop(tmp_path: Path) -> None:
    disk = NotedDisk()
    logs = manager(tmp_path, ManualClock(), disk=disk)
    logs.flusher = Flusher(disk=disk)
    made = [logs.create(f"t{number}", TOPIC_ID, 0, settings({})) for number in range(30)]
    made[0].append(batch(b"v"), 0)
    disk.synced.clear()
    for each in made:
        logs.delete(each)
    collect(logs)
    here = threading.current_thread()
    assert here not in disk.synced and 1 <= len(disk.synced) <= 2
    logs.flusher.close()
    logs.close()
