"""Segment grants end at batch boundaries, whatever the index says, and end with their segment."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from kafkalite.clock import ManualClock
from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError, OffsetOutOfRange
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.log import segment_grants
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.segment_grants import SegmentGrant
from tests.simulation.disk import QuickDisk
from tests.storage.factories import batch, open_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return forty batches of growing size, in small segments, with an index entry per three."""
    log = open_log(tmp_path / "t-0")
    for number in range(40):
        log.append(batch(*[b"%d" % number * (number % 7 + 1)] * (number % 3 + 1)), 0)
    log.write_index_page()
    return log


def batches_of(grant: SegmentGrant) -> list[tuple[int, int]]:
    """Return the base offset and size of each granted batch; none may be cut off."""
    content = os.pread(grant.segment.descriptor, grant.size, grant.position)
    assert len(content) == grant.size
    found = []
    while content:
        size = 12 + int.from_bytes(content[8:12], "big")
        assert size <= len(content), "a batch is cut off"
        found.append((int.from_bytes(content[:8], "big"), size))
        content = content[size:]
    return found


def walk(log: Log, size_max: int, upper: int | None = None) -> list[int]:
    """Return the base offsets of all batches, granted one range after the other."""
    upper = log.end_offset if upper is None else upper
    found: list[int] = []
    offset = log.log_start_offset
    while (grant := segment_grants.grant(log, offset, size_max, upper)) is not None:
        granted = batches_of(grant)
        assert grant.size <= size_max or len(granted) == 1
        assert offset == granted[0][0] < grant.end_offset <= upper
        found += [base for base, _ in granted]
        offset = grant.end_offset
    assert offset == upper
    return found


SIZES = [0, 1, 150, 250, 400, 700, 1_000, 1 << 20]


@pytest.mark.parametrize("size_max", SIZES)
def test_grants_in_sequence_cover_each_batch_once(log, size_max):
    everything = walk(log, 0)
    assert walk(log, size_max) == everything
    assert len(everything) == 40 and len(log.segments) > 3


@pytest.mark.parametrize("size_max", SIZES)
def test_grant_ends_below_the_upper_offset(log, size_max):
    bases = [*walk(log, 0), log.end_offset]
    for upper in bases[1:]:
        assert walk(log, size_max, upper) == [base for base in bases if base < upper]


def test_grant_covers_most_of_the_requested_size(tmp_path):
    log = open_log(tmp_path / "t-0", {keys.SEGMENT_BYTES: 1 << 20})
    for _ in range(1_000):
        log.append(batch(b"v" * 50), 0)
    grant = segment_grants.grant(log, 0, 50_000, log.end_offset)
    assert 49_000 < grant.size <= 50_000


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size_max", [150, 400, 1_000])
def test_wrong_index_is_ignored(log, seed, size_max):
    everything = walk(log, 0)
    dice = random.Random(seed)
    for segment in log.segments:
        index = segment.offset_index
        index.write()
        scribbled = b"".join(
            index.pack(dice.randrange(50), dice.randrange(1_000)) for _ in range(index.count)
        )
        os.pwrite(index.file.fileno(), scribbled, 0)
    assert walk(log, size_max) == everything


def test_truncated_index_is_ignored(log):
    everything = walk(log, 0)
    for segment in log.segments:
        segment.offset_index.write()
        os.ftruncate(segment.offset_index.file.fileno(), 3)
    assert walk(log, 400) == everything


def test_grant_past_the_end_raises_offset_out_of_range(log):
    with pytest.raises(OffsetOutOfRange):
        segment_grants.grant(log, log.end_offset + 1, 100, log.end_offset)
    assert segment_grants.grant(log, log.end_offset, 100, log.end_offset) is None


def test_grant_of_a_truncated_segment_raises_storage_error(log):
    first = log.segments[0]
    os.ftruncate(first.descriptor, 100)
    with pytest.raises(KafkaStorageError):
        walk(log, 400)


def test_reopened_file_is_the_same_file_after_a_rename(log):
    first = log.segments[0]
    log.delete_records(log.segments[1].base_offset)
    with pytest.raises(FileNotFoundError):
        first.path.stat()
    kept = segment_grants.grant(log, log.log_start_offset, 100, log.end_offset).segment
    again = kept.reopened(32)
    assert os.path.sameopenfile(again.fileno(), kept.descriptor)


def test_segment_released_during_reopening_is_reopened(log, monkeypatch):
    active = log.active
    inode = os.fstat(active.descriptor).st_ino
    opened = active._disk.open_to_keep
    refusals = [True]

    def short(path, flags, reserved=0):
        if refusals and str(path).startswith("/proc"):
            refusals.pop()
            raise KafkaStorageError("descriptors are short")
        return opened(path, flags, reserved)

    monkeypatch.setattr(active._disk, "open_to_keep", short, raising=False)
    log.flush()
    assert active.is_idle
    again = active.reopened(32)
    assert active._file is None, "the segment itself was released"
    assert os.fstat(again.fileno()).st_ino == inode


# -- removal of a granted file -------------------------------------------------------------------


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def deferred_deletes(clock) -> DeferredDeletes:
    return DeferredDeletes(clock, QuickDisk())


def made(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"content")
    return path


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("in_directory", [False, True])
def test_deferred_delete_truncates_only_granted_files(
    tmp_path, clock, deferred_deletes, in_directory, renamed
):
    disk = QuickDisk()
    granted, other = made(tmp_path / "d" / "granted"), made(tmp_path / "d" / "other")
    readers = [disk.open(path, os.O_RDONLY) for path in (granted, other)]
    deferred_deletes.note_grant(readers[0])
    directory = tmp_path / "d"
    if renamed:
        granted = granted.rename(granted.with_name("granted.deleted"))
        directory = directory.rename(tmp_path / "d-delete") if in_directory else directory
    deferred_deletes.add([directory] if in_directory else [granted, other], 1_000)
    deferred_deletes.remove_due()
    assert [os.fstat(reader.fileno()).st_size for reader in readers] == [7, 7]
    clock.advance(1_000)
    deferred_deletes.remove_due()
    assert [os.fstat(reader.fileno()).st_size for reader in readers] == [0, 7]
    assert not granted.exists() and directory.exists() != in_directory


def test_deferred_delete_skips_a_granted_file_that_is_missing(tmp_path, clock, deferred_deletes):
    granted, other = made(tmp_path / "granted"), made(tmp_path / "other")
    deferred_deletes.note_grant(QuickDisk().open(granted, os.O_RDONLY))
    deferred_deletes.add([granted, other], 0)
    granted.unlink()
    deferred_deletes.remove_due()
    assert not other.exists()


def test_deferred_delete_logs_a_granted_file_that_cannot_be_truncated(
    tmp_path, clock, monkeypatch, caplog
):
    class Refusing(QuickDisk):
        def truncate(self, path, size):
            raise OSError(5, "Input/output error")

    deferred_deletes = DeferredDeletes(clock, Refusing())
    granted, other = made(tmp_path / "granted"), made(tmp_path / "other")
    deferred_deletes.note_grant(QuickDisk().open(granted, os.O_RDONLY))
    deferred_deletes.add([granted, other], 0)
    deferred_deletes.remove_due()
    assert "cannot be removed" in caplog.text and not other.exists()
