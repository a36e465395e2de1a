"""Names and locations of run directories: the Unix sockets of a broker's processes.

    $XDG_RUNTIME_DIR/kafkalite/CLUSTER-LETTERS/bus           the supervisor's end of the bus
                                               local-NODE    a node's socket for local programs
                                               peer-NODE     a node's socket for other nodes
                                               cleaner-NODE  that for the log cleaner only, with
                                                             native.enable=false
    /tmp/kafkalite-UID/CLUSTER-LETTERS/…                     if the former is not a private
                                                             directory of this user

The letters are a hash of the cluster id and of the data directory's device and inode, so a copy of
a data directory has a run directory of its own.  They are few because the path of a Unix socket is
limited to 107 bytes.  Each level belongs to one user and has mode 700; others are not used.
process/run_directory.py creates the directories.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import xxhash

from kafkalite.metrics import PUSHES

BUS = "bus"
LOCAL = "local-"
CLEANER = "cleaner-"
PEER = "peer-"
NODE_ID_MAX = 2**31 - 1

SOCKET_PATH_SIZE_MAX = 107
CLUSTER_LETTERS_MAX = 22
DIRECTORY_LETTERS = 12
NAME = re.compile(rf"[A-Za-z0-9_-]{{0,{CLUSTER_LETTERS_MAX}}}-[0-9a-f]{{{DIRECTORY_LETTERS}}}")
"""Pattern of the names of run directories."""


def name_of(cluster_id: str, data: Path) -> str:
    """Return the name of a broker's run directory."""
    found = data.stat()
    whole = f"{cluster_id} {found.st_dev} {found.st_ino}".encode()
    directory = xxhash.xxh3_64_hexdigest(whole)[:DIRECTORY_LETTERS]
    return f"{cluster_letters(cluster_id)}-{directory}"


def cluster_letters(cluster_id: str) -> str:
    """Return the letters of a cluster id that may be part of a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "", cluster_id)[:CLUSTER_LETTERS_MAX]


def local_path(run_directory: Path, node_id: int) -> Path:
    """Return the path of a node's socket for local programs."""
    return run_directory / f"{LOCAL}{node_id}"


def cleaner_path(run_directory: Path, node_id: int) -> Path:
    """Return the path of a node's socket for the log cleaner, if it serves no local programs."""
    return run_directory / f"{CLEANER}{node_id}"


def peer_path(run_directory: Path, node_id: int) -> Path:
    """Return the path of a node's socket for other nodes."""
    return run_directory / f"{PEER}{node_id}"


def local_sockets(cluster_id: str, node_id: int) -> list[Path]:
    """Return the sockets that a node of this cluster may listen on for programs of this user; the
    client must check which node it has reached."""
    name = re.compile(f"{re.escape(cluster_letters(cluster_id))}-[0-9a-f]{{{DIRECTORY_LETTERS}}}")
    return [
        path
        for directory in user_directories()
        if is_private(directory)
        for found in sorted(filter(name.fullmatch, os.listdir(directory)))
        if is_private(directory / found)
        for path in [local_path(directory / found, node_id)]
        if path.is_socket()
    ]


def user_directories() -> Iterator[Path]:
    """Yield all directories that may hold run directories of this user: a broker may have been
    started in another environment than this process."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    for above in dict.fromkeys((Path(runtime), Path(f"/run/user/{os.geteuid()}"))):
        if above.is_absolute() and is_private(above):
            yield above / "kafkalite"
    yield shared_directory()


def user_directory() -> Path:
    """Return the directory in which this user's run directories are created."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or ".")
    ours = runtime / "kafkalite"
    name = "x" * (CLUSTER_LETTERS_MAX + 1 + DIRECTORY_LETTERS)
    longest = ours / name / max(BUS, PUSHES, f"{CLEANER}{NODE_ID_MAX}", key=len)
    if (
        runtime.is_absolute()
        and is_private(runtime)
        and len(os.fsencode(longest)) <= SOCKET_PATH_SIZE_MAX
    ):
        return ours
    return shared_directory()


def shared_directory() -> Path:
    """Return this user's directory in /tmp."""
    return Path(f"/tmp/kafkalite-{os.geteuid()}")


def is_private(path: Path) -> bool:
    """Return True if it is a directory of this user with mode 700."""
    try:
        found = path.stat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700


def file_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, which identify it; None if it is missing."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
