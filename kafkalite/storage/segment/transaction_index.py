"""TransactionIndex: the aborted transactions whose markers are in one segment.

    .txnindex    i16 version 0, i64 producer id, i64 first offset, i64 last offset (of the marker),
                 i64 last stable offset when the transaction ended

Entries are in the order of their last offsets.  The file exists only if there is an entry.  Unlike
the other two indexes it is not a cache: an entry that is missing would show aborted records to a
read_committed consumer.  So a flush covers it, recovery rebuilds it for what it scans, and the
rest of an incomplete entry has its segment scanned again.

Source: AbortedTxn and TransactionIndex of Apache Kafka (KIP-98).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.disk import Disk, put_file
from kafkalite.storage.segment.index import SegmentIndex
from kafkalite.storage.state.open_transactions import CompletedTransaction

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
READ_COUNT = 256
"""Number of entries that are read at a time."""
BLOCK_COUNT = 4096
"""Number of entries of a block; the last one may have less."""


class AbortedTransaction(NamedTuple):
    """An entry of the index."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class IndexBlock(NamedTuple):
    """The offsets by which a lookup skips a block of entries."""

    first_offset: int
    """The lowest of its transactions."""
    last_stable_offset: int
    """The highest of its entries."""


def packed(entry: AbortedTransaction) -> bytes:
    """Return the bytes of an entry."""
    return _ENTRY.pack(VERSION, *entry)


class TransactionIndex(SegmentIndex):
    """The aborted transactions of one segment."""

    __slots__ = ("_blocks", "_is_damaged")
    entry_size = _ENTRY.size

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path, disk)
        self._blocks: dict[int, IndexBlock] = {}
        """The blocks that were read, by number."""
        self._is_damaged = False

    def add(self, completed: CompletedTransaction) -> None:
        """Add a transaction that was aborted, after those before it."""
        self._blocks.pop(self.count // BLOCK_COUNT, None)
        self.tail += _ENTRY.pack(
            VERSION, completed.producer_id, completed.first_offset, completed.last_offset,
            completed.last_stable_offset,
        )  # fmt: skip
        self.count += 1

    def from_offset(self, offset: int) -> Iterator[AbortedTransaction]:
        """Yield the transactions whose markers are at this offset or later."""
        slot = self.count_before(offset)
        while some := self.read(slot, READ_COUNT):
            yield from some
            slot += len(some)

    def read(self, slot: int, count: int) -> list[AbortedTransaction]:
        """Return up to `count` entries from a slot on; none only behind the last one."""
        if slot >= self.count:
            return []
        some = self._read_entries(slot, count)
        return [AbortedTransaction(*entry[1:]) for entry in _ENTRY.iter_unpack(some)]

    def block(self, number: int) -> IndexBlock | None:
        """Return a block that was read, or None."""
        return self._blocks.get(number)

    def keep_block(self, number: int, block: IndexBlock) -> None:
        """Keep a block of which all entries were read, until another one is added."""
        self._blocks[number] = block

    def entries_between(self, slot: int, end: int) -> bytes:
        """Return the entries from a slot on, before another one."""
        count = min(end, self.count) - slot
        some = self._read_entries(slot, count)
        left = count - len(some) // self.entry_size
        return some + self._read_entries(slot + count - left, left) if left else some

    def count_before(self, offset: int) -> int:
        """Return the number of transactions whose markers are before an offset."""

        def last_offset(slot: int) -> int:
            return int(_ENTRY.unpack(self._read_entries(slot, 1))[3])

        return bisect_left(range(self.count), offset, key=last_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose markers are at this offset or later."""
        if self.count:
            self.truncate(self.count_before(offset))
            self._blocks.clear()

    def discard(self) -> None:
        """Drop the entries of a damaged file; the file stays until `write` replaces it as a whole,
        so that a crash in between does not hide the damage."""
        self.tail.clear()
        self._blocks.clear()
        self.count = self.written = 0
        self._is_damaged = True

    def write(self) -> None:
        """Write the new entries to the file."""
        if not self._is_damaged:
            super().write()
            return
        self.release()
        put_file(self._disk, self.path, bytes(self.tail))
        self.written = self.count
        self.tail.clear()
        self._is_damaged = False

    def is_sound(self, base_offset: int) -> bool:
        """Return whether the entries can be those of a segment with this base offset."""
        if not self.count and not self.path.exists():
            return True
        if self.path.stat().st_size % self.entry_size:
            return False
        before = base_offset - 1
        for version, _, first_offset, last_offset, stable_offset in _ENTRY.iter_unpack(
            self.entries()
        ):
            if version != VERSION or last_offset <= before or not first_offset <= last_offset:
                return False
            if not 0 <= stable_offset <= last_offset + 1:
                return False
            before = last_offset
        return True

    def _read_entries(self, slot: int, count: int) -> bytes:
        """Return up to `count` entries; they end where the written ones do."""
        if slot >= self.written:
            begin = self.entry_size * (slot - self.written)
            return bytes(self.tail[begin : begin + self.entry_size * count])
        count = min(count, self.written - slot)
        found = self._read(self.entry_size * count, self.entry_size * slot)
        if len(found) != self.entry_size * count:
            raise KafkaStorageError(f"{self.path} was truncated by another program.")
        return found
