"""Deferred deletes: removed files and directories, deleted after `file.delete.delay.ms`.

    add ─▶ delay ─▶ remove_due ─▶ FileRemoval ┄┄ on a flusher's thread ┄┄▶ done ─▶ the next

Deleting a file costs 0.4 s/GiB of its cached pages, so it is done off the event loop, in steps
bounded in files and bytes, one at a time: the flusher's other threads stay free for flushes.

A reader that holds a slice has a descriptor of the file and does not need its name.  The delay is
for access by name: another program that copies the files, or an operator who restores them.

A file with a segment grant (segment_grants.py) is truncated to zero before it is deleted; otherwise
the disk would keep its bytes for as long as a reader keeps its descriptor.

Left out: a partition that was transferred to another node may have segment grants; the new node
does not know of them, and files that it deletes keep their disk space until the readers close them
or exit.  A file that a slow connection still reads is freed by the kernel when that connection
closes, on the event loop.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.clock import Clock
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import Disk

if TYPE_CHECKING:
    from kafkalite.storage.files.flusher import Flusher

log = logging.getLogger("kafkalite.storage")

STEP_FILES_MAX = 64
STEP_BYTES_MAX = 256 << 20
"""A step ends with the file that reaches either limit; a process that exits waits for one step."""

TRUNCATE_BYTES = 64 << 20
"""Files are truncated by this much at a time, which bounds how long a concurrent flush waits."""

RECHECK_MS = 1_000
"""Interval of checks while a removal is running and another is due."""


class DeferredDeletes:
    """The deferred deletes of one node."""

    def __init__(self, clock: Clock, disk: Disk) -> None:
        self._clock = clock
        self._disk = disk
        self._due: list[tuple[int, Path]] = []
        self._granted: set[tuple[int, int]] = set()
        self._removal: FileRemoval | None = None
        """The removal in flight."""

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Delete these paths after the delay."""
        due_ms = self._clock.monotonic_ms() + delay_ms
        for path in paths:
            heapq.heappush(self._due, (due_ms, path))

    def note_grant(self, file: OpenFile) -> None:
        """Note that another process may hold a descriptor of this file for any length of time."""
        self._granted.add(_file_id(os.fstat(file.fileno())))

    def is_granted(self, path: Path) -> bool:
        """Return whether another process may hold a descriptor of this file."""
        return bool(self._granted) and _file_id(path.stat()) in self._granted

    def remove_due(self, flusher: Flusher | None = None) -> int | None:
        """Begin to delete the paths whose delay is over, or delete them synchronously if there is
        no flusher.  Return the time of the next call (monotonic, in ms), or None."""
        if self._removal is None:
            self._begin(flusher)
        if not self._due:
            return None
        if self._removal is None:
            return self._due[0][0]
        return max(self._due[0][0], self._clock.monotonic_ms() + RECHECK_MS)

    def _begin(self, flusher: Flusher | None) -> None:
        now_ms = self._clock.monotonic_ms()
        paths: deque[Path] = deque()
        while self._due and self._due[0][0] <= now_ms:
            paths.append(heapq.heappop(self._due)[1])
        if not paths:
            return
        removal = FileRemoval(paths, self._granted)
        if flusher is None:
            while removal.paths:
                removal.run(self._disk)
            return
        self._removal = removal
        removal.done = lambda removal: self._step_done(removal, flusher)
        flusher.submit([removal])

    def _step_done(self, removal: FileRemoval, flusher: Flusher) -> None:
        if removal.paths:
            flusher.submit([removal])
            return
        self._removal = None
        self._begin(flusher)


class FileRemoval:
    """Deletes files and directories, one step in each run (flusher.Flushable).

    While it is in flight only the flusher's thread uses `paths`.  `granted` is
    shared with the event loop, which only adds to it.
    """

    def __init__(self, paths: deque[Path], granted: set[tuple[int, int]]) -> None:
        self.where = paths[0]
        self.paths = paths
        self.granted = granted
        self._listed: set[Path] = set()
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.done: Callable[[FileRemoval], None] | None = None

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Run one step; paths that cannot be deleted are deleted by the next start."""
        count = size = 0
        while self.paths and count < STEP_FILES_MAX and size < STEP_BYTES_MAX:
            path = self.paths.popleft()
            count += 1
            try:
                size += self._remove(disk, path)
            except FileNotFoundError:
                pass  # deleted by another program, or by the node the log was transferred to
            except OSError as error:
                log.warning(
                    "Deleted file cannot be removed; the next start removes it. path=%s error=%r",
                    path, error.strerror,
                )  # fmt: skip

    def _remove(self, disk: Disk, path: Path) -> int:
        """Delete a file or an empty directory, or queue a directory's files before the directory
        itself.  Return the number of bytes freed."""
        if path.is_dir():
            inside = list(path.iterdir())
            if inside and path not in self._listed:
                self._listed.add(path)
                self.paths.appendleft(path)
                self.paths.extendleft(inside)
            else:
                disk.rmdir(path)
            return 0
        found = path.stat()
        if _file_id(found) in self.granted:
            self.granted.discard(_file_id(found))
            for size in range(found.st_size - TRUNCATE_BYTES, 0, -TRUNCATE_BYTES):
                disk.truncate(path, size)
            disk.truncate(path, 0)
        disk.unlink(path)
        return found.st_size


def _file_id(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
