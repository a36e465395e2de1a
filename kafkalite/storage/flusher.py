"""Flusher: takes what was written to the disk itself, beside the loop and never in it.

    loop:     log.flush_begin() ─▶ submit ┄┄ threads: fdatasync ┄┄▶ eventfd ─▶ collect ─▶ flush_end

A few threads flush files side by side; where many files are dirty, one syncfs takes them all,
which for a hundred files is ten times as fast (file_system.py says where).  A Flush holds its files
open until it is done.

A flush that fails is never tried again (disk.py says why): a mark is left for the next start of
every node on this file system, collect raises WriteBackFailed, and their processes must end.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage import layout
from kafkalite.storage.disk import DISK, PASSING, Disk, put_file, sync_directory
from kafkalite.storage.file_system import FileSystem
from kafkalite.storage.write_back import write_back_failed

if TYPE_CHECKING:
    from kafkalite.storage.log import Log

SYNCFS_FROM = 16
"""So many files, and flushing the whole file system is faster than each of them."""


class Flushable(Protocol):
    """What a Flusher takes, and gives back when it was run."""

    files: list[OpenFile]
    """What must be flushed first, and may be together with others'."""
    error: OSError | None
    """Set by `run` when the process must end."""

    @property
    def where(self) -> Path:
        """Something in the node's directory, for the mark of a failure."""

    @property
    def done(self) -> Callable[[Any], None] | None:
        """Called by who collects it."""

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Flush, on whatever thread."""


class EpochsFile(NamedTuple):
    """A log's leader epochs, to be written where its directory is by then: the log may be deleted
    meanwhile, and another one have its name."""

    directory: OpenFile | None
    """None if somebody removed it."""
    content: bytes

    def write(self, disk: Disk) -> None:
        if self.directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        directory = f"/proc/self/fd/{self.directory.fileno()}"
        put_file(disk, Path(directory, layout.LEADER_EPOCHS), self.content)


class Flush:
    """What one log needs flushed so that it is durable up to `end_offset`."""

    __slots__ = ("directories", "done", "end_offset", "epochs", "error", "files", "is_lost",
                 "log", "position", "refused", "segments_made", "written_size")  # fmt: skip

    def __init__(
        self,
        log: Log,
        end_offset: int,
        files: list[OpenFile],
        epochs: EpochsFile | None,
        directories: list[Path],
    ) -> None:
        self.log = log
        self.end_offset = end_offset
        self.files = files
        self.epochs = epochs
        self.directories = directories
        self.position = log.active.size
        self.written_size = log.written_size
        self.segments_made = log.segments_made
        self.error: OSError | None = None
        self.refused: OSError | None = None
        """The error of an epochs file that could not be written; the flush is then repeated."""
        self.is_lost = False
        """True if somebody removed the log's directory meanwhile."""
        self.done: Callable[[Flush], None] | None = None

    @property
    def where(self) -> Path:
        return self.log.directory

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Flush, on whatever thread; an error is kept for collect.

        Flushes of one log go one after the other, and after a failed one all fail: the kernel tells
        one descriptor of an error once, and the log's flushes share descriptors.

        A log that is deleted meanwhile takes its directory away, and need not be durable.  Where
        somebody else took it away, that log is lost, and the disk as sound as before.
        """
        flushes = self.log.flushes
        with flushes.one_at_a_time:
            if flushes.error is None:
                try:
                    self._run(disk, files_flushed)
                except OSError as error:
                    if error.errno == errno.ENOENT and (
                        self.log.released or not self.log.directory.exists()
                    ):
                        self.is_lost = not self.log.released
                    else:
                        flushes.error = error
            self.error = flushes.error

    def _run(self, disk: Disk, files_flushed: bool) -> None:
        if not files_flushed:
            for file in self.files:
                disk.fdatasync(file.fileno())
        if self.log.released:
            return
        try:
            if self.epochs is not None:
                self.epochs.write(disk)
        except OSError as error:
            # Of a file that was to be replaced no old content is lost, and no record with it.
            if error.errno not in PASSING:
                raise
            self.refused = error
            return
        for directory in () if files_flushed else self.directories:
            sync_directory(disk, directory)


def flush_all(
    flushes: Sequence[Flushable], disk: Disk, file_system: FileSystem | None = None
) -> None:
    """Flush these here and now; each Flush keeps its error.

    Many files on `file_system` share one syncfs; any others are flushed one by one.
    """
    shared = _shared(flushes, file_system)
    error: OSError | None = None
    if shared:
        assert file_system is not None
        try:
            file_system.sync()
        except OSError as raised:
            error = raised
    for flush in flushes:
        flush.run(disk, files_flushed=flush in shared)
        if flush in shared:
            flush.error = flush.error or error


def _shared(
    flushes: Sequence[Flushable], file_system: FileSystem | None
) -> frozenset[Flushable]:
    """Return the flushes that one syncfs takes."""
    if file_system is None or not file_system.can_sync:
        return frozenset()
    if sum(len(flush.files) for flush in flushes) < SYNCFS_FROM:
        return frozenset()
    # A log's files are in one directory, so the first says where all of them are.  A log whose
    # closed segments were all removed has a place in its directory to flush only.
    return frozenset(
        flush for flush in flushes
        if not flush.files or file_system.holds(flush.files[0].fileno())
    )  # fmt: skip


class Flusher:
    """A pool of threads that flush; see the module."""

    def __init__(
        self, threads: int = 4, disk: Disk = DISK, file_system: FileSystem | None = None
    ) -> None:
        self._disk = disk
        self._file_system = file_system
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._jobs: queue.SimpleQueue[list[Flushable] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[list[Flushable]] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._thread_count = threads
        self._failed: Exception | None = None

    def fileno(self) -> int:
        """Readable when something can be collected."""
        return self._event

    @property
    def has_failed(self) -> bool:
        """Whether a flush ever failed, collected or not."""
        return self._failed is not None

    def submit(self, flushes: Sequence[Flushable]) -> None:
        """Begin these flushes; collect gives each of them back."""
        if not flushes:
            return
        self._start_threads()
        if _shared(flushes, self._file_system):
            self._jobs.put(list(flushes))
        else:
            for flush in flushes:
                self._jobs.put([flush])

    def collect(self) -> list[Flushable]:
        """The flushes that are done since; raises DiskFailed once any has failed, and for ever."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        done: list[Flushable] = []
        while not self._done.empty():
            done += self._done.get()
        if self._failed is not None:
            raise self._failed
        return done

    def close(self) -> None:
        """Let what is under way end, and the threads with it."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def _start_threads(self) -> None:
        # Not before they are needed, and not before the launcher has forked.
        while len(self._threads) < self._thread_count:
            thread = threading.Thread(target=self._work, name="flusher", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """One job; False at the end.

        A frame of its own: a thread that waits for work must not hold the last job's files open,
        whose log may be deleted or another node's by then.
        """
        flushes = self._jobs.get()
        if flushes is None:
            return False
        try:
            flush_all(flushes, self._disk, self._file_system)
        except Exception as fault:  # raised again by collect: without a flusher nothing goes on
            self._failed = self._failed or fault
        for flush in flushes:
            if flush.error is not None and self._failed is None:
                self._failed = write_back_failed(self._disk, flush.where, flush.error)
        self._done.put(flushes)
        os.eventfd_write(self._event, 1)
        return True
