"""A stretch of one partition's log, on its way to being decoded: whole batches, one after another.

    stretch.window()    the batches at hand, from where the last `take` ended; empty: no more
    stretch.take(size)  so many of those bytes are done with

An Answer is a stretch that came over TCP and lies in memory.  A Grant is one that may be read from
the segment's own file: it is read piece by piece, so only a window of it is ever in memory.  A
grant's descriptor shows the whole file, and what stands behind its end is nobody's business yet;
to keep within it is this reader's duty.

A fetch may end amid a batch.  What is cut off is left out here, and asked for again.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from kafkalite._ext.record_batch import CONTROL, HEADER_SIZE, PREFIX_SIZE, TRANSACTIONAL
from kafkalite._ext.record_reader import whole_batches
from kafkalite.client.consumer.positions import Position
from kafkalite.errors import CorruptMessage

WINDOW_SIZE = 1 << 20
FIRST_READ_SIZE = 64 << 10
"""What is read of a grant at first, and then twice as much each time: who seeks from record to
record does not want all that follows."""

_START = struct.Struct(">qi")
_REST = struct.Struct(">qi9xhi16xq")
"""Base offset, length, attributes, last offset delta, producer id."""

Aborted = tuple[tuple[int, int], ...]
"""Transactions that were aborted: producer id, and offset of the first record."""


class BatchStart(NamedTuple):
    """What is read of a batch before anything is believed but its size."""

    base_offset: int
    size: int
    attributes: int
    last_offset: int
    producer_id: int

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


def batch_start(view: memoryview, place: int) -> BatchStart:
    """The batch that begins here, which is there whole."""
    base_offset, length, attributes, delta, producer_id = _REST.unpack_from(view, place)
    return BatchStart(
        base_offset, length + PREFIX_SIZE, attributes, base_offset + delta, producer_id
    )


def size_claimed(view: memoryview) -> int:
    """What the first batch says its size is; 0 when it is no size, or not there."""
    if len(view) < PREFIX_SIZE:
        return 0
    size: int = _START.unpack_from(view)[1] + PREFIX_SIZE
    return size if size >= HEADER_SIZE else 0


class Stretch:
    """What both kinds have: whose it is, in which turn, and from which offset on."""

    __slots__ = ("aborted", "end_offset", "first_offset", "position", "turn")

    def __init__(
        self, position: Position, turn: int, offsets: tuple[int, int], aborted: Aborted
    ) -> None:
        self.position = position
        self.turn = turn
        self.first_offset, self.end_offset = offsets
        """Records before the first are passed over: a batch may begin earlier than what was asked
        for.  It moves on with what is decoded, and arrives at the end."""
        self.aborted = aborted

    @property
    def stale(self) -> bool:
        """Whether it was asked for in an earlier turn, and is nobody's."""
        return self.turn != self.position.turn

    def window(self) -> memoryview:
        raise AssertionError("every stretch has a window")

    def take(self, size: int) -> None:
        raise AssertionError("every stretch is taken piece by piece")

    def close(self) -> None:
        raise AssertionError("every stretch can be closed")


class Answer(Stretch):
    """Batches in memory."""

    __slots__ = ("_view",)

    def __init__(
        self,
        position: Position,
        turn: int,
        offsets: tuple[int, int],
        aborted: Aborted,
        records: memoryview,
    ) -> None:
        super().__init__(position, turn, offsets, aborted)
        self._view = records

    def window(self) -> memoryview:
        return self._view

    def take(self, size: int) -> None:
        self._view = self._view[size:]

    def close(self) -> None:
        self._view = memoryview(b"")


class SegmentFile:
    """A descriptor of a segment, lent by the node; closed when nobody holds this any more."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class Window:
    """The memory that grants are read into: one for all of them, and the last one's."""

    def __init__(self, size: int = WINDOW_SIZE) -> None:
        self._view = memoryview(bytearray(size))
        self.owner: Grant | None = None

    def of(self, owner: Grant, size: int) -> memoryview:
        """So much of it; what another read there is gone."""
        self.owner = owner
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        return self._view[:size]

    def __len__(self) -> int:
        return len(self._view)


class ShortRead(Exception):
    """A granted stretch is no longer there: its segment was deleted.  The node is to be asked."""


class Grant(Stretch):
    """Batches in a segment's file, from a position on; read through a window."""

    __slots__ = ("_at", "_end", "_file", "_have", "_memory", "_size")

    def __init__(
        self,
        position: Position,
        turn: int,
        offsets: tuple[int, int],
        aborted: Aborted,
        file: SegmentFile,
        span: tuple[int, int],
        memory: Window,
    ) -> None:
        super().__init__(position, turn, offsets, aborted)
        self._file: SegmentFile | None = file
        self._at, self._end = span
        """Where in the file the first byte of `_have` stands, and where the grant ends."""
        self._memory = memory
        self._size = FIRST_READ_SIZE
        self._have = memoryview(b"")

    def window(self) -> memoryview:
        """The batches at hand; ShortRead when the file has been cut."""
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
        """Have the file's next piece: as many whole batches as fit, or a larger one alone."""
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
                    f"At offset {self.first_offset}: a batch goes beyond what the node granted."
                )
            size = wanted


def pread_all(file: SegmentFile, into: memoryview, position: int) -> int:
    """Read until it is full or the file ends; how many bytes came."""
    have = 0
    while have < len(into):
        came = os.preadv(file.descriptor, [into[have:]], position + have)
        if not came:
            break
        have += came
    return have
