"""Disks that inject faults, and a disk that records its calls so that a crash can be staged."""

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


# -- crashes -----------------------------------------------------------------------------------


class RecordingDisk(Disk):
    """A disk that performs every call and appends it to a journal.

    An entry is (call, path, …).  `images` builds from them the states a crash can leave.
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
        """Append a guarantee (such as a durable offset) that holds from this point on."""
        self.journal.append(("note", what, value))


def named(path: Any) -> str:
    """Return the path with a leading /proc/self/fd/N resolved."""
    found = Path(path)
    if found.is_relative_to("/proc/self/fd"):
        found = Path(os.readlink(Path(*found.parts[:5])), *found.parts[5:])
    return str(found)


class Inode:
    """A file's bytes: as in the page cache, and as on the device."""

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
        """Return the bytes a power cut may leave: each page as last synced, or as it is now."""
        content = bytearray(self.synced)
        size = chance.choice((len(self.synced), len(self.now)))
        content = content[:size] + bytes(max(0, size - len(content)))
        for start in range(0, size, page):
            if chance.random() < 0.5:
                content[start : start + page] = self.now[start : min(start + page, size)]
        return bytes(content[:size])


class Folder:
    """A directory's entries: as in the kernel, and as on the device."""

    def __init__(self) -> None:
        self.now: dict[str, Inode | Folder] = {}
        self.synced: dict[str, Inode | Folder] = {}

    def files(self, names: str, content: Callable[[Inode], bytes], at: str) -> dict[str, bytes]:
        """Return the bytes of every file below this directory, by path."""
        found = {}
        for name, node in getattr(self, names).items():
            path = f"{at}/{name}"
            if isinstance(node, Folder):
                found |= node.files(names, content, path)
            else:
                found[path] = content(node)
        return found


class Crash:
    """The state of the files after the first `count` entries of a journal."""

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
        """Return (parent directory, name); directories not in the journal count as durable."""
        *folders, name = path.strip("/").split("/")
        at = self.root
        for each in folders:
            if each not in at.now:
                at.now[each] = at.synced[each] = Folder()
            at = at.now[each]  # type: ignore[assignment]
        return at, name

    def _sync_folder(self, folder: Folder) -> None:
        folder.synced = dict(folder.now)
        # A move between two directories is on the device in both of them or in neither.
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
        """Yield (kind, files) for each state this crash can leave."""
        yield "killed", self.root.files("now", lambda node: bytes(node.now), "")
        yield "unsynced", self.root.files("synced", lambda node: node.synced, "")
        for page in (512, 4096):
            # Names may be newer than the last sync: the kernel may write them at any time.
            names = chance.choice(("now", "synced"))
            torn = partial(Inode.torn, chance=chance, page=page)
            yield f"torn at {page}", self.root.files(names, torn, "")

    @staticmethod
    def restore(image: dict[str, bytes], source: Path, target: Path) -> None:
        """Write an image's files that are below `source` into `target`."""
        for name, content in image.items():
            if Path(name).is_relative_to(source):
                path = target / Path(name).relative_to(source)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
