"""Disks that inject faults, and a flusher whose flushes end when the test releases them."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import Disk
from kafkalite.storage.files.file_system import EXT4

CALLS = ("open", "pwritev", "pwrite", "ftruncate", "posix_fallocate", "fdatasync", "fsync",
         "rename", "unlink", "mkdir", "rmdir", "syncfs")  # fmt: skip


class QuickDisk(Disk):
    """A disk that does not wait for the device; for tests without a power cut."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    fsync = syncfs = fdatasync


class FaultyDisk(QuickDisk):
    """A disk whose N-th call fails: once, or from then on.

    A `torn` write writes half of its bytes before it fails.
    """

    def __init__(
        self, fail_at: int, code: int, *, sticky: bool = False, torn: bool = False,
        only: Sequence[str] = CALLS,
    ) -> None:  # fmt: skip
        self.calls = 0
        self.failed: list[str] = []
        self.armed = True
        self._fail_at = fail_at
        self._code = code
        self._sticky = sticky
        self._torn = torn
        for name in only:
            setattr(self, name, self._counting(name, getattr(super(), name)))

    def _counting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if not self.armed:
                return call(*arguments)
            self.calls += 1
            if self.calls == self._fail_at or (self._sticky and self.calls > self._fail_at):
                self.failed.append(name)
                if self._torn and name in ("pwritev", "pwrite"):
                    tear(arguments)
                raise OSError(self._code, os.strerror(self._code))
            return call(*arguments)

        return counted


def tear(arguments: tuple[Any, ...]) -> None:
    """Write the first half of the bytes of a write call."""
    descriptor, content, position = arguments
    whole = b"".join(map(bytes, content)) if isinstance(content, (tuple, list)) else bytes(content)
    os.pwrite(descriptor, whole[: len(whole) // 2], position)


class FullDisk(QuickDisk):
    """A disk with room for a given number of bytes; a longer write is short, as in the kernel."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwritev(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self._write(descriptor, b"".join(map(bytes, buffers)), position)

    def pwrite(self, descriptor: int, content: Any, position: int) -> int:
        return self._write(descriptor, bytes(content), position)

    def posix_fallocate(self, descriptor: int, position: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _write(self, descriptor: int, content: bytes, position: int) -> int:
        taken = content[: max(0, self.room)]
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(taken)
        return os.pwrite(descriptor, taken, position)


class ReportingDisk(QuickDisk):
    """A disk that reports write-back errors as Linux does: once to each open descriptor, and not to
    a descriptor that was opened after the error had been reported to another one."""

    def __init__(self, type_number: int = EXT4) -> None:
        self.type_number = type_number
        self.synced: list[int] = []
        self._error = 0
        self._was_reported = True
        self._known: dict[int, int] = {}

    def open(self, path: str | Path, flags: int) -> OpenFile:
        file = super().open(path, flags)
        self._known[file.fileno()] = self._error if self._was_reported else self._error - 1
        return file

    def type_of(self, descriptor: int) -> int:
        return self.type_number

    def fail_write_back(self) -> None:
        """Make the next flush of each open descriptor report a write-back error."""
        self._error += 1
        self._was_reported = False

    def syncfs(self, descriptor: int) -> None:
        if self._known[descriptor] != self._error:
            self._known[descriptor] = self._error
            self._was_reported = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fdatasync(self, descriptor: int) -> None:
        self.synced.append(descriptor)

    fsync = fdatasync


class SlowFlusher:
    """A flusher that runs flushes in a later tick, or when the test releases them."""

    has_failed = False

    def __init__(self) -> None:
        self.held = False
        self._begun: deque[Any] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def submit(self, flushes: Any) -> None:
        self._begun += flushes
        if self._begun and not self.held:
            os.eventfd_write(self._event, 1)

    def let_go(self) -> None:
        """Run the held flushes, and later ones without a delay."""
        self.held = False
        os.eventfd_write(self._event, 1)

    def collect(self) -> list[Any]:
        os.eventfd_read(self._event)
        done = []
        while self._begun and not self.held:
            flush = self._begun.popleft()
            flush.run(QuickDisk())
            done.append(flush)
        return done

    def close(self) -> None:
        for flush in self._begun:
            flush.run(QuickDisk())
        self.forget()

    def forget(self) -> None:
        """Drop all flushes, as when the process is killed."""
        self._begun.clear()
        if self._event >= 0:
            os.close(self._event)
            self._event = -1
