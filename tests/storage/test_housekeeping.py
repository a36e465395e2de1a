"""Periodic work on logs: a bounded part in each tick, and the slow part off the event loop."""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.config.settings import Settings
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import FAILURE_MARK, DiskFailed
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.files.layout import LEADER_EPOCHS, RECOVERY_CHECKPOINT
from kafkalite.storage.manager.housekeeping import LOGS_PER_RETENTION_STEP
from kafkalite.storage.manager.log_manager import LogManager
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.segment_scan import SegmentScan
from tests.simulation.disk import QuickDisk
from tests.storage.factories import TOPIC_ID, batch, manager, produced, settings
from tests.storage.nodes import Nodes

MINUTE_MS = 60_000


def collect(logs: LogManager, count: int = 1) -> None:
    """Collect `count` results of the logs' flusher, as a node does."""
    assert logs.flusher is not None
    collect_from(logs.flusher, count)


def collect_from(flusher: Flusher, count: int = 1) -> None:
    """Collect `count` results of a flusher."""
    done = 0
    while done < count:
        assert select.select([flusher], [], [], 30)[0], "nothing came back"
        for flush in flusher.collect():
            if flush.done is not None:
                flush.done(flush)
            done += 1


def points(data: Path) -> dict[str, list[object]]:
    found = checkpoint.read(data / RECOVERY_CHECKPOINT)
    assert isinstance(found, dict)
    return found


