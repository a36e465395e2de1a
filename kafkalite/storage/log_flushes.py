"""LogFlushes: the durable offset of a log, and the flushes that advance it.

    begin ─▶ Flush ┄┄ a flusher's thread ┄┄▶ end: durable up to where the log ended at `begin`

A flush covers the segments from the one that holds the durable offset on, their indexes, the
snapshots taken when they were rolled, the leader epochs, and, for files made since the last flush,
the names in the directory.

Not thread-safe: used on the event loop of the worker that owns the log, except `one_at_a_time`
and `error`, which are used by the thread that runs a flush.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from kafkalite.errors import KafkaStorageError
from kafkalite.storage import layout
from kafkalite.storage.flusher import EpochsFile, Flush

if TYPE_CHECKING:
    from kafkalite.records.file_slice import OpenFile
    from kafkalite.storage.disk import Disk
    from kafkalite.storage.log import Log


class LogFlushes:
    """The flushes of one log."""

    __slots__ = ("_directory_flushed", "_disk", "_epochs_in_flight", "durable_offset",
                 "durable_position", "error", "flushed_size", "in_flight",
                 "one_at_a_time")  # fmt: skip

    def __init__(self, disk: Disk, durable_offset: int, durable_position: int) -> None:
        self._disk = disk
        self.durable_offset = durable_offset
        self.durable_position = durable_position
        """Position of the durable offset in the active segment."""
        self.flushed_size = 0
        """Number of bytes written by this process that were flushed."""
        self.in_flight = 0
        """Number of flushes that were begun and have not ended."""
        self._epochs_in_flight = False
        self._directory_flushed = 0
        self.one_at_a_time = threading.Lock()
        """Held by the thread that runs a flush."""
        self.error: OSError | None = None
        """The error of a failed flush, which all later flushes repeat."""

    # The log is passed as an argument: a reference back to it would be a cycle, and a released log
    # must free its descriptors at once.

    def begin(self, log: Log, *, closed_only: bool = False) -> Flush | None:
        """Return the flush that makes the log durable up to its end, or with `closed_only` up to
        the active segment; None if it is durable already.

        Raises KafkaStorageError if descriptors are short; a later call may succeed.
        """
        end_offset = log.active.base_offset if closed_only else log.end_offset
        if end_offset <= self.durable_offset:
            return None
        files = self._closed_files(log)
        if not closed_only:
            files.append(log.active.file)
        directories = []
        if self._directory_flushed < log.segments_made:
            directories += [log.directory, log.directory.parent]
            metadata = log.directory / layout.PARTITION_METADATA
            if self._directory_flushed == 0 and metadata.exists():
                files.append(self._disk.open_to_flush(metadata))
        epochs = self._epochs_to_save(log)
        self.in_flight += 1
        return Flush(log, end_offset, files, epochs, directories)

    def _closed_files(self, log: Log) -> list[OpenFile]:
        """Return the files of closed segments that may not be durable."""
        # A segment that ends at the durable offset was truncated when it was closed, maybe since.
        number = bisect_left(log.segments, self.durable_offset, key=attrgetter("base_offset"))
        first = max(0, number - 1)
        files = []
        for segment, later in zip(log.segments[first:], log.segments[first + 1 :], strict=False):
            files += [segment.file, segment.offset_index.file, segment.time_index.file]
            snapshot = log.producers.snapshot_path(later.base_offset)
            if snapshot.exists():
                files.append(self._disk.open_to_flush(snapshot))
        return files

    def _epochs_to_save(self, log: Log) -> EpochsFile | None:
        epochs = log.leader_epochs
        if not epochs.unsaved or self._epochs_in_flight:
            # One flush at a time writes this file: two would share the name of its replacement,
            # and the older content might be written last.  The next flush writes it, and recovery
            # checks that the file has the epoch it starts in.
            return None
        directory = None
        if log.directory.exists():
            directory = self._disk.open_to_flush(log.directory)
        epochs.unsaved = False
        self._epochs_in_flight = True
        return EpochsFile(directory, epochs.encoded())

    def reach(self, log: Log) -> None:
        """Note that the log was flushed up to its end, with its whole file system."""
        self._directory_flushed = log.segments_made
        self.durable_offset, self.durable_position = log.end_offset, log.active.size
        self.flushed_size = log.written_size

    def end(self, flush: Flush) -> None:
        """Take the result of a flush.

        Raises KafkaStorageError if the disk had no room for a small file, or descriptors were
        short; the flush must be repeated, and the durable offset has not moved.
        """
        assert flush.error is None, "a failed flush ends the process"
        self.in_flight -= 1
        if flush.epochs is not None:
            self._epochs_in_flight = False
        if flush.refused is not None:
            flush.log.leader_epochs.unsaved = True
            raise KafkaStorageError(
                f"{flush.log.directory} cannot be flushed: {flush.refused.strerror}"
            )
        if flush.is_lost:
            flush.log.fault = f"{flush.log.directory} was removed"
            return
        self._directory_flushed = max(self._directory_flushed, flush.segments_made)
        if flush.end_offset > self.durable_offset:
            self.durable_offset = flush.end_offset
            self.durable_position = flush.position
            self.flushed_size = max(self.flushed_size, flush.written_size)
