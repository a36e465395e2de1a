"""Directories of partitions with several replicas: each node keeps its own, and no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.errors import Refusal
from kafkalite.storage.files import layout
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.manager.node_directories import check_directories, evacuate
from kafkalite.storage.manager.recovery_points import RecoveryPoints
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from tests.simulation.disk import QuickDisk
from tests.storage.factories import TOPIC_ID, values_of
from tests.storage.nodes import Nodes, T


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    made.replicas = (1, 2)
    made[0].open_metadata()
    yield made
    made.crash()


def test_replicas_in_several_directories_pass_the_check(nodes: Nodes) -> None:
    for node_id in (1, 2, 3):
        nodes.create_replica(node_id, b"a")
    asked: list[TopicIdPartition] = []

    def replicas_of(identity: TopicIdPartition) -> tuple[int, ...]:
        asked.append(identity)
        return nodes.replicas

    check_directories(nodes.data, replicas_of)
    assert set(asked) == {TopicIdPartition("t", 0, TOPIC_ID)}
    for node_id in (1, 2, 3):
        nodes[node_id].logs[T].is_replicated = False
        nodes[node_id].checkpoint()
    for replicas in ((), (1,)):
        with pytest.raises(Refusal, match="exists twice"):
            check_directories(nodes.data, lambda _, found=replicas: found)


def test_copy_of_a_replica_at_the_same_node_is_refused(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a")
    arrived = nodes.path(1) / layout.arrived("t", 0, TOPIC_ID)
    shutil.copytree(nodes.path(1) / "t-0", arrived)
    with pytest.raises(Refusal, match="exists twice"):
        check_directories(nodes.data, lambda _: nodes.replicas)


def test_replicas_are_not_asked_for_without_a_pair(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a")
    check_directories(nodes.data, lambda _: pytest.fail("no partition is in two directories"))


@pytest.mark.parametrize("replicas", [(1, 2), ()])
def test_recovery_point_of_another_replica_does_not_count(
    nodes: Nodes, replicas: tuple[int, ...]
) -> None:
    nodes.create_replica(1, b"a", b"b", b"c")
    nodes.create_replica(2, b"a")
    nodes.crash()
    nodes.replicas, nodes.leader = replicas, 2
    if not replicas:  # the log of the removed replica is deleted, its checkpoint is not written yet
        shutil.rmtree(nodes.path(1) / "t-0")
    log = nodes[2].logs[T]
    assert log.failure is None
    assert values_of(log) == [(0, b"a")]
    assert log.is_replicated is bool(replicas)


def test_recovery_point_of_a_single_replica_does_not_count_for_a_new_one(nodes: Nodes) -> None:
    nodes.replicas = ()
    log = nodes.create_replica(1, b"a", b"b")
    log.is_replicated = False
    nodes[1].checkpoint()
    nodes.send(2)
    nodes.found()
    nodes.replicas = (2, 3)
    nodes.create_replica(3, b"a")
    nodes.crash()
    assert nodes[3].logs[T].failure is None
    assert values_of(nodes[2].logs[T]) == [(0, b"a"), (1, b"b")]


def test_log_of_a_removed_replica_is_set_aside(nodes: Nodes) -> None:
    for node_id in (1, 2, 3):
        nodes.create_replica(node_id, b"a")
    nodes.crash()
    nodes[3].close_log(nodes[3].logs[T])
    nodes[3].set_strays()
    (kept,) = nodes.names(3)
    assert layout.is_set_aside(kept, layout.STRAY_DIRECTORY)
    assert values_of(nodes[1].logs[T]) == values_of(nodes[2].logs[T]) == [(0, b"a")]


@pytest.mark.parametrize("evacuated", [False, True])
def test_removed_replica_does_not_take_the_place_of_the_only_one_left(
    nodes: Nodes, evacuated: bool
) -> None:
    nodes.create_replica(1, b"a", b"b", b"c")
    nodes.create_replica(2, b"a")
    nodes.crash()
    nodes.replicas, nodes.leader = (), 1
    check_directories(nodes.data, lambda _: (1,))
    if evacuated:
        disk = QuickDisk()
        file_system = FileSystem(nodes.data, disk)
        assert evacuate(nodes.data, [0, 1], nodes.belongs_at, file_system, disk)
        (kept,) = nodes.names(0)
    else:
        nodes.begin(2)
        (kept,) = nodes.names(2)
    assert layout.is_set_aside(kept, layout.STRAY_DIRECTORY)
    nodes.crash()
    assert nodes.names(1) == ["t-0"]
    assert values_of(nodes[1].logs[T]) == [(0, b"a"), (1, b"b"), (2, b"c")]
    check_directories(nodes.data)


@pytest.mark.parametrize("are_deleted", [False, True])
def test_first_log_of_a_move_by_a_copy_does_not_take_the_place_of_the_copy(
    nodes: Nodes, are_deleted: bool
) -> None:
    nodes.create_replica(1, b"a", b"b", b"c")
    # Its node ends before a checkpoint says that it was one of several replicas.
    nodes.create_replica(2, b"a").is_replicated = False
    nodes[2].checkpoint()
    nodes.crash()
    copied = nodes.path(1) / "t-0"
    if are_deleted:  # as by retention: an empty segment has the end offset
        for path in copied.glob(f"{0:020d}.*"):
            path.unlink()
        (copied / f"{3:020d}.log").touch()
    nodes.replicas, nodes.leader = (), 1
    nodes.begin(2)
    (kept,) = nodes.names(2)
    assert layout.is_set_aside(kept, layout.STRAY_DIRECTORY)
    nodes.crash()
    assert nodes.names(1) == ["t-0"]
    assert nodes[1].logs[T].end_offset == 3


def test_only_replica_that_moved_is_transferred_after_a_crash(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a")
    nodes.crash()
    nodes.replicas, nodes.leader = (), 2
    nodes.begin(1)
    assert values_of(nodes.found()) == [(0, b"a")]


def test_replica_whose_directory_is_missing_is_lost_and_arrives_from_nowhere(nodes: Nodes) -> None:
    for node_id in (1, 2):
        nodes.create_replica(node_id, b"a")
    assert not nodes[2].has_lost("t", 0, TOPIC_ID)
    nodes.crash()
    shutil.rmtree(nodes.path(2) / "t-0")
    assert nodes[2].has_lost("t", 0, TOPIC_ID)
    assert not nodes[2].is_elsewhere("t", 0, TOPIC_ID)


def test_evacuation_sets_a_removed_replica_aside(nodes: Nodes) -> None:
    nodes.replicas = (0, 1)
    nodes.create_replica(0, b"a")
    nodes.create_replica(3, b"x", b"y")
    nodes.crash()
    disk = QuickDisk()
    file_system = FileSystem(nodes.data, disk)
    assert evacuate(nodes.data, [0, 1], nodes.belongs_at, file_system, disk)
    assert not nodes.path(3).exists()
    names = nodes.names(0)
    assert names[0] == "t-0" and len(names) == 2
    assert layout.is_set_aside(names[1], layout.STRAY_DIRECTORY)
    assert values_of(nodes[0].logs[T]) == [(0, b"a")]


def test_evacuation_keeps_the_directory_of_a_node_that_is_still_a_replica(nodes: Nodes) -> None:
    nodes.create_replica(2, b"a")
    other = nodes[2].create("u", bytes(16), 0, nodes.settings)
    nodes.crash()
    disk = QuickDisk()
    file_system = FileSystem(nodes.data, disk)
    for _ in range(2):
        assert evacuate(nodes.data, [0, 1], nodes.belongs_at, file_system, disk)
    assert not other.directory.exists()
    assert values_of(nodes[2].logs[T]) == [(0, b"a")]


def test_points_of_replicas_are_marked_in_the_checkpoint(nodes: Nodes) -> None:
    nodes.create_replica(1, b"a", b"b")
    nodes.crash()
    points = RecoveryPoints(nodes.data, nodes.path(1), QuickDisk())
    points.is_replicated = nodes.is_replicated
    known = points.known_state(nodes.path(1) / "t-0", TOPIC_ID)
    assert known.recovery_point == 2 and known.is_replicated
