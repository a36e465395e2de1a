"""kafkalite.log in the data directory: what all processes of one broker have to say.

    2026-01-01 12:00:00,000 WARNING node-2 kafkalite.storage: flights-0 …

Each process appends its own lines, whole.  One of them, the launcher, turns the file when it has
grown: kafkalite.log becomes kafkalite.log.1, that .2, and the oldest goes.  The others see that the
file they write to is no longer the one of that name, and open the new one.
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
LOOK_MS = 5_000
"""How often it is looked whether the file has grown too large."""

READ_BACK_MAX = 1 << 20
LINE = re.compile(r"\S+ \S+ (?:WARNING|ERROR|CRITICAL) \S+ \S+: (.*)")


class LogFile(WatchedFileHandler):
    """Appends to the file; what cannot be written is lost, and no reason to fail."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk: nobody can be told here."""


def log_to(path: Path, who: str) -> None:
    """From now on, what this process logs goes there, under this name."""
    handler = LogFile(path, delay=True)
    form = f"%(asctime)s %(levelname)s {who} %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(form))
    root = logging.getLogger("kafkalite")
    root.setLevel(logging.INFO)
    root.propagate = False
    before, root.handlers = root.handlers, [handler]
    for other in before:
        if isinstance(other, LogFile):
            other.close()


def turn_when_large(reactor: Reactor, path: Path) -> None:
    """Keep the log file from growing without bound, as long as the loop runs."""
    with contextlib.suppress(OSError):
        if path.stat().st_size >= SIZE_MAX:
            turn(path)
    reactor.call_later(LOOK_MS, lambda: turn_when_large(reactor, path))


def turn(path: Path) -> None:
    """Begin a new file, and let the oldest go."""
    for number in range(FILES_KEPT, 0, -1):
        younger = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        with contextlib.suppress(FileNotFoundError):
            younger.rename(path.with_name(f"{path.name}.{number}"))


class Mark(NamedTuple):
    """A place in the log file."""

    file: int
    position: int


def mark(path: Path) -> Mark:
    """Where the log file ends now."""
    try:
        found = path.stat()
    except OSError:
        return Mark(-1, 0)
    return Mark(found.st_ino, found.st_size)


def warnings_since(path: Path, since: Mark) -> list[str]:
    """What was logged as a warning or worse after that mark, by any process."""
    try:
        with path.open("rb") as file:
            if mark(path).file == since.file:
                file.seek(since.position)
            text = file.read(READ_BACK_MAX).decode(errors="replace")
    except OSError:
        return []
    return [found[1] for line in text.splitlines() if (found := LINE.fullmatch(line))]
