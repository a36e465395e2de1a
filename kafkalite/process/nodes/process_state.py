"""State of another process of this host, as reported by the kernel (proc_pid_stat(5)).

A process that misses its heartbeats is either busy (in Python, in compiled code that holds the
interpreter, in the kernel), or stopped or dead; the kernel knows which.  A thread that sends
heartbeats beside the event loop would be starved by compiled code, and use memory in each worker.

Left out: a process in a frozen control group of its own counts as running.
"""

from __future__ import annotations

from pathlib import Path

ENDED = "X"
ENDED_STATES = frozenset("ZXx")
"""Dead and not reaped, dead."""

STOPPED_STATES = ENDED_STATES | frozenset("Tt")
"""Ended, or stopped by a signal or by a debugger."""


def is_running(pid: int) -> bool:
    """Return True if a process runs, or waits for something in the kernel."""
    return _state(pid) not in STOPPED_STATES


def has_ended(pid: int) -> bool:
    """Return True if a process has ended, even if it is not reaped."""
    return _state(pid) in ENDED_STATES


def _state(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ENDED
    return stat.rpartition(b")")[2].split()[0].decode()
