"""The file calls that storage makes, in one place, so that a test can stand in for the kernel.

Everything storage writes goes through a Disk: a test hands in one whose N-th call fails, or one
that remembers each write so that it can rebuild what a crash would have left.  Reads do not pass
here: they are made by sendfile and by compiled walks, and what they find is checked.

Two kinds of failure are kept apart.  A disk that is full is an answer: what was half written is
cut off, and writing goes on once there is room.  Any other failure to write or flush ends the
process (DiskFailed), because nobody can say any more what the disk holds: after a failed flush
the kernel takes its pages for clean, and a second flush would succeed without writing them.
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

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a full disk says."""

SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of a call that the kernel refused for want of descriptors or memory."""

PASSING = NO_ROOM | SHORTAGES
"""What says nothing about the disk's soundness: the call was refused, and may succeed later."""

OF_ONE_LOG = frozenset({errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR})
"""Errors that concern the files of one log, which somebody removed or which cannot be named."""

DESCRIPTORS_RESERVED = 32
"""Kept for files that are open for a moment: a flush of a directory, a checkpoint, a new segment.
Fewer than connections leave (transport), so that a crowd of clients never stops a log; flushes
take half of them, so that what was written is flushed although nothing more can be."""

SMALL_FILE_BYTES = 4096

FAILURE_MARK = "write-failed"
"""A file in the data directory: the kernel's pages of these logs may differ from the disk."""


class DiskFailed(Fatal):
    """The disk refused bytes it had taken, or cannot be written; the process must end.

    The next start reads the files again as after a crash.  Nothing may retry the flush.
    """


class WriteBackFailed(DiskFailed):
    """A flush failed: the kernel's pages may differ from the disk, for every process that writes
    to this file system.  All of them must end."""


class Disk:
    """The kernel's own calls."""

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
        """Open a file of a log for as long as it takes.

        Raises KafkaStorageError if it cannot be opened, whatever the reason: nothing was written,
        and it concerns one log.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            file = self.open(path, flags)
        except OSError as error:
            raise KafkaStorageError(f"{path} cannot be opened: {error.strerror}") from error
        if file.fileno() >= limit - reserved:
            file.close()
            raise KafkaStorageError(f"{path} cannot be opened: too many files are (see ulimit -n)")
        return file

    def open_to_flush(self, path: str | Path) -> OpenFile:
        """The same for a file that is open until it is flushed."""
        return self.open_to_keep(path, os.O_RDONLY, DESCRIPTORS_RESERVED // 2)

    def syncfs(self, descriptor: int) -> None:
        code = segment_walk.syncfs(descriptor)
        if code:
            raise OSError(code, os.strerror(code))

    def type_of(self, descriptor: int) -> int:
        """The type of the file system an open file is on (statfs(2), f_type)."""
        return segment_walk.file_system_type(descriptor)


DISK = Disk()


def write_all(disk: Disk, descriptor: int, content: bytes | bytearray, position: int) -> None:
    """Write every byte or raise."""
    # A copy: who catches a failure may hold on to this frame, and a bytearray with it.
    view = memoryview(bytes(content))
    while view:
        written = disk.pwrite(descriptor, view, position)
        view = view[written:]
        position += written


def sync_directory(disk: Disk, path: str | Path) -> None:
    """Make the names in this directory survive a power cut."""
    directory = disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
    disk.fsync(directory.fileno())
    directory.close()


def remove_tree(disk: Disk, directory: Path) -> None:
    """Remove a directory and its files; what cannot go now goes at a later start."""
    try:
        for path in list(directory.iterdir()):
            disk.unlink(path)
        disk.rmdir(directory)
    except OSError as error:
        log.warning("%s cannot be removed: %s", directory, error)


def write_file(disk: Disk, path: Path, content: bytes, *, flushed: bool = False) -> None:
    """Write a small file in place: for what may be torn by a crash, because its reader notices."""
    file = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, file.fileno(), content, 0)
        if flushed:
            disk.fsync(file.fileno())
    finally:
        file.close()


def read_small_file(path: Path) -> bytes:
    """Return a small file's bytes, at a third of the cost of `Path.read_bytes`: a start reads two
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
    """Replace a small file so that a crash leaves the old one or the new one, whole.

    Without `flushed` that holds when the process dies, and not when the machine does.
    """
    beside = path.with_name(path.name + ".tmp")
    write_file(disk, beside, content, flushed=flushed)
    disk.rename(beside, path)
    if flushed:
        sync_directory(disk, path.parent)


def failed(error: OSError, doing: str) -> NoReturn:
    """Raise what a failed write means: an answer for one client, or the end of the process."""
    reason = f"{doing}: {error.strerror}"
    if error.errno in PASSING or error.errno in OF_ONE_LOG:
        raise KafkaStorageError(reason) from error
    raise DiskFailed(reason) from error


class FreeSpace:
    """How much may still be written before the disk is as full as it may get.

    The file system is asked once in a QUANTUM of bytes written and at every tick, so that a
    write costs a subtraction; what others write meanwhile is noticed within that.
    """

    QUANTUM = 16 << 20

    __slots__ = ("_directory", "_disk", "kept_free", "room")

    def __init__(self, directory: str | Path, kept_free: int, disk: Disk = DISK) -> None:
        self._disk = disk
        self._directory = disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.kept_free = kept_free
        self.room = 0

    def measure(self) -> None:
        """Ask the file system again."""
        found = self._disk.fstatvfs(self._directory.fileno())
        free = found.f_bavail * found.f_frsize
        self.room = min(free - self.kept_free, self.QUANTUM)

    def take(self, size: int) -> None:
        """Reserve room for `size` bytes; raises KafkaStorageError, which is retriable."""
        if size > self.room:
            self.measure()
            if size > self.room and self._short_of(size):
                raise KafkaStorageError(
                    f"less than storage.min.free.bytes ({self.kept_free}) would stay free on the"
                    " disk; nothing was written, and writing resumes when space returns"
                )
        self.room -= size

    def _short_of(self, size: int) -> bool:
        # One batch may be larger than a quantum.
        found = self._disk.fstatvfs(self._directory.fileno())
        return found.f_bavail * found.f_frsize - self.kept_free < size


def pwritev_all(
    disk: Disk, descriptor: int, buffers: Sequence[bytes | bytearray | memoryview], position: int
) -> None:
    """Go on after a short write, until every byte is written or the kernel says why not."""
    left = [memoryview(buffer) for buffer in buffers]
    while left:
        written = disk.pwritev(descriptor, left, position)
        position += written
        while left and written >= len(left[0]):
            written -= len(left[0])
            del left[0]
        if left and written:
            left[0] = left[0][written:]
