"""Birth: what a node's process is given when it is forked.

The child runs `supervisor.run(birth)` or `worker.run(birth)`.  By then it is a process that holds
nothing of the launcher's but what stands here: its descriptors are the listener, the orders, the
data directory's lock, the run directory and the log file; SIGINT and SIGHUP are ignored; SIGTERM is
still the system's, until the node's loop hears it (loop.py).  It dies with its launcher.

`run` returns its exit code when it was told to end and has closed cleanly.  A Refusal that leaves
it is the launcher's to say (child.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from socket import socket
from typing import NamedTuple

from kafkalite.config.settings import Settings

REFUSED = 78
"""The exit code of a process that says why it cannot start."""

WRITE_BACK_FAILED = 74
"""The exit code of a process whose flush failed (sysexits.h: EX_IOERR)."""


class Birth(NamedTuple):
    """One node's beginning; see the module."""

    node_id: int
    incarnation: int
    """Rises with every fork, over restarts of the broker as well."""
    listener: socket
    orders: socket | None
    """The supervisor's end of the SOCK_SEQPACKET pair to the launcher."""
    settings: Settings
    data: Path
    """The root of the data directory, not the node's part of it."""
    cluster_id: str
    run_directory: Path
    nodes: Mapping[int, tuple[str, int]]
    """Where each node listens that has a listener at this moment, or still a process."""
    explicit_workers: int | None
    """How many workers were asked for; None when nobody said."""
    first: bool
    """Whether the broker itself begins with this fork.  A supervisor that comes back among living
    workers takes the nodes as its log has them, whatever was asked for at the start."""


Run = Callable[[Birth], int]
