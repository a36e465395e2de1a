"""Reopening the logs of a killed process reads only the bytes that no checkpoint covers.

The kernel counts them: everything that this process reads from files.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import OutOfOrderSequenceNumber
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.recovery import RESTORED_FIRST, RESTORED_SIZE
from kafkalite.storage.manager.housekeeping import STEP_MS
from tests.simulation.disk import QuickDisk
from tests.storage.factories import NOW, TOPIC_ID, batch, manager, open_log, produced, settings
from tests.storage.test_housekeeping import collect_from

MEGABYTE = 1 << 20
VALUE = random.Random(31).randbytes(16 << 10)
SETTINGS = settings({
    keys.DURABILITY: "fsync", keys.SEGMENT_BYTES: 1 << 30, keys.INDEX_INTERVAL_BYTES: 4096,
})  # fmt: skip
NOT_OF_LOGS = 256 << 10
"""Bytes read for modules, for the node's own small files, and for headers."""


def bytes_read() -> int:
    """Return the number of bytes this process has read so far."""
    lines = Path("/proc/self/io").read_text("ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


class Life:
    """A node's life: it appends, writes checkpoints as time passes, and is killed."""

    def __init__(self, data: Path, clock: ManualClock) -> None:
        self.clock = clock
        self.logs = manager(data, clock)
        begun = bytes_read()
        self.logs.load(lambda topic: SETTINGS)
        self.bytes_read = bytes_read() - begun
        self.sequence = 0

    @property
    def log(self) -> Log:
        found = self.logs.logs.get(("t", 0))
        return found or self.logs.create("t", TOPIC_ID, 0, SETTINGS)

    def write(self, size: int, *, numbered: bool) -> None:
        log = self.log
        end = log.size + size
        while log.size < end:
            # A batch that is no newer than one before it gets no entry in the time index.
            how = {"timestamp": NOW + log.end_offset}
            if numbered:
                how |= {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequence}
            log.append(batch(VALUE, **how), 0)
            self.sequence += 1
        log.flush()

    def checkpoint(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(60_000)
            self.logs.tick(self.clock.monotonic_ms())

    def kill(self) -> None:
        self.log.release()


@pytest.mark.parametrize("numbered", [True, False])
def test_log_is_read_from_its_last_checkpoint(tmp_path: Path, numbered: bool) -> None:
    clock = ManualClock()
    life = Life(tmp_path, clock)
    for _ in range(8):
        life.write(2 * MEGABYTE, numbered=numbered)
        life.checkpoint()
    tail = MEGABYTE // 2
    life.write(tail, numbered=numbered)
    end_offset = life.log.end_offset
    life.kill()
    again = Life(tmp_path, clock)
    assert (again.log.failure, again.log.end_offset) == (None, end_offset)
    recalled = RESTORED_FIRST + 8 * RESTORED_FIRST if numbered else 0
    assert again.bytes_read < tail + recalled + NOT_OF_LOGS
    if numbered:
        for sequence in range(life.sequence - 5, life.sequence):
            assert again.log.append(produced(sequence, VALUE), 0).duplicate
        with pytest.raises(OutOfOrderSequenceNumber):
            again.log.append(produced(life.sequence + 1, VALUE), 0)
    again.logs.close()


def test_five_large_batches_before_a_snapshot_are_restored(
    tmp_path: Path,
) -> None:
    log = Life(tmp_path, clock := ManualClock())
    log.write(100, numbered=True)
    for sequence in range(1, 6):
        log.log.append(produced(sequence, VALUE * 60), 0)
    log.log.flush()
    log.checkpoint(2)
    assert log.log.producers.snapshots() == [6]
    log.kill()
    again = Life(tmp_path, clock)
    assert again.bytes_read < 2 * RESTORED_SIZE
    for sequence in range(1, 6):
        assert again.log.append(produced(sequence, VALUE * 60), 0).duplicate
    again.logs.close()


def test_batches_of_a_long_idle_producer_are_not_restored(tmp_path: Path) -> None:
    life = Life(tmp_path, clock := ManualClock())
    life.log.append(produced(3, b"long ago", producer_id=8), 0)
    life.write(RESTORED_SIZE + MEGABYTE, numbered=True)
    life.checkpoint(2)
    life.kill()
    again = Life(tmp_path, clock)
    assert again.bytes_read < 9 * RESTORED_FIRST + NOT_OF_LOGS
    assert again.log.append(produced(3, b"long ago", producer_id=8), 0).duplicate
    again.logs.close()


def written(tmp_path: Path) -> tuple[Life, Path]:
    """Return a killed node whose checkpoint covers its whole log, and the log's file."""
    life = Life(tmp_path, ManualClock())
    life.write(8 * MEGABYTE, numbered=True)
    life.checkpoint(2)
    assert life.log.producers.snapshots() == [life.log.end_offset]
    life.kill()
    return life, life.log.active.path


def test_torn_write_after_the_checkpoint_is_truncated(tmp_path: Path) -> None:
    life, path = written(tmp_path)
    end_offset = life.log.end_offset
    size = life.log.active.size
    with path.open("r+b") as file:
        file.seek(size)
        file.write(produced(life.sequence, VALUE)[:-1])
    again = Life(tmp_path, life.clock)
    assert (again.log.failure, again.log.end_offset) == (None, end_offset)
    assert again.bytes_read < 4 * MEGABYTE  # one of these is scanned for whole batches
    assert path.stat().st_size == size
    again.logs.close()


@pytest.mark.parametrize("how", ["bad bytes", "of a longer log", "missing"])
def test_producer_snapshot_that_contradicts_the_log_is_ignored(tmp_path: Path, how: str) -> None:
    life, path = written(tmp_path)
    end_offset = life.log.end_offset
    snapshot = life.log.producers.snapshot_path(end_offset)
    if how == "bad bytes":
        content = bytearray(snapshot.read_bytes())
        content[-1] ^= 1
        snapshot.write_bytes(content)
    elif how == "missing":
        snapshot.unlink()
    else:
        snapshot.rename(life.log.producers.snapshot_path(end_offset + 5))
    again = Life(tmp_path, life.clock)
    assert again.bytes_read > life.log.size
    assert (again.log.failure, again.log.end_offset) == (None, end_offset)
    assert again.log.append(produced(life.sequence - 5, VALUE), 0).duplicate
    again.logs.close()


def test_log_that_ends_before_its_recovery_point_is_not_served(tmp_path: Path) -> None:
    _, path = written(tmp_path)
    with path.open("r+b") as file:
        file.truncate(MEGABYTE)
    again = Life(tmp_path, ManualClock())
    assert again.log.is_quarantined
    assert path.stat().st_size == MEGABYTE


def test_checkpoint_is_not_used_for_a_log_of_another_topic(tmp_path: Path) -> None:
    life, _ = written(tmp_path)
    end_offset = life.log.end_offset
    clock = life.clock
    logs = manager(tmp_path, clock)
    (old,) = logs.load(lambda topic: SETTINGS).values()
    logs.delete(old)
    made = logs.create("t", bytes(reversed(TOPIC_ID)), 0, SETTINGS)
    made.append(produced(0), 0)
    made.release()  # crash before the next checkpoint
    again = Life(tmp_path, clock)
    assert (again.log.failure, again.log.end_offset) == (None, 1) != (None, end_offset)
    assert again.log.append(produced(0), 0).duplicate
    again.logs.close()


def test_leader_epoch_missing_from_its_file_is_read_from_the_log(tmp_path: Path) -> None:
    """One of two flushes in flight writes the epochs file, and the other may complete first."""
    life = Life(tmp_path, clock := ManualClock())
    life.write(2 * MEGABYTE, numbered=True)
    began = life.log.end_offset
    log = life.log
    for sequence in range(life.sequence, life.sequence + 200):
        log.append(produced(sequence, VALUE), 7)
    first = log.flush_begin()
    assert first is not None and first.epochs
    log.append(produced(life.sequence + 200, VALUE), 7)
    second = log.flush_begin()
    assert second is not None and not second.epochs
    second.run(log._disk)
    log.flush_end(second)
    life.checkpoint(2)
    assert log.durable_offset == log.end_offset == log.producers.snapshots()[-1]
    life.kill()  # before the first flush runs
    assert "7" not in (log.directory / layout.LEADER_EPOCHS).read_text("ascii").split()
    again = Life(tmp_path, clock)
    assert again.log.end_of_epoch(0) == (0, began)
    again.logs.close()


def test_last_snapshot_below_the_durable_offset_is_kept(tmp_path: Path) -> None:
    life = Life(tmp_path, ManualClock())
    log = life.log
    kept = []
    for _ in range(3):
        life.write(2 * MEGABYTE, numbered=False)
        life.checkpoint()
        kept.append(log.producers.snapshots()[-1])
    assert len(set(kept)) == 3
    for _ in range(3):
        for _ in range(2 * MEGABYTE // len(VALUE)):
            log.append(batch(VALUE), 0)
        life.checkpoint()
    snapshots = log.producers.snapshots()
    assert snapshots[0] == kept[-1] and len(snapshots) == 2
    assert snapshots[0] <= log.durable_offset < snapshots[1]
    life.logs.close()


@pytest.mark.parametrize("zeros", ["a hole", "written"])
def test_holes_in_preallocated_space_are_not_read(tmp_path: Path, zeros: str) -> None:
    life, path = written(tmp_path)
    end_offset = life.log.end_offset
    size = life.log.active.size
    with path.open("r+b") as file:
        file.truncate(size)
        if zeros == "written":
            file.seek(size)
            file.write(bytes(4 * MEGABYTE))
        file.truncate(size + 4 * MEGABYTE)
    again = Life(tmp_path, life.clock)
    assert (again.log.failure, again.log.end_offset) == (None, end_offset)
    assert (again.bytes_read < MEGABYTE) is (zeros == "a hole")
    again.logs.close()


@pytest.mark.parametrize("at", [0, 4095, 3 * MEGABYTE, 4 * MEGABYTE - 1])
def test_byte_after_a_hole_is_found(tmp_path: Path, at: int) -> None:
    life, path = written(tmp_path)
    size = life.log.active.size
    with path.open("r+b") as file:
        file.truncate(size)
        file.truncate(size + 4 * MEGABYTE)
        file.seek(size + at)
        file.write(b"x")
    again = Life(tmp_path, life.clock)
    assert again.log.active.file_size == size, "it is cut where it ends"
    again.logs.close()


def test_batch_that_ends_in_a_hole_is_valid(tmp_path: Path) -> None:
    """Compressing file systems store such blocks as holes."""
    log = open_log(tmp_path / "t-0", {keys.SEGMENT_BYTES: 1 << 20})
    log.append(batch(VALUE + bytes(64 << 10)), 0)
    log.append(batch(bytes(64 << 10)), 0)
    size = log.active.size
    log.release()
    content = log.active.path.read_bytes()[:size].rstrip(b"\0")
    log.active.path.write_bytes(content)
    with log.active.path.open("r+b") as file:
        file.truncate(size)
    again = open_log(tmp_path / "t-0", {keys.SEGMENT_BYTES: 1 << 20})
    assert (again.end_offset, again.size) == (2, size)


def test_checkpoint_takes_snapshots_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots of thousands of logs take long, so they are written in steps."""
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.flusher = Flusher(disk=QuickDisk())
    made = [logs.create("t", TOPIC_ID, index, SETTINGS) for index in range(4)]
    for log in made:
        log.append(batch(b"v"), 0)
        log.flush()
    noted = []

    def take_snapshot_if_due(log: Log) -> None:
        noted.append(log.partition)
        clock.advance(STEP_MS // 2)

    monkeypatch.setattr(Log, "take_snapshot_if_due", take_snapshot_if_due)
    clock.advance(60_000)
    now_ms = clock.monotonic_ms()
    assert logs.tick(now_ms) == 1, "more is to be done"
    assert noted == [0, 1]
    logs.delete(made[0], made[3])  # which need no snapshot any more
    logs.tick(now_ms)
    assert noted == [0, 1, 2]
    collect_from(logs.flusher, 2)  # the directory flush of the deleted logs, and the checkpoint
    assert checkpoint.read(tmp_path / layout.RECOVERY_CHECKPOINT).keys() == {
        "boot_id", "t-1", "t-2",
    }  # fmt: skip
    logs.flusher.close()
    logs.close()


def test_node_without_logs_keeps_writing_checkpoints(tmp_path: Path) -> None:
    clock = ManualClock()
    logs = manager(tmp_path, clock)
    logs.flusher = Flusher(disk=QuickDisk())
    for partition in range(2):
        clock.advance(60_000)
        logs.tick(clock.monotonic_ms())
        collect_from(logs.flusher)
        logs.create("t", TOPIC_ID, partition, SETTINGS)
    assert "t-0" in checkpoint.read(tmp_path / layout.RECOVERY_CHECKPOINT)
    logs.flusher.close()
    logs.close()
