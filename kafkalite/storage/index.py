"""OffsetIndex and TimeIndex: from an offset, or a time, to a place near it in a segment.

    .index        i32 relative offset, i32 position       a batch's last offset, where it begins
    .timeindex    i64 timestamp, i32 relative offset      the greatest timestamp up to that offset

An entry is made about every index.interval.bytes.  Both files are caches: what they say is
checked against the segment when it is used, and they are built again when it does not hold.

Entries gather in a tail in memory and are written a page at a time: a crash costs some entries,
never a wrong one.  Files hold what was written and nothing more, so no map of a hole in a full
disk can end the process.

Left out: the TransactionIndex.  Without transactions there is nothing to write in it; the
.txnindex of a segment copied from Kafka goes with its segment.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite._ext.offset_index import floor_offset, floor_time, sound_offsets, sound_times
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.disk import Disk, write_all

if TYPE_CHECKING:
    from kafkalite.storage.open_segments import OpenSegments


class Entries:
    """Entries of one size: a file of written ones, and a tail of those that are not yet."""

    __slots__ = ("_disk", "_file", "_soundness_known", "count", "open_segments", "path", "tail",
                 "written")  # fmt: skip

    entry_size: int

    def __init__(self, path: Path, disk: Disk) -> None:
        """Take up the file as it is; it need not be there."""
        self._disk = disk
        self._file: OpenFile | None = None
        self.open_segments: OpenSegments | None = None
        self.path = path
        self.tail = bytearray()
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
        self.written = size // self.entry_size
        self.count = self.written
        self._soundness_known = size == 0

    @property
    def file(self) -> OpenFile:
        """The file, opened when first needed: most segments are never asked."""
        if self._file is None:
            shared = self.open_segments
            self._file = self._open() if shared is None else shared.open(self._open)
        return self._file

    def _open(self) -> OpenFile:
        return self._disk.open_to_keep(self.path, os.O_RDWR | os.O_CREAT)

    def write(self) -> None:
        """Write the tail."""
        if self.tail:
            write_all(self._disk, self.file.fileno(), self.tail, self.written * self.entry_size)
            self.written = self.count
            self.tail.clear()

    def cut(self, count: int) -> None:
        """Keep the first `count` entries."""
        kept = bytes(self.tail[: max(0, count - self.written) * self.entry_size])
        self.tail = bytearray(kept)
        if count < self.written:
            self._disk.ftruncate(self.file.fileno(), count * self.entry_size)
            self.written = count
        self.count = count
        self._soundness_known = self._soundness_known or count == 0

    def entries(self) -> bytes:
        """All of them; KafkaStorageError if they cannot be read."""
        size = self.written * self.entry_size
        return (self._read(size, 0) if size else b"") + self.tail

    def _read(self, size: int, position: int) -> bytes:
        try:
            return os.pread(self.file.fileno(), size, position)
        except OSError as error:
            raise KafkaStorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def extend(self, entries: bytes) -> None:
        self.tail += entries
        self.count += len(entries) // self.entry_size

    def _count_below(self, bound: int, word_at: int) -> int:
        entries = self.entries()

        def word(slot: int) -> int:
            return int.from_bytes(entries[self.entry_size * slot + word_at :][:4], "big")

        return bisect_left(range(self.count), bound, key=word)

    def release(self) -> None:
        """Let go of the file."""
        self._file = None

    def _descriptor(self) -> int:
        return self.file.fileno() if self.written else -1


class OffsetIndex(Entries):
    """Where, at the latest, to begin looking for an offset."""

    __slots__ = ()
    entry_size = 8
    pack = struct.Struct(">ii").pack
    unpack = struct.Struct(">ii").unpack

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """(relative offset, position) of the last entry at or before; (-1, 0) without one."""
        return floor_offset(self._descriptor(), self.written, self.tail, relative_offset)

    def sound(self, end_position: int) -> bool:
        """Whether the entries could be true of a segment of this size; read once, then known."""
        if not self._soundness_known:
            self._soundness_known = sound_offsets(self.entries(), end_position) == self.count
        return self._soundness_known

    def last(self) -> tuple[int, int]:
        return self.floor((1 << 31) - 1)

    def count_before(self, position: int) -> int:
        """How many entries point before this position."""
        return self._count_below(position, word_at=4)

    def floor_position(self, position: int) -> int:
        """The last position there is an entry for, at or before this one; 0 without any."""
        return self.last_at(position)[1]

    def last_at(self, position: int) -> tuple[int, int]:
        """(relative offset, position) of the last entry that points no further; (-1, 0) without
        one."""
        slot = bisect_right(range(self.count), position, key=lambda slot: self._entry(slot)[1])
        return self._entry(slot - 1) if slot else (-1, 0)

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot >= self.written:
            found = bytes(self.tail[self.entry_size * (slot - self.written) :][: self.entry_size])
        else:
            found = self._read(self.entry_size, self.entry_size * slot)
        # A file that was cut under us says nothing, and what it says is checked.
        return self.unpack(found) if len(found) == self.entry_size else (-1, 0)


class TimeIndex(Entries):
    """From where on no earlier record reaches a timestamp."""

    __slots__ = ()
    entry_size = 12
    pack = struct.Struct(">qi").pack

    def floor(self, timestamp: int) -> tuple[int, int]:
        """(timestamp, relative offset) of the last entry at or before; (-1, 0) without one."""
        return floor_time(self._descriptor(), self.written, self.tail, timestamp)

    def sound(self, last_relative_offset: int) -> bool:
        """Whether the entries could be true of a segment that ends with this offset."""
        if not self._soundness_known:
            self._soundness_known = sound_times(self.entries(), last_relative_offset) == self.count
        return self._soundness_known

    def last(self) -> tuple[int, int]:
        return self.floor((1 << 63) - 1)

    def count_before(self, relative_offset: int) -> int:
        """How many entries speak of offsets before this one only."""
        return self._count_below(relative_offset, word_at=8)
