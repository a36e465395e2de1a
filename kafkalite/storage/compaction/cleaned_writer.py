"""CleanedWriter: writes the .cleaned files of one group, a segment after another.

A segment is closed once its files are complete and flushed.  A further one is begun only if
recompressed batches outgrow the largest file: it begins where the one before ends.
"""

from __future__ import annotations

import os
from pathlib import Path

from kafkalite._ext.cleaner import BatchFilter
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.compaction.cleaning_job import CleanedSegment
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import Disk, write_all, write_file
from kafkalite.storage.segment.transaction_index import AbortedTransaction, packed


class CleanedWriter:
    """The output of one group."""

    def __init__(
        self, directory: Path, disk: Disk, batches: BatchFilter, base_offset: int, interval: int
    ) -> None:
        self.segments: list[CleanedSegment] = []
        self._directory = directory
        self._disk = disk
        self._batches = batches
        self._interval = interval
        self._aborted: list[AbortedTransaction] = []
        self._begin(base_offset)

    def _begin(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._written = 0
        self._aborted.clear()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._file: OpenFile = self._disk.open(self._path(layout.LOG), flags)
        self._batches.begin(base_offset, self._interval)

    def _path(self, suffix: str) -> Path:
        return self._directory / (layout.file_name(self._base_offset, suffix) + layout.CLEANED)

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Add a transaction whose marker was kept to the segment's transaction index."""
        self._aborted.append(entry)

    def write(self) -> int:
        """Write the output that the filter has; return its size."""
        output = self._batches.take_output()
        write_all(self._disk, self._file.fileno(), output, self._written)
        self._written += len(output)
        return len(output)

    def roll(self) -> None:
        """Close the segment, and begin the next one where it ends."""
        self.close(None)
        self._begin(self._batches.next_offset)

    def close(self, modified_ns: int | None) -> None:
        """Complete and flush the segment, with the modification time of its last source."""
        self.write()
        offset_entries, time_entries = self._batches.index_entries()
        if modified_ns is not None:
            os.utime(self._file.fileno(), ns=(modified_ns, modified_ns))
        self._disk.fdatasync(self._file.fileno())
        self._file.close()
        write_file(self._disk, self._path(layout.OFFSET_INDEX), offset_entries, flushed=True)
        write_file(self._disk, self._path(layout.TIME_INDEX), time_entries, flushed=True)
        if self._aborted:
            content = b"".join(map(packed, self._aborted))
            write_file(self._disk, self._path(layout.TXN_INDEX), content, flushed=True)
        self.segments.append(
            CleanedSegment(
                self._base_offset, self._batches.next_offset, self._written, len(self._aborted)
            )
        )

    def abandon(self) -> None:
        """Close the file of a segment that is not complete."""
        self._file.close()
