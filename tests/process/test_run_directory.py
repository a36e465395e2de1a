"""The run directory of a broker's sockets: its owner, its permissions, and how it is found."""

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import pytest

from kafkalite.errors import Refusal
from kafkalite.process import run_directory as module
from kafkalite.process.run_directory import RunDirectory, bus_path, remove_whole
from kafkalite.testing import Broker
from kafkalite.transport import run_directory as naming
from kafkalite.transport.run_directory import (
    BUS,
    NODE_ID_MAX,
    cleaner_path,
    local_path,
    local_sockets,
    user_directory,
)
from tests.process.waiting import is_gone, until

CLUSTER = "pT3mGvYJQ3m2aV0hD1kq9Q"


@pytest.fixture
def runtime(tmp_path_factory, monkeypatch):
    """Return a runtime directory of the user, as a login creates it."""
    path = tmp_path_factory.mktemp("r")
    path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    # Below a deep temporary directory a socket's path would exceed the limit.
    monkeypatch.setattr(naming, "SOCKET_PATH_SIZE_MAX", 1000)
    return path


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


HELD = []


@pytest.fixture(autouse=True)
def let_go():
    """Close the run directories of a test at its end."""
    yield
    while HELD:
        os.close(HELD.pop().descriptor)


def run_directory(cluster_id, data):
    HELD.append(RunDirectory(cluster_id, data))
    return HELD[-1].path


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def ready(data):
    return {"cluster_id": CLUSTER, "data": str(data)}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o177])
def test_each_level_has_mode_700_for_any_umask(runtime, data, umask):
    before = os.umask(umask)
    try:
        path = run_directory(CLUSTER, data)
    finally:
        os.umask(before)
    assert path.parent == runtime / "kafkalite"
    assert (mode(path), mode(path.parent)) == (0o700, 0o700)
    assert path.name.startswith(CLUSTER)


@pytest.mark.parametrize("room", [-1, 0])
def test_directory_is_chosen_so_that_socket_paths_fit(runtime, data, monkeypatch, room):
    longest = cleaner_path(run_directory(CLUSTER, data), NODE_ID_MAX)
    monkeypatch.setattr(naming, "SOCKET_PATH_SIZE_MAX", len(str(longest)) + room)
    assert (user_directory() == longest.parent.parent) == (room == 0)


def test_restarted_broker_uses_the_same_run_directory(runtime, data):
    path = run_directory(CLUSTER, data)
    (path / BUS).touch()
    assert run_directory(CLUSTER, data) == path
    assert (path / BUS).exists()


def test_copied_data_directory_has_its_own_run_directory(runtime, data, tmp_path):
    path = run_directory(CLUSTER, data)
    copy = tmp_path / "copy"
    shutil.copytree(data, copy)
    assert bus_path(ready(copy)).parent != path
    assert run_directory(CLUSTER, copy) != path
    assert bus_path(ready(copy)).parent == run_directory(CLUSTER, copy)
    assert bus_path(ready(data)).parent == path


def test_cluster_id_cannot_name_another_directory(runtime, data):
    for cluster_id in ("../../etc", "a/b", "", ".", "..", "x" * 500, "ü\n"):
        path = run_directory(cluster_id, data)
        assert path.parent == runtime / "kafkalite"
        assert len(path.name) <= 35
    assert len(list(path.parent.iterdir())) == 7


def test_bus_socket_path_can_be_bound(data, monkeypatch):
    """It is in the runtime directory if the path is short enough, otherwise under /tmp."""
    places = []
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        for depth in range(1, 60):
            runtime = Path(top, "d" * depth)
            runtime.mkdir(mode=0o700)
            monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
            path = run_directory("y" * 22, data)
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path / BUS))
            remove_whole(path)
            assert not path.exists()
            places.append(path.is_relative_to(runtime))
    assert places == sorted(places, reverse=True)
    assert {*places} == {True, False}


@pytest.mark.parametrize("kind", ["unset", "empty", "relative", "missing", "file", "open", "alien"])
def test_without_a_private_runtime_directory_tmp_is_used(data, monkeypatch, runtime, kind):
    values = {
        "unset": None,
        "empty": "",
        "relative": "run",
        "missing": str(runtime / "not-there"),
        "file": str(runtime / "file"),
        "open": str(runtime),
        "alien": "/",
    }
    (runtime / "file").touch(0o700)
    if kind == "open":
        runtime.chmod(0o755)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    if values[kind] is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", values[kind])
    path = run_directory(CLUSTER, data)
    assert str(path.parent) == f"/tmp/kafkalite-{os.geteuid()}"
    assert mode(path.parent) == 0o700
    remove_whole(path)


# Existing directories and files.


