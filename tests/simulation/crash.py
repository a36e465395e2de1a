"""Crashes: a disk that records its calls, and the states that a crash can leave."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import Disk


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
