"""OffsetIndex and TimeIndex: sparse indexes from offset or timestamp to position in a segment.

    .index        i32 relative offset, i32 position       a batch's last offset, its position
    .timeindex    i64 timestamp, i32 relative offset      the maximum timestamp up to that offset

An entry is added about every index.interval.bytes.  Both files are caches: an entry is checked
against the segment when it is used, and the indexes are rebuilt if it is wrong.

Entries are collected in memory and written a page at a time: a crash loses entries, but never
leaves a wrong one.  The files are neither preallocated nor mapped, so a hole in a file on a full
disk cannot end the process with SIGBUS.

The third index of a segment is in transaction_index.py.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from pathlib import Path

from kafkalite._ext.offset_index import (
    count_valid_offsets,
    count_valid_times,
    floor_offset,
    floor_time,
)
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files.disk import Disk, write_all
from kafkalite.storage.files.open_segments import OpenSegments


class SegmentIndex:
    """Index entries of one size: a file of written entries, and a tail of unwritten ones."""

    __slots__ = ("_disk", "_file", "_is_checked", "count", "open_segments", "path", "tail",
                 "written")  # fmt: skip

    entry_size: int

    def __init__(self, path: Path, disk: Disk) -> None:
        """Open the index at its present size; the file need not exist."""
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
        self._is_checked = size == 0

    @property
    def file(self) -> OpenFile:
        """The file, opened when first needed: most segments are never searched."""
        if self._file is None:
            shared = self.open_segments
            self._file = self._open() if shared is None else shared.open(self._open)
        return self._file

    def _open(self) -> OpenFile:
        return self._disk.open_to_keep(self.path, os.O_RDWR | os.O_CREAT)

    def write(self) -> None:
        """Write the tail to the file."""
        if self.tail:
            write_all(self._disk, self.file.fileno(), self.tail, self.written * self.entry_size)
            self.written = self.count
            self.tail.clear()

    def truncate(self, count: int) -> None:
        """Truncate the index to its first `count` entries."""
        kept = bytes(self.tail[: max(0, count - self.written) * self.entry_size])
        self.tail = bytearray(kept)
        if count < self.written:
            self._disk.ftruncate(self.file.fileno(), count * self.entry_size)
            self.written = count
        self.count = count
        self._is_checked = self._is_checked or count == 0

    def entries(self) -> bytes:
        """Return all entries; raise KafkaStorageError if they cannot be read."""
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
        """Release the file."""
        self._file = None

    def _descriptor(self) -> int:
        return self.file.fileno() if self.written else -1


class OffsetIndex(SegmentIndex):
    """Index by offset: gives a position at or before a batch."""

    __slots__ = ()
    entry_size = 8
    pack = struct.Struct(">ii").pack
    unpack = struct.Struct(">ii").unpack

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """Return (relative offset, position) of the last entry at or before an offset; (-1, 0) if
        there is none."""
        return floor_offset(self._descriptor(), self.written, self.tail, relative_offset)

    def is_sound(self, end_position: int) -> bool:
        """Return whether the entries can be valid for a segment of this size; computed once."""
        if not self._is_checked:
            self._is_checked = count_valid_offsets(self.entries(), end_position) == self.count
        return self._is_checked

    def last(self) -> tuple[int, int]:
        return self.floor((1 << 31) - 1)

    def count_before(self, position: int) -> int:
        """Return the number of entries that point before a position."""
        return self._count_below(position, word_at=4)

    def first_from(self, position: int) -> tuple[int, int]:
        """Return (relative offset, position) of the first entry at or after a position; (-1, 0) if
        there is none."""
        slot = bisect_left(range(self.count), position, key=lambda slot: self._entry(slot)[1])
        return self._entry(slot) if slot < self.count else (-1, 0)

    def floor_position(self, position: int) -> int:
        """Return the last indexed position at or before a position; 0 if there is none."""
        return self.last_at(position)[1]

    def last_at(self, position: int) -> tuple[int, int]:
        """Return (relative offset, position) of the last entry at or before a position; (-1, 0) if
        there is none."""
        slot = bisect_right(range(self.count), position, key=lambda slot: self._entry(slot)[1])
        return self._entry(slot - 1) if slot else (-1, 0)

    def _entry(self, slot: int) -> tuple[int, int]:
        if slot >= self.written:
            found = bytes(self.tail[self.entry_size * (slot - self.written) :][: self.entry_size])
        else:
            found = self._read(self.entry_size, self.entry_size * slot)
        # The file may have been truncated since; the result is checked against the segment.
        return self.unpack(found) if len(found) == self.entry_size else (-1, 0)


class TimeIndex(SegmentIndex):
    """Index by timestamp: gives an offset before which no record has a later timestamp."""

    __slots__ = ()
    entry_size = 12
    pack = struct.Struct(">qi").pack

    def floor(self, timestamp: int) -> tuple[int, int]:
        """Return (timestamp, relative offset) of the last entry at or before a timestamp; (-1, 0)
        if there is none."""
        return floor_time(self._descriptor(), self.written, self.tail, timestamp)

    def is_sound(self, last_relative_offset: int) -> bool:
        """Return whether the entries can be valid for a segment that ends at this offset."""
        if not self._is_checked:
            self._is_checked = count_valid_times(self.entries(), last_relative_offset) == self.count
        return self._is_checked

    def last(self) -> tuple[int, int]:
        return self.floor((1 << 63) - 1)

    def count_before(self, relative_offset: int) -> int:
        """Return the number of entries whose offset is before this one."""
        return self._count_below(relative_offset, word_at=8)
