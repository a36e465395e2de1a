"""What a running broker says of itself, to whoever waits for it or asks later.

One JSON object, in the ready file (`--ready-file`) and in the data directory:

    {"bootstrap": "127.0.0.1:9092", "cluster_id": "…", "data": "/…", "durability": "fsync",
     "launcher_pid": 17, "nodes": [{"id": 0, "role": "supervisor", "host": "127.0.0.1",
                                    "port": 9092, "pid": 18}, …],
     "restarts": 0}

It appears whole, when every node has answered a request, and goes when the broker ends.  The one in
the data directory is written anew when something in it has changed: it names the nodes that answer
now, and how a restart goes on that somebody asked for.  A broker that was killed leaves it behind,
so nobody believes it, or a pid in it, unless the data directory's lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from kafkalite.errors import Refusal
from kafkalite.storage.layout import LOCK

STATUS_FILE = "status.json"


class NodeReady(TypedDict):
    """One node: where it listens, and which process it is."""

    id: int
    role: str
    host: str
    port: int
    pid: int


class RestartReady(TypedDict):
    """How far the restarts are that were asked for."""

    asked: int
    renewing: list[int]
    """The nodes that are still to be renewed."""
    failed: str
    """Why the last one came to nothing, if it did."""


class GatewayReady(TypedDict):
    """Where the gateway is, as ZeroMQ writes it."""

    push: str
    dealer: str


class Ready(TypedDict):
    """The whole broker."""

    bootstrap: str
    cluster_id: str
    data: str
    durability: str
    launcher_pid: int
    nodes: list[NodeReady]
    restarts: int
    restart: NotRequired[RestartReady]
    metrics: NotRequired[str]
    """HOST:PORT of the exporter, if there is one."""
    gateway: NotRequired[GatewayReady]


def text_of(ready: Ready) -> str:
    """As it stands in the files and is printed."""
    return json.dumps(ready, indent=2) + "\n"


def put_whole(path: Path, text: str) -> None:
    """Make a file appear with all its text or not at all; a crash of the machine is no matter,
    since nothing runs then that it speaks of."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def is_locked(data: Path) -> bool:
    """Whether a broker's processes hold this data directory."""
    try:
        lock = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def running(data: Path) -> Ready | None:
    """What the broker on this data directory says, if one runs and is ready."""
    # The file first: where there is none the lock is not touched, which a start may want just now.
    try:
        found: Any = json.loads((data / STATUS_FILE).read_text())
    except PermissionError:
        raise Refusal(f"{data} belongs to another user, who may ask what runs on it") from None
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not is_locked(data):
        return None
    holder = holder_of(data)
    if holder and holder != found.get("launcher_pid"):
        return None  # another has locked it since, and is not ready
    return cast(Ready, found)


def keeper_of(data: Path) -> int:
    """The process that has this data directory, be it ready or not; 0 where there is none.

    The one that wrote itself into the lock, if it has the lock open.  Nobody locks it to find that
    out: a start that comes just now would be refused.
    """
    pid = holder_of(data)
    with contextlib.suppress(OSError):  # nobody has that number, or a process of another user
        lock = os.stat(data / LOCK)
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), lock):
                    return pid
    return 0


def not_ready(data: Path) -> str:
    """What is said of a data directory where no broker is ready."""
    keeper = keeper_of(data)
    if keeper:
        return f"a broker is starting or ending on {data} (process {keeper})"
    return f"no broker runs on {data}"


def holder_of(data: Path) -> int:
    """The process that wrote itself into the lock; 0 where that cannot be told."""
    try:
        return int((data / LOCK).read_text())
    except (OSError, ValueError):
        return 0


def default_data_directory() -> Path:
    """Where a user's broker keeps its data when nobody says: ~/.local/share/kafkalite, or under
    $XDG_DATA_HOME where that is set."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home).absolute() / "kafkalite"
