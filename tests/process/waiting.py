"""Waiting for conditions, never for a time."""

import time
from pathlib import Path

WAIT_S_MAX = 30


def until(condition, process=None):
    """Wait for a condition, or fail when the process that should bring it about has ended."""
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def is_gone(pid):
    """Whether a process has ended, though perhaps nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
