"""Counts of a stream's bad rows, from the tasks that leave them out to the driver.

A Python data source has neither accumulators nor metrics of its own, so a task writes its counts to
a file, and the driver's LagListener adds them up after the micro-batch:

    /tmp/kafkalite-spark-UID/QUERY.LETTERS/     a directory for each run of a query and listener
        BATCH.TASK.PID                          a line for each range of offsets with bad rows

Nothing is written for a range without bad rows, and nothing without a listener.

A range that is read more than once (a task that is retried or speculative, a foreachBatch with
several actions) counts once, with its greatest count: an attempt that failed has read no more of
the range than the one that completed it.

The driver locks its directory with flock; directories of killed drivers are removed by the next.

Left out: executors on other hosts, and batch queries, whose counts are only in the executors' logs.
A range that one query reads in two formats counts once.
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
    from pyspark_kafkalite.connector.offset_ranges import OffsetRange

log = logging.getLogger("pyspark_kafkalite")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of the tasks of a micro-batch, set by Spark."""
COUNTS = re.compile(r"(\d+)\.\d+\.\d+")
"""The name of a task's file."""


def place() -> Path:
    """Return this user's directory for the counts of all queries."""
    return Path(tempfile.gettempdir()) / f"kafkalite-spark-{os.geteuid()}"


def is_private(path: Path) -> bool:
    """Return whether this is a directory of this user, with mode 700."""
    try:
        found = path.lstat()
    except OSError:
        return False
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return ours and stat.S_IMODE(found.st_mode) == 0o700


# Tasks.


def report(offset_range: OffsetRange, bad_rows: int) -> None:
    """Write the number of a range's bad rows for the query's listeners, if it has any.

    The rows are left out even if the driver does not learn their number, so errors are logged and
    do not fail the task.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        return
    query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
    if query is None or batch is None or not is_private(place()):
        return
    line = json.dumps(
        [offset_range.topic, offset_range.partition, offset_range.start, offset_range.end, bad_rows]
    )
    name = f"{batch}.{task.taskAttemptId()}.{os.getpid()}"
    try:
        for entry in os.listdir(place()):
            if entry.startswith(f"{query}."):
                append(place() / entry / name, line)
    except OSError as error:
        log.warning("Count of bad rows was not written. query=%s batch=%s error=%s",
                    query, batch, error)  # fmt: skip


def append(path: Path, line: str) -> None:
    """Append a line; do nothing if the run has ended and its directory is gone."""
    with contextlib.suppress(FileNotFoundError), path.open("a") as file:
        file.write(f"{line}\n")


# Driver.


class BadRowCounts:
    """Directory for the counts of one run of a query.

    Args:
        query: The id of the query.

    Raises:
        OSError: No private directory can be created.
    """

    def __init__(self, query: str) -> None:
        above = place()
        with contextlib.suppress(FileExistsError):
            above.mkdir(mode=0o700)
            above.chmod(0o700)  # regardless of the umask
        if not is_private(above):
            raise PermissionError(f"{above} is not a directory of mode 700 owned by this user")
        remove_abandoned(above)
        self.path, self._held = held(above, query)
        self._taken = -1
        """The last micro-batch whose counts were taken."""
        self._remove = weakref.finalize(self, remove, self.path, self._held, os.getpid())

    def take(self, batch: int) -> int:
        """Return the number of bad rows of the micro-batches up to this one.

        Counts of earlier calls are left out, including late ones of tasks that ended after them.
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
        """Yield the tasks' files with their micro-batch ids; none if the directory was removed."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.path):
                if found := COUNTS.fullmatch(name):
                    yield int(found[1]), self.path / name


def held(above: Path, query: str) -> tuple[Path, int]:
    """Create a directory; return it and the descriptor that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{query}.", dir=above))
        with contextlib.suppress(FileNotFoundError):  # another driver removed it as abandoned
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def lines(path: Path) -> Iterator[list[int]]:
    """Yield the complete lines of a file; a killed task may have left an incomplete one."""
    for line in path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def remove(path: Path, descriptor: int, pid: int) -> None:
    """Remove a directory, unless this process is a fork of its creator."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(above: Path) -> None:
    """Remove the directories that no driver has locked."""
    for path in list(above.iterdir()):
        with contextlib.suppress(OSError):  # it is locked, or was removed
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
