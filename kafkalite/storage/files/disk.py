"""Disk: every file system call that storage makes to write, in one class that tests can replace.

All writes of storage go through a Disk.  A test passes one whose N-th call fails, or one that
records each write so that it can rebuild the state a crash would have left.  Reads do not: they are
made by sendfile and by compiled code, and the data read is validated.

There are two kinds of failure.  A full disk is reported to the client (KafkaStorageError): the
partial write is truncated, and writes continue once there is space.  Any other failure to write or
flush ends the process (DiskFailed), because the state of the disk is unknown: after a failed flush
the kernel marks the pages clean, and a second flush would succeed without writing them.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from kafkalite._ext import segment_walk
from kafkalite.errors import Fatal, KafkaStorageError
from kafkalite.records.file_slice import OpenFile

log = logging.getLogger("kafkalite.storage")

DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk or quota."""

SHORTAGE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a call refused for lack of descriptors or memory."""

TRANSIENT_ERRORS = DISK_FULL_ERRORS | SHORTAGE_ERRORS
"""Errors that say nothing about the disk's health: the call was refused and may succeed later."""

ERRORS_OF_ONE_LOG = frozenset({errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR})
"""Errors that concern one log's files, which were removed or cannot be named."""

DESCRIPTORS_RESERVED = 32
"""Descriptors kept for files that are open briefly: a directory flush, a checkpoint, a new segment.
Fewer than connections leave (transport), so that many clients never stop a log.  Flushes may use
half of them, so that written data is flushed even if no more can be written."""

SMALL_FILE_BYTES = 4096

FAILURE_MARK = "write-failed"
"""A file in the data directory: the page cache of these logs may differ from the disk."""


class DiskFailed(Fatal):
    """The disk lost bytes it had accepted, or cannot be written; the process must end.

    The next start recovers the logs as after a crash.  The flush must not be retried.
    """


class LogFilesLost(KafkaStorageError):
    """Files of one log were removed by another program, or cannot be opened: the log cannot go on,
    but other logs can."""


class WriteBackFailed(DiskFailed):
    """A flush failed: the page cache may differ from the disk, for every process that writes to
    this file system.  All of them must end."""


class Disk:
    """The system calls themselves."""

    pwritev = staticmethod(os.pwritev)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    truncate = staticmethod(os.truncate)
    posix_fallocate = staticmethod(os.posix_fallocate)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    fstatvfs = staticmethod(os.fstatvfs)

    def open(self, path: str | Path, flags: int) -> OpenFile:
        return OpenFile(path, flags)

    def open_to_keep(
        self, path: str | Path, flags: int, reserved: int = DESCRIPTORS_RESERVED
    ) -> OpenFile:
        """Open a file of a log, to be kept open.

        Raises KafkaStorageError for any failure: nothing was written, and only one log is affected;
        LogFilesLost unless it may succeed later.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            file = self.open(path, flags)
        except OSError as error:
            kind = KafkaStorageError if error.errno in TRANSIENT_ERRORS else LogFilesLost
            raise kind(f"{path} cannot be opened: {error.strerror}") from error
        if file.fileno() >= limit - reserved:
            file.close()
            raise KafkaStorageError(
                f"{path} cannot be opened: too many open files; raise ulimit -n"
            )
        return file

    def open_to_flush(self, path: str | Path) -> OpenFile:
        """Open a file that is closed once it is flushed, using half of the reserved descriptors."""
        return self.open_to_keep(path, os.O_RDONLY, DESCRIPTORS_RESERVED // 2)

    def syncfs(self, descriptor: int) -> None:
        code = segment_walk.syncfs(descriptor)
        if code:
            raise OSError(code, os.strerror(code))

    def type_of(self, descriptor: int) -> int:
        """Return the type of the file system that holds an open file (statfs(2), f_type)."""
        return segment_walk.file_system_type(descriptor)


DISK = Disk()


def write_all(disk: Disk, descriptor: int, content: bytes | bytearray, position: int) -> None:
    """Write all bytes at a position, or raise OSError."""
    # A copy: an exception's traceback keeps this frame alive, and with it a view of a bytearray.
    view = memoryview(bytes(content))
    while view:
        written = disk.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def sync_directory(disk: Disk, path: str | Path) -> None:
    """Flush a directory, so that its names survive a power cut."""
    directory = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(directory.fileno())
    directory.close()


def remove_tree(disk: Disk, directory: Path) -> None:
    """Remove a directory and its files; what cannot be removed is removed at a later start."""
    try:
        for path in list(directory.iterdir()):
            disk.unlink(path)
        disk.rmdir(directory)
    except OSError as error:
        log.warning(
            "Directory cannot be removed; the next start removes it. path=%s error=%r",
            directory, error.strerror,
        )  # fmt: skip


def write_file(disk: Disk, path: Path, content: bytes, *, flushed: bool = False) -> None:
    """Write a small file in place; its reader must detect a torn write."""
    file = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, file.fileno(), content, 0)
        if flushed:
            disk.fsync(file.fileno())
    finally:
        file.close()


def read_small_file(path: Path) -> bytes:
    """Return a small file's content, at a third of the cost of `Path.read_bytes`: a start reads two
    of each log."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        while piece := os.read(descriptor, SMALL_FILE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def put_file(disk: Disk, path: Path, content: bytes, *, flushed: bool = True) -> None:
    """Replace a small file atomically: a crash leaves the old content or the new.

    Without `flushed` that holds for a crash of the process, not of the machine.
    """
    beside = path.with_name(path.name + ".tmp")
    write_file(disk, beside, content, flushed=flushed)
    disk.rename(beside, path)
    if flushed:
        sync_directory(disk, path.parent)


