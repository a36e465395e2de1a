"""Handing a log over to another node: its directory is renamed, and no byte of it is copied.

    nodes/1/flights-0                     who has it finishes it, writes `handover` into it,
    nodes/2/flights-0.7b1c…-arrived       and renames it to this: a name that no log has
    nodes/2/flights-0                     the other takes it up when it looks for it, or starts

The file `handover` (sealed as in checkpoint.py) tells the new owner what only the old one knew:
whose log it is, how far it is on the disk itself, where its records begin, and where it ends.  It
stays until the new owner's own checkpoint says as much, so whenever a process dies there is one
place where it stands.  The end spares a scan.  It rests on what was written and maybe not flushed,
so it is believed in the boot of the kernel in which it was written, and only of files of that size.

Nothing is flushed for this, so that a move is a matter of microseconds.  A power cut may undo the
rename: then the log is where it was, with all that was flushed since, and moves again.  Or it may
take the word away: then what the old owner's checkpoint says still holds (recovery_points.py).

Only a node itself gives or takes the names of logs in its directory: there may be an open log of
an older topic under the name of one that arrives.  So a name that arrives says its topic's id, and
the new owner sets aside what stands in its place.  Nothing is merged, and nothing removed.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import KafkaStorageError
from kafkalite.ids import read_id, written_id
from kafkalite.storage import checkpoint, layout
from kafkalite.storage.disk import Disk, put_file, read_small_file
from kafkalite.storage.log_directory import make_node_directory
from kafkalite.storage.partition_metadata import Owner, read_topic_id
from kafkalite.storage.recovery import KnownEnd

log = logging.getLogger("kafkalite.storage")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Known(NamedTuple):
    """What is known of a log before it is opened."""

    recovery_point: int = 0
    log_start_offset: int = 0
    end: KnownEnd | None = None
    drop_cache: bool = False
    """A flush failed where it was: the kernel's pages may differ from the disk."""
    same_boot: bool = False
    """The machine has run on since the log was written: what was written is there, flushed or
    not, and only the last write of a process that was killed may be torn."""


def boot_id() -> str:
    """Which run of the kernel this is: what it was given to write is there until the next."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def write(disk: Disk, directory: Path, owner: Owner, known: Known) -> None:
    """Leave word in a directory that is about to be handed over."""
    content = {
        "topic": owner.topic,
        "partition": owner.partition,
        "topic_id": written_id(owner.topic_id),
        "boot_id": boot_id(),
        **known._asdict(),
    }
    # Not flushed, and neither are the names: see the module.
    put_file(disk, directory / layout.HANDOVER, checkpoint.sealed(content), flushed=False)


def read(directory: Path) -> tuple[Owner, Known] | None:
    """The word that was left in a directory; None without one that is whole."""
    try:
        content = checkpoint.unsealed(read_small_file(directory / layout.HANDOVER))
        owner = Owner(content["topic"], content["partition"], read_id(content["topic_id"]))
        # Nothing is known of a boot without an id.
        same_boot = content["boot_id"] == boot_id() != ""
        end = KnownEnd(*content["end"]) if content["end"] is not None and same_boot else None
        return owner, Known(
            content["recovery_point"],
            content["log_start_offset"],
            end,
            content["drop_cache"],
            # Whoever handed it over may not have opened it since the machine went down.
            same_boot and content.get("same_boot", False),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as fault:
        log.warning("%s is not believed: %s", directory / layout.HANDOVER, fault)
        return None


def send(disk: Disk, directory: Path, owner: Owner, known: Known, to_directory: Path) -> None:
    """Hand a directory over; when this raises OSError or KafkaStorageError it has not moved."""
    make_node_directory(disk, to_directory)
    write(disk, directory, owner, known)
    target = to_directory / layout.arrived(*owner)
    try:
        disk.rename(directory, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise KafkaStorageError(
                f"{directory} and {to_directory} are on different file systems, and a partition"
                " moves by a rename; have all of a data directory on one"
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # Nobody can have it open under this name.
        set_aside(disk, target, owner)
        disk.rename(directory, target)


def take_up(disk: Disk, arrived: Path, owner: Owner) -> Path:
    """Give a directory that has arrived its log's name; what has that name is set aside."""
    directory = arrived.with_name(layout.directory_name(*owner.key))
    if directory.exists():
        set_aside(disk, directory, owner)
    disk.rename(arrived, directory)
    return directory


def set_aside(disk: Disk, directory: Path, owner: Owner) -> Path:
    """Keep a directory under a name that no log has."""
    aside = directory.with_name(layout.set_aside(*owner.key, layout.STRAY_DIRECTORY))
    log.warning("%s is in the way: set aside as %s", directory, aside.name)
    disk.rename(directory, aside)
    return aside


def has_arrived(directory: Path) -> bool:
    """Whether a directory was handed over, and not taken up yet."""
    return layout.is_set_aside(directory.name, layout.ARRIVED_DIRECTORY)


def arrived_in(data: Path) -> dict[Path, Owner]:
    """Return the directories that were handed over to this data directory, with their owners."""
    arrived = (path for path in data.iterdir() if has_arrived(path))
    return {path: owner for path in arrived if (owner := owner_of(path)) is not None}


def key_of(path: Path) -> tuple[str, int] | None:
    """The topic and partition whose log is in this directory; None when it is none."""
    key = layout.partition_of(path.name)
    if key is None and has_arrived(path):
        # A long name was shortened.
        left = read(path)
        key = left[0].key if left else layout.partition_of(path.name.rpartition(".")[0])
    return key if key is not None and path.is_dir() else None


def owner_of(path: Path) -> Owner | None:
    """Whose log is in this directory; None when it is none."""
    key = key_of(path)
    return Owner(*key, read_topic_id(path)) if key is not None else None
