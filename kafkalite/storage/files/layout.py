"""Layout: names of the files and directories of logs, as in Kafka; defined only here.

.lock                                            locked while a broker uses the data directory
cleaner-offset-checkpoint                        offset up to which each log was cleaned
.node-1                                          mark: nodes/1 was made; if missing, it is lost
nodes/1/                                         directory of node 1, laid out as below; that of
                                                 node 0 is the data directory itself; a link if the
                                                 node keeps its logs in another of log.dirs
log-directories                                  the directories of log.dirs, if there are several
flights-3/                                       topic, dash, partition
  00000000000000004096.log                       a segment, named by its first offset
  00000000000000004096.index   .timeindex        its indexes; .txnindex if there were aborts
  00000000000000004096.snapshot                  producer state before this offset
  leader-epoch-checkpoint   partition.metadata
  handover                                       state written by the node that had the log before
  00000000000000000000.log.deleted               removed, kept for file.delete.delay.ms
  00000000000000000000.log.cleaned               written by the log cleaner, not in use yet
  00000000000000000000.log.swap                  about to replace the segments in its range
flights-3.6d0c…-delete/                          of a deleted topic, removed after the delay
flights-3.6d0c…-stray/                           in no topic; kept for the operator
flights-3.7b1c…-arrived/                         transferred by another node and not yet taken up;
                                                 the digits are the topic id
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SEGMENT_FILES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""Suffixes of a segment's files, the records first."""
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
ARRIVED_DIRECTORY = "-arrived"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
HANDOVER = "handover"

RECOVERY_CHECKPOINT = "recovery-checkpoint"
CLEAN_SHUTDOWN = "clean-shutdown"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"

LOG_DIRECTORIES = "log-directories"

LOCK = ".lock"
NODES = "nodes"
NODE_MARK = ".node-"

DIRECTORY_NAME_MAX = 255


def node_directory(data: Path, node_id: int) -> Path:
    """Return the directory that holds a node's logs."""
    return data / NODES / str(node_id) if node_id else data


def is_of_worker(directory: Path) -> bool:
    """Return whether a node's directory is that of a further node: a data directory may itself be
    a link, or be in a directory named `nodes`."""
    return directory.parent.name == NODES and directory.name.isdecimal()


def own_directory(directory: Path) -> Path:
    """Return a node's directory itself: `node_directory` returns a link to it if it is in another
    log directory."""
    is_link = is_of_worker(directory) and directory.is_symlink()
    return directory.readlink() if is_link else directory


def log_directory(directory: Path) -> Path:
    """Return the directory of log.dirs that holds a node's directory."""
    own = own_directory(directory)
    return own.parent.parent if is_of_worker(own) else own


def node_directories(data: Path) -> dict[int, Path]:
    """Return the directories of all nodes, by node id."""
    found = {0: data}
    nodes = data / NODES
    for path in sorted(nodes.iterdir()) if nodes.is_dir() else ():
        if path.name.isdecimal() and path.is_dir():
            found[int(path.name)] = path
    return found


def sibling_directories(directory: Path) -> list[Path]:
    """Return the directories of all nodes that share a node's data directory."""
    data = directory.parent.parent if is_of_worker(directory) else directory
    return list(node_directories(data).values())


def node_mark(directory: Path) -> Path:
    """Return the path of the file that marks that a further node's directory was made."""
    return directory.parent.parent / f"{NODE_MARK}{directory.name}"


def marked_nodes(data: Path) -> list[int]:
    """Return the ids of the further nodes whose directories were made."""
    found = (path.name.removeprefix(NODE_MARK) for path in data.glob(f"{NODE_MARK}*"))
    return sorted(int(name) for name in found if name.isascii() and name.isdecimal())


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """Return the offset in a file's name, or None if it is not a file of that kind."""
    digits, dot, rest = name.partition(".")
    if dot + rest != suffix or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """Return the topic and partition a directory is named for, or None if it is not a log's."""
    found = re.fullmatch(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", name, re.ASCII)
    return (found[1], int(found[2])) if found else None


def set_aside(topic: str, partition: int, suffix: str) -> str:
    """Return a unique name for a log's directory that names its partition but that no log has."""
    return _tagged(topic, partition, uuid.uuid4().hex, suffix)


def arrived(topic: str, partition: int, topic_id: bytes) -> str:
    """Return the name under which a log's directory is transferred to another node."""
    return _tagged(topic, partition, topic_id.hex(), ARRIVED_DIRECTORY)


def _tagged(topic: str, partition: int, digits: str, suffix: str) -> str:
    tail = f"-{partition}.{digits}{suffix}"
    return topic[: DIRECTORY_NAME_MAX - len(tail)] + tail


def is_set_aside(name: str, suffix: str) -> bool:
    return re.fullmatch(rf".*\.[0-9a-f]{{32}}{suffix}", name) is not None
