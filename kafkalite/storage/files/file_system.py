"""FileSystem: flushes the file system of a node's logs as a whole, by syncfs.

Linux reports a write-back error once to each descriptor that was open when it happened (syncfs(2),
since 5.8); a descriptor opened after the error was reported elsewhere never receives it.  So each
process opens its descriptor here at its start, before its first write, and calls syncfs on no
other.  The threads of a process share it, and only one of them receives the error, so the error is
kept for all.

syncfs is used on local file systems that report such errors.  Elsewhere (overlayfs, NFS, FUSE, an
unknown type, an older kernel) every file is flushed separately.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from kafkalite.storage.files.disk import DISK, Disk, sync_directory

EXT4, XFS, BTRFS, F2FS, TMPFS = 0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994
SYNCFS_TYPES = frozenset({EXT4, XFS, BTRFS, F2FS, TMPFS})
"""Types (statfs(2), f_type) whose syncfs flushes every file and reports errors; ext2 and ext3 have
ext4's number."""

KERNEL_MIN = (5, 8)
"""The first kernel whose syncfs reports write-back errors."""


class FileSystem:
    """The file system that holds one directory."""

    def __init__(self, directory: Path, disk: Disk = DISK) -> None:
        self._disk = disk
        self._directory = disk.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.device = os.fstat(self._directory.fileno()).st_dev
        self._lock = threading.Lock()
        self._error_code = 0
        reported = kernel_version() >= KERNEL_MIN
        self.can_sync = reported and disk.type_of(self._directory.fileno()) in SYNCFS_TYPES
        """True if `sync` flushes everything and reports every error since this object was made."""

    def sync(self) -> None:
        """Flush the whole file system; raise OSError for any write-back error since this was made.

        Once it has failed, every later call fails: the lost pages would count as flushed.
        """
        with self._lock:
            if not self._error_code:
                try:
                    self._disk.syncfs(self._directory.fileno())
                except OSError as error:
                    self._error_code = error.errno or errno.EIO
            if self._error_code:
                raise OSError(self._error_code, os.strerror(self._error_code))

    def holds(self, descriptor: int) -> bool:
        """Return whether `sync` flushes this open file."""
        return self.can_sync and os.fstat(descriptor).st_dev == self.device

    def sync_paths(self, paths: Iterable[Path]) -> None:
        """Flush at least these files and the names in these directories, which may also be on other
        file systems."""
        if self.can_sync:
            self.sync()
            paths = [path for path in paths if path.stat().st_dev != self.device]
        for path in paths:
            if path.is_dir():
                sync_directory(self._disk, path)
            else:
                file = self._disk.open(path, os.O_RDONLY)
                self._disk.fsync(file.fileno())
                file.close()


def kernel_version() -> tuple[int, int]:
    """Return the running kernel's major and minor version; (0, 0) if it cannot be read."""
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0].partition("-")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
