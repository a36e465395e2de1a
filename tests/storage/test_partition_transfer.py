"""Partition transfers between nodes: no record is lost or duplicated, and little is read again.

Nodes are managers of one data directory; a crash is a manager that is never closed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import KafkaStorageError, OutOfOrderSequenceNumber
from kafkalite.ids import written_id
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import FAILURE_MARK, Disk
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.log.recovery import Recovery
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.manager.log_manager import FOREIGN_CHECK_MS
from kafkalite.storage.manager.node_directories import evacuate
from kafkalite.storage.state.producer_state import RETAINED_PRODUCERS_MAX
from tests.simulation.disk import QuickDisk
from tests.storage.factories import TOPIC_ID, batch, produced, settings, values_of
from tests.storage.nodes import Nodes, T

OTHER_ID = bytes(reversed(TOPIC_ID))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    yield found
    found.crash()


def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "recover", lambda *_: pytest.fail("a known log was scanned"))


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
def test_transferred_log_is_not_scanned(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    no_scan(monkeypatch)
    nodes.settings = settings({keys.DURABILITY: durability, keys.SEGMENT_BYTES: 400})
    log = nodes.create(1)
    expected = []
    for epoch, to in enumerate((2, 3, 0, 1, 2)):
        for _ in range(7):
            value = b"%d" % len(expected)
            expected.append((len(expected), value))
            log.append(batch(value), epoch)
        log = nodes.move(to)
        assert values_of(log) == expected
        assert log.end_offset == len(expected)
        assert log.durable_offset == (0 if durability == "os" else log.end_offset)
        assert [nodes.names(node_id) for node_id in range(4) if node_id != to] == [[]] * 3
        assert nodes.names(to) == ["t-0"]
    assert log.leader_epochs.starts == [0, 7, 14, 21, 28]


def test_transfer_with_durability_os_flushes_nothing(tmp_path: Path) -> None:
    class CountingDisk(Disk):
        flushed = 0

        def fsync(self, descriptor: int) -> None:
            self.flushed += 1

        fdatasync = syncfs = fsync

    nodes = Nodes(tmp_path, disk := CountingDisk())
    log = nodes.create()
    log.append(batch(b"v"), 0)
    assert nodes[2].logs == {}
    disk.flushed = 0
    nodes.move(2)
    assert disk.flushed == 0
    nodes.crash()


def test_durable_offset_is_known_to_the_new_owner(nodes: Nodes) -> None:
    """A recovery point past them would claim records that a power cut may still take."""
    nodes.settings = settings({keys.SEGMENT_BYTES: 400})
    log = nodes.create()
    for number in range(20):
        log.append(batch(b"%d" % number), 0)
        if number == 3:
            log.flush()
    log = nodes.move(2)
    assert (log.durable_offset, log.end_offset) == (4, 20)
    nodes[2].checkpoint()
    assert checkpoint.read(nodes.path(2) / layout.RECOVERY_CHECKPOINT)["t-0"][0] == 4
    synced = []
    flush = log.flush_begin()
    assert flush is not None
    for segment in log.segments:
        synced += [file.path for file in flush.files if file.path == str(segment.path)]
    assert synced == [str(segment.path) for segment in log.segments]
    assert flush.directories == [log.directory, log.directory.parent]
    flush.run(Disk())
    log.flush_end(flush)
    assert nodes.move(3).durable_offset == 20


def test_in_flight_batches_may_be_retried_at_the_new_owner(nodes: Nodes) -> None:
    log = nodes.create()
    for sequence in range(8):
        log.append(produced(sequence), 0)
        log.append(produced(sequence, producer_id=8), 0)
    log.append(produced(0, producer_id=9), 0)
    for to in (2, 3):
        log = nodes.move(to)
        for sequence in range(3, 8):
            placed = log.append(produced(sequence), 0)
            assert (placed.duplicate, placed.base_offset) == (True, 2 * sequence)
        with pytest.raises(OutOfOrderSequenceNumber):
            log.append(produced(2), 0)
        assert log.append(produced(0, producer_id=9), 0).duplicate
    assert not log.append(produced(8), 0).duplicate
    assert log.append(produced(4, producer_id=8), 0).duplicate


def test_in_flight_batches_may_be_retried_after_a_clean_shutdown(nodes: Nodes) -> None:
    log = nodes.create()
    for sequence in range(8):
        log.append(produced(sequence), 0)
    nodes.close()
    log = nodes.found()
    assert [log.append(produced(sequence), 0).base_offset for sequence in range(3, 8)] == [
        3, 4, 5, 6, 7
    ]  # fmt: skip
    assert log.end_offset == 8


def test_batches_of_the_most_recent_producers_are_retained(nodes: Nodes) -> None:
    log = nodes.create()
    count = RETAINED_PRODUCERS_MAX + 100
    for producer_id in range(count):
        for sequence in range(2):
            log.append(produced(sequence, producer_id=producer_id), 0)
    log = nodes.move(2)
    assert log.append(produced(0, producer_id=count - 1), 0).duplicate
    assert log.append(produced(0, producer_id=100), 0).duplicate
    with pytest.raises(OutOfOrderSequenceNumber):
        log.append(produced(0, producer_id=99), 0)
    assert log.append(produced(1, producer_id=99), 0).duplicate


# -- crashes on the way ------------------------------------------------------------------------


def test_killed_leader_transfers_the_log_at_its_next_start(nodes: Nodes) -> None:
    log = nodes.create()
    log.append(batch(b"a"), 0)
    assert nodes[2].open_transferred("t", 0, TOPIC_ID, nodes.settings) is None
    nodes.crash(1)
    nodes.leader = 2
    assert nodes[2].open_transferred("t", 0, TOPIC_ID, nodes.settings) is None
    assert nodes[1].logs == {}, "started again, it hands over without opening"
    assert values_of(nodes.found()) == [(0, b"a")]


def test_cleanly_closed_log_is_not_scanned_by_the_new_leader(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = nodes.create()
    log.append(batch(b"a"), 0)
    nodes.close()
    no_scan(monkeypatch)
    nodes.leader = 2
    assert nodes[1].logs == {}
    assert values_of(nodes.found()) == [(0, b"a")]


def test_log_that_arrives_during_a_restart_is_opened_at_start(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = nodes.create()
    log.append(batch(b"a"), 0)
    nodes.send(2)
    assert nodes.names(2) == [layout.arrived("t", 0, TOPIC_ID)]
    no_scan(monkeypatch)
    assert values_of(nodes[2].logs[T]) == [(0, b"a")]
    assert nodes.names(2) == ["t-0"]
    assert nodes.found() is nodes[2].logs[T]


def test_handover_file_stays_until_a_checkpoint_holds_its_points(nodes: Nodes) -> None:
    log = nodes.create()
    for _ in range(5):
        log.append(batch(b"v"), 0)
    log.flush()
    log.delete_records(3)
    for _ in range(2):
        log = nodes.move(2) if nodes.leader == 1 else nodes.found()
        assert (log.log_start_offset, log.directory.name) == (3, "t-0")
        nodes.crash(2)
    log = nodes.found()
    log.delete_records(4)
    nodes[2].checkpoint()
    assert partition_transfer.read(log.directory) is None
    nodes.crash(2)
    assert nodes.found().log_start_offset == 4


def test_handover_file_is_removed_if_the_checkpoint_is_up_to_date(nodes: Nodes) -> None:
    """For example for a log that comes back and of which nothing was flushed in between."""
    nodes.create().append(batch(b"v"), 0)
    for to in (2, 1, 2):
        log = nodes.move(to)
        nodes[to].checkpoint()
        assert partition_transfer.read(log.directory) is None


def test_deleted_records_stay_deleted_if_the_handover_file_returns(nodes: Nodes) -> None:
    """For example when a power cut undoes the removal of the transfer file."""
    log = nodes.create()
    for _ in range(5):
        log.append(batch(b"v"), 0)
    nodes.begin(2)
    log = nodes.move(2)
    word = (log.directory / layout.HANDOVER).read_bytes()
    log.delete_records(4)
    nodes[2].checkpoint()
    (log.directory / layout.HANDOVER).write_bytes(word)
    nodes.crash(2)
    assert nodes.found().log_start_offset == 4


def test_old_recovery_point_is_not_used_when_the_log_returns(
    nodes: Nodes,
) -> None:
    log = nodes.create()
    for _ in range(5):
        log.append(batch(b"v"), 0)
    nodes.begin(2)
    nodes.move(2)
    path = nodes.path(1) / layout.RECOVERY_CHECKPOINT
    nodes.crash()
    checkpoint.write(Disk(), path, {"t-0": [1000, 0, written_id(TOPIC_ID)]})
    nodes[2].transfer(nodes.found(), nodes.path(1))
    nodes.leader = 1
    again = nodes.found()
    assert (again.failure, again.end_offset, again.durable_offset) == (None, 5, 0)


@pytest.mark.parametrize("word", ["lost", "torn", "another boot's"])
def test_lost_handover_file_leaves_the_points_of_the_checkpoints(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    log = nodes.create()
    for _ in range(9):
        log.append(batch(b"v"), 0)
    log.flush()
    log.delete_records(4)
    nodes[1].checkpoint()
    nodes.send(2)
    path = nodes.path(2) / layout.arrived("t", 0, TOPIC_ID) / layout.HANDOVER
    if word == "another boot's":
        monkeypatch.setattr(partition_transfer, "boot_id", lambda: "another")
    else:
        path.unlink() if word == "lost" else os.truncate(path, 50)
    nodes.crash()
    scanned = []
    recover = Recovery.recover
    monkeypatch.setattr(
        Recovery, "recover", lambda *how: scanned.append(how[1][:2]) or recover(*how)
    )
    assert nodes.found().log_start_offset == 4
    assert scanned == [(9, 4)]


def test_points_of_an_older_topic_of_the_same_name_are_not_used(nodes: Nodes) -> None:
    log = nodes.create()
    for _ in range(9):
        log.append(batch(b"v"), 0)
    log.flush()
    log.delete_records(4)
    nodes[1].checkpoint()
    nodes[1].delete(log)
    nodes.crash()
    checkpoint.write(
        Disk(), nodes.path(1) / layout.RECOVERY_CHECKPOINT, {"t-0": [9, 4, written_id(OTHER_ID)]}
    )
    nodes.create(2).append(batch(b"new"), 0)
    nodes.crash()
    assert values_of(nodes.found()) == [(0, b"new")]


def test_known_end_is_used_only_if_the_file_size_matches(nodes: Nodes) -> None:
    log = nodes.create()
    log.append(batch(b"a"), 0)
    log.append(batch(b"b"), 0)
    size = log.active.size
    log = nodes.move(2)
    log.append(batch(b"c"), 0)
    os.truncate(log.active.path, log.active.size - 1)
    nodes.crash(2)
    assert values_of(nodes.found()) == [(0, b"a"), (1, b"b")]
    assert nodes.found().active.size == size


def test_page_cache_is_dropped_by_the_new_owner_after_a_failure(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.create().append(batch(b"a"), 0)
    nodes.crash()
    (nodes.path(1) / FAILURE_MARK).touch()
    nodes.leader = 2
    assert nodes[1].logs == {}
    assert not (nodes.path(1) / FAILURE_MARK).exists()
    dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *how: dropped.append(how))
    nodes.found()
    assert dropped


# -- obstacles at the target -------------------------------------------------------------------


def test_transfer_leaves_an_open_log_of_an_older_topic_alone(
    nodes: Nodes,
) -> None:
    old = nodes[2].create("t", OTHER_ID, 0, nodes.settings)
    old.append(batch(b"old"), 0)
    nodes.create().append(batch(b"new"), 0)
    nodes.send(2)
    old.append(batch(b"old"), 0)
    nodes[2].delete(old)
    assert values_of(nodes.found()) == [(0, b"new")]
    assert any(layout.is_set_aside(name, layout.DELETE_DIRECTORY) for name in nodes.names(2))


def test_log_of_an_older_topic_becomes_a_stray(nodes: Nodes) -> None:
    for opened in (True, False):
        old = nodes[2].create("t", OTHER_ID, 0, nodes.settings)
        old.append(batch(b"old"), 0)
        if not opened:
            nodes.crash(2)
        nodes.create().append(batch(b"new"), 0)
        assert values_of(nodes.move(2)) == [(0, b"new")]
        assert old.is_released
        nodes[2].delete(nodes.found())
    kept = [name for name in nodes.names(2) if layout.is_set_aside(name, layout.STRAY_DIRECTORY)]
    sizes = [(nodes.path(2) / name / old.active.path.name).stat().st_size for name in kept]
    assert sizes == [len(batch(b"old"))] * 2


@pytest.mark.parametrize("name", ["t-0", layout.arrived("t", 0, TOPIC_ID)])
@pytest.mark.parametrize("content", ["", "somebody's"])
def test_directory_of_the_same_name_is_set_aside(nodes: Nodes, name: str, content: str) -> None:
    nodes.create().append(batch(b"a"), 0)
    assert nodes[2].logs == {}
    (nodes.path(2) / name).mkdir()
    if content:
        (nodes.path(2) / name / "file").write_text(content)
    assert values_of(nodes.move(2)) == [(0, b"a")]
    assert not (nodes.path(2) / "t-0" / "file").exists()
    aside = [path for path in nodes.path(2).glob("t*/file") if path.read_text() == content]
    assert len(aside) == bool(content)
    assert nodes.names(2)[0] == "t-0"


def test_log_with_a_long_name_is_transferred_under_a_short_one(nodes: Nodes) -> None:
    topic = "x" * 249
    log = nodes[1].create(topic, TOPIC_ID, 0, nodes.settings)
    log.append(batch(b"a"), 0)
    nodes[1].transfer(log, nodes.path(2))
    nodes.crash()
    assert values_of(nodes[2].logs[topic, 0]) == [(0, b"a")]
    nodes[2].transfer(nodes[2].logs[topic, 0], nodes.path(1))
    found = nodes[1].open_transferred(topic, 0, TOPIC_ID, nodes.settings)
    assert found is not None and found.directory.name == f"{topic}-0"


@pytest.mark.parametrize("when", ["before", "after"])
def test_log_without_topic_id_is_transferred_by_name(nodes: Nodes, when: str) -> None:
    nodes.create().append(batch(b"a"), 0)
    nodes.crash()
    (nodes.path(1) / "t-0" / layout.PARTITION_METADATA).write_text("nonsense")
    if when == "before":
        nodes.leader = 2
        assert nodes[1].logs == {}
    else:
        nodes.send(2)
    found = nodes.found()
    assert (found.topic_id, values_of(found)) == (TOPIC_ID, [(0, b"a")])
    nodes.crash()
    assert nodes[2].logs[T].topic_id == TOPIC_ID


# -- moves elsewhere, and refused or late moves ------------------------------------------------


def test_log_that_arrives_at_a_former_leader_is_transferred_on(nodes: Nodes) -> None:
    nodes.create().append(batch(b"a"), 0)
    assert nodes[2].logs == {}
    nodes.clock.advance(nodes[2].tick(nodes.clock.monotonic_ms()))
    nodes.send(2)
    nodes.leader = 3
    assert nodes[2].tick(nodes.clock.monotonic_ms()) <= FOREIGN_CHECK_MS
    assert nodes.names(2) == []
    assert values_of(nodes.found()) == [(0, b"a")]


def test_log_that_arrives_before_the_image_waits_until_requested(nodes: Nodes) -> None:
    nodes.create().append(batch(b"a"), 0)
    known = False
    real = nodes.belongs
    nodes.belongs = lambda *of: real(*of) if known else None  # type: ignore[method-assign]
    assert nodes[2].logs == {}
    nodes.send(2)
    nodes[2].tick(nodes.clock.monotonic_ms())
    known = True
    nodes[2].tick(nodes.clock.monotonic_ms())
    assert values_of(nodes.found()) == [(0, b"a")]


class FullForMoves(QuickDisk):
    """A disk without room to rename a log's directory."""

    full = False

    def __init__(self, code: int = errno.ENOSPC) -> None:
        self.code = code

    def rename(self, source: Path, target: Path) -> None:
        if self.full and source.name == "t-0":
            raise OSError(self.code, os.strerror(self.code))
        os.rename(source, target)


