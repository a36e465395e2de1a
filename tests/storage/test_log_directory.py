"""A data directory: its owner, its lock against other processes, and its nodes' directories."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.errors import Refusal
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.manager import log_directory
from kafkalite.storage.manager.log_directory import LogDirectory, open_node_directory
from tests.simulation.disk import QuickDisk

NOBODY = 65534


def locked(data: Path) -> LogDirectory:
    found = LogDirectory(data, QuickDisk())
    found.lock()
    return found


def refused(data: Path) -> str:
    with pytest.raises(Refusal) as refusal:
        LogDirectory(data, QuickDisk()).lock()
    return str(refusal.value)


def test_directory_in_use_is_refused_with_its_process_id(tmp_path: Path) -> None:
    directory = locked(tmp_path)
    assert f"already in use by process {os.getpid()}" in refused(tmp_path)
    directory.close()
    again = locked(tmp_path)
    assert again.cluster_id == directory.cluster_id
    again.close()


def test_data_directory_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff")
    assert "is not UTF-8; name another directory with --data" in refused(odd)
    assert not odd.exists()


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def note_handover_file(data: Path, holder: int) -> int:
    """Return a descriptor whose lock is still held although the process that took it is dead."""
    directory = locked(data)
    os.truncate(data / ".lock", 0)
    (data / ".lock").write_text(f"{holder}\n")
    kept = os.dup(directory.descriptor)
    directory.close()
    return kept


def test_lock_waits_for_the_children_of_a_dead_launcher(tmp_path: Path) -> None:
    kept = note_handover_file(tmp_path, dead_process())
    asked_again = threading.Event()

    def flock(descriptor: int, how: int) -> None:
        try:
            real(descriptor, how)
        finally:
            asked_again.set()

    real = fcntl.flock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", flock)
        came: list[LogDirectory] = []
        waiting = threading.Thread(target=lambda: came.append(locked(tmp_path)))
        waiting.start()
        assert asked_again.wait(10) and not came
        os.close(kept)
        waiting.join()
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    came[0].close()


def test_lock_wait_for_children_has_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_directory, "DYING_S_MAX", 0.02)
    holder = dead_process()
    kept = note_handover_file(tmp_path, holder)
    assert f"still in use by a child of process {holder}" in refused(tmp_path)
    os.close(kept)


def test_zombie_process_is_not_alive(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert log_directory.is_alive(process.pid)
        assert process.stdin is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not log_directory.is_alive(process.pid)


def test_lock_is_kept_across_an_exec(tmp_path: Path) -> None:
    adopts = """
import os, sys
from pathlib import Path
from kafkalite.storage.manager.log_directory import LogDirectory
found = LogDirectory(Path(sys.argv[1]))
if len(sys.argv) == 2:
    found.lock()
    os.set_inheritable(found.descriptor, True)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], str(found.descriptor)])
found.adopt(int(sys.argv[2]))
print(found.cluster_id, os.get_inheritable(found.descriptor), flush=True)
input()
"""
    command = [sys.executable, "-c", adopts, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        cluster_id, inheritable = process.stdout.readline().split()
        assert f"in use by process {process.pid}" in refused(tmp_path)
        process.stdin.close()
    directory = locked(tmp_path)
    assert (cluster_id, inheritable) == (directory.cluster_id, "False")
    directory.close()


def test_file_as_log_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a directory" in refused(tmp_path / "file")
    assert "is not a directory" in refused(tmp_path / "file" / "below")


def test_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "is not a kafkalite data directory" in refused(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex"}


@pytest.mark.parametrize("text", ["", "version=1\n", "version=7\ncluster.id=x\n", "\xff\xfe"])
def test_damaged_meta_properties_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta.properties").write_bytes(text.encode("latin-1"))
    assert "meta.properties is damaged" in refused(tmp_path)
    assert "meta.properties is damaged" in refused(tmp_path), "the lock was kept"


@pytest.fixture
def closed_directory() -> Iterator[Path]:
    """Yield a directory without write permission, with a user that the permission applies to."""
    # Not under tmp_path, whose parents only their owner may enter.
    directory = Path(tempfile.mkdtemp(prefix="kafkalite-closed-"))
    directory.chmod(0o555)
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    yield directory
    os.seteuid(own)
    directory.rmdir()


def test_read_only_directory_is_refused(closed_directory: Path) -> None:
    assert "is not writable" in refused(closed_directory)


# -- a node's directory ------------------------------------------------------------------------


def test_node_directory_has_its_own_meta_properties(tmp_path: Path) -> None:
    directory = locked(tmp_path)
    cluster_id = directory.cluster_id
    assert open_node_directory(DISK, tmp_path, cluster_id, 0) == tmp_path
    assert not (tmp_path / "nodes").exists(), "alone, node 0 needs no other directory"
    found = open_node_directory(DISK, tmp_path, cluster_id, 7)
    assert found == tmp_path / "nodes" / "7"
    assert found.stat().st_mode & 0o777 == found.parent.stat().st_mode & 0o777 == 0o700
    said = log_directory.read_meta(found)
    assert (said["node.id"], said["cluster.id"]) == ("7", cluster_id)
    assert open_node_directory(DISK, tmp_path, cluster_id, 7) == found
    assert log_directory.read_meta(found) == said
    directory.close()


def test_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    open_node_directory(DISK, tmp_path, "a", 1)
    (tmp_path / "nodes" / "1").rename(tmp_path / "nodes" / "2")
    for cluster_id, node_id in (("a", 2), ("b", 1), ("b", 2)):
        if node_id == 1:
            (tmp_path / "nodes" / "2").rename(tmp_path / "nodes" / "1")
        with pytest.raises(Refusal, match="belongs to node 1 of cluster a, not"):
            open_node_directory(DISK, tmp_path, cluster_id, node_id)
        if node_id == 1:
            (tmp_path / "nodes" / "1").rename(tmp_path / "nodes" / "2")


def test_node_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()
    with pytest.raises(Refusal, match="nodes/1 cannot be created"):
        open_node_directory(DISK, tmp_path, "a", 1)
