"""DirectoryFlush: flushes the entries of a directory, off the event loop.

Deleting a topic renames a directory for each of its partitions, and a request may delete thousands
of topics.  One flush is in flight at a time and the next one covers all renames made meanwhile, so
the number of flushes does not grow with the number of topics.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import SHORTAGE_ERRORS, Disk, sync_directory

if TYPE_CHECKING:
    from kafkalite.storage.files.flusher import Flusher

log = logging.getLogger("kafkalite.storage")


class DirectoryFlush:
    """The flush of one directory's entries (flusher.Flushable)."""

    def __init__(self, directory: Path) -> None:
        self.where = directory / "*"
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self._directory = directory
        self._in_flight = self._requested = False
        self._flusher: Flusher | None = None

    def request(self, flusher: Flusher) -> None:
        """Flush the entries that the directory has now."""
        self._flusher = flusher
        self._requested = True
        self._begin()

    def _begin(self) -> None:
        if self._requested and not self._in_flight:
            self._requested, self._in_flight = False, True
            assert self._flusher is not None
            self._flusher.submit([self])

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Flush, on any thread; if descriptors are short, the next flush does it."""
        try:
            sync_directory(disk, self._directory)
        except OSError as error:
            if error.errno in SHORTAGE_ERRORS:
                log.warning(
                    "Directory could not be flushed; the next flush does it. path=%s error=%r",
                    self._directory, error.strerror,
                )  # fmt: skip
            else:
                self.error = error

    def done(self, _: DirectoryFlush) -> None:
        """Take the result of a flush, and begin another if entries were changed meanwhile."""
        self._in_flight = False
        self._begin()
