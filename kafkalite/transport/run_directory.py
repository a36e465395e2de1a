"""The run directory's names: where the processes of one host meet a broker's, on Unix sockets.

    $XDG_RUNTIME_DIR/kafkalite/CLUSTER-LETTERS/bus           the supervisor's end of the bus
                                               local-NODE    a node's socket for local programs
    /tmp/kafkalite-UID/CLUSTER-LETTERS/…                     where that is not a directory of ours
                                                             alone

The letters stand for the data directory by device and inode, so a copy of one has a run directory
of its own.  A path of a Unix socket ends at 107 bytes, hence the few letters.  Each level belongs
to one user and lets in nobody else; what does not is not gone into.  The process that makes it is
process/run_directory.py.
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
NODE_ID_MAX = 2**31 - 1

SOCKET_PATH_SIZE_MAX = 107
CLUSTER_LETTERS_MAX = 22
PLACE_LETTERS = 12
NAME = re.compile(rf"[A-Za-z0-9_-]{{0,{CLUSTER_LETTERS_MAX}}}-[0-9a-f]{{{PLACE_LETTERS}}}")
"""What every run directory is called."""


def name_of(cluster_id: str, data: Path) -> str:
    """What tells one broker's run directory from another's."""
    found = data.stat()
    whole = f"{cluster_id} {found.st_dev} {found.st_ino}".encode()
    place = xxhash.xxh3_64_hexdigest(whole)[:PLACE_LETTERS]
    return f"{cluster_letters(cluster_id)}-{place}"


def cluster_letters(cluster_id: str) -> str:
    """The letters of a cluster's id that stand in a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "", cluster_id)[:CLUSTER_LETTERS_MAX]


def local_path(run_directory: Path, node_id: int) -> Path:
    """A node's socket for local programs."""
    return run_directory / f"{LOCAL}{node_id}"


def local_sockets(cluster_id: str, node_id: int) -> list[Path]:
    """Where a node of this cluster may be met by programs of this user; whoever connects makes sure
    whom it has met."""
    name = re.compile(f"{re.escape(cluster_letters(cluster_id))}-[0-9a-f]{{{PLACE_LETTERS}}}")
    return [
        path
        for place in places_of_user()
        if is_private(place)
        for found in sorted(filter(name.fullmatch, os.listdir(place)))
        if is_private(place / found)
        for path in [local_path(place / found, node_id)]
        if path.is_socket()
    ]


def places_of_user() -> Iterator[Path]:
    """Wherever this user's run directories may be, for a broker may have begun in another
    environment than ours."""
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    for above in dict.fromkeys((Path(runtime), Path(f"/run/user/{os.geteuid()}"))):
        if above.is_absolute() and is_private(above):
            yield above / "kafkalite"
    yield shared_place()


def place_of_user() -> Path:
    """Where this user's run directories are made."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or ".")
    ours = runtime / "kafkalite"
    name = "x" * (CLUSTER_LETTERS_MAX + 1 + PLACE_LETTERS)
    longest = ours / name / max(BUS, PUSHES, f"{LOCAL}{NODE_ID_MAX}", key=len)
    if (
        runtime.is_absolute()
        and is_private(runtime)
        and len(os.fsencode(longest)) <= SOCKET_PATH_SIZE_MAX
    ):
        return ours
    return shared_place()


def shared_place() -> Path:
    """Ours among those of all users."""
    return Path(f"/tmp/kafkalite-{os.geteuid()}")


def is_private(path: Path) -> bool:
    """Whether it is a directory of ours that lets in nobody else."""
    try:
        found = path.stat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700


def file_of(path: Path) -> tuple[int, int] | None:
    """Which file stands there, so that nobody removes another's."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
