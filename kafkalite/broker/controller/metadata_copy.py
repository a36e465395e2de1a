"""MetadataCopy: a copy of the metadata log's files in another log directory.

    renew     at the start, and after a failure: every file is made equal to the log's
    extend    before a decision is committed: what was appended since is appended, and flushed

If the data directory is lost, the broker starts with a copy in its place
(storage/manager/log_directories.py), so a decision is committed only once it is in every copy.  A
copy that cannot be written is not waited for: it is renewed later, in new files, since a flush that
failed must not be retried (storage/files/disk.py).  The failure is logged.

Only segments, snapshots and the small files beside them are copied; the indexes are built from the
segments when the copy is opened.

Left out: a worker that reads the metadata log by itself (metadata_reader.py) flushes only the log
itself, not the copies.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.broker.controller.snapshot import SNAPSHOT
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import (
    DISK,
    FAILURE_MARK,
    Disk,
    put_file,
    sync_directory,
    write_all,
)
from kafkalite.storage.manager.log_directory import META_PROPERTIES

if TYPE_CHECKING:
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log

_log = logging.getLogger("kafkalite.broker")

CHUNK_SIZE = 1 << 20
RENEW_MS = 10_000
"""Delay before a copy that could not be written is renewed."""

SMALL_FILES = (layout.PARTITION_METADATA, layout.LEADER_EPOCHS)

Sizes = Mapping[str, int]
"""The size of each segment's file up to which it is copied, by name."""


def sizes_of(log: Log) -> dict[str, int]:
    """Return the present sizes of the segments of a log."""
    return {segment.path.name: segment.size for segment in log.segments}


class MetadataCopy:
    """The copy in one log directory; used by one thread at a time."""

    def __init__(self, source: Path, target: Path, disk: Disk = DISK) -> None:
        self.source = source
        self.target = target
        self.end_offset = 0
        """The offset up to which the log is in the copy, on the disk."""
        self.is_current = False
        """True while the copy is extended; False if it has to be renewed first."""
        self.has_failed = False
        """True if the last attempt to write it has failed."""
        self._disk = disk
        self._mark = target.parent / FAILURE_MARK
        self._copied: dict[str, int] = {}

    def renew(self, sizes: Sizes) -> None:
        """Make all files equal to the log's, up to these sizes, and remove others.

        After a failure, files that seem equal are written again: the page cache may differ from
        the disk.  Raises OSError.
        """
        is_suspect = self.has_failed or self._mark.exists()
        if not self.target.is_dir():
            _check_present(self.target.parent)
            self._disk.mkdir(self.target, 0o700)
            sync_directory(self._disk, self.target.parent)
        wanted = dict(sizes)
        for path in self.source.iterdir():
            if path.name.endswith(SNAPSHOT) or path.name in SMALL_FILES:
                wanted[path.name] = path.stat().st_size
        for path in list(self.target.iterdir()):
            if path.name not in wanted:
                self._disk.unlink(path)
        for name, size in wanted.items():
            content = _read(self.source / name, size)
            path = self.target / name
            if is_suspect or not path.exists() or path.read_bytes() != content:
                put_file(self._disk, path, content)
        if self._mark.exists():
            self._disk.unlink(self._mark)
        sync_directory(self._disk, self.target)
        self._copied = dict(sizes)

    def extend(self, sizes: Sizes) -> None:
        """Append what the log has more, up to these sizes, and flush it; raise OSError."""
        for name, size in sizes.items():
            copied = self._copied.get(name, 0)
            if size > copied:
                is_new = name not in self._copied
                self._append(name, copied, size)
                if is_new:
                    sync_directory(self._disk, self.target)
                self._copied[name] = size
        if self._mark.exists():
            raise OSError(errno.EIO, "a flush of this file system has failed", str(self._mark))

    def _append(self, name: str, position: int, end: int) -> None:
        file = self._disk.open(self.target / name, os.O_WRONLY | os.O_CREAT)
        try:
            while position < end:
                content = _read(self.source / name, min(end - position, CHUNK_SIZE), position)
                write_all(self._disk, file.fileno(), content, position)
                position += len(content)
            self._disk.fdatasync(file.fileno())
        finally:
            file.close()


