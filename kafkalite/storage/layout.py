"""What files and directories of a log are called: Kafka's names, and nowhere else said.

.lock                                            held while a broker uses the data directory
.node-1                                          nodes/1 was made: without it, it is lost
nodes/1/                                         what node 1 owns, laid out as below; node 0's
                                                 own lies in the data directory itself
flights-3/                                       topic, dash, partition
  00000000000000004096.log                       a segment, named by its first offset
  00000000000000004096.index   .timeindex        its indexes; .txnindex when there were aborts
  00000000000000004096.snapshot                  what producers had written before this offset
  leader-epoch-checkpoint   partition.metadata
  handover                                       what the node knew that had it before
  00000000000000000000.log.deleted               removed, kept a while for its readers
flights-3.6d0c…-delete/                          a deleted topic's, removed a while later
flights-3.6d0c…-stray/                           nobody knows it; kept for its owner to look at
flights-3.7b1c…-arrived/                         handed over by another node, and not taken up yet;
                                                 the digits are its topic's id
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
TEMPORARY = ".tmp"

DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
ARRIVED_DIRECTORY = "-arrived"

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
HANDOVER = "handover"

RECOVERY_CHECKPOINT = "recovery-checkpoint"
CLEAN_SHUTDOWN = "clean-shutdown"

LOCK = ".lock"
NODES = "nodes"
NODE_MARK = ".node-"

DIRECTORY_NAME_MAX = 255


def node_directory(data: Path, node_id: int) -> Path:
    """Where a node's own logs lie."""
    return data / NODES / str(node_id) if node_id else data


def node_directories(data: Path) -> dict[int, Path]:
    """The directories of the nodes, by their ids."""
    found = {0: data}
    nodes = data / NODES
    for path in sorted(nodes.iterdir()) if nodes.is_dir() else ():
        if path.name.isdecimal() and path.is_dir():
            found[int(path.name)] = path
    return found


def sibling_directories(directory: Path) -> list[Path]:
    """Return the directories of all nodes that share a node's data directory."""
    data = directory.parent.parent if directory.parent.name == NODES else directory
    return list(node_directories(data).values())


def node_mark(directory: Path) -> Path:
    """The file in the data directory that says that a further node's directory was made."""
    return directory.parent.parent / f"{NODE_MARK}{directory.name}"


def marked_nodes(data: Path) -> list[int]:
    """The further nodes whose directories were made."""
    found = (path.name.removeprefix(NODE_MARK) for path in data.glob(f"{NODE_MARK}*"))
    return sorted(int(name) for name in found if name.isascii() and name.isdecimal())


def file_name(offset: int, suffix: str) -> str:
    """The name of a segment's file."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset a file is named by; None when it is not a file of that kind."""
    digits, dot, rest = name.partition(".")
    if dot + rest != suffix or len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def partition_of(name: str) -> tuple[str, int] | None:
    """The topic and partition a directory is named by; None when it is not a log's."""
    found = re.fullmatch(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", name, re.ASCII)
    return (found[1], int(found[2])) if found else None


def set_aside(topic: str, partition: int, suffix: str) -> str:
    """A name for a log's directory that no log has, and that says whose it was."""
    return _tagged(topic, partition, uuid.uuid4().hex, suffix)


def arrived(topic: str, partition: int, topic_id: bytes) -> str:
    """The name under which a log's directory comes from another node."""
    return _tagged(topic, partition, topic_id.hex(), ARRIVED_DIRECTORY)


def _tagged(topic: str, partition: int, digits: str, suffix: str) -> str:
    tail = f"-{partition}.{digits}{suffix}"
    return topic[: DIRECTORY_NAME_MAX - len(tail)] + tail


def is_set_aside(name: str, suffix: str) -> bool:
    return re.fullmatch(rf".*\.[0-9a-f]{{32}}{suffix}", name) is not None