def test_failed_transfer_at_start_is_retried_and_the_log_not_opened(
    tmp_path: Path,
) -> None:
    nodes = Nodes(tmp_path, disk := FullForMoves())
    nodes.create().append(batch(b"a"), 0)
    nodes.crash()
    (nodes.path(1) / FAILURE_MARK).touch()
    nodes.leader, disk.full = 2, True
    assert nodes[1].logs == {}
    assert (nodes.path(1) / FAILURE_MARK).exists(), "it says something of a log that is still here"
    assert nodes[1].tick(nodes.clock.monotonic_ms()) == FOREIGN_CHECK_MS
    disk.full = False
    nodes[1].tick(nodes.clock.monotonic_ms())
    assert values_of(nodes.found()) == [(0, b"a")]
    nodes.crash()


def test_log_that_could_not_be_transferred_is_opened_if_it_belongs_here(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, disk := FullForMoves())
    nodes.create().append(batch(b"a"), 0)
    nodes.crash()
    nodes.leader, disk.full = 2, True
    assert nodes[1].logs == {}
    nodes.leader = 1
    assert values_of(nodes.found()) == [(0, b"a")]
    nodes.crash()


def test_transfer_to_another_file_system_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = Nodes(tmp_path, disk := FullForMoves(errno.EXDEV))
    log = nodes.create()
    log.append(batch(b"a"), 0)
    disk.full = True
    with pytest.raises(KafkaStorageError, match="on different file systems"):
        nodes.send(2)
    log.append(batch(b"b"), 0)
    nodes.crash()
    for _ in range(3):
        nodes[1].tick(nodes.clock.monotonic_ms())
    assert caplog.text.count("cannot be transferred yet") == 1
    assert not evacuate(tmp_path, [0, 2], nodes.belongs_at, FileSystem(tmp_path, disk), disk)
    disk.full = False
    nodes[1].tick(nodes.clock.monotonic_ms())
    assert values_of(nodes.found()) == [(0, b"a"), (1, b"b")]
    nodes.crash()


