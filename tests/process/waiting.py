"""Waiting for conditions instead of fixed times."""

import time
from pathlib import Path

WAIT_S_MAX = 30


def until(condition, process=None, explain=lambda: "it never came true"):
    """Wait for a condition; fail if the process that should make it true has ended.

    `explain` returns the message of the failure after the last attempt.
    """
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline, explain()
        assert process is None or process.poll() is None, process.stderr.read()
        time.sleep(0.002)


def is_gone(pid):
    """Return whether a process has ended, even if it has not been reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
