"""Node directories of a data directory: missing ones, partitions found twice, unassigned files."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from kafkalite.config import topic as keys
from kafkalite.errors import Refusal
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import FAILURE_MARK, Disk, WriteBackFailed
from kafkalite.storage.files.file_system import EXT4, FileSystem
from kafkalite.storage.log.recovery import Recovery
from kafkalite.storage.manager.node_directories import check_directories, evacuate
from kafkalite.storage.manager.recovery_points import RecoveryPoints
from tests.simulation.crash import RecordingDisk
from tests.simulation.disk import CALLS, FaultyDisk, QuickDisk
from tests.storage.factories import TOPIC_ID, batch, settings, values_of
from tests.storage.nodes import Nodes, T

OTHER_ID = bytes(reversed(TOPIC_ID))


def refused(data: Path) -> str:
    with pytest.raises(Refusal) as refusal:
        check_directories(data)
    return str(refusal.value)


def filled(data: Path, *node_ids: int) -> Nodes:
    """Return closed nodes, of which the first has the partition with two records."""
    nodes = Nodes(data)
    nodes[0].open_metadata()
    log = nodes.create(node_ids[0])
    for value in (b"a", b"b"):
        log.append(batch(value), 0)
    for node_id in node_ids:
        nodes[node_id].checkpoint()
    nodes.close()
    return nodes


def test_complete_data_directory_passes_the_check(tmp_path: Path) -> None:
    filled(tmp_path, 1, 2)
    check_directories(tmp_path)


@pytest.mark.parametrize("also", [False, True])
def test_missing_node_directory_is_refused_until_an_empty_one_exists(
    tmp_path: Path, also: bool
) -> None:
    nodes = filled(tmp_path, 1, 2)
    path = tmp_path / "nodes" / "2"
    shutil.rmtree(path.parent if also else path)
    missing = tmp_path / "nodes" / ("1" if also else "2")
    said = refused(tmp_path)
    assert f"{missing} is missing" in said and f"mkdir {missing}" in said
    for node_id in (1, 2):
        nodes.path(node_id).mkdir(parents=True, exist_ok=True)
    check_directories(tmp_path)
    assert nodes[2].logs == {}
    nodes.crash()


def test_partition_that_exists_twice_is_refused_with_both_paths(tmp_path: Path) -> None:
    nodes = filled(tmp_path, 1, 2)
    original = nodes.path(1) / "t-0"
    for name in (nodes.path(2) / "t-0", nodes.path(2) / layout.arrived("t", 0, TOPIC_ID)):
        shutil.copytree(original, name)
        said = refused(tmp_path)
        assert "t-0 exists twice" in said and str(original) in said and str(name) in said
        shutil.rmtree(name)
    shutil.copytree(original, tmp_path / "t-0")
    assert f"as {original} and as {tmp_path / 't-0'}" in refused(tmp_path)


def test_similar_directories_are_not_duplicates(tmp_path: Path) -> None:
    nodes = filled(tmp_path, 1, 2)
    empty = nodes[2].create("t", TOPIC_ID, 0, settings())
    check_directories(tmp_path)
    nodes[2].delete(empty)
    nodes[2].create("t", OTHER_ID, 0, settings()).append(batch(b"v"), 0)
    check_directories(tmp_path)
    nodes.crash()


def test_logs_of_removed_nodes_are_transferred_to_their_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = filled(tmp_path, 1, 2)
    stray = nodes[2].create("nobodys", OTHER_ID, 0, settings())
    deleted = nodes[2].create("deleted", OTHER_ID, 0, settings())
    older = nodes[2].create("older", OTHER_ID, 0, settings())
    nodes[2].delete(deleted)
    nodes[2].set_stray(older)
    stray.append(batch(b"v"), 0)
    nodes.crash()
    nodes.leader = 0
    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "recover", lambda *_: pytest.fail("a clean log was scanned"))
        assert cleared(tmp_path, [0], nodes, QuickDisk())
        assert list((tmp_path / "nodes").iterdir()) == []
        assert not list(tmp_path.glob(".node-*"))
        assert values_of(nodes[0].logs[T]) == [(0, b"a"), (1, b"b")]
    kept = [path.name for path in tmp_path.glob("*-stray")]
    assert sorted(name.partition("-")[0] for name in kept) == ["nobodys", "older"]
    assert not list(tmp_path.glob("deleted*"))
    check_directories(tmp_path)
    nodes.crash()


def cleared(data: Path, node_ids: list[int], nodes: Nodes, disk: Disk) -> bool:
    return evacuate(data, node_ids, nodes.belongs_at, FileSystem(data, disk), disk)


def test_evacuation_removes_checkpoints_only_after_the_flush(
    tmp_path: Path,
) -> None:
    nodes = filled(tmp_path, 1, 2)
    nodes.leader = 2
    disk = RecordingDisk()
    assert cleared(tmp_path, [0, 2], nodes, disk) is True
    calls = [call for call, *_ in disk.journal]
    assert calls.count("sync all") == 1
    assert calls.index("rename") < calls.index("sync all") < calls.index("unlink")


def test_only_removed_nodes_are_evacuated(tmp_path: Path) -> None:
    nodes = filled(tmp_path, 1, 2)
    assert cleared(tmp_path, [0, 1], nodes, QuickDisk())
    assert nodes.path(1).is_dir() and not nodes.path(2).exists()
    assert values_of(nodes.found()) == [(0, b"a"), (1, b"b")]
    nodes.crash()


def test_failed_evacuation_is_retried(tmp_path: Path) -> None:
    nodes = filled(tmp_path, 1, 2)
    nodes.leader = 0
    for fail_at in range(1, 100):
        calls = [call for call in CALLS if "sync" not in call]
        disk = FaultyDisk(fail_at, errno.ENOSPC, only=calls)
        disk.armed = False
        file_system = FileSystem(tmp_path, disk)
        disk.armed = True
        if evacuate(tmp_path, [0], nodes.belongs_at, file_system, disk):
            break
        assert disk.failed
    assert fail_at > 5
    assert list((tmp_path / "nodes").iterdir()) == []
    assert values_of(nodes[0].logs[T]) == [(0, b"a"), (1, b"b")]
    nodes.crash()


@pytest.mark.parametrize("call", ["syncfs", "fsync"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_flush_of_an_evacuation_ends_the_processes(
    tmp_path: Path, call: str, code: int
) -> None:
    nodes = filled(tmp_path, 1, 2)
    nodes.leader = 2
    disk = FaultyDisk(1, code, only=[call])
    disk.type_of = lambda _: EXT4  # type: ignore[method-assign]
    with pytest.raises(WriteBackFailed):
        evacuate(tmp_path, [0, 2], nodes.belongs_at, FileSystem(tmp_path, disk), disk)
    assert (tmp_path / FAILURE_MARK).exists() and (nodes.path(2) / FAILURE_MARK).exists()


def test_change_of_the_number_of_nodes_keeps_logs_without_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recovery, "recover", lambda *_: pytest.fail("a clean log was scanned"))
    nodes = filled(tmp_path, 0)
    for leader, node_ids in ((2, [0, 1, 2]), (0, [0]), (1, [0, 1])):
        nodes.leader = leader
        check_directories(tmp_path)
        assert cleared(tmp_path, node_ids, nodes, QuickDisk())
        for node_id in node_ids:
            assert nodes[node_id].data == nodes.path(node_id)
        assert values_of(nodes.found()) == [(0, b"a"), (1, b"b")]
        nodes.close()


def test_recovery_points_of_a_version_without_topic_ids_are_read(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    nodes.settings = settings({keys.SEGMENT_BYTES: 1 << 20})
    log = nodes.create()
    for _ in range(5):
        log.append(batch(b"v"), 0)
    log.flush()
    nodes.crash()
    path = nodes.path(1) / layout.RECOVERY_CHECKPOINT
    for points in ({"t-0": [5, 3]}, {"t-0": [5, 3], "u-0": "nonsense", "v-0": [1, 2, "no id"]}):
        checkpoint.write(QuickDisk(), path, points)
        assert nodes.found().log_start_offset == 3
        nodes.crash()
    for content in (["t-0"], "t-0", None):
        checkpoint.write(QuickDisk(), path, content)
        found = RecoveryPoints(tmp_path, nodes.path(1), QuickDisk())
        assert found.known_state(nodes.path(1) / "t-0", TOPIC_ID).recovery_point == 0