def test_retention_and_checkpoints_run_when_due(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    log = logs.create("t", TOPIC_ID, 0, settings({keys.RETENTION_MS: 1000}))
    log.append(batch(b"v"), 0)
    assert logs.tick(clock.monotonic_ms()) == 60_000
    assert not (tmp_path / RECOVERY_CHECKPOINT).exists()
    clock.advance(60_000)
    logs.tick(clock.monotonic_ms())
    assert checkpoint.read(tmp_path / RECOVERY_CHECKPOINT)["t-0"][:2] == [0, 0]
    assert log.log_start_offset == 0
    clock.advance(240_000)
    logs.tick(clock.monotonic_ms())
    assert log.log_start_offset == 1
    logs.close()


def test_new_intervals_apply_from_the_change_on(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    kept = settings({keys.RETENTION_MS: 1000, keys.FILE_DELETE_DELAY_MS: 10 * MINUTE_MS})
    log = logs.create("t", TOPIC_ID, 0, kept)
    log.append(batch(b"v"), 0)
    clock.advance(2_000)
    often = {
        "log.retention.check.interval.ms": "300",
        "log.flush.offset.checkpoint.interval.ms": "200",
    }
    logs.reconfigure(Settings.broker(often))
    assert logs.tick(clock.monotonic_ms()) == 200
    clock.advance(200)
    assert logs.tick(clock.monotonic_ms()) == 100
    assert (tmp_path / RECOVERY_CHECKPOINT).exists()
    assert log.log_start_offset == 0
    clock.advance(100)
    assert logs.tick(clock.monotonic_ms()) == 100
    assert log.log_start_offset == 1
    logs.reconfigure(Settings.broker())  # work that was due stays due, once
    clock.advance(100)
    assert logs.tick(clock.monotonic_ms()) == 200
    clock.advance(200)
    assert logs.tick(clock.monotonic_ms()) == 59_800
    logs.close()


def test_retention_checks_some_logs_per_tick(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    count = 2 * LOGS_PER_RETENTION_STEP + 10
    expiring = settings({keys.RETENTION_MS: 1000})
    made = [logs.create("t", TOPIC_ID, number, expiring) for number in range(count)]
    for log in made:
        log.append(batch(b"v"), 0)
    clock.advance(300_000)
    retained = []
    while len(retained) < 4:
        due_ms = logs.tick(clock.monotonic_ms())
        retained.append((sum(log.log_start_offset for log in made), due_ms == 1))
    assert retained[:3] == [
        (LOGS_PER_RETENTION_STEP, True),
        (2 * LOGS_PER_RETENTION_STEP, True),
        (count, False),
    ]
    assert retained[3] == retained[2]
    logs.close()


def test_retention_skips_a_log_that_was_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    expiring = settings({keys.RETENTION_MS: 1000})
    made = [logs.create("t", TOPIC_ID, number, expiring) for number in range(100)]
    clock.advance(300_000)
    logs.tick(clock.monotonic_ms())
    logs.delete(made[-1])
    assert logs.tick(clock.monotonic_ms()) > 1
    assert made[-1].log_start_offset == 0
    logs.close()


def test_background_flush_moves_the_recovery_point_of_an_os_log(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.flusher = Flusher(disk=QuickDisk())
    made = [logs.create("t", TOPIC_ID, number, settings()) for number in range(3)]
    for log in made:
        log.append(batch(b"v"), 0)
    clock.advance(3 * MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    assert sum(log.is_flushing for log in made) == 1, "one flush is in flight at a time"
    collect(logs, 4)  # one flush after the other, and a checkpoint
    assert [log.durable_offset for log in made] == [1, 1, 1]
    assert (made[0].directory / LEADER_EPOCHS).exists()
    made[0].append(batch(b"v"), 0)
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    collect(logs)
    assert points(tmp_path)["t-0"][0] == 1
    assert not made[0].is_flushing, "not before the next interval"
    logs.flusher.close()
    logs.close()


def test_checkpoint_is_written_soon_after_logs_become_durable(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    log = logs.create("t", TOPIC_ID, 0, settings({keys.DURABILITY: "fsync"}))
    for expected in (1, 2):
        log.append(batch(b"v"), 0)
        log.flush()
        clock.advance(1000)
        assert logs.tick(clock.monotonic_ms()) <= 1000
        assert points(tmp_path)["t-0"][0] == expected
    written_ns = (tmp_path / RECOVERY_CHECKPOINT).stat().st_mtime_ns
    clock.advance(1000)
    logs.tick(clock.monotonic_ms())
    assert (tmp_path / RECOVERY_CHECKPOINT).stat().st_mtime_ns == written_ns
    logs.close()


def test_recovery_of_an_os_log_starts_at_the_background_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalite.storage.log.checkpoint_snapshots.SNAPSHOT_EVERY", 1)
    monkeypatch.setattr("kafkalite.storage.log.checkpoint_snapshots.SNAPSHOT_EVERY_PRODUCER", 0)
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.flusher = Flusher(disk=QuickDisk())
    log = logs.create("t", TOPIC_ID, 0, settings({keys.SEGMENT_BYTES: 1 << 20}))
    for minute in range(6):  # flushed after three minutes, and after six
        log.append(produced(minute), 0)
        clock.advance(MINUTE_MS)
        logs.tick(clock.monotonic_ms())
        collect(logs, minute in (0, 2, 3, 5))  # a checkpoint, a flush, and the same again
    log.append(produced(6), 0)
    log.release()
    logs.flusher.close()
    begun = []
    scan = LogSegment.scan

    def seen(
        segment: LogSegment, position: int, offset: int, *how: Any, **more: Any
    ) -> SegmentScan:
        begun.append(offset)
        return scan(segment, position, offset, *how, **more)

    monkeypatch.setattr(LogSegment, "scan", seen)
    again = manager(tmp_path, clock)
    (log,) = again.load(lambda topic: settings({keys.SEGMENT_BYTES: 1 << 20})).values()
    assert (begun, log.end_offset) == ([3], 7)
    again.close()


def test_closed_segments_of_an_os_log_are_flushed_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock, **{"log.background.flush.interval.ms": "900000"})
    logs.flusher = Flusher(disk=QuickDisk())
    log = logs.create("t", TOPIC_ID, 0, settings())
    while len(log.segments) < 3:
        log.append(batch(b"x" * 100), 0)
    for count, expected in ((2, 0), (1, log.active.base_offset)):
        clock.advance(MINUTE_MS)
        logs.tick(clock.monotonic_ms())
        collect(logs, count)
        assert log.durable_offset == log.active.base_offset
        assert points(tmp_path)["t-0"][0] == expected
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    assert not log.is_flushing
    logs.flusher.close()
    logs.close()


class StuckDisk(QuickDisk):
    """A disk whose flushes block until released, and may fail then."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.code = 0

    def fsync(self, descriptor: int) -> None:
        assert self.free.wait(30)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: Path, flags: int) -> OpenFile:
        if self.code == errno.ENOSPC and RECOVERY_CHECKPOINT in str(path):
            raise OSError(self.code, os.strerror(self.code))
        return super().open(path, flags)


def test_checkpoint_does_not_block_the_loop(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock, disk := StuckDisk())
    logs.flusher = Flusher(disk=disk)
    logs.create("t", TOPIC_ID, 0, settings())
    disk.free.clear()
    for _ in range(3):
        clock.advance(MINUTE_MS)
        logs.tick(clock.monotonic_ms())
        assert not (tmp_path / RECOVERY_CHECKPOINT).exists()
    other = logs.create("u", TOPIC_ID, 0, settings())
    other.append(batch(b"v"), 0)
    other.delete_records(1)
    disk.free.set()
    collect(logs)
    assert points(tmp_path).keys() == {"boot_id", "t-0"}, "it was asked for once"
    assert points(tmp_path)["t-0"][:2] == [0, 0]
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    collect(logs)
    assert points(tmp_path)["u-0"][1] == 1
    logs.flusher.close()
    logs.close()


def test_log_deleted_during_a_checkpoint_is_not_in_the_next(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock, disk := StuckDisk())
    logs.flusher = Flusher(disk=disk)
    log = logs.create("t", TOPIC_ID, 0, settings())
    disk.free.clear()
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    disk.free.set()
    logs.delete(log)
    collect(logs, 2)  # the checkpoint, and the directory flush of what was removed
    assert "t-0" in points(tmp_path)
    logs.flusher.close()
    logs.close()
    assert "t-0" not in points(tmp_path)


@pytest.mark.parametrize("beside", [True, False])
def test_checkpoint_on_a_full_disk_is_written_later(tmp_path: Path, beside: bool) -> None:
    nodes = Nodes(tmp_path)
    nodes.create().append(batch(b"v"), 0)
    nodes.disk = disk = StuckDisk()
    logs = nodes[2]
    nodes.send(2)
    log = nodes.found()
    if beside:
        logs.flusher = Flusher(disk=disk)
    for code in (errno.ENOSPC, 0):
        disk.code = code
        nodes.clock.advance(MINUTE_MS)
        logs.tick(nodes.clock.monotonic_ms())
        if beside:
            collect(logs)
        assert ("t-0" in points(nodes.path(2))) is (code == 0)
        assert (log.directory / layout.HANDOVER).exists() is (code != 0)
    if logs.flusher is not None:
        logs.flusher.close()
    nodes.crash()


def test_checkpoint_write_error_ends_the_process(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock, disk := StuckDisk())
    logs.flusher = Flusher(disk=disk)
    logs.create("t", TOPIC_ID, 0, settings())
    disk.code = errno.EIO
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    with pytest.raises(DiskFailed, match="recovery-checkpoint could not be flushed"):
        collect(logs)
    assert (tmp_path / FAILURE_MARK).exists()
    with pytest.raises(DiskFailed, match="recovery-checkpoint cannot be written"):
        logs.checkpoint()
    logs.flusher.close()
    logs.close()


def test_close_writes_a_checkpoint_after_an_uncollected_one(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.flusher = Flusher(disk=QuickDisk())
    log = logs.create("t", TOPIC_ID, 0, settings())
    clock.advance(MINUTE_MS)
    logs.tick(clock.monotonic_ms())
    log.append(batch(b"v"), 0)
    logs.flusher.close()
    logs.close()
    assert points(tmp_path)["t-0"][0] == 1