def test_transfer_of_a_log_being_flushed_is_refused(nodes: Nodes) -> None:
    """A flush also writes small files, under names that would then belong to another node."""
    log = nodes.create()
    log.append(batch(b"a"), 0)
    flush = log.flush_begin()
    assert flush is not None and log.is_flushing
    with pytest.raises(KafkaStorageError, match="being flushed"):
        nodes.send(2)
    nodes.leader = 1
    flush.run(Disk())
    log.flush_end(flush)
    assert values_of(nodes.move(2)) == [(0, b"a")]


def test_partition_missing_from_all_nodes_is_lost(nodes: Nodes) -> None:
    assert not nodes[1].has_lost("t", 0, TOPIC_ID)
    nodes.create()
    nodes[1].checkpoint()
    nodes.send(2)
    assert not nodes[1].has_lost("t", 0, TOPIC_ID), "it is at another node, not taken up"
    nodes.found()
    assert not nodes[1].has_lost("t", 0, TOPIC_ID)
    nodes.move(1)
    nodes.crash()
    (nodes.path(1) / "t-0").rename(nodes.data / "aside")
    assert nodes[1].open_transferred("t", 0, TOPIC_ID, nodes.settings) is None
    other = nodes[2].create("t", OTHER_ID, 0, nodes.settings)
    assert nodes[1].has_lost("t", 0, TOPIC_ID), "another's log of that name is not it"
    assert not nodes[1].has_lost("t", 0, OTHER_ID)
    nodes[2].delete(other)
    (nodes.data / "aside").rename(nodes.path(1) / "t-0")
    assert nodes.found().end_offset == 0


