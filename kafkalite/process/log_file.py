"""kafkalite.log in the data directory: the log lines of all processes of one broker.

    2026-01-01 12:00:00,000 WARNING node-2 kafkalite.storage: flights-0 …

Each process appends whole lines.  The launcher rotates the file when it is large: kafkalite.log
becomes kafkalite.log.1, that becomes .2, and the oldest is deleted.  The other processes notice
that the name refers to another file and open the new one.
"""

from __future__ import annotations

import contextlib
import logging
import re
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import NamedTuple

from kafkalite.transport.reactor import Reactor

LOG_FILE = "kafkalite.log"
SIZE_MAX = 10 << 20
FILES_KEPT = 3
SIZE_CHECK_MS = 5_000
"""Interval of the size check."""

READ_SIZE_MAX = 1 << 20
LINE = re.compile(r"\S+ \S+ (?:WARNING|ERROR|CRITICAL) \S+ \S+: (.*)")


class LogFile(WatchedFileHandler):
    """Handler that appends to the file; lines that cannot be written are dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore the error: a full disk cannot be reported here."""


def log_to(path: Path, process_name: str) -> None:
    """Send the log lines of this process to the file, with this process name."""
    handler = LogFile(path, delay=True)
    form = f"%(asctime)s %(levelname)s {process_name} %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    root = logging.getLogger("kafkalite")
    root.setLevel(logging.INFO)
    root.propagate = False
    before, root.handlers = root.handlers, [handler]
    for other in before:
        if isinstance(other, LogFile):
            other.close()


def rotate_when_large(reactor: Reactor, path: Path) -> None:
    """Rotate the log file whenever it is large, as long as the event loop runs."""
    with contextlib.suppress(OSError):
        if path.stat().st_size >= SIZE_MAX:
            rotate(path)
    reactor.call_later(SIZE_CHECK_MS, lambda: rotate_when_large(reactor, path))


def rotate(path: Path) -> None:
    """Start a new file and delete the oldest."""
    for number in range(FILES_KEPT, 0, -1):
        younger = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        with contextlib.suppress(FileNotFoundError):
            younger.rename(path.with_name(f"{path.name}.{number}"))


class LogPosition(NamedTuple):
    """A position in the log file."""

    file: int
    position: int


def end_position(path: Path) -> LogPosition:
    """Return the position of the end of the log file."""
    try:
        found = path.stat()
    except OSError:
        return LogPosition(-1, 0)
    return LogPosition(found.st_ino, found.st_size)


def warnings_since(path: Path, since: LogPosition) -> list[str]:
    """Return the messages that any process logged after that position at WARNING or above."""
    try:
        with path.open("rb") as file:
            if end_position(path).file == since.file:
                file.seek(since.position)
            text = file.read(READ_SIZE_MAX).decode(errors="replace")
    except OSError:
        return []
    return [found[1] for line in text.splitlines() if (found := LINE.fullmatch(line))]
