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

PATH_FILE = "run-directory"
USE_OWN_DIRECTORY = "name a directory of your own in XDG_RUNTIME_DIR, of mode 700"


class RunDirectory:
    """The run directory of the broker on this data directory, created if it is missing.

    `descriptor` holds it as long as any process has it open.  The constructor raises Refusal if
    another user could enter the directory.
    """

    def __init__(self, cluster_id: str, data: Path) -> None:
        self.path = user_directory() / name_of(cluster_id, data)
        descriptor = None
        while descriptor is None:
            make_private(self.path.parent)
            with contextlib.suppress(FileNotFoundError):  # removed before it was locked
                make_private(self.path)
                descriptor = hold(self.path)
        self.descriptor = descriptor
        remove_abandoned(self.path.parent)
        store_path(data, self.path)

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
    except OSError as error:
        os.close(descriptor)
        raise Refusal(f"cannot lock {path}: {error.strerror}; {USE_OWN_DIRECTORY}") from None
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) == file_of(path):
        return descriptor
    os.close(descriptor)
    return None


def opened(path: Path) -> int:
    """Return a descriptor of this directory."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def remove_abandoned(place: Path) -> None:
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
    stored = stored_path(data)
    # A copied data directory stores the path of the original's run directory.
    if stored is not None and stored.name == name and stored.is_dir():
        return stored / BUS
    return user_directory() / name / BUS


def make_private(level: Path) -> None:
    """Create a directory with mode 700 unless it exists; raise Refusal if it is not private.

    Raises FileNotFoundError if another broker removed it before it was locked.
    """
    try:
        level.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refusal(f"cannot create {level}: {error.strerror}; {USE_OWN_DIRECTORY}") from None
    else:
        level.chmod(0o700)  # whatever the umask
    found = level.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        raise Refusal(f"{level} is not a directory; remove it")
    if found.st_uid != os.geteuid():
        raise Refusal(f"{level} belongs to another user; {USE_OWN_DIRECTORY}")
    if mode != 0o700:
        raise Refusal(f"{level} has mode {mode:03o} instead of 700; remove it")


def store_path(data: Path, path: Path) -> None:
    """Store the path for later commands.  The file is never removed: it is used only while a
    broker runs."""
    if stored_path(data) != path:
        try:
            write_atomically(data / PATH_FILE, f"{path}\n")
        except OSError as error:
            raise Refusal(f"cannot write {data / PATH_FILE}: {error.strerror}") from None


def stored_path(data: Path) -> Path | None:
    """Return the path stored in the data directory, or None."""
    try:
        text = (data / PATH_FILE).read_text()
    except (OSError, ValueError):
        return None
    path = Path(text.rstrip("\n"))
    return path if path.is_absolute() and "\0" not in text else None