def failed(error: OSError, doing: str) -> NoReturn:
    """Raise the error for a failed write: KafkaStorageError for one client, LogFilesLost for one
    log, or DiskFailed."""
    reason = f"{doing}: {error.strerror}"
    if error.errno in ERRORS_OF_ONE_LOG:
        raise LogFilesLost(reason) from error
    if error.errno in TRANSIENT_ERRORS:
        raise KafkaStorageError(reason) from error
    raise DiskFailed(reason) from error


class FreeSpace:
    """The number of bytes that may be written before only `kept_free` bytes are left.

    The file system is queried once per QUANTUM bytes written and at every tick, so that a write
    costs a subtraction; writes of other programs are noticed within that.
    """

    QUANTUM = 16 << 20

    __slots__ = ("_directory", "_disk", "kept_free", "room")

    def __init__(self, directory: str | Path, kept_free: int, disk: Disk = DISK) -> None:
        self._disk = disk
        self._directory = disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.kept_free = kept_free
        self.room = 0

    def measure(self) -> None:
        """Query the file system."""
        found = self._disk.fstatvfs(self._directory.fileno())
        free = found.f_bavail * found.f_frsize
        self.room = min(free - self.kept_free, self.QUANTUM)

    def take(self, size: int) -> None:
        """Reserve `size` bytes; raise KafkaStorageError, which is retriable, without room."""
        if size > self.room:
            self.measure()
            if size > self.room and self._short_of(size):
                raise KafkaStorageError(
                    "The disk is nearly full: the append would leave less than"
                    f" storage.min.free.bytes ({self.kept_free}) free.  Free some space."
                )
        self.room -= size

    def _short_of(self, size: int) -> bool:
        # One batch may be larger than QUANTUM.
        found = self._disk.fstatvfs(self._directory.fileno())
        return found.f_bavail * found.f_frsize - self.kept_free < size


def pwritev_all(
    disk: Disk, descriptor: int, buffers: Sequence[bytes | bytearray | memoryview], position: int
) -> None:
    """Write all buffers at a position, continuing after short writes, or raise OSError."""
    left = [memoryview(buffer) for buffer in buffers]
    while left:
        written = disk.pwritev(descriptor, left, position)
        position += written
        while left and written >= len(left[0]):
            written -= len(left[0])
            del left[0]
        if left and written:
            left[0] = left[0][written:]
