"""A truncation that runs on a thread: what the log does, and does not, until its end was taken."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.storage.files.disk import DiskFailed
from kafkalite.storage.files.flusher import Flusher
from kafkalite.storage.files.open_segments import OpenSegments
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_truncation import TruncationJob
from tests.simulation.disk import FaultyDisk, QuickDisk
from tests.storage.factories import batch, open_log, values_of
from tests.storage.replicated import placed

VALUES = {
    keys.DURABILITY: "fsync",
    keys.SEGMENT_BYTES: 500,
    keys.INDEX_INTERVAL_BYTES: 100,
    keys.RETENTION_BYTES: 0,
}
COUNT = 20


def filled(log: Log) -> Log:
    for number in range(COUNT):
        log.append(batch(b"%d" % number), 0)
    return log


def values(*numbers: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in numbers]


def begun(log: Log, offset: int = 9) -> TruncationJob:
    job = log.truncation_begin(offset)
    assert job is not None and log.is_truncating
    return job


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return filled(open_log(tmp_path / "t-0", VALUES))


def test_nothing_is_begun_during_a_truncation(log: Log) -> None:
    log.flush()
    job = begun(log)
    files = sorted(path.name for path in log.directory.iterdir())
    log.retain()
    log.take_snapshot_if_due()
    log.write_index_page()
    assert log.flush_begin() is None
    assert log.flush_begin(closed_only=True) is None
    assert log.is_flushing
    assert sorted(path.name for path in log.directory.iterdir()) == files
    assert (log.end_offset, log.durable_offset) == (9, 9)
    job.run(QuickDisk())
    log.truncation_end(job)
    assert not log.is_truncating and not log.is_flushing
    assert values_of(log) == values(*range(9))


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda log: log.flush(), id="flush"),
        pytest.param(lambda log: log.roll(), id="roll"),
        pytest.param(lambda log: log.truncate_to(9), id="truncate"),
        pytest.param(lambda log: log.delete_records(0), id="delete records"),
        pytest.param(lambda log: log.append_replicated(placed(batch(b"9"), 9, 0)), id="append"),
        pytest.param(lambda log: log.finish(), id="finish"),
        pytest.param(lambda log: log.release(), id="release"),
    ],
)
def test_use_of_the_log_finishes_its_truncation_first(
    log: Log, use: Callable[[Log], object]
) -> None:
    job = begun(log)
    use(log)
    assert not log.is_truncating
    job.run(QuickDisk())
    log.truncation_end(job)  # collected late
    log.release()
    again = open_log(log.directory, VALUES)
    assert values_of(again)[:9] == values(*range(9))
    assert again.end_offset in (9, 10)


def test_flush_that_was_begun_before_a_truncation_has_no_effect_after_it(log: Log) -> None:
    flush = log.flush_begin()
    assert flush is not None
    job = begun(log)
    job.run(QuickDisk())
    flush.run(QuickDisk())
    log.flush_end(flush)
    log.truncation_end(job)
    assert log.durable_offset == 0
    assert not log.is_flushing
    log.flush()
    assert log.durable_offset == 9


def test_end_and_leader_epochs_are_those_after_the_truncation(log: Log) -> None:
    log.append(batch(b"later"), 3)
    job = begun(log)
    assert (log.end_offset, log.leader_epochs.latest) == (9, 0)
    job.run(QuickDisk())
    log.truncation_end(job)
    log.release()
    again = open_log(log.directory, VALUES)
    assert (again.end_offset, again.leader_epochs.epochs) == (9, [0])


def test_other_logs_release_no_file_of_a_log_that_is_truncated(tmp_path: Path) -> None:
    shared = {"open_segments": OpenSegments(count_max=1)}
    log, other = (
        filled(open_log(tmp_path / name, VALUES, shared=shared)) for name in ("t-0", "t-1")
    )
    assert values_of(log) == values(*range(COUNT))
    job = begun(log)
    descriptors = [segment.descriptor for segment in log.segments if segment.is_open]
    assert values_of(other) == values(*range(COUNT))
    assert descriptors == [segment.descriptor for segment in log.segments if segment.is_open]
    job.run(QuickDisk())
    log.truncation_end(job)
    assert values_of(log) == values(*range(9))
    assert values_of(other) == values(*range(COUNT))
    assert len(shared["open_segments"]) <= 1


def test_truncation_runs_on_a_thread_of_the_flusher(log: Log) -> None:
    flusher = Flusher(threads=2, disk=QuickDisk())
    ends: list[TruncationJob] = []
    for offset in range(COUNT - 1, 0, -3):
        job = begun(log, offset)
        flusher.submit([job])
        while not ends:
            ends += flusher.collect()
        log.truncation_end(ends.pop())
        assert values_of(log) == values(*range(offset))
    flusher.close()


@pytest.mark.parametrize("is_awaited", [False, True])
def test_failed_truncation_ends_the_process(tmp_path: Path, is_awaited: bool) -> None:
    disk = FaultyDisk(1, errno.EIO, sticky=True, torn=False)
    disk.armed = False
    log = filled(open_log(tmp_path / "t-0", VALUES, disk=disk))
    job = begun(log)
    disk.armed = True
    if not is_awaited:
        job.run(disk)
    with pytest.raises(DiskFailed):
        log.finish_truncation() if is_awaited else log.truncation_end(job)
    assert log.failure is not None
    assert not log.is_truncating


def test_truncation_after_a_failed_flush_changes_nothing(log: Log) -> None:
    job = begun(log)
    files = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    log.flush_state.error = OSError(errno.EIO, "failed")
    with pytest.raises(DiskFailed):
        log.finish_truncation()
    assert isinstance(job.failure, OSError)
    assert files == {path.name: path.read_bytes() for path in log.directory.iterdir()}
