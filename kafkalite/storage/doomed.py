"""Doomed: files and directories that are out of service and removed a while later.

Who was given a slice of one holds its descriptor, and needs no name.  The delay is for those who
come by name: another program that copies the files, or a person who changes their mind.

A file that was lent (loans.py) is cut to nothing when it is removed, for as long as a reader keeps
its descriptor the disk would keep its bytes.

Left out: a partition that another node leads by now may have lent segments; that node does not
know, and what it removes keeps its room until its readers close it or end.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from kafkalite.clock import Clock
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.disk import Disk, remove_tree

log = logging.getLogger("kafkalite.storage")

REMOVED_AT_ONCE_MAX = 64
"""How many a tick removes: each is a file, or a directory with a handful of them."""


class Doomed:
    """What is to be removed, and when; see the module."""

    def __init__(self, clock: Clock, disk: Disk) -> None:
        self._clock = clock
        self._disk = disk
        self._due: list[tuple[int, Path]] = []
        self._lent: set[tuple[int, int]] = set()

    def add(self, paths: Iterable[Path], delay_ms: int) -> None:
        """Remove these after a delay."""
        due_ms = self._clock.monotonic_ms() + delay_ms
        for path in paths:
            heapq.heappush(self._due, (due_ms, path))

    def lend(self, file: OpenFile) -> None:
        """Somebody else has a descriptor of this file, for as long as they like."""
        self._lent.add(_file_id(os.fstat(file.fileno())))

    def remove_due(self) -> int | None:
        """Remove some of those whose delay is over; when the next one is due, if there is one."""
        now_ms = self._clock.monotonic_ms()
        for _ in range(REMOVED_AT_ONCE_MAX):
            if not self._due or self._due[0][0] > now_ms:
                break
            self._remove(heapq.heappop(self._due)[1])
        return self._due[0][0] if self._due else None

    def _remove(self, path: Path) -> None:
        if path.is_dir():
            if self._lent:
                for inside in list(path.iterdir()):
                    self._empty(inside)
            remove_tree(self._disk, path)
            return
        try:
            self._empty(path)
            self._disk.unlink(path)
        except FileNotFoundError:
            pass  # Somebody was quicker, or the log has moved and its new owner tidies up.
        except OSError as error:
            # The next start does it.
            log.warning("%s cannot be removed: %s", path, error.strerror)

    def _empty(self, path: Path) -> None:
        if not self._lent:
            return
        found = _file_id(path.stat())
        if found in self._lent:
            self._disk.truncate(path, 0)
            self._lent.remove(found)


def _file_id(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
