"""Ready: the state of a running broker, for programs that wait for it or read it later.

One JSON object, in the ready file (`--ready-file`) and in status.json in the data directory:

    {"bootstrap": "127.0.0.1:9092", "cluster_id": "…", "data": "/…", "durability": "fsync",
     "launcher_pid": 17, "nodes": [{"id": 0, "role": "supervisor", "host": "127.0.0.1",
                                    "port": 9092, "pid": 18}, …],
     "restarts": 0}

Both files are written atomically when every node has responded to a request, and removed when the
broker ends.  status.json is rewritten whenever its content changes: it lists the nodes that respond
now, and the progress of a requested restart.  A broker that was killed leaves it behind, so readers
trust it, and the pids in it, only while the data directory is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from kafkalite.errors import Refusal
from kafkalite.storage.files.layout import LOCK

STATUS_FILE = "status.json"


class NodeReady(TypedDict):
    """One node: its address and its process."""

    id: int
    role: str
    host: str
    port: int
    pid: int


class RestartReady(TypedDict):
    """Progress of the requested restarts."""

    asked: int
    renewing: list[int]
    """The nodes that still run the old code."""
    failed: str
    """Reason of the last failed restart; empty if it succeeded."""


class LogDirReady(TypedDict):
    """One of several log directories."""

    path: str
    nodes: list[int]
    """The nodes that keep their logs in it."""


class GatewayReady(TypedDict):
    """The gateway's endpoints, in ZeroMQ's notation."""

    push: str
    dealer: str


class Ready(TypedDict):
    """State of the whole broker."""

    bootstrap: str
    cluster_id: str
    data: str
    durability: str
    launcher_pid: int
    nodes: list[NodeReady]
    restarts: int
    restart: NotRequired[RestartReady]
    log_dirs: NotRequired[list[LogDirReady]]
    """The directories of log.dirs, if there are several."""
    metrics: NotRequired[str]
    """HOST:PORT of the exporter, if it is configured."""
    gateway: NotRequired[GatewayReady]


def text_of(ready: Ready) -> str:
    """Return the JSON text that is written to files and printed."""
    return json.dumps(ready, indent=2) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically.  It is not flushed: after a crash of the machine the broker it
    describes does not run."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def is_locked(data: Path) -> bool:
    """Return True if a broker's processes hold the lock of this data directory."""
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
    """Return the state of the broker on this data directory; None if none is ready."""
    # The file first: if it is missing, the lock is left to a broker that may be starting now.
    try:
        found: Any = json.loads((data / STATUS_FILE).read_text())
    except PermissionError:
        raise Refusal(f"{data} belongs to another user; run the command as that user") from None
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not is_locked(data):
        return None
    holder = holder_of(data)
    if holder and holder != found.get("launcher_pid"):
        return None  # another broker has locked the directory since, and is not ready
    return cast(Ready, found)


def lock_holder(data: Path) -> int:
    """Return the pid of the broker that holds this data directory, ready or not; 0 if none does.

    It is the process that wrote its pid into the lock file and has that file open.  The lock is
    not taken to find out: a broker that starts at this moment would be refused.
    """
    pid = holder_of(data)
    with contextlib.suppress(OSError):  # no such process, or one of another user
        lock = os.stat(data / LOCK)
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), lock):
                    return pid
    return 0


def not_ready(data: Path) -> str:
    """Return the error text for a data directory without a ready broker."""
    keeper = lock_holder(data)
    if keeper:
        return f"a broker is starting or ending on {data} (process {keeper})"
    return f"no broker runs on {data}"


def holder_of(data: Path) -> int:
    """Return the pid in the lock file; 0 if it cannot be read."""
    try:
        return int((data / LOCK).read_text())
    except (OSError, ValueError):
        return 0


def default_data_directory() -> Path:
    """Return the default data directory of a user: ~/.local/share/kafkalite, or below
    $XDG_DATA_HOME if that is set."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(home).absolute() / "kafkalite"
