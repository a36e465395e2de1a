"""FetchedBatches: the record batches in a slice of a log, by their headers.

Records are neither read nor decoded: members acquire offsets, and the bytes are sent by sendfile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ref

from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite.coordination.share.acquisition import AcquiredRange
from kafkalite.coordination.share.share_partition import FetchedBatch
from kafkalite.records.batch import BatchHeader
from kafkalite.records.file_slice import FileSlice, OpenFile

READ_SIZE = 4 << 10
"""Number of bytes that are read together: small batches follow each other closely."""


class FetchedBatches:
    """The batches of a slice; those of aborted transactions and markers are skipped.

    `aborted` has the producer id and first offset of aborted transactions, in the order of their
    first offsets; it is empty unless only committed records are wanted.
    """

    def __init__(self, records: FileSlice, aborted: Sequence[tuple[int, int]] = ()) -> None:
        self._records = records
        self._aborted = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._aborting: set[int] = set()
        self._batches: list[tuple[FetchedBatch, int, int]] = []
        """The batches so far, with the positions of their begin and end."""

    def __iter__(self) -> Iterator[FetchedBatch]:
        position, end = self._records.position, self._records.position + self._records.size
        chunk, chunk_position = b"", position
        descriptor = self._records.file.fileno()
        while position + HEADER_SIZE <= end:
            at = position - chunk_position
            if at + HEADER_SIZE > len(chunk):
                chunk = os.pread(descriptor, min(READ_SIZE, end - position), position)
                chunk_position, at = position, 0
                if len(chunk) < HEADER_SIZE:
                    return  # the segment was truncated meanwhile
            found = BatchHeader._make(header(memoryview(chunk)[at : at + HEADER_SIZE]))
            next_position = position + found.size
            if next_position > end:
                return  # the slice ends within this batch
            batch = FetchedBatch(found.base_offset, found.last_offset, self._is_skipped(found))
            self._batches.append((batch, position, next_position))
            yield batch
            position = next_position

    def _is_skipped(self, found: BatchHeader) -> bool:
        while self._aborted and self._aborted[-1][1] <= found.last_offset:
            self._aborting.add(self._aborted.pop()[0])
        if found.is_control:
            self._aborting.discard(found.producer_id)
            return True
        return found.is_transactional and found.producer_id in self._aborting

    def covering(self, ranges: Sequence[AcquiredRange]) -> FileSlice:
        """Return the slice with the batches of these ranges and those between them."""
        first_offset, last_offset = ranges[0].first_offset, ranges[-1].last_offset
        begin = next(
            begin for batch, begin, _ in self._batches if batch.last_offset >= first_offset
        )
        end = next(end for batch, _, end in self._batches if batch.last_offset >= last_offset)
        return FileSlice(self._records.file, begin, end - begin)

    def after(self, covered: FileSlice) -> ReadAhead | None:
        """Return the rest of the slice after the covered part, or None if there is none."""
        end = covered.position + covered.size
        left = self._records.position + self._records.size - end
        offset = next(batch.last_offset for batch, _, at in self._batches if at == end) + 1
        return ReadAhead(ref(covered.file), offset, end, left) if left > 0 else None


class ReadAhead(NamedTuple):
    """The part of a slice from an offset on, which the next fetch continues with.

    The log's committed bytes do not change while this node leads the partition.  The file is not
    held open: the log may close or delete it meanwhile.
    """

    file: ref[OpenFile]
    offset: int
    position: int
    size: int

    def slice(self, size_max: int) -> FileSlice | None:
        """Return at most this many bytes, or None if the file was closed."""
        file = self.file()
        if file is None or not file.is_open:
            return None
        return FileSlice(file, self.position, min(self.size, size_max))
