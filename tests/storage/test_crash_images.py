"""Power cuts (F7): every write of a log's life is recorded, then the disk is rebuilt in the states
a power cut may leave after each write, and recovered.

At each point: everything written (the process was killed), only what was flushed, and mixtures of
old and new pages of 512 and 4096 bytes.  Recovery must end, give a prefix of what was appended that
holds everything acknowledged as durable, and change no byte when it is repeated.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.storage.files import layout
from tests.simulation.crash import Crash, RecordingDisk
from tests.storage.factories import batch, close, open_log, produced, values_of

VALUES = {keys.SEGMENT_BYTES: 900, keys.INDEX_INTERVAL_BYTES: 100, keys.DURABILITY: "fsync"}


def lived(directory: Path, steps: int) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    """Run a log's life; return its journal and the appended values in offset order."""
    disk = RecordingDisk()
    clock = ManualClock()
    log = open_log(directory, VALUES, clock, disk)
    values: list[bytes] = []
    sequence = 0
    for step in range(steps):
        for count in (1, 3):
            new = [b"value %d of %d" % (i, step) * (1 + step % 5) for i in range(count)]
            if step % 2:
                log.append(produced(sequence, *new), step // 7)
                sequence += count
            else:
                log.append(batch(*new), step // 7)
            values += new
        log.write_index_page()
        if step % 3 == 2:
            flush = log.flush_begin()
            assert flush is not None
            flush.run(disk)
            log.flush_end(flush)
            disk.note("durable", log.durable_offset)
        if step % 8 == 7:
            log.delete_records(log.durable_offset // 2)
            clock.advance(2000)
            log.deferred_deletes.remove_due()
            disk.note("start", log.log_start_offset)
    close(log)
    disk.note("durable", log.durable_offset)
    return disk.journal, values


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files of a log, without those whose deferred delete is pending."""
    kept = (path for path in directory.iterdir() if not path.name.endswith(layout.DELETED))
    return {path.name: path.read_bytes() for path in sorted(kept)}


def check(target: Path, notes: dict[str, Any], values: list[bytes], kind: str) -> None:
    durable, start = notes.get("durable", 0), notes.get("start", 0)
    how = {"recovery_point": durable, "log_start_offset": start}
    log = open_log(target, VALUES, **how)
    assert log.failure is None, kind
    assert log.end_offset >= durable, kind
    found = values_of(log)
    assert found == list(enumerate(values))[log.log_start_offset : log.end_offset], kind
    for offset in range(log.log_start_offset, log.end_offset):
        segment = log.segments[log.segments.number_of(offset)]
        at = segment.find(offset)
        assert at is not None and at.base_offset <= offset <= at.last_offset, kind
    first = contents(target)
    log.release()
    open_log(target, VALUES, **how).release()
    assert contents(target) == first, f"{kind}: a second recovery changed something"


def enumerate_images(tmp_path: Path, steps: int, every: int, seed: int) -> int:
    source, target = tmp_path / "t-0", tmp_path / "crashed"
    journal, values = lived(source, steps)
    chance = random.Random(seed)
    count = 0
    for point in range(1, len(journal) + 1, every):
        crash = Crash(journal, point)
        for kind, image in crash.images(chance):
            target.mkdir()
            crash.restore(image, source, target)
            check(target, crash.notes, values, f"{kind} after {point}: {journal[point - 1][:2]}")
            shutil.rmtree(target)
            count += 1
    return count


def test_recovery_succeeds_after_a_crash_at_sampled_writes(tmp_path: Path) -> None:
    assert enumerate_images(tmp_path, steps=16, every=3, seed=1) > 100


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(20))
def test_recovery_succeeds_after_a_crash_at_every_write(tmp_path: Path, seed: int) -> None:
    assert enumerate_images(tmp_path, steps=40 + seed, every=1, seed=seed) > 1000


def test_segment_after_a_torn_one_is_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path, VALUES)
    for number in range(40):
        log.append(batch(b"%d" % number), 0)
    torn = log.segments[1]
    log.release()
    with torn.path.open("r+b") as file:
        file.seek(torn.size - 10)
        file.write(b"\xff" * 10)
    log = open_log(tmp_path, VALUES, recovery_point=torn.base_offset)
    assert torn.base_offset < log.end_offset < 40
    assert len(values_of(log)) == log.end_offset
    assert len(log.segments) == 2
    assert list(tmp_path.glob(f"*{layout.LOG}{layout.DELETED}"))
