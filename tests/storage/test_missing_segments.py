"""Segments that are missing from a compacted log: lost, or removed by another broker's cleaner."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from kafkalite.config import topic as keys
from kafkalite.records.batch import Record, build
from kafkalite.storage.log.log import Log
from kafkalite.storage.manager.log_manager import LogManager
from tests.storage.factories import NOW, TOPIC_ID, manager, open_log, settings

COMPACTED = {keys.CLEANUP_POLICY: ("compact",)}
DELETED = {keys.CLEANUP_POLICY: ("delete",)}
SEGMENTS = 4
WARNING = "accepting it as cleaned by another broker"


def fill(log: Log) -> None:
    """Append segments of three records each, the last of them active."""
    for number in range(SEGMENTS):
        for key in (b"a", b"b", b"c"):
            log.append(build([Record(timestamp=NOW, key=key, value=b"%d" % number)]), 0)
        if number < SEGMENTS - 1:
            log.roll()


def remove_segment(directory: Path, base_offset: int) -> None:
    for path in directory.glob(f"{base_offset:020}.*"):
        path.unlink()


def loaded(logs: LogManager, values: dict[Any, Any] = COMPACTED) -> Log:
    (log,) = logs.load(lambda topic: settings(values)).values()
    return log


def ended(logs: LogManager, *, cleanly: bool) -> None:
    """End the process that has these logs, cleanly or killed after a checkpoint."""
    if cleanly:
        logs.close()
    else:
        logs.checkpoint()
        for log in logs.logs.values():
            log.release()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "here" / "t-0"


def copied(tmp_path: Path, directory: Path) -> None:
    """Write a directory of another broker, whose cleaner has removed the second segment."""
    other = manager(tmp_path / "other")
    other.load(lambda topic: settings(COMPACTED))
    fill(other.create("t", TOPIC_ID, 0, settings(COMPACTED)))
    other.close()
    logs = manager(tmp_path / "here")
    logs.load(lambda topic: settings(COMPACTED))
    logs.close()
    (tmp_path / "other" / directory.name).rename(directory)
    remove_segment(directory, 3)


@pytest.mark.parametrize("cleanly", [True, False])
@pytest.mark.parametrize("cleaned_to", [-1, 9])
def test_lost_segment_of_a_log_that_was_open_here_is_detected(
    tmp_path: Path, directory: Path, cleanly: bool, cleaned_to: int
) -> None:
    logs = manager(tmp_path / "here")
    logs.load(lambda topic: settings(COMPACTED))
    log = logs.create("t", TOPIC_ID, 0, settings(COMPACTED))
    fill(log)
    log.flush()
    if cleaned_to >= 0:
        logs.note_cleaned(log, cleaned_to)
    ended(logs, cleanly=cleanly)
    remove_segment(directory, 3)
    log = loaded(manager(tmp_path / "here"))
    assert log.is_quarantined and "ends at offset 3, the next segment begins at 6" in log.failure


def test_records_behind_a_segment_lost_before_its_flush_are_removed(directory: Path) -> None:
    directory.parent.mkdir()
    log = open_log(directory, COMPACTED)
    fill(log)
    log.release()
    remove_segment(directory, 3)
    log = open_log(directory, COMPACTED, gaps_to=0)
    assert not log.is_quarantined and log.end_offset == 3


@pytest.mark.parametrize("cleanly", [True, False])
def test_gap_of_another_brokers_cleaner_is_accepted_and_no_other(
    tmp_path: Path, directory: Path, cleanly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    copied(tmp_path, directory)
    found = []
    for policy in (COMPACTED, COMPACTED, DELETED):
        logs = manager(tmp_path / "here")
        with caplog.at_level(logging.WARNING, "kafkalite.storage"):
            log = loaded(logs, policy)
        found.append([each.args[1:] for each in caplog.records if WARNING in each.msg])
        caplog.clear()
        assert not log.is_quarantined and log.end_offset == 12 and log.gaps_to == 6
        ended(logs, cleanly=cleanly)
    assert found == [[(3, 5)], [], []]
    remove_segment(directory, 6)
    assert loaded(manager(tmp_path / "here")).is_quarantined


def test_gap_in_a_log_that_was_never_compacted_is_not_accepted(
    tmp_path: Path, directory: Path
) -> None:
    copied(tmp_path, directory)
    log = loaded(manager(tmp_path / "here"), DELETED)
    assert log.is_quarantined