@pytest.mark.parametrize("level", ["kafkalite", "its own"])
@pytest.mark.parametrize("bad", [0o755, 0o701, 0o770, 0o1777, 0o500])
def test_level_with_another_mode_is_refused(runtime, data, level, bad):
    path = run_directory(CLUSTER, data)
    (path if level == "its own" else path.parent).chmod(bad)
    with pytest.raises(Refusal, match=f"has mode {bad:o} instead of 700.*; remove it"):
        run_directory(CLUSTER, data)


@pytest.mark.parametrize("level", ["kafkalite", "its own"])
def test_symbolic_link_is_refused(runtime, data, tmp_path, level):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    path = run_directory(CLUSTER, data)
    target = path if level == "its own" else path.parent
    shutil.rmtree(target)
    target.symlink_to(elsewhere)
    with pytest.raises(Refusal, match="is not a directory"):
        run_directory(CLUSTER, data)
    assert list(elsewhere.iterdir()) == []


def test_file_in_place_of_the_directory_is_refused(runtime, data):
    (runtime / "kafkalite").touch()
    with pytest.raises(Refusal, match="is not a directory"):
        run_directory(CLUSTER, data)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("level", ["kafkalite", "its own"])
def test_directory_of_another_user_is_refused(runtime, data, level):
    path = run_directory(CLUSTER, data)
    os.chown(path if level == "its own" else path.parent, 65534, 65534)
    with pytest.raises(Refusal, match="belongs to another user.*XDG_RUNTIME_DIR"):
        run_directory(CLUSTER, data)


def test_missing_parent_directory_is_refused(runtime, data, monkeypatch):
    monkeypatch.setattr(module, "user_directory", lambda: runtime / "not-there" / "kafkalite")
    with pytest.raises(Refusal, match="cannot create .*: No such file or directory; name a dir"):
        run_directory(CLUSTER, data)


# The local listener's socket is found by cluster id and node id.