class CopyFlush:
    """One renewal or extension of a copy (flusher.Flushable); its failure ends no process."""

    def __init__(self, copy: MetadataCopy, log: Log, done: Callable[[CopyFlush], None]) -> None:
        self.copy = copy
        self.where = copy.target
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.failure: OSError | None = None
        self.done = done
        self.end_offset = log.end_offset
        self._sizes = sizes_of(log)

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Copy, on any thread."""
        try:
            if self.copy.is_current:
                self.copy.extend(self._sizes)
            else:
                self.copy.renew(self._sizes)
        except OSError as error:
            self.failure = error


class MetadataCopies:
    """The copies of the metadata log in all other log directories.

    Args:
        log: The metadata log.
        directories: The other log directories.
        flusher: Runs the copying.
        call_later: Calls a function after some milliseconds.
        on_copied: Called when more is in the copies, or one is not waited for any more.
    """

    def __init__(
        self,
        log: Log,
        directories: Sequence[Path],
        flusher: Flusher,
        call_later: Callable[[int, Callable[[], object]], object],
        on_copied: Callable[[], object],
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._call_later = call_later
        self._on_copied = on_copied
        self._in_flight: set[MetadataCopy] = set()
        name = log.directory.name
        self._copies = [MetadataCopy(log.directory, path / name) for path in directories]

    @property
    def end_offset(self) -> int:
        """The offset up to which the log is in every copy that is waited for."""
        ends = [copy.end_offset for copy in self._copies if copy.is_current]
        return min(ends, default=self._log.end_offset)

    @property
    def failed(self) -> list[Path]:
        """The directories of the copies that are not current."""
        return [copy.target for copy in self._copies if not copy.is_current]

    def renew_now(self) -> None:
        """Make the copies equal to the log, before anything is served."""
        for copy in self._copies:
            self._run_now(copy)

    def extend_now(self) -> None:
        """Copy what was appended, and wait for it."""
        for copy in self._copies:
            if copy.is_current and copy.end_offset < self._log.end_offset:
                self._run_now(copy)

    def push(self) -> None:
        """Begin to copy what was appended."""
        for copy in self._copies:
            if copy.is_current and copy.end_offset < self._log.end_offset:
                self._begin(copy)

    def _run_now(self, copy: MetadataCopy) -> None:
        flush = CopyFlush(copy, self._log, self._finished)
        flush.run(DISK)
        self._finished(flush)

    def _begin(self, copy: MetadataCopy) -> None:
        if copy not in self._in_flight:
            self._in_flight.add(copy)
            self._flusher.submit([CopyFlush(copy, self._log, self._done)])

    def _done(self, flush: CopyFlush) -> None:
        self._in_flight.discard(flush.copy)
        self._finished(flush)
        self.push()
        self._on_copied()

    def _finished(self, flush: CopyFlush) -> None:
        copy = flush.copy
        if flush.failure is None:
            if not copy.is_current and copy.has_failed:
                _log.info("Copy of the metadata log is complete again. path=%s", copy.target)
            copy.end_offset, copy.is_current, copy.has_failed = flush.end_offset, True, False
            return
        if not copy.has_failed:
            _log.error(
                "Metadata log cannot be copied to another log directory; retrying.  If the data"
                " directory is lost meanwhile, decisions are lost. path=%s error=%r retry_ms=%d",
                copy.target, flush.failure.strerror, RENEW_MS,
            )  # fmt: skip
        copy.is_current, copy.has_failed = False, True
        self._call_later(RENEW_MS, lambda: self._begin(copy))


def _check_present(directory: Path) -> None:
    """Raise OSError if a log directory was removed or unmounted: a copy on the disk below it would
    be none."""
    if not (directory / META_PROPERTIES).exists():
        raise OSError(errno.ENOENT, "it was removed or unmounted", str(directory))


def _read(path: Path, size: int, position: int = 0) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        content = file.read(size)
    if len(content) < size:
        raise OSError(errno.EIO, f"only {len(content)} of {size} bytes can be read", str(path))
    return content
