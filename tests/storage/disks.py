"""Disks that fail on purpose, and one that remembers everything so that a crash can be staged."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.disk import Disk
from kafkalite.storage.file_system import EXT4

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


class ReportingDisk(QuickDisk):
    """Reports write-back errors as Linux does: once to each descriptor, and never to one that was
    opened after any other was told."""

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
        """The kernel could not write some page back."""
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
        path = named(path)
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

    def syncfs(self, descriptor: int) -> None:
        self.journal.append(("sync all", self._paths[descriptor]))

    def rename(self, source: Any, target: Any) -> None:
        names = named(source), named(target)
        os.rename(source, target)
        self.journal.append(("rename", *names))

    def unlink(self, path: Any) -> None:
        os.unlink(path)
        self.journal.append(("unlink", str(path)))

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        os.mkdir(path, mode)
        self.journal.append(("mkdir", str(path)))

    def rmdir(self, path: Any) -> None:
        os.rmdir(path)
        self.journal.append(("unlink", str(path)))

    def note(self, what: str, value: Any) -> None:
        """Remember what was promised up to here."""
        self.journal.append(("note", what, value))


def named(path: Any) -> str:
    """A path without the descriptor it may go through."""
    found = Path(path)
    if found.is_relative_to("/proc/self/fd"):
        found = Path(os.readlink(Path(*found.parts[:5])), *found.parts[5:])
    return str(found)


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


class Folder:
    """A directory's names as the kernel has them, and those that are on the disk itself."""

    def __init__(self) -> None:
        self.now: dict[str, Inode | Folder] = {}
        self.synced: dict[str, Inode | Folder] = {}

    def files(self, names: str, content: Callable[[Inode], bytes], at: str) -> dict[str, bytes]:
        """The bytes of every file below, by its path."""
        found = {}
        for name, node in getattr(self, names).items():
            path = f"{at}/{name}"
            if isinstance(node, Folder):
                found |= node.files(names, content, path)
            else:
                found[path] = content(node)
        return found


class Crash:
    """The files after the first `count` entries of a journal."""

    def __init__(self, journal: Sequence[tuple[Any, ...]], count: int) -> None:
        self.root = Folder()
        self.notes: dict[str, Any] = {}
        self._moves: list[tuple[Folder, str, Folder, str]] = []
        for entry in journal[:count]:
            self._apply(*entry)

    def _apply(self, call: str, path: str, *rest: Any) -> None:
        if call == "note":
            self.notes[path] = rest[0]
            return
        folder, name = self._place(path)
        node: Any = folder.now.get(name)
        if call == "create":
            folder.now[name] = Inode()
        elif call == "mkdir":
            folder.now[name] = Folder()
        elif call == "write":
            node.write(*rest)
        elif call == "truncate":
            node.resize(*rest)
        elif call == "extend":
            node.resize(max(rest[0], len(node.now)))
        elif call == "rename":
            to_folder, to_name = self._place(rest[0])
            to_folder.now[to_name] = folder.now.pop(name)
            if to_folder is not folder:
                self._moves.append((folder, name, to_folder, to_name))
        elif call == "unlink":
            del folder.now[name]
        elif call == "sync all":
            self._sync_below(self.root)
        elif isinstance(node, Folder):
            self._sync_folder(node)
        elif node is not None:
            node.sync()

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder a path is in; those that were there before the journal are durable."""
        *folders, name = path.strip("/").split("/")
        at = self.root
        for each in folders:
            if each not in at.now:
                at.now[each] = at.synced[each] = Folder()
            at = at.now[each]  # type: ignore[assignment]
        return at, name

    def _sync_folder(self, folder: Folder) -> None:
        folder.synced = dict(folder.now)
        # A move from one folder to another is on the disk in both of them or in neither.
        for move in [move for move in self._moves if folder in (move[0], move[2])]:
            self._moves.remove(move)
            before, name, after, to_name = move
            node = before.synced.pop(name, None) if before is not folder else None
            if after is not folder and (node := after.now.get(to_name, node)) is not None:
                after.synced[to_name] = node

    def _sync_below(self, folder: Folder) -> None:
        self._sync_folder(folder)
        for node in folder.now.values():
            if isinstance(node, Folder):
                self._sync_below(node)
            else:
                node.sync()

    def images(self, chance: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
        """(kind, files) of each way this crash may look afterwards."""
        yield "killed", self.root.files("now", lambda node: bytes(node.now), "")
        yield "unsynced", self.root.files("synced", lambda node: node.synced, "")
        for page in (512, 4096):
            # The names may be newer than what was synced: the kernel writes them when it likes.
            names = chance.choice(("now", "synced"))
            torn = partial(Inode.torn, chance=chance, page=page)
            yield f"torn at {page}", self.root.files(names, torn, "")

    @staticmethod
    def restore(image: dict[str, bytes], source: Path, target: Path) -> None:
        """Write an image's files below one directory into another."""
        for name, content in image.items():
            if Path(name).is_relative_to(source):
                path = target / Path(name).relative_to(source)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
