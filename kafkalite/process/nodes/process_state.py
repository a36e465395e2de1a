"""State of another process of this host, as reported by the kernel (proc_pid_stat(5)).

A process that misses its heartbeats is either busy (in Python, in compiled code that holds the
interpreter, in the kernel), or stopped or dead; the kernel knows which.  A thread that sends
heartbeats beside the event loop would be starved by compiled code, and use memory in each worker.

Left out: a process in a frozen control group of its own counts as running.
"""

from __future__ import annotations

from pathlib import Path

STOPPED_STATES = frozenset("TtZXx")
"""Stopped by a signal or by a debugger, dead and not reaped, dead."""


def is_running(pid: int) -> bool:
    """Return True if a process runs, or waits for something in the kernel."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    state = stat.rpartition(b")")[2].split()[0].decode()
    return state not in STOPPED_STATES
