"""FileSlice: a byte range of a file, sent by the kernel without being read here.

A FileSlice keeps its file's descriptor open as long as it is referenced: a segment may be rolled,
deleted and renamed while a response that refers to it waits to be sent.
"""

from __future__ import annotations

import os


class OpenFile:
    """Owns a descriptor, and closes it with the last reference."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> None:
        self._descriptor = -1
        self.path = os.fspath(path)
        self._descriptor = os.open(self.path, flags | os.O_CLOEXEC, mode)

    @property
    def is_open(self) -> bool:
        """False after `close`."""
        return self._descriptor >= 0

    def fileno(self) -> int:
        assert self._descriptor >= 0, f"{self.path} is closed"
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor even if it is referenced; no effect if it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # Not a call of close(): at interpreter exit `os` may be gone before this object.
        if self._descriptor >= 0 and os is not None:
            os.close(self._descriptor)
            self._descriptor = -1

    def __repr__(self) -> str:
        return f"OpenFile({self.path!r}, descriptor={self._descriptor})"


class FileSlice:
    """`size` bytes of `file` from `position` on."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: OpenFile, position: int, size: int) -> None:
        assert position >= 0 and size >= 0
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """Return the bytes, for callers that cannot pass the slice to the kernel (TLS, tools).

        Shorter than `size` only if the file was truncated meanwhile.
        """
        chunks = []
        position, left = self.position, self.size
        while left > 0:
            chunk = os.pread(self.file.fileno(), left, position)
            if not chunk:
                break
            chunks.append(chunk)
            position += len(chunk)
            left -= len(chunk)
        return b"".join(chunks)

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path!r}, position={self.position}, size={self.size})"