def listening(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(str(path))  # its file stays
    return path


@pytest.fixture
def shallow(monkeypatch):
    """Yield a runtime directory whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        monkeypatch.setenv("XDG_RUNTIME_DIR", top)
        yield Path(top)


def test_local_socket_is_found_by_cluster_and_node(shallow, data):
    path = listening(local_path(run_directory(CLUSTER, data), 7))
    listening(local_path(run_directory("another", data), 7))
    assert local_sockets(CLUSTER, 7) == [path]
    assert local_sockets(CLUSTER, 8) == local_sockets(CLUSTER[:-1], 7) == []


def test_local_sockets_of_two_brokers_with_one_cluster_id_are_found(shallow, data, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    paths = [listening(local_path(run_directory(CLUSTER, each), 1)) for each in (data, other)]
    assert local_sockets(CLUSTER, 1) == sorted(paths)


def test_local_socket_under_tmp_is_found(shallow, data, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    path = run_directory(CLUSTER, data)
    try:
        found = listening(local_path(path, 1))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(shallow))
        assert local_sockets(CLUSTER, 1) == [found]
    finally:
        remove_whole(path)


@pytest.mark.parametrize("level", ["kafkalite", "its own"])
def test_local_socket_in_a_shared_directory_is_ignored(shallow, data, level):
    path = run_directory(CLUSTER, data)
    listening(local_path(path, 1))
    (path if level == "its own" else path.parent).chmod(0o777)
    assert local_sockets(CLUSTER, 1) == []


def test_file_that_is_not_a_socket_is_ignored(shallow, data):
    local_path(run_directory(CLUSTER, data), 1).touch()
    assert local_sockets(CLUSTER, 1) == []


def test_cluster_id_is_not_a_pattern(shallow, data):
    listening(local_path(run_directory("aaa", data), 1))
    assert local_sockets("a*", 1) == local_sockets(".*", 1) == local_sockets("", 1) == []


# Finding and removing it.


def test_bus_path_is_found_from_another_environment(runtime, data, monkeypatch):
    path = run_directory(CLUSTER, data)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert bus_path(ready(data)) == path / BUS


def test_bus_path_follows_the_last_start(runtime, data, monkeypatch, tmp_path):
    first = run_directory(CLUSTER, data)
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    second = run_directory(CLUSTER, data)
    assert first != second
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert bus_path(ready(data)) == second / BUS


@pytest.mark.parametrize("text", ["", "\n", "relative\n", "/\0\n", "/tmp\n", b"\xff\n"])
def test_invalid_stored_path_is_ignored(runtime, data, text):
    path = run_directory(CLUSTER, data)
    (data / module.PATH_FILE).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert bus_path(ready(data)) == path / BUS
    assert run_directory(CLUSTER, data) == path


def test_bus_path_lookup_creates_nothing(runtime, data):
    bus_path(ready(data))
    assert list(runtime.iterdir()) == list(data.iterdir()) == []


def test_remove_deletes_only_its_own_directory(runtime, data, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    paths = [run_directory(CLUSTER, each) for each in (data, other)]
    for path in paths:
        (path / BUS).touch()
    remove_whole(paths[0])
    remove_whole(paths[0])
    assert (paths[0].exists(), (paths[1] / BUS).exists()) == (False, True)


def test_remove_does_not_follow_links(runtime, data, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    path = run_directory(CLUSTER, data)
    path.rmdir()
    path.symlink_to(elsewhere)
    remove_whole(path)
    assert (elsewhere / "kept").exists()


def test_remove_keeps_subdirectories(runtime, data):
    path = run_directory(CLUSTER, data)
    (path / "deeper").mkdir()
    remove_whole(path)
    assert (path / "deeper").is_dir()


# Directories of killed brokers are removed by the next start of any broker.


def left(path):
    """Release a run directory, as when its broker is killed."""
    for held in [held for held in HELD if held.path == path]:
        os.close(held.descriptor)
        HELD.remove(held)
    return path


@pytest.fixture
def others(tmp_path):
    """Return data directories of other brokers."""
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.mkdir()
    return paths


def test_start_removes_directories_without_a_lock(runtime, data, others):
    dead, alive = (run_directory(CLUSTER, each) for each in others)
    for path in (dead, alive):
        (path / BUS).touch()
    left(dead)
    ours = run_directory(CLUSTER, data)
    assert sorted(runtime.joinpath("kafkalite").iterdir()) == sorted([alive, ours])
    assert (alive / BUS).exists()


def test_directory_locked_by_a_node_outlives_its_launcher(runtime, data, others):
    path = run_directory(CLUSTER, others[0])
    nodes = os.dup(HELD[0].descriptor)
    left(path)
    run_directory(CLUSTER, data)
    assert path.exists()
    os.close(nodes)
    run_directory(CLUSTER, data)
    assert not path.exists()


def test_start_keeps_directories_that_are_not_run_directories(runtime, data, others):
    dead = left(run_directory(CLUSTER, others[0]))
    place = dead.parent
    letters = dead.name[-12:]
    stay = [place / "tools", place / f"tools-{letters}-2", place / f"{letters}", place / "x-y"]
    for path in stay:
        path.mkdir(mode=0o700)
    (place / f"file-{letters}").touch(0o600)
    open_to_all = place / f"open-{letters}"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    (place / f"link-{letters}").symlink_to(stay[0])
    (stay[0] / "kept").touch()
    (dead / BUS).touch()
    (dead / "deeper").mkdir()
    ours = run_directory(CLUSTER, data)
    assert {*place.iterdir()} == {
        *stay, ours, dead, open_to_all, place / f"file-{letters}", place / f"link-{letters}",
    }  # fmt: skip
    assert (stay[0] / "kept").exists() and (dead / "deeper").is_dir()


@pytest.mark.parametrize("moment", ["created", "made private", "opened", "locked"])
def test_directory_that_is_removed_during_the_start_is_created_again(
    runtime, data, others, monkeypatch, moment
):
    """Another broker starts between any two steps of this one."""
    owner, name = {
        "created": (Path, "chmod"),
        "made private": (module, "opened"),
        "opened": (module.fcntl, "flock"),
        "locked": (module, "file_of"),
    }[moment]
    real = getattr(owner, name)
    path = run_directory(CLUSTER, data)
    left(path)
    if moment == "created":
        remove_whole(path)

    def interrupted(*words):
        monkeypatch.setattr(owner, name, real)
        if moment == "locked":
            remove_whole(path)  # it had the lock before us
        else:
            module.remove_abandoned(path.parent)
        assert not path.exists()
        return real(*words)

    monkeypatch.setattr(owner, name, interrupted)
    assert run_directory(CLUSTER, data) == path
    assert path.exists()
    module.remove_abandoned(path.parent)
    assert path.exists()


def test_file_system_without_locks_is_refused(runtime, data, monkeypatch):
    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with pytest.raises(Refusal, match="cannot lock .*: No locks available; name a directory"):
        run_directory(CLUSTER, data)


def held_by(pid):
    """Return the run directory that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            found.add(descriptor.readlink())
    (path,) = [path for path in found if module.NAME.fullmatch(path.name)]
    return path


@pytest.mark.parametrize("workers", [0, 1])
def test_directory_of_a_killed_broker_is_removed_by_the_next_start(shallow, workers):
    with Broker(workers=workers) as killed, Broker(workers=workers) as living:
        names = {*shallow.joinpath("kafkalite").iterdir()}
        assert len(names) == 2
        pids = [node["pid"] for node in killed.nodes]
        assert names == {held_by(pid) for pid in pids} | {held_by(living.pid)}
        killed.kill()
        until(lambda: all(map(is_gone, pids)))
        with Broker():
            now = {*shallow.joinpath("kafkalite").iterdir()}
        assert len(now) == 2 and len(now & names) == 1
        living.restart()
        assert {*shallow.joinpath("kafkalite").iterdir()} == now & names
