"""SpawnSpec: the arguments of a node's process when it is forked.

The child calls `supervisor.run(spec)` or `worker.run(spec)`.  By then the process keeps of the
launcher only what is listed here: its descriptors are the listener, the control channel, the lock
of the data directory, the run directory and the log file; SIGINT and SIGHUP are ignored; SIGTERM
has the default action until the node's event loop handles it (process/loop.py).  The kernel kills
it when the launcher ends.

`run` returns the exit code after a clean shutdown.  A Refusal that it raises is passed to the
launcher, which reports it (child_setup.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socket import socket
from typing import NamedTuple

from kafkalite.config.settings import Settings

REFUSED = 78
"""Exit code of a process that cannot start and has sent the reason."""

WRITE_BACK_FAILED = 74
"""Exit code of a process whose flush failed (sysexits.h: EX_IOERR)."""


class SpawnSpec(NamedTuple):
    """The arguments of one node's process; see the module."""

    node_id: int
    incarnation: int
    """Increases with every fork, across restarts of the broker too."""
    listener: socket
    control_socket: socket | None
    """The supervisor's end of the SOCK_SEQPACKET pair to the launcher; None in a worker."""
    settings: Settings
    data: Path
    """The root of the data directory, not the node's directory in it."""
    other_directories: Sequence[Path]
    """The other directories of log.dirs."""
    ran_in_this_boot: bool
    """True if the list of log directories tells that the broker was ready before in this boot of
    the host: the data directory may have taken the place of a lost one."""
    cluster_id: str
    run_directory: Path
    nodes: Mapping[int, tuple[str, int]]
    """Addresses of the nodes that have a listener or a process at this moment."""
    explicit_workers: int | None
    """The configured number of workers; None if it is not set."""
    is_first_start: bool
    """True if the broker itself is starting.  A supervisor that restarts among running workers
    takes the nodes from its metadata log, whatever number was configured."""


NodeMain = Callable[[SpawnSpec], int]
