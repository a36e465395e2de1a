"""The durable offset of a replicated log covers no leader epoch that is not on the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.files.layout import LEADER_EPOCHS
from kafkalite.storage.log.log import Log
from kafkalite.storage.log.log_flushes import LogFlush
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from tests.simulation.disk import QuickDisk
from tests.storage.factories import batch, close, open_log


def replicated(directory: Path, **known: Any) -> Log:
    return open_log(directory, is_replicated=True, **known)


def begun(log: Log) -> LogFlush:
    flush = log.flush_begin()
    assert flush is not None
    return flush


def ended(log: Log, flush: LogFlush, disk: Disk | None = None) -> None:
    flush.run(disk or QuickDisk())
    log.flush_end(flush)


def epochs_in(directory: Path) -> list[int]:
    found = LeaderEpochCache.load(directory / LEADER_EPOCHS)
    return found.epochs if found is not None else []


def test_start_of_an_epoch_is_durable_once_the_epoch_is(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.flush()
    assert log.durable_offset == 1
    log.leader_epochs.assign(3, 1)
    assert log.durable_offset == 0
    flush = begun(log)
    assert flush.epochs is not None and log.flush_begin() is None
    assert log.durable_offset == 0, "the flush has not ended"
    ended(log, flush)
    assert log.durable_offset == 1 and epochs_in(tmp_path) == [0, 3]
    assert log.flush_begin() is None


def test_epoch_that_starts_an_empty_log_is_flushed(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    assert log.durable_offset == 0 and log.flush_begin() is None
    log.leader_epochs.assign(2, 0)
    assert log.durable_offset == -1
    log.flush()
    assert log.durable_offset == 0 and epochs_in(tmp_path) == [2]


@pytest.mark.parametrize("is_shared", [False, True], ids=["of the log", "of the file system"])
def test_epochs_that_were_saved_but_not_flushed_are_durable_after_a_flush(
    tmp_path: Path, is_shared: bool
) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.leader_epochs.assign(2, 1)
    log.leader_epochs.save(QuickDisk(), tmp_path / LEADER_EPOCHS, flushed=False)
    assert log.durable_offset == -1
    if is_shared:
        log.flushed_with_file_system()
    else:
        ended(log, begun(log))
    assert log.durable_offset == 1 and log.flush_begin() is None


def test_flush_of_the_file_system_leaves_epochs_that_were_not_saved(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.leader_epochs.assign(2, 1)
    log.flushed_with_file_system()
    assert log.durable_offset == -1
    ended(log, begun(log))
    assert log.durable_offset == 1


def test_epoch_assigned_during_a_flush_waits_for_the_next(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    first = begun(log)
    log.leader_epochs.assign(1, 1)
    log.append(batch(b"b"), 1)
    second = begun(log)
    assert second.epochs is None, "one flush at a time writes the file"
    ended(log, second)
    assert log.durable_offset == -1
    ended(log, first)
    assert log.durable_offset == 0 and log.flush_state.durable_offset == 2
    log.flush()
    assert log.durable_offset == 2


def test_refused_write_of_the_epochs_is_not_durable(tmp_path: Path) -> None:
    class FullDisk(QuickDisk):
        def rename(self, source: Any, target: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.flush()
    log.leader_epochs.assign(1, 1)
    flush = begun(log)
    with pytest.raises(KafkaStorageError):
        ended(log, flush, FullDisk())
    assert log.durable_offset == 0 and epochs_in(tmp_path) == [0]
    log.flush()
    assert log.durable_offset == 1 and epochs_in(tmp_path) == [0, 1]


def test_epoch_of_a_flush_before_a_truncation_is_written_again(tmp_path: Path) -> None:
    log = replicated(tmp_path, recovery_point=0)
    for number in range(3):
        log.append(batch(b"%d" % number), number)
    flush = begun(log)
    log._checkpoint = lambda *_: None  # type: ignore[method-assign]
    log.truncate_to(2)
    ended(log, flush)
    assert log.durable_offset == 0 and epochs_in(tmp_path) == [0, 1]
    log.flush()
    assert log.durable_offset == 2
    log.leader_epochs.assign(5, 2)
    assert log.durable_offset == 1
    log.flush()
    assert log.durable_offset == 2 and epochs_in(tmp_path) == [0, 1, 5]


@pytest.mark.parametrize("is_replicated", [False, True])
def test_crash_keeps_an_epoch_at_the_end_of_a_replicated_log(
    tmp_path: Path, is_replicated: bool
) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.leader_epochs.assign(3, 1)
    log.flush()
    log.release()
    log = open_log(tmp_path, is_replicated=is_replicated, recovery_point=1)
    assert log.leader_epochs.epochs == ([0, 3] if is_replicated else [0])
    assert log.durable_offset == (-1 if is_replicated else 1)
    log.flush()
    assert log.durable_offset == 1


def test_crash_removes_an_epoch_behind_the_end(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    for number in range(3):
        log.append(batch(b"%d" % number), number)
    log.leader_epochs.assign(3, 3)
    log.flush()
    end = log.segments[0].boundary(2)
    assert end is not None
    log.release()
    os.truncate(log.active.path, end)
    log = replicated(tmp_path)
    assert log.end_offset == 2
    assert (log.leader_epochs.epochs, log.leader_epochs.starts) == ([0, 1, 2], [0, 1, 2])
    log.flush()
    assert epochs_in(tmp_path) == [0, 1, 2]


def test_clean_shutdown_keeps_the_epochs_durable(tmp_path: Path) -> None:
    log = replicated(tmp_path)
    log.append(batch(b"a"), 0)
    log.leader_epochs.assign(3, 1)
    end = close(log)
    log = replicated(tmp_path, end=end)
    assert log.leader_epochs.latest == 3 and log.durable_offset == 1


def test_durable_offset_with_one_replica_is_the_end_of_the_flushed_records(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    log.append(batch(b"a"), 0)
    log.flush()
    log.leader_epochs.assign(3, 1)
    assert log.durable_offset == 1 and log.flush_begin() is None
