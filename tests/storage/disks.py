"""Disks that fail on purpose, and one that remembers everything so that a crash can be staged."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.disk import Disk

CALLS = ("open", "pwritev", "pwrite", "ftruncate", "posix_fallocate", "fdatasync", "fsync",
         "rename", "unlink", "mkdir", "rmdir", "syncfs")  # fmt: skip


class QuickDisk(Disk):
    """Does not wait for the device: nothing here cuts the power."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    fsync = syncfs = fdatasync


class FaultyDisk(QuickDisk):
    """The N-th call fails: once, or from then on.

    A `torn` write takes half of its bytes before it fails.
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
    """Write the first half of what these arguments of a write ask for."""
    descriptor, content, position = arguments
    whole = b"".join(map(bytes, content)) if isinstance(content, (tuple, list)) else bytes(content)
    os.pwrite(descriptor, whole[: len(whole) // 2], position)


class FullDisk(QuickDisk):
    """Has room for so many more bytes; what is over is torn off, as the kernel does."""

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


# -- crashes -----------------------------------------------------------------------------------


class RecordingDisk(Disk):
    """Does everything, and remembers in which order.

    An entry is (call, path, …).  From them `images` builds what a crash could have left.
    """

    def __init__(self) -> None:
        self.journal: list[tuple[Any, ...]] = []
        self._paths: dict[int, str] = {}

    def open(self, path: Any, flags: int) -> OpenFile:
        fresh = flags & os.O_CREAT and not os.path.exists(path)
        file = super().open(path, flags)
        self._paths[file.fileno()] = str(path)
        if fresh:
            self.journal.append(("create", str(path)))
        elif flags & os.O_TRUNC:
            self.journal.append(("truncate", str(path), 0))
        return file

    def pwritev(self, descriptor: int, buffers: Sequence[Any], position: int) -> int:
        return self.pwrite(descriptor, b"".join(map(bytes, buffers)), position)

    def pwrite(self, descriptor: int, content: Any, position: int) -> int:
        self.journal.append(("write", self._paths[descriptor], position, bytes(content)))
        return os.pwrite(descriptor, content, position)

    def ftruncate(self, descriptor: int, size: int) -> None:
        self.journal.append(("truncate", self._paths[descriptor], size))
        os.ftruncate(descriptor, size)

    def posix_fallocate(self, descriptor: int, position: int, size: int) -> None:
        self.journal.append(("extend", self._paths[descriptor], position + size))
        os.posix_fallocate(descriptor, position, size)

    def fdatasync(self, descriptor: int) -> None:
        self.journal.append(("sync", self._paths[descriptor]))

    def fsync(self, descriptor: int) -> None:
        self.journal.append(("sync", self._paths[descriptor]))

    def rename(self, source: Any, target: Any) -> None:
        os.rename(source, target)
        self.journal.append(("rename", str(source), str(target)))

    def unlink(self, path: Any) -> None:
        os.unlink(path)
        self.journal.append(("unlink", str(path)))

    def note(self, what: str, value: Any) -> None:
        """Remember what was promised up to here."""
        self.journal.append(("note", what, value))


class Inode:
    """A file's bytes as the kernel has them, and those that are on the disk itself."""

    def __init__(self) -> None:
        self.now = bytearray()
        self.synced = b""
        self.writes: list[tuple[int, int]] = []

    def write(self, position: int, content: bytes) -> None:
        self.resize(max(len(self.now), position + len(content)))
        self.now[position : position + len(content)] = content
        self.writes.append((position, len(content)))

    def resize(self, size: int) -> None:
        if size < len(self.now):
            del self.now[size:]
        else:
            self.now += bytes(size - len(self.now))

    def sync(self) -> None:
        self.synced = bytes(self.now)
        self.writes.clear()

    def torn(self, chance: random.Random, page: int) -> bytes:
        """What a power cut may leave: each page as it was last synced, or as it is."""
        content = bytearray(self.synced)
        size = chance.choice((len(self.synced), len(self.now)))
        content = content[:size] + bytes(max(0, size - len(content)))
        for start in range(0, size, page):
            if chance.random() < 0.5:
                content[start : start + page] = self.now[start : min(start + page, size)]
        return bytes(content[:size])


class Crash:
    """The files after the first `count` entries of a journal."""

    def __init__(self, journal: Sequence[tuple[Any, ...]], count: int) -> None:
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.notes: dict[str, Any] = {}
        for entry in journal[:count]:
            self._apply(*entry)

    def _apply(self, call: str, path: str, *rest: Any) -> None:
        if call == "note":
            self.notes[path] = rest[0]
        elif call == "create":
            self.names[path] = Inode()
        elif call == "write":
            self.names[path].write(*rest)
        elif call == "truncate":
            self.names[path].resize(*rest)
        elif call == "extend":
            self.names[path].resize(max(rest[0], len(self.names[path].now)))
        elif call == "rename":
            self.names[rest[0]] = self.names.pop(path)
        elif call == "unlink":
            del self.names[path]
        elif path in self.names:
            self.names[path].sync()
        else:
            self._sync_directory(path)

    def _sync_directory(self, path: str) -> None:
        inside = {name: node for name, node in self.names.items() if name.startswith(path + "/")}
        for name in [name for name in self.durable_names if name.startswith(path + "/")]:
            del self.durable_names[name]
        self.durable_names.update(inside)

    def images(self, chance: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
        """(kind, files) of each way this crash may look afterwards."""
        yield "killed", {name: bytes(node.now) for name, node in self.names.items()}
        yield "unsynced", {name: node.synced for name, node in self.durable_names.items()}
        for page in (512, 4096):
            # The names may be newer than what was synced: the kernel writes them when it likes.
            names = chance.choice((self.names, self.durable_names))
            yield f"torn at {page}", {n: node.torn(chance, page) for n, node in names.items()}

    @staticmethod
    def restore(image: dict[str, bytes], source: Path, target: Path) -> None:
        """Write an image's files of one directory into another."""
        for name, content in image.items():
            if Path(name).parent == source:
                (target / Path(name).name).write_bytes(content)
