"""RunDirectory: the run directory of one broker, created at start and removed at shutdown.

Its name and location are defined in transport/run_directory.py.  Each level created here belongs to
this user with mode 700.  A level that does not is refused, not repaired: its owner may depend on
its mode.

The broker and its nodes hold the directory by flock.  A broker that was killed does not hold its
own any longer, so the next broker that starts removes it.

The environment of a later command may give another location, so the file `run-directory` in the
data directory stores the path.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from kafkalite.errors import Refusal
from kafkalite.process.status.ready import Ready, write_atomically
from kafkalite.transport.run_directory import (
    BUS,
    NAME,
    file_of,
    is_private,
    name_of,
    user_directory,
)

REMEMBERED = "run-directory"
OWN_PLACE = "name a directory of your own in XDG_RUNTIME_DIR, of mode 700"


class RunDirectory:
    """The run directory of the broker on this data directory, created if it is missing.

    `descriptor` holds it as long as any process has it open.  The constructor raises Refusal if
    another user could enter the directory.
    """

    def __init__(self, cluster_id: str, data: Path) -> None:
        self.path = user_directory() / name_of(cluster_id, data)
        held = None
        while held is None:
            make_private(self.path.parent)
            with contextlib.suppress(FileNotFoundError):  # removed before we held it
                make_private(self.path)
                held = hold(self.path)
        self.descriptor = held
        remove_left(self.path.parent)
        remember(data, self.path)

    def remove(self) -> None:
        """Remove the directory with its sockets; no error if it does not exist."""
        remove_whole(self.path)
        os.close(self.descriptor)


def hold(path: Path) -> int | None:
    """Return a descriptor that holds this directory, or None if it was removed before it was held.

    Raises FileNotFoundError if it is missing from the start.
    """
    descriptor = opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as fault:
        os.close(descriptor)
        raise Refusal(f"cannot lock {path}: {fault.strerror}; {OWN_PLACE}") from None
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) == file_of(path):
        return descriptor
    os.close(descriptor)
    return None


def opened(path: Path) -> int:
    """Return a descriptor of this directory."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def remove_left(place: Path) -> None:
    """Remove the run directories that no process holds."""
    for path in list(place.iterdir()):
        if NAME.fullmatch(path.name) and is_private(path):
            with contextlib.suppress(OSError):  # it is held, or was removed meanwhile
                descriptor = opened(path)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_whole(path)
                finally:
                    os.close(descriptor)


def remove_whole(path: Path) -> None:
    """Remove a run directory with its sockets; no error if it does not exist."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            for entry in list(path.iterdir()):
                entry.unlink()
            path.rmdir()


def bus_path(ready: Ready) -> Path:
    """Return the path of the bus socket of a running broker."""
    data = Path(ready["data"])
    name = name_of(ready["cluster_id"], data)
    remembered = remembered_by(data)
    # A copied data directory stores the path of the original's run directory.
    if remembered is not None and remembered.name == name and remembered.is_dir():
        return remembered / BUS
    return user_directory() / name / BUS


def make_private(level: Path) -> None:
    """Create a directory with mode 700 unless it exists; raise Refusal if it is not private."""
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
    """Store the path for later commands.  The file is never removed: it is used only while a
    broker runs."""
    if remembered_by(data) != path:
        try:
            write_atomically(data / REMEMBERED, f"{path}\n")
        except OSError as fault:
            raise Refusal(f"cannot write {data / REMEMBERED}: {fault.strerror}") from None


def remembered_by(data: Path) -> Path | None:
    """Return the path stored in the data directory, or None."""
    try:
        text = (data / REMEMBERED).read_text()
    except (OSError, ValueError):
        return None
    path = Path(text.rstrip("\n"))
    return path if path.is_absolute() and "\0" not in text else None
