"""Flusher: flushes files to the disk on threads, off the event loop.

    loop:     log.flush_begin() ─▶ submit ┄┄ threads: fdatasync ┄┄▶ eventfd ─▶ collect ─▶ flush_end

A few threads flush files in parallel.  If many files are dirty, one syncfs flushes all of them,
which for a hundred files is ten times as fast (file_system.py says where it is used).  A job holds
its files open until it is done: a LogFlush (log_flushes.py), a checkpoint, a removal.

A failed flush is never retried (disk.py says why): the directory of every node on this file system
gets a mark for its next start, collect raises WriteBackFailed, and their processes must end.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import DISK, Disk
from kafkalite.storage.files.file_system import FileSystem
from kafkalite.storage.files.write_back import write_back_failed

SYNCFS_FROM = 16
"""Number of files from which flushing the whole file system is faster than flushing each."""


class Flushable(Protocol):
    """A unit of work for a Flusher, returned by `collect` once it was run."""

    files: list[OpenFile]
    """Files to flush first; they may be flushed together with those of others."""
    error: OSError | None
    """Set by `run` if the process must end."""

    @property
    def where(self) -> Path:
        """A path in the node's directory, which gets the mark of a failure."""

    @property
    def done(self) -> Callable[[Any], None] | None:
        """Called with this object by the code that collects it."""

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Flush, on any thread."""


def flush_all(
    flushes: Sequence[Flushable], disk: Disk, file_system: FileSystem | None = None
) -> None:
    """Flush synchronously; each flush keeps its error.

    Many files on `file_system` share one syncfs; all others are flushed one by one.
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


def _shared(flushes: Sequence[Flushable], file_system: FileSystem | None) -> frozenset[Flushable]:
    """Return the flushes that one syncfs can replace."""
    if file_system is None or not file_system.can_sync:
        return frozenset()
    if sum(len(flush.files) for flush in flushes) < SYNCFS_FROM:
        return frozenset()
    # A log's files are in one directory, so the first one tells the file system of all.  A log
    # whose closed segments were all removed has only names in its directory to flush.
    return frozenset(
        flush for flush in flushes
        if not flush.files or file_system.holds(flush.files[0].fileno())
    )  # fmt: skip


class Flusher:
    """A pool of threads that flush."""

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
        """Return the eventfd, which is readable when something can be collected."""
        return self._event

    @property
    def has_failed(self) -> bool:
        """True if a flush has failed, collected or not."""
        return self._failed is not None

    def submit(self, flushes: Sequence[Flushable]) -> None:
        """Start these flushes; `collect` returns each of them."""
        if not flushes:
            return
        self._start_threads()
        if _shared(flushes, self._file_system):
            self._jobs.put(list(flushes))
        else:
            for flush in flushes:
                self._jobs.put([flush])

    def collect(self) -> list[Flushable]:
        """Return the flushes done since the last call; raise DiskFailed once any has failed."""
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
        """Wait for the flushes in flight, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def _start_threads(self) -> None:
        # Started when first needed, and so after the launcher has forked.
        while len(self._threads) < self._thread_count:
            thread = threading.Thread(target=self._work, name="flusher", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Run one job; return False when the pool is closed.

        A separate frame: a thread that waits for work must not keep the last job's files open,
        whose log may be deleted or transferred to another node by then.
        """
        flushes = self._jobs.get()
        if flushes is None:
            return False
        try:
            flush_all(flushes, self._disk, self._file_system)
        except Exception as error:  # raised again by collect: the process cannot run without it
            self._failed = self._failed or error
        for flush in flushes:
            if flush.error is not None and self._failed is None:
                self._failed = write_back_failed(self._disk, flush.where, flush.error)
        self._done.put(flushes)
        os.eventfd_write(self._event, 1)
        return True
