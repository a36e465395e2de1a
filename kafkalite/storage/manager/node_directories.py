"""The directories of all nodes in a data directory, and the logs in each.

    data/            node 0's logs
    data/nodes/1/    node 1's, and so on; data/.node-1 marks that this directory was made

A replica of a partition is a log in the directory of its node.  The log of a partition with one
replica moves by a rename, so no crash leaves it in two directories or in none; if it is found in
two or in none, its directory was copied or removed by another program.

If a partition has several replicas, a log of it at another node was a replica that was removed
while its node was down.  It is set aside, and never transferred.  The same holds if one replica is
left: the checkpoint of the node says that the log was one of several.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from kafkalite.errors import KafkaStorageError, Refusal
from kafkalite.ids import METADATA_TOPIC
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK, SHORTAGE_ERRORS, Disk, remove_tree, write_file
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.write_back import flush_directory, write_back_failed
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.manager.log_directory import make_node_directory
from kafkalite.storage.manager.recovery_points import RecoveryPoints
from kafkalite.storage.state.partition_metadata import (
    TopicIdPartition,
    metadata_text,
    read_topic_id,
)

log = logging.getLogger("kafkalite.storage")

DirectoryOf = Callable[[str, int, bytes], Path | None]
"""Returns where the log of a partition (topic, number, topic id) in a node's directory belongs: in
this directory if the node is a replica; in that of the only replica, another node; None if the
partition is in no topic, or has several replicas of which the node is none."""

DirectoryAt = Callable[[int, str, int, bytes], Path | None]
"""The same for the directory of the node with an id."""


def logs_in(directory: Path) -> Iterator[tuple[Path, TopicIdPartition]]:
    """Yield the log directories in a node's directory and their owners, but the metadata log's."""
    for name in sorted(os.listdir(directory)):
        path = directory / name
        identity = partition_transfer.identity_of(path)
        if identity is not None and identity.topic != METADATA_TOPIC:
            yield path, identity


def check_directories(
    data: Path, replicas_of: Callable[[TopicIdPartition], Collection[int]] = lambda _: ()
) -> None:
    """Refuse a data directory that lacks a node's directory, or that has a partition with one
    replica twice.

    Called before any node has a process: each node begins by moving foreign logs, and
    would take a copy for a partition transfer.  `replicas_of` returns the nodes that are replicas
    of a partition; it is called only for one that is in several directories.
    """
    directories = layout.node_directories(data)
    for node_id in layout.marked_nodes(data):
        path = layout.node_directory(data, node_id)
        if node_id not in directories:
            raise Refusal(
                f"{path} is missing, the directory of node {node_id} with its partitions.  Restore"
                f" it, or, if it is lost for good, create an empty one: mkdir {path}"
            )
    seen: dict[tuple[str, int], list[Path]] = {}
    for directory in directories.values():
        for path in directory.iterdir():
            if (key := partition_transfer.key_of(path)) is not None:
                seen.setdefault(key, []).append(path)
    for (topic, partition), paths in seen.items():
        for one, other in itertools.combinations(sorted(paths), 2):
            if _are_the_same(one, other) and not _may_both_exist(data, one, other, replicas_of):
                raise Refusal(
                    f"Partition {topic}-{partition} exists twice, as {one} and as {other}.  Move"
                    f" the copy out of {data}."
                )


def _are_the_same(one: Path, other: Path) -> bool:
    """Return whether both directories hold records of the same topic."""
    identity = partition_transfer.identity_of(one)
    return (
        identity is not None
        and identity.is_also(read_topic_id(other))
        and _holds_records(one)
        and _holds_records(other)
    )


def _may_both_exist(
    data: Path, one: Path, other: Path, replicas_of: Callable[[TopicIdPartition], Collection[int]]
) -> bool:
    """Return whether directories of one partition are those of replicas, or of some that were
    removed."""
    if one.parent == other.parent:
        return False
    owners = (partition_transfer.identity_of(path) for path in (one, other))
    # The topic id of one of them may be lost.
    identity = max((owner for owner in owners if owner is not None), key=lambda owner: owner[2])
    replicas = replicas_of(identity)
    if len(replicas) > 1:
        return True
    kept = {layout.node_directory(data, node_id) for node_id in replicas}
    return all(
        path.parent in kept
        or RecoveryPoints(data, path.parent, DISK).is_of_replica(path.name, identity.topic_id)
        for path in (one, other)
    )


def is_removed_replica(
    points: RecoveryPoints, path: Path, identity: TopicIdPartition, target_directory: Path
) -> bool:
    """Return whether a log was one of several replicas, and the only one that is left lies where it
    belongs: it must not take its place.  `points` are those of the log's node.

    The node may have ended before its checkpoint said that its log was one of several: a partition
    is moved to another log directory by a copy, after which the first log is removed.  A transfer
    is a rename and leaves no second log, so one that was written at the other node is the replica
    that is left.
    """
    left = target_directory / layout.directory_name(*identity.key)
    return (
        left.is_dir()
        and identity.is_also(read_topic_id(left))
        and (points.is_of_replica(path.name, identity.topic_id) or _was_written(left))
    )


def _was_written(directory: Path) -> bool:
    """Return whether a log has records, or had some that were deleted."""
    return _holds_records(directory) or any(
        layout.offset_of(path.name, layout.LOG) for path in directory.glob(f"*{layout.LOG}")
    )


def _holds_records(directory: Path) -> bool:
    return any(path.stat().st_size for path in directory.glob(f"*{layout.LOG}"))


def holders(data: Path, identity: TopicIdPartition) -> list[Path]:
    """Return the directories, of any node, that hold a partition, taken up or not."""
    names = (layout.directory_name(*identity.key), layout.arrived(*identity))
    return [
        path
        for directory in layout.node_directories(data).values()
        for name in names
        if (path := directory / name).is_dir() and identity.is_also(read_topic_id(path))
    ]


def make_never_made(
    data: Path, moved: Iterable[tuple[TopicIdPartition, int]], disk: Disk = DISK
) -> list[Path]:
    """Make empty logs for moved partitions whose logs were never made, at the nodes that lead them
    now; those nodes would wait for a transfer.  Called only at the start, when running nodes make
    no log that another node leads, and for partitions with one replica.

    A partition that some node remembers was made, and is lost: an operator must restore it.
    """
    directories = layout.node_directories(data)
    # Listed twice, since a node that is starting may transfer a log from a directory that was not
    # listed yet to one that was.
    seen: dict[str, set[Path]] = {}
    for directory in [*directories.values()] * 2:
        for name in os.listdir(directory):
            seen.setdefault(name, set()).add(directory / name)
    made: list[Path] = []
    points: list[RecoveryPoints] = []
    for identity, node_id in moved:
        name, arrived = layout.directory_name(*identity.key), layout.arrived(*identity)
        # The log under this name may be of an older topic.
        if arrived not in seen and not any(
            identity.is_also(read_topic_id(path)) for path in seen.get(name, ())
        ):
            points = points or [RecoveryPoints(data, d, disk) for d in directories.values()]
            if not any(known.has_point(name, identity.topic_id) for known in points):
                made.append(_make(layout.node_directory(data, node_id) / arrived, identity, disk))
    return made


def _make(directory: Path, identity: TopicIdPartition, disk: Disk) -> Path:
    make_node_directory(disk, directory.parent)
    disk.mkdir(directory)
    write_file(disk, directory / layout.PARTITION_METADATA, metadata_text(identity.topic_id))
    return directory


def evacuate(
    data: Path,
    node_ids: Collection[int],
    belongs: DirectoryAt,
    file_system: FileSystem,
    disk: Disk = DISK,
    is_deleted: Callable[[bytes], bool] = lambda topic_id: False,
) -> bool:
    """Transfer the logs of nodes that are not in `node_ids` and will not run again, and remove
    their directories with the logs of deleted topics.  Return False if something is left and must
    be retried.

    A directory with a log of a partition of which the node is still a replica is kept.
    """
    done = True
    for node_id, directory in layout.node_directories(data).items():
        if node_id and node_id not in node_ids:
            try:
                belongs_from = partial(belongs, node_id)
                _evacuate(data, directory, belongs_from, file_system, disk, is_deleted)
            except (OSError, KafkaStorageError) as error:
                log.error(
                    "Directory of a removed node cannot be evacuated yet; retrying."
                    " path=%s error=%r", directory, str(error),
                )  # fmt: skip
                done = False
    return done


def _evacuate(
    data: Path,
    directory: Path,
    belongs: DirectoryOf,
    file_system: FileSystem,
    disk: Disk,
    is_deleted: Callable[[bytes], bool],
) -> None:
    kept = layout.log_directory(directory)
    moved = [kept, directory]
    is_replica = has_changed = False
    points = RecoveryPoints(data, directory, disk)
    for path, identity in logs_in(directory):
        target_directory = belongs(*identity)
        if target_directory == directory:
            is_replica = True
            continue
        has_changed = True
        if target_directory is None and is_deleted(identity.topic_id):
            remove_tree(disk, path)
        elif target_directory is None or is_removed_replica(
            points, path, identity, target_directory
        ):
            log.warning(
                "Log belongs to no topic or is no replica any more; setting it aside as stray."
                " path=%s", path,
            )  # fmt: skip
            disk.rename(path, kept / layout.set_aside(*identity.key, layout.STRAY_DIRECTORY))
        else:
            known = points.known_state(path, identity.topic_id)
            partition_transfer.send(disk, path, identity, known, target_directory)
            arrived = target_directory / layout.arrived(*identity)
            moved += [target_directory, arrived, arrived / layout.HANDOVER]
    if is_replica and not has_changed:
        return
    # The checkpoint that is removed next is needed if a power cut undoes the moves.
    try:
        file_system.sync_paths(path for path in moved if path.exists())
    except OSError as error:
        # ENOSPC is not retried: fsync reports it for pages that were written before and are lost,
        # and the file system keeps the error.
        if error.errno in SHORTAGE_ERRORS:
            raise
        raise write_back_failed(disk, directory / "*", error) from error
    if is_replica:
        return
    _remove_node(disk, directory, kept)


def _remove_node(disk: Disk, directory: Path, kept: Path) -> None:
    """Remove a node's directory; what is left in it is kept in its log directory."""
    for path in list(directory.iterdir()):
        if layout.is_set_aside(path.name, layout.DELETE_DIRECTORY):
            remove_tree(disk, path)
        elif path.is_dir():
            disk.rename(path, kept / path.name)
        else:
            disk.unlink(path)
    flush_directory(disk, kept)
    if (mark := layout.node_mark(directory)).exists():
        disk.unlink(mark)
    own = layout.own_directory(directory)
    if own != directory:
        disk.unlink(directory)
    disk.rmdir(own)
