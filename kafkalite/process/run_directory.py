"""The run directory of one broker: made when it starts, found again by its commands, removed.

Its name and its places are transport/run_directory.py's.  Each level that is made here belongs to
this user and lets in nobody else; one that does not is refused, not mended, for whoever made it may
have more in mind.

A broker holds it by flock, and its nodes with it, so a broker that was killed holds its own no
longer: the next one that starts removes it.

The environment of a later command may name another place, so the data directory remembers where
its run directory is (`run-directory`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

from kafkalite.errors import Refusal
from kafkalite.process.ready import Ready, put_whole
from kafkalite.transport.run_directory import BUS, NAME, file_of, is_private, name_of, place_of_user

REMEMBERED = "run-directory"
OWN_PLACE = "name a directory of your own in XDG_RUNTIME_DIR, of mode 700"


class RunDirectory:
    """The run directory of the broker on this data directory, made where it is missing; Refusal
    when somebody else could come in.

    `descriptor` holds it as long as any process has it open.
    """

    def __init__(self, cluster_id: str, data: Path) -> None:
        self.path = place_of_user() / name_of(cluster_id, data)
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
        """Remove it with the sockets in it; nothing when it has gone."""
        remove_whole(self.path)
        os.close(self.descriptor)


def hold(path: Path) -> int | None:
    """A descriptor that holds this directory; None or FileNotFoundError when it was removed before
    it was held."""
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
    """A descriptor of this directory."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def remove_left(place: Path) -> None:
    """Remove the run directories that nobody holds."""
    for path in list(place.iterdir()):
        if NAME.fullmatch(path.name) and is_private(path):
            with contextlib.suppress(OSError):  # it is held, or has gone by now
                descriptor = opened(path)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_whole(path)
                finally:
                    os.close(descriptor)


def remove_whole(path: Path) -> None:
    """Remove a run directory with the sockets in it; nothing when it has gone."""
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
