"""Record range: fetched whole batches of one partition, to be decoded.

    fetched.window()    the batches available, from the end of the last `take`; empty: no more
    fetched.take(size)  mark this many bytes as decoded

A BufferedRange is a range of a fetch response, in memory.  A GrantedRange is a range of the segment
file, read piece by piece, so only a window of it is in memory.  The descriptor of a grant gives
access to the whole file; bytes after the grant's end may not be committed, so this reader must not
read them.

A fetched range may end within a batch.  The incomplete batch is left out here and fetched again.
"""

from __future__ import annotations

import os
import struct
from array import array

from kafkalite._ext.record_batch import HEADER_SIZE, PREFIX_SIZE
from kafkalite._ext.record_reader import whole_batches
from kafkalite.client.consumer.positions import Position
from kafkalite.errors import CorruptMessage

WINDOW_SIZE = 1 << 20
FIRST_READ_SIZE = 64 << 10
"""Size of the first read of a grant, doubled for each further read: an application that seeks from
record to record does not need all that follows.
"""

_START = struct.Struct(">qi")

Aborted = tuple[tuple[int, int], ...]
"""Aborted transactions: producer id and first offset of each."""


def aborted_list(aborted: Aborted) -> array[int] | None:
    """Return aborted transactions as the decoders take them; None if there are none."""
    if not aborted:
        return None
    entries = sorted(aborted, key=lambda each: each[1])
    return array("q", [0, *(number for entry in entries for number in entry)])


def size_claimed(view: memoryview) -> int:
    """Return the size that the first batch states; 0 if it is invalid or incomplete."""
    if len(view) < PREFIX_SIZE:
        return 0
    size: int = _START.unpack_from(view)[1] + PREFIX_SIZE
    return size if size >= HEADER_SIZE else 0


class RecordRange:
    """Common part of both kinds of range: position, its epoch, and offsets."""

    __slots__ = ("aborted", "end_offset", "first_offset", "position", "epoch")

    def __init__(
        self, position: Position, epoch: int, offsets: tuple[int, int], aborted: Aborted
    ) -> None:
        self.position = position
        self.epoch = epoch
        self.first_offset, self.end_offset = offsets
        """Records before the first offset are skipped, since a batch may start before the requested
        offset.  It advances with decoding up to the end offset.
        """
        self.aborted = aborted_list(aborted)

    @property
    def is_stale(self) -> bool:
        """True if the range was requested in an earlier epoch of the position."""
        return self.epoch != self.position.epoch

    def window(self) -> memoryview:
        raise AssertionError("every record range has a window")

    def take(self, size: int) -> None:
        raise AssertionError("every record range is taken piece by piece")

    def close(self) -> None:
        raise AssertionError("every record range can be closed")


class BufferedRange(RecordRange):
    """A record range in memory."""

    __slots__ = ("_view",)

    def __init__(
        self,
        position: Position,
        epoch: int,
        offsets: tuple[int, int],
        aborted: Aborted,
        records: memoryview,
    ) -> None:
        super().__init__(position, epoch, offsets, aborted)
        self._view = records

    def window(self) -> memoryview:
        return self._view

    def take(self, size: int) -> None:
        self._view = self._view[size:]

    def close(self) -> None:
        self._view = memoryview(b"")


class SegmentFile:
    """A descriptor of a segment file, granted by the node; closed with the last reference."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class ReadWindow:
    """The read buffer that all grants share; its content belongs to the last grant that read."""

    def __init__(self, size: int = WINDOW_SIZE) -> None:
        self._view = memoryview(bytearray(size))
        self.owner: GrantedRange | None = None

    def of(self, owner: GrantedRange, size: int) -> memoryview:
        """Return `size` bytes of the buffer, whose previous content is lost."""
        self.owner = owner
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        return self._view[:size]

    def __len__(self) -> int:
        return len(self._view)


class ShortRead(Exception):
    """A granted range cannot be read any more, since its segment was deleted; request it again."""


class GrantedRange(RecordRange):
    """A record range in a segment file, read through a window."""

    __slots__ = ("_at", "_end", "_file", "_have", "_memory", "_size")

    def __init__(
        self,
        position: Position,
        epoch: int,
        offsets: tuple[int, int],
        aborted: Aborted,
        file: SegmentFile,
        span: tuple[int, int],
        memory: ReadWindow,
    ) -> None:
        super().__init__(position, epoch, offsets, aborted)
        self._file: SegmentFile | None = file
        self._at, self._end = span
        """File offsets of the first byte of `_have` and of the grant's end."""
        self._memory = memory
        self._size = FIRST_READ_SIZE
        self._have = memoryview(b"")

    def window(self) -> memoryview:
        """Return the batches available; raise ShortRead if the file was truncated."""
        if self._memory.owner is not self:
            self._have = memoryview(b"")
        if not self._have and self._at < self._end:
            self._read()
        return self._have

    def take(self, size: int) -> None:
        self._have = self._have[size:]
        self._at += size

    def close(self) -> None:
        self._have = memoryview(b"")
        self._file = None
        if self._memory.owner is self:
            self._memory.owner = None

    def _read(self) -> None:
        """Read the next piece: as many whole batches as fit, or one larger batch."""
        left = self._end - self._at
        size = min(left, len(self._memory), self._size)
        self._size *= 2
        while True:
            piece = self._memory.of(self, size)
            if self._file is None or pread_all(self._file, piece, self._at) < size:
                raise ShortRead
            self._have = piece[: whole_batches(piece)[0]]
            if self._have:
                return
            wanted = size_claimed(piece)
            if not size < wanted <= left:
                raise CorruptMessage(
                    f"At offset {self.first_offset}: a batch is longer than the range that the node"
                    " granted."
                )
            size = wanted


def pread_all(file: SegmentFile, into: memoryview, position: int) -> int:
    """Read until the buffer is full or the file ends; return the number of bytes."""
    have = 0
    while have < len(into):
        count = os.preadv(file.descriptor, [into[have:]], position + have)
        if not count:
            break
        have += count
    return have
