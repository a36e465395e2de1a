"""A stretch of a file, to be sent by the kernel and never read here.

A FileSlice keeps its file's descriptor open as long as it is held: a segment may be rolled,
deleted and renamed while an answer that quotes it still waits to be sent.
"""

from __future__ import annotations

import os


class OpenFile:
    """Owns a descriptor, and closes it when its last holder lets go."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> None:
        self._descriptor = -1
        self.path = os.fspath(path)
        self._descriptor = os.open(self.path, flags | os.O_CLOEXEC, mode)

    def fileno(self) -> int:
        assert self._descriptor >= 0, f"{self.path} is closed"
        return self._descriptor

    def close(self) -> None:
        """Close now, whoever still holds it; closing twice is nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # Written out, not close(): at interpreter exit `os` may be gone before this is.
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
        """The bytes themselves, for who cannot hand the slice to the kernel (TLS, tools, tests).

        Shorter than `size` only when the file was cut meanwhile.
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
