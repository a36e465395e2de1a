"""CleanerCheckpoint: the offset up to which each log was cleaned (offset_checkpoint.py).

An entry that is lost costs one longer pass.  So an entry that is not valid is dropped, a full disk
is tolerated, and the file is replaced as a whole: after a pass, once the directory with the names
of the cleaned segments is flushed, and when an entry is removed with its log.

Not thread-safe, except `run`, which a flusher's thread runs; one write is in flight at a time.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout, offset_checkpoint
from kafkalite.storage.files.disk import (
    ERRORS_OF_ONE_LOG,
    TRANSIENT_ERRORS,
    Disk,
    failed,
    put_file,
    sync_directory,
)

if TYPE_CHECKING:
    from kafkalite.storage.files.flusher import Flusher

log = logging.getLogger("kafkalite.storage")


class CleanerCheckpoint:
    """The cleaner checkpoint of one node (flusher.Flushable)."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self.where = directory / layout.CLEANER_CHECKPOINT
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self._disk = disk
        self._offsets = read(self.where)
        self._changed: set[Path] = set()
        """Directories whose names are flushed before the next write."""
        self._written = dict(self._offsets)
        self._in_flight: tuple[dict[tuple[str, int], int], set[Path]] | None = None
        self._refused: OSError | None = None
        self._next_flusher: Flusher | None = None
        """Set if there is to be another write after the one in flight."""

    def offset_of(self, topic: str, partition: int) -> int:
        """Return the offset up to which a log was cleaned; -1 if it never was."""
        return self._offsets.get((topic, partition), -1)

    def set(self, topic: str, partition: int, offset: int, directory: Path | None = None) -> None:
        """Set the offset of a log, whose directory is flushed before the entry is written."""
        self._offsets[topic, partition] = offset
        if directory is not None:
            self._changed.add(directory)

    def remove(self, topic: str, partition: int) -> None:
        """Remove the entry of a log that is deleted or transferred."""
        self._offsets.pop((topic, partition), None)

    def write(self, flusher: Flusher | None) -> None:
        """Write the entries if they have changed, after a write in flight; without a flusher
        synchronously, after the threads of the one before have ended."""
        if self._in_flight is not None:
            self._next_flusher = flusher
            if flusher is not None:
                return
            self.done(self)
        if self._offsets == self._written:
            return
        self._in_flight = dict(self._offsets), self._changed
        self._changed = set()
        if flusher is not None:
            flusher.submit([self])
            return
        self.run(self._disk)
        if self.error is not None:
            failed(self.error, f"{self.where} cannot be written")
        self.done(self)

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Write the file, on any thread; on a full disk a later write may succeed."""
        assert self._in_flight is not None
        offsets, directories = self._in_flight
        try:
            for directory in directories:
                if directory.exists():
                    sync_directory(disk, directory)
            put_file(disk, self.where, offset_checkpoint.encoded(offsets))
        except OSError as error:
            if error.errno in TRANSIENT_ERRORS | ERRORS_OF_ONE_LOG:
                self._refused = error
            else:
                self.error = error

    def done(self, _: CleanerCheckpoint) -> None:
        """Take the result of a write, and begin the next one; one that was refused is repeated by
        the next call of `write`."""
        assert self._in_flight is not None
        (offsets, directories), self._in_flight = self._in_flight, None
        flusher, self._next_flusher = self._next_flusher, None
        if self._refused is None:
            self._written = offsets
            if flusher is not None:
                self.write(flusher)
            return
        log.warning(
            "Cleaner checkpoint cannot be written; the next write repeats it. path=%s error=%r",
            self.where, self._refused.strerror,
        )  # fmt: skip
        self._refused = None
        self._changed |= directories


def read(path: Path) -> offset_checkpoint.Offsets:
    """Return the entries of a checkpoint file; none if it is missing or damaged."""
    try:
        return offset_checkpoint.read(path)
    except (OSError, ValueError) as error:
        log.warning(
            "Cleaner checkpoint is damaged; every log is cleaned from its start. path=%s error=%r",
            path, str(error),
        )  # fmt: skip
        return {}