def test_log_that_arrives_during_the_check_is_not_lost(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.create()
    nodes.move(2)
    directories = layout.node_directories

    def moved_meanwhile(data: Path) -> dict[int, Path]:
        found = directories(data)
        if nodes.leader == 2:
            nodes.send(1)
            return {2: found[2]}  # node 1 was listed before
        return found

    monkeypatch.setattr(layout, "node_directories", moved_meanwhile)
    assert not nodes[1].has_lost("t", 0, TOPIC_ID)


def test_transferred_log_of_a_deleted_topic_leaves_the_checkpoint(nodes: Nodes) -> None:
    nodes.create()
    nodes.move(2)
    for known in (True, False):
        nodes[1].checkpoint()
        nodes.crash(1)
        points = checkpoint.read(nodes.path(1) / layout.RECOVERY_CHECKPOINT)
        assert ("t-0" in points) is known
        nodes.belongs = lambda *_: None  # type: ignore[method-assign]


def test_damaged_log_is_transferred_with_its_known_state(nodes: Nodes) -> None:
    log = nodes.create()
    for _ in range(5):
        log.append(batch(b"v"), 0)
    log.flush()
    nodes[1].checkpoint()
    nodes.crash()
    os.truncate(log.active.path, 50)
    for to in (2, 3):
        log = nodes.move(to)
        assert log.is_quarantined and "already flushed" in str(log.failure)
