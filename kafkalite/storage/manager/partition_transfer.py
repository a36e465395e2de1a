"""Partition transfer: moves a log to another node by renaming its directory, without copying.

    nodes/1/flights-0                     the old owner closes it, writes `handover` into it,
    nodes/2/flights-0.7b1c…-arrived       and renames it to this, a name that no log has
    nodes/2/flights-0                     the new owner takes it up when it needs it, or starts

The file `handover` (sealed as in checkpoint.py) gives the new owner what only the old one knew:
the log's partition, durable offset, start offset and end.  It stays until the new owner's own
checkpoint holds the same, so the state is in one place whenever a process dies.  A known end makes
a scan unnecessary.  It covers data that may be unflushed, so it is used only in the boot of the
machine in which it was written, and only if the file sizes match.

Nothing is flushed for a transfer, so that it takes microseconds.  A power cut may undo the rename:
the log is then where it was, with everything flushed since, and is transferred again.  Or it may
lose the handover file: the points in the old owner's checkpoint still hold (recovery_points.py).

Only a node itself gives or removes the names of logs in its directory: an open log of an older
topic may have the name of one that arrives.  So the name of an arrived directory has the topic id,
and the new owner sets aside a log that has its final name.  Nothing is merged or removed.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path

from kafkalite.errors import KafkaStorageError
from kafkalite.ids import read_id, written_id
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.files.disk import Disk, put_file, read_small_file
from kafkalite.storage.manager.log_directory import make_node_directory
from kafkalite.storage.state.known_state import KnownEnd, KnownLogState
from kafkalite.storage.state.partition_metadata import TopicIdPartition, read_topic_id

log = logging.getLogger("kafkalite.storage")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this boot of the machine: a write survives, flushed or not, until the
    next one."""
    try:
        return BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def write(disk: Disk, directory: Path, identity: TopicIdPartition, known: KnownLogState) -> None:
    """Write the handover file into a directory that is about to be transferred."""
    content = {
        "topic": identity.topic,
        "partition": identity.partition,
        "topic_id": written_id(identity.topic_id),
        "boot_id": boot_id(),
        **known._asdict(),
    }
    # Neither the file nor the names are flushed: see the module.
    put_file(disk, directory / layout.HANDOVER, checkpoint.sealed(content), flushed=False)


def read(directory: Path) -> tuple[TopicIdPartition, KnownLogState] | None:
    """Return the content of a directory's handover file; None if it is missing or damaged."""
    try:
        content = checkpoint.unsealed(read_small_file(directory / layout.HANDOVER))
        identity = TopicIdPartition(
            content["topic"], content["partition"], read_id(content["topic_id"])
        )
        # Without a boot id no two boots are known to be the same.
        same_boot = content["boot_id"] == boot_id() != ""
        end = KnownEnd(*content["end"]) if content["end"] is not None and same_boot else None
        return identity, KnownLogState(
            content["recovery_point"],
            content["log_start_offset"],
            end,
            content["drop_cache"],
            # The old owner may not have opened it since the machine was restarted.
            same_boot and content.get("same_boot", False),
            content.get("cleaner_offset", -1),
            content.get("gaps_to", 0),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning(
            "Handover file is invalid; ignoring it. path=%s error=%r",
            directory / layout.HANDOVER, str(error),
        )  # fmt: skip
        return None


def send(
    disk: Disk,
    directory: Path,
    identity: TopicIdPartition,
    known: KnownLogState,
    target_directory: Path,
) -> None:
    """Transfer a directory; it has not moved if this raises OSError or KafkaStorageError."""
    make_node_directory(disk, target_directory)
    write(disk, directory, identity, known)
    target = target_directory / layout.arrived(*identity)
    try:
        disk.rename(directory, target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise KafkaStorageError(
                f"{directory} and {target_directory} are on different file systems, but a partition"
                " is transferred by a rename; keep the whole data directory on one file system"
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # No node can have it open under this name.
        set_aside(disk, target, identity)
        disk.rename(directory, target)


def accept(disk: Disk, arrived: Path, identity: TopicIdPartition) -> Path:
    """Rename an arrived directory to its log's name; a directory of that name is set aside."""
    directory = arrived.with_name(layout.directory_name(*identity.key))
    if directory.exists():
        set_aside(disk, directory, identity)
    disk.rename(arrived, directory)
    return directory


def set_aside(disk: Disk, directory: Path, identity: TopicIdPartition) -> Path:
    """Rename a directory to a name that no log has."""
    aside = directory.with_name(layout.set_aside(*identity.key, layout.STRAY_DIRECTORY))
    log.warning("Log directory set aside. path=%s new_name=%s", directory, aside.name)
    disk.rename(directory, aside)
    return aside


def has_arrived(directory: Path) -> bool:
    """Return whether a directory was transferred, and not taken up yet."""
    return layout.is_set_aside(directory.name, layout.ARRIVED_DIRECTORY)


def arrived_in(data: Path) -> dict[Path, TopicIdPartition]:
    """Return the directories that were transferred to this node directory, with their owners."""
    arrived = (path for path in data.iterdir() if has_arrived(path))
    return {path: identity for path in arrived if (identity := identity_of(path)) is not None}


def key_of(path: Path) -> tuple[str, int] | None:
    """Return the topic and partition of the log in a directory, or None if it is not a log's."""
    key = layout.partition_of(path.name)
    if key is None and has_arrived(path):
        # The name is shortened if the topic's is long, so the handover file is read first.
        left = read(path)
        key = left[0].key if left else layout.partition_of(path.name.rpartition(".")[0])
    return key if key is not None and path.is_dir() else None


def identity_of(path: Path) -> TopicIdPartition | None:
    """Return the partition whose log a directory holds, or None if it is not a log's."""
    key = key_of(path)
    return TopicIdPartition(*key, read_topic_id(path)) if key is not None else None
