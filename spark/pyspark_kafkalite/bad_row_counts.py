"""Counts of a stream's bad rows, from the tasks that leave them out to the driver.

A data source in Python has neither accumulators nor metrics of its own, so a task leaves its
counts in a file, and the driver's LagListener adds them up after the micro-batch:

    /tmp/kafkalite-spark-UID/QUERY.LETTERS/     a directory for each run of a query and listener
        BATCH.TASK.PID                          a line for each range of offsets with bad rows

Nothing is written for a range whose rows are all good, and nothing without a listener.

A range that is read more than once (a task that is retried or speculative, a foreachBatch with
several actions) counts once, with its greatest count: an attempt that failed has seen no more of
the range than the one that read all of it.

The driver holds a directory by flock: those of drivers that were killed are removed by the next.

Left out: executors on other hosts, and queries that are no streams, whose counts are in the
executors' logs only.  A range that one query reads in two formats counts once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_kafkalite.offsets import OffsetRange

log = logging.getLogger("pyspark_kafkalite")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""The local properties that Spark gives the tasks of a micro-batch."""
COUNTS = re.compile(r"(\d+)\.\d+\.\d+")
"""The name of a task's file."""


def place() -> Path:
    """Return the directory of this user that holds those of all queries."""
    return Path(tempfile.gettempdir()) / f"kafkalite-spark-{os.geteuid()}"


def is_private(path: Path) -> bool:
    """Return whether this is a directory of ours that nobody else can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700


# In a task.


def report(wanted: OffsetRange, bad_rows: int) -> None:
    """Leave the number of a range's bad rows to the listeners of the query, if it has any.

    The rows are left out whether or not the driver learns how many, so that what goes wrong here
    is logged and does not fail the task.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query is None or batch is None or not is_private(place()):
        return
    line = json.dumps([wanted.topic, wanted.partition, wanted.start, wanted.end, bad_rows])
    name = f"{batch}.{task.taskAttemptId()}.{os.getpid()}"
    try:
        for entry in os.listdir(place()):
            if entry.startswith(f"{query}."):
                append(place() / entry / name, line)
    except OSError as error:
        log.warning("Count of bad rows was not written. query=%s batch=%s error=%s",
                    query, batch, error)  # fmt: skip


def append(path: Path, line: str) -> None:
    """Append a line; the run that its directory belongs to may have ended meanwhile."""
    with contextlib.suppress(FileNotFoundError), path.open("a") as file:
        file.write(f"{line}\n")


# On the driver.


class BadRowCounts:
    """The directory of one run of a query, in which its tasks leave their counts.

    Args:
        query: The id of the query.

    Raises:
        OSError: If there can be no directory that is ours alone.
    """

    def __init__(self, query: str) -> None:
        above = place()
        with contextlib.suppress(FileExistsError):
            above.mkdir(mode=0o700)
            above.chmod(0o700)  # whatever the umask
        if not is_private(above):
            raise PermissionError(f"{above} is not a directory of mode 700 that belongs to us")
        remove_abandoned(above)
        self.path, self._held = held(above, query)
        self._taken = -1
        """The newest micro-batch whose counts were taken."""
        self._remove = weakref.finalize(self, remove, self.path, self._held, os.getpid())

    def take(self, batch: int) -> int:
        """Return the number of bad rows of the micro-batches up to this one.

        Those of earlier calls are left out, also what a task writes that ended late.
        """
        ranges: dict[tuple[object, ...], int] = {}
        for number, path in self._files():
            if number > batch:
                continue
            if number > self._taken:
                for *where, count in lines(path):
                    key = (number, *where)
                    ranges[key] = max(count, ranges.get(key, 0))
            path.unlink(missing_ok=True)
        self._taken = max(self._taken, batch)
        return sum(ranges.values())

    def close(self) -> None:
        """Remove the directory; a second call does nothing."""
        self._remove()

    def _files(self) -> Iterator[tuple[int, Path]]:
        """The files of tasks, each with its micro-batch; none if others removed the directory."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                if found := COUNTS.fullmatch(name):
                    yield int(found[1]), self.path / name


def held(above: Path, query: str) -> tuple[Path, int]:
    """Make a directory and return it with the descriptor that holds it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{query}.", dir=above))
        with contextlib.suppress(FileNotFoundError):  # another driver took it for abandoned
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def lines(path: Path) -> Iterator[list[int]]:
    """The lines of a file that are whole; a task that was killed may have left half of one."""
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def remove(path: Path, descriptor: int, pid: int) -> None:
    """Remove a directory, unless this process is a fork of the one that made it."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(above: Path) -> None:
    """Remove the directories that no driver holds."""
    for path in list(above.iterdir()):
        with contextlib.suppress(OSError):  # it is held, or has gone
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
