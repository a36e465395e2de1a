"""The run directory of one broker: made when it starts, found again by its commands, removed.

Its name and its places are transport/run_directory.py's.  Each level that is made here belongs to
this user and lets in nobody else; one that does not is refused, not mended, for whoever made it may
have more in mind.

The environment of a later command may name another place, so the data directory remembers where
its run directory is (`run-directory`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from kafkalite.errors import Refusal
from kafkalite.process.ready import Ready, put_whole
from kafkalite.transport.run_directory import BUS, name_of, place_of_user

REMEMBERED = "run-directory"
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
