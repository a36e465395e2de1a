"""The directories of log.dirs: which are taken, which are refused, and where nodes live."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kafkalite.errors import Refusal
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.manager.log_directories import LogDirectories
from kafkalite.storage.manager.log_directory import LogDirectory, write_meta


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "abc"]


def opened(paths, *, without=(), nodes=()) -> LogDirectories:
    """Return the directories after a start with these nodes, closed again."""
    directories = LogDirectories(paths, without)
    directories.lock()
    for node_id in nodes:
        directories.make_node_directory(node_id)
        # As the node does when it starts.
        directory = layout.node_directory(directories.data, node_id)
        if directory.exists() and not (directory / "meta.properties").exists():
            write_meta(DISK, directory, directories.cluster_id, node_id)
    directories.note_boot()
    directories.close()
    return directories


def homes(directories: LogDirectories, nodes) -> list[str]:
    data = directories.data
    return [layout.log_directory(layout.node_directory(data, node_id)).name for node_id in nodes]


def contents(paths) -> list[str]:
    return sorted(str(path) for root in paths for path in root.rglob("*"))


def test_one_directory_has_no_list_and_no_links(paths):
    opened(paths[:1], nodes=[1])
    assert {path.name for path in paths[0].iterdir()} == {".lock", "meta.properties"}


def test_nodes_are_spread_over_the_directories(paths):
    directories = opened(paths, nodes=range(1, 8))
    assert homes(directories, range(8)) == ["a", "a", "b", "c", "a", "b", "c", "a"]
    assert (paths[0] / "nodes/2").readlink() == paths[1] / "nodes/2"
    assert len({(path / layout.LOG_DIRECTORIES).read_bytes() for path in paths}) == 1


def test_nodes_keep_their_directories(paths):
    opened(paths, nodes=[1, 2, 3])
    assert homes(opened(paths, nodes=[1, 2, 3, 4]), [1, 2, 3, 4]) == ["a", "b", "c", "a"]


def test_directory_that_is_added_takes_the_next_nodes(paths):
    opened(paths[:1], nodes=[])
    (paths[0] / "nodes/1").mkdir(parents=True)
    (paths[0] / "nodes/2").mkdir()
    directories = opened(paths, nodes=[3, 4])
    assert directories.data == paths[0]
    assert homes(directories, [1, 2, 3, 4]) == ["a", "a", "b", "c"]


def test_order_in_the_configuration_does_not_change_the_data_directory(paths):
    opened(paths, nodes=[1, 2, 3])
    assert opened(paths[::-1]).paths[0] == paths[0]


@pytest.mark.parametrize("what", ["missing", "empty", "not_named"])
@pytest.mark.parametrize("which", [0, 2])
def test_directory_that_is_gone_is_refused(paths, which, what):
    opened(paths, nodes=[1, 2, 3])
    named = paths if what != "not_named" else [p for p in paths if p != paths[which]]
    if what != "not_named":
        shutil.rmtree(paths[which])
    if what == "empty":
        paths[which].mkdir()
    before = contents(paths)
    with pytest.raises(Refusal, match=rf"{paths[which]} is missing.*--without-dir {paths[which]}"):
        LogDirectories(named)
    assert contents(paths) == before


def test_nodes_of_a_directory_that_is_left_out_begin_in_others(paths):
    opened(paths, nodes=[1, 2, 3])
    shutil.rmtree(paths[1])
    directories = opened(paths, without=[paths[1]], nodes=[1, 2, 3])
    assert directories.data == paths[0] and not paths[1].exists()
    assert homes(directories, [1, 2, 3]) == ["a", "a", "c"]
    assert homes(opened(paths, nodes=[4]), [4]) == ["b"]  # the name is that of a new directory now


def test_data_directory_that_is_left_out_is_replaced_by_the_most_complete_copy(paths):
    opened(paths, nodes=[1, 2, 3])
    for path, size in zip(paths, (9, 3, 4), strict=True):
        (path / "__cluster_metadata-0").mkdir()
        (path / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(bytes(size))
    shutil.rmtree(paths[0])
    directories = opened(paths[1:], without=[paths[0]], nodes=[1, 2, 3])
    assert directories.data == paths[2] and directories.ran_in_this_boot
    assert homes(directories, [1, 2, 3]) == ["c", "b", "c"]
    assert opened(paths[1:]).data == paths[2]


def test_crash_of_the_start_without_the_data_directory_keeps_the_boot(paths):
    opened(paths, nodes=[1, 2, 3])
    directories = LogDirectories(paths, [paths[0]])
    directories.lock()  # the list has changed, and the broker is not ready
    directories.close()
    assert opened(paths[1:]).ran_in_this_boot


def test_data_directory_stays_while_it_is_there(paths):
    opened(paths)
    (paths[1] / "__cluster_metadata-0").mkdir()
    (paths[1] / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"uncommitted")
    assert opened(paths).data == paths[0]


def test_run_in_another_boot_is_no_run_in_this_one(paths, monkeypatch):
    opened(paths)
    monkeypatch.setattr("kafkalite.storage.manager.log_directories.boot_id", lambda: "another")
    assert not LogDirectories(paths, [paths[0]]).ran_in_this_boot


def test_directory_that_was_left_out_is_refused_when_it_returns(paths):
    opened(paths, nodes=[1, 2, 3])
    opened(paths, without=[paths[0]])
    with pytest.raises(Refusal, match=rf"{paths[0]} was left out.*empty it"):
        LogDirectories(paths)
    shutil.rmtree(paths[0])
    assert opened(paths).paths == [paths[1], paths[0], paths[2]]


def test_last_directory_cannot_be_left_out(paths):
    opened(paths)
    with pytest.raises(Refusal, match="no log directory is left"):
        LogDirectories(paths, paths)


def test_directory_named_twice_is_refused(paths):
    paths[0].mkdir()
    paths[1].symlink_to(paths[0])
    with pytest.raises(Refusal, match="twice"):
        LogDirectories(paths)


def test_directory_of_another_cluster_is_refused(paths):
    opened(paths[:2])
    opened(paths[2:])
    with pytest.raises(Refusal, match=f"{paths[2]} belongs to cluster"):
        LogDirectories(paths)


def test_data_directories_of_two_brokers_are_refused(paths):
    opened(paths[:1])
    opened(paths[1:2])
    with pytest.raises(Refusal, match="two brokers"):
        LogDirectories(paths)


def test_directory_with_other_files_is_refused(paths):
    paths[1].mkdir()
    (paths[1] / "letter.txt").touch()
    directories = LogDirectories(paths)
    with pytest.raises(Refusal, match=f"{paths[1]} has files"):
        directories.lock()
    LogDirectory(paths[0]).lock()  # it was released


def test_directory_of_a_file_system_with_lost_files_is_new(paths):
    (paths[1] / "lost+found").mkdir(parents=True)
    assert opened(paths).others == paths[1:]


def test_directory_in_use_is_refused(paths):
    first = LogDirectories(paths[:2])
    first.lock()
    with pytest.raises(Refusal, match="already in use"):
        LogDirectories(paths[1:2], [paths[0]]).lock()
    first.close()


def test_damaged_list_is_refused(paths):
    opened(paths)
    (paths[2] / layout.LOG_DIRECTORIES).write_bytes(b"kafkalite 1 0\n{}")
    with pytest.raises(Refusal, match=rf"{paths[2]}/log-directories cannot be read.*--without-dir"):
        LogDirectories(paths)


def test_crash_of_the_first_start_before_the_list_is_continued(paths):
    opened(paths)
    for path in paths:
        (path / layout.LOG_DIRECTORIES).unlink()
    assert opened(paths).paths == paths


def test_list_that_is_missing_in_one_directory_is_written_again(paths):
    opened(paths)
    (paths[1] / layout.LOG_DIRECTORIES).unlink()
    opened(paths)
    assert (paths[1] / layout.LOG_DIRECTORIES).exists()


def locked(paths, node_ids=()) -> LogDirectories:
    opened(paths, nodes=node_ids)
    directories = LogDirectories(paths)
    directories.lock()
    return directories


@pytest.mark.parametrize("is_there", [True, False])
def test_node_whose_directory_was_unmounted_is_not_made_elsewhere(paths, is_there):
    directories = locked(paths, [1, 2, 3])
    paths[2].rename(paths[2].with_name("unmounted"))
    if is_there:
        paths[2].mkdir()  # as a mount point is
    before = contents(paths)
    directories.make_node_directory(2)
    with pytest.raises(FileNotFoundError, match=f"{paths[2]} is not the directory of the start"):
        directories.make_node_directory(3)
    assert contents(paths) == before
    directories.make_node_directory(4)
    assert homes(directories, [4]) == ["a"]
    directories.close()


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_no_node_starts_while_the_data_directory_is_unmounted(paths, node_id):
    directories = locked(paths, [1, 2])
    away = paths[0].rename(paths[0].with_name("unmounted"))
    paths[0].mkdir()
    with pytest.raises(FileNotFoundError, match=f"{paths[0]} is not the directory of the start"):
        directories.make_node_directory(node_id)
    assert contents(paths[:1]) == []
    paths[0].rmdir()
    away.rename(paths[0])
    directories.make_node_directory(node_id)
    directories.close()


@pytest.mark.parametrize("count", [1, 3])
def test_removed_directory_of_a_node_is_not_made_again(paths, count):
    directories = locked(paths[:count], [1, 2, 3])
    if count == 1:
        (paths[0] / "nodes/2").mkdir(parents=True)
        (paths[0] / ".node-2").touch()
    shutil.rmtree(layout.own_directory(paths[0] / "nodes/2"))
    with pytest.raises(FileNotFoundError, match="nodes/2 is missing"):
        directories.make_node_directory(2)
    directories.close()


def test_nodes_of_a_copy_that_takes_the_place_are_marked(paths):
    opened(paths, nodes=[1, 2, 3])
    opened(paths[1:], without=[paths[0]])
    assert layout.marked_nodes(paths[1]) == [2, 3]


def test_crash_while_a_directory_is_left_out_keeps_no_mark_of_its_nodes(paths, monkeypatch):
    opened(paths, nodes=[1, 2, 3])
    unlink = DISK.unlink

    def unlink_one(path):
        monkeypatch.setattr(DISK, "unlink", fail)
        unlink(path)

    def fail(path):
        raise OSError(5, "the process ends here", str(path))

    monkeypatch.setattr(DISK, "unlink", unlink_one)
    with pytest.raises(Refusal, match="the process ends here"):
        opened(paths, without=[paths[1]])
    monkeypatch.setattr(DISK, "unlink", unlink)
    directories = opened([paths[0], paths[2]])
    assert 2 not in layout.marked_nodes(paths[0])
    directories.close()


@pytest.mark.parametrize(("one", "other"), [("a", "a/b"), ("a/b", "a"), ("a", "b/nodes/2")])
def test_directories_in_each_other_are_refused(tmp_path, one, other):
    with pytest.raises(Refusal, match="not in each other|named as the directory of a node"):
        LogDirectories([tmp_path / one, tmp_path / other])


@pytest.mark.parametrize("name", ["link", "nodes/kafka"])
def test_data_directory_may_be_a_link_or_among_nodes(tmp_path, name):
    (tmp_path / "disk").mkdir()
    (tmp_path / "nodes").mkdir()
    (tmp_path / name).symlink_to("disk" if name == "link" else "../disk")
    paths = [tmp_path / name, tmp_path / "other"]
    directories = opened(paths, nodes=[1, 2])
    assert directories.nodes_in([0, 1, 2]) == {paths[0]: [0, 1], paths[1]: [2]}


def test_node_in_two_directories_is_refused(paths):
    opened(paths, nodes=[1, 2, 3])
    (paths[2] / "nodes/2").mkdir()
    with pytest.raises(Refusal, match="node 2 is in .*b/nodes/2 and in .*c/nodes/2"):
        opened(paths)


def test_directory_mounted_elsewhere_is_found_by_its_id(paths, tmp_path):
    opened(paths, nodes=[1, 2, 3])
    paths[1].rename(tmp_path / "moved")
    directories = opened([paths[0], tmp_path / "moved", paths[2]], nodes=[1, 2, 3])
    assert homes(directories, [1, 2, 3]) == ["a", "moved", "c"]
    assert (paths[0] / ".node-2").exists()
