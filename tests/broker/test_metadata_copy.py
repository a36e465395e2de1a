"""Copies of the metadata log in other log directories."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkalite.broker.controller import metadata_copy, metadata_log
from kafkalite.broker.controller.metadata_reader import MetadataReader
from kafkalite.coordination.controller import Controller
from kafkalite.storage.files.disk import DISK, FAILURE_MARK
from kafkalite.storage.manager.log_directory import META_PROPERTIES
from tests.broker.hosted import Hosted

NAME = "__cluster_metadata-0"


@pytest.fixture
def others(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("b", "c")]
    for path in paths:
        path.mkdir()
        (path / META_PROPERTIES).touch()
    return paths


@pytest.fixture
def hosted(tmp_path: Path, others: list[Path]) -> Hosted:
    (tmp_path / "a").mkdir()
    hosted = Hosted(tmp_path / "a" / NAME, others)
    hosted.decide(lambda controller: controller.register_nodes({0: ("localhost", 9092)}, {}))
    return hosted


def state_in(directory: Path) -> list:
    """Return the state of a controller that is loaded from a copy."""
    controller = Controller()
    MetadataReader(directory / NAME).load(controller.replay)
    return [*controller.records()]


def failing(monkeypatch, names: list[str], code: int) -> list[bool]:
    """Have system calls for files of a copy fail while the list that is returned is not empty."""
    switch = [True]

    def failing_call(call):
        def fail(descriptor, *rest):
            if switch and "/b/" in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(code, os.strerror(code))
            return call(descriptor, *rest)

        return fail

    for name in names:
        monkeypatch.setattr(metadata_copy.DISK, name, failing_call(getattr(DISK, name)))
    return switch


def test_decision_is_in_all_copies_once_it_completes(hosted, others):
    hosted.decide(hosted.create("t", 3))
    assert state_in(others[0]) == state_in(others[1]) == hosted.state


def test_decision_completes_with_the_last_copy(hosted, others):
    came = hosted.begin(hosted.create("t"))
    flushes = hosted.flusher.held
    assert len(flushes) == 3
    flushes.sort(key=lambda flush: "/b" in str(flush.where))
    for flush in flushes[:2]:
        flush.run(DISK)
        flush.done(flush)
    assert came == []
    del flushes[:2]
    hosted.flusher.go()
    assert len(came) == 1


def test_copies_are_made_equal_at_the_start(hosted, others):
    hosted.decide(hosted.create("t"))
    segment = others[0] / NAME / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:50] + b"x" + whole[51:] + b"an uncommitted tail")
    (others[1] / NAME / f"{0:020d}.log").unlink()
    (others[1] / NAME / f"{7:020d}.log").write_bytes(b"of another time")
    hosted.crash()
    assert state_in(others[0]) == state_in(others[1]) == hosted.state
    assert segment.read_bytes() == whole


def test_snapshots_and_rolled_segments_are_copied(hosted, others, monkeypatch):
    monkeypatch.setattr(metadata_log, "SNAPSHOT_AFTER_COUNT", 3)
    for number in range(3):
        hosted.decide(hosted.create(f"t{number}", 2))
        hosted.crash()
    hosted.log.roll()
    hosted.decide(hosted.create("last"))
    source = {path.name for path in hosted.directory.glob("*.log")}
    source |= {path.name for path in hosted.directory.glob("*.checkpoint")}
    for other in others:
        assert source <= {path.name for path in (other / NAME).iterdir()}
        assert state_in(other) == hosted.state


@pytest.mark.parametrize(
    ("names", "code"), [(["pwrite"], errno.ENOSPC), (["fdatasync", "fsync"], errno.EIO)]
)
def test_copy_that_cannot_be_written_is_not_waited_for(
    hosted, others, monkeypatch, caplog, names, code
):
    switch = failing(monkeypatch, names, code)
    hosted.decide(hosted.create("t"))
    assert "cannot be copied" in caplog.text and str(others[0]) in caplog.text
    assert hosted.host.journal.copies.failed == [others[0] / NAME]
    assert state_in(others[1]) == hosted.state
    hosted.decide(hosted.create("u"))
    hosted.timers.pop()()
    hosted.flusher.go()
    assert caplog.text.count("cannot be copied") == 1
    switch.clear()
    hosted.timers.pop()()
    hosted.decide(hosted.create("v"))
    assert hosted.host.journal.copies.failed == []
    assert state_in(others[0]) == hosted.state


def test_copy_is_written_again_after_a_failed_flush_of_its_file_system(hosted, others):
    hosted.decide(hosted.create("t"))
    segment = others[0] / NAME / f"{0:020d}.log"
    before = segment.stat().st_ino
    (others[0] / FAILURE_MARK).touch()
    hosted.decide(hosted.create("u"))
    hosted.timers.pop()()
    hosted.flusher.go()
    assert segment.stat().st_ino != before
    assert not (others[0] / FAILURE_MARK).exists()
    assert state_in(others[0]) == hosted.state


def test_no_copy_is_made_where_a_directory_was_unmounted(hosted, others, tmp_path):
    others[0].rename(tmp_path / "unmounted")
    others[0].mkdir()
    hosted.decide(hosted.create("t"))
    hosted.timers.pop()()
    hosted.flusher.go()
    hosted.crash()
    assert [*others[0].iterdir()] == []
    assert hosted.host.journal.copies.failed == [others[0] / NAME]
    others[0].rmdir()
    (tmp_path / "unmounted").rename(others[0])
    hosted.timers.pop()()
    hosted.flusher.go()
    assert hosted.host.journal.copies.failed == []
    assert state_in(others[0]) == hosted.state


def test_copy_opens_as_the_log(hosted, others):
    hosted.decide(hosted.create("t", 4))
    expected = hosted.state
    hosted.directory, hosted.copied_to = others[0] / NAME, others[1:]
    hosted.crash()
    assert hosted.state == expected
    hosted.decide(hosted.create("u"))
    assert state_in(others[1]) == hosted.state
