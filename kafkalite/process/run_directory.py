"""The run directory: where the processes of one broker meet, on Unix sockets.

    $XDG_RUNTIME_DIR/kafkalite/CLUSTER-LETTERS/bus
    /tmp/kafkalite-UID/CLUSTER-LETTERS/bus          where that is not a directory of ours alone

The letters stand for the data directory by device and inode, so a copy of one has a run directory
of its own.  Each level that is made here belongs to this user and lets in nobody else; one that
does not is refused, not mended, for whoever made it may have more in mind.  A path of a Unix
socket ends at 107 bytes, hence the few letters.

The environment of a later command may name another place, so the data directory remembers where
its run directory is (`run-directory`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from pathlib import Path

import xxhash

from kafkalite.errors import Refusal
from kafkalite.metrics import PUSHES
from kafkalite.process.ready import Ready, put_whole

BUS = "bus"
"""The socket of the bus in it."""
REMEMBERED = "run-directory"

SOCKET_PATH_SIZE_MAX = 107
CLUSTER_LETTERS_MAX = 22
PLACE_LETTERS = 12
OWN_PLACE = "name a directory of your own in XDG_RUNTIME_DIR, of mode 700"


def run_directory(cluster_id: str, data: Path) -> Path:
    """The run directory of the broker on this data directory, made where it is missing; Refusal
    when somebody else could come in."""
    path = place_of_user() / name_of(cluster_id, data)
    for level in (path.parent, path):
        make_private(level)
    remember(data, path)
    return path


def remove_run_directory(path: Path) -> None:
    """Remove it with the sockets in it; nothing when it has gone."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            for entry in list(path.iterdir()):
                entry.unlink()
            path.rmdir()


def bus_path(ready: Ready) -> Path:
    """The bus of a running broker."""
    data = Path(ready["data"])
    name = name_of(ready["cluster_id"], data)
    remembered = remembered_by(data)
    # A copied data directory remembers what the first one has.
    if remembered is not None and remembered.name == name and remembered.is_dir():
        return remembered / BUS
    return place_of_user() / name / BUS


def name_of(cluster_id: str, data: Path) -> str:
    """What tells one broker's run directory from another's."""
    found = data.stat()
    whole = f"{cluster_id} {found.st_dev} {found.st_ino}".encode()
    readable = re.sub(r"[^A-Za-z0-9_-]", "", cluster_id)[:CLUSTER_LETTERS_MAX]
    return f"{readable}-{xxhash.xxh3_64_hexdigest(whole)[:PLACE_LETTERS]}"


def place_of_user() -> Path:
    """Where this user's run directories are."""
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or ".")
    ours = runtime / "kafkalite"
    name = "x" * (CLUSTER_LETTERS_MAX + 1 + PLACE_LETTERS)
    longest = ours / name / max(BUS, PUSHES, key=len)
    if (
        runtime.is_absolute()
        and is_private(runtime)
        and len(os.fsencode(longest)) <= SOCKET_PATH_SIZE_MAX
    ):
        return ours
    return Path(f"/tmp/kafkalite-{os.geteuid()}")


def is_private(path: Path) -> bool:
    """Whether it is a directory of ours that lets in nobody else."""
    try:
        found = path.stat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700


def make_private(level: Path) -> None:
    """Have a directory there that is ours alone."""
    try:
        level.mkdir(mode=0o700)
        level.chmod(0o700)  # whatever the umask
    except FileExistsError:
        pass
    except OSError as fault:
        raise Refusal(f"cannot make {level}: {fault.strerror}; {OWN_PLACE}") from None
    found = level.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal(f"{level} is not a directory, and no socket is safe there; remove it")
    if found.st_uid != os.geteuid():
        raise Refusal(f"{level} belongs to another user, who would own our sockets; {OWN_PLACE}")
    if mode != 0o700:
        raise Refusal(f"{level} has mode {mode:03o} and not 700, so others may come in; remove it")


def remember(data: Path, path: Path) -> None:
    """Let commands find it; the file stays, for it is believed only while a broker runs."""
    if remembered_by(data) != path:
        try:
            put_whole(data / REMEMBERED, f"{path}\n")
        except OSError as fault:
            raise Refusal(f"cannot write {data / REMEMBERED}: {fault.strerror}") from None


def remembered_by(data: Path) -> Path | None:
    """The path that the data directory names, whoever wrote it."""
    try:
        text = (data / REMEMBERED).read_text()
    except (OSError, ValueError):
        return None
    path = Path(text.rstrip("\n"))
    return path if path.is_absolute() and "\0" not in text else None
