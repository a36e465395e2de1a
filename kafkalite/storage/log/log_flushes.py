"""LogFlushes: begins the flushes of a log, and advances its durable offset when they end.

    begin ─▶ LogFlush ┄┄ a flusher's thread ┄┄▶ end: durable up to where the log ended at `begin`

A flush covers the segments from the one that holds the durable offset on, their indexes, the
snapshots taken when they were rolled, the leader epochs, and, for files made since the last flush,
the names in the directory.

A replica of several is compared with the others by the last leader epoch of its log and its end, so
the start of an epoch counts as durable only once the epoch is in the file on the disk, and a flush
is begun for the epoch alone, too.

Not thread-safe: used on the event loop of the worker that owns the log; a thread only runs a
LogFlush.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import TRANSIENT_ERRORS, Disk, failed, put_file, sync_directory
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.leader_epochs import LeaderEpochCache


class EpochsFile(NamedTuple):
    """A log's leader epochs, to be written to the directory's current path: the log may be deleted
    meanwhile, and another log may take its name."""

    directory: OpenFile | None
    """None if the directory was removed."""
    content: bytes

    def write(self, disk: Disk) -> None:
        if self.directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        directory = f"/proc/self/fd/{self.directory.fileno()}"
        put_file(disk, Path(directory, layout.LEADER_EPOCHS), self.content)


class FlushTarget(NamedTuple):
    """The part of a log that is durable after a flush."""

    end_offset: int
    position: int
    """Position of the log's end in the active segment."""
    written_size: int
    """Number of bytes written by this process until then."""
    created_count: int
    """Number of segments created by this process until then."""


class LogFlush:
    """The flush that makes one log durable up to `target` (flusher.Flushable)."""

    __slots__ = ("directories", "directory", "done", "epochs", "error", "files", "is_lost",
                 "refused", "state", "target", "truncation_count")  # fmt: skip

    def __init__(
        self,
        directory: Path,
        state: FlushState,
        target: FlushTarget,
        files: list[OpenFile],
        epochs: EpochsFile | None,
        directories: list[Path],
    ) -> None:
        self.directory = directory
        self.state = state
        self.target = target
        self.truncation_count = state.truncation_count
        self.files = files
        self.epochs = epochs
        self.directories = directories
        self.error: OSError | None = None
        self.refused: OSError | None = None
        """The error if the epochs file could not be written; the flush is then repeated."""
        self.is_lost = False
        """True if the log's directory was removed by another program meanwhile."""
        self.done: Callable[[LogFlush], None] | None = None

    @property
    def where(self) -> Path:
        return self.directory

    @property
    def is_superseded(self) -> bool:
        """True if the log was truncated since the flush was begun: its target may not exist."""
        return self.truncation_count != self.state.truncation_count

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Flush, on any thread; an error is kept for collect.

        Flushes of one log run one after another, and after a failed one all fail: the kernel
        reports an error once per descriptor, and the flushes of a log share descriptors.

        A log that is deleted meanwhile need not be durable.  If its directory was removed by
        another program, the log is lost, but the disk is not at fault.
        """
        state = self.state
        with state.lock:
            if state.error is None:
                try:
                    self._run(disk, files_flushed)
                except OSError as error:
                    if error.errno == errno.ENOENT and (
                        state.is_released or not self.directory.exists()
                    ):
                        self.is_lost = not state.is_released
                    else:
                        state.error = error
            self.error = state.error

    def _run(self, disk: Disk, files_flushed: bool) -> None:
        if self.is_superseded:
            return
        if not files_flushed:
            for file in self.files:
                disk.fdatasync(file.fileno())
        if self.state.is_released:
            return
        try:
            if self.epochs is not None:
                self.epochs.write(disk)
        except OSError as error:
            # Replacing a file loses no old content, and no record with it.
            if error.errno not in TRANSIENT_ERRORS:
                raise
            self.refused = error
            return
        for directory in () if files_flushed else self.directories:
            sync_directory(disk, directory)


class LogFlushes:
    """The flushes of one log."""

    __slots__ = ("_created_count_flushed", "_disk", "_epochs", "_epochs_in_flight_from",
                 "_is_epochs_in_flight", "_segments", "_state")  # fmt: skip

    def __init__(
        self, segments: Segments, epochs: LeaderEpochCache, state: FlushState, disk: Disk
    ) -> None:
        self._segments = segments
        self._epochs = epochs
        self._state = state
        self._disk = disk
        self._is_epochs_in_flight = False
        self._epochs_in_flight_from: int | None = None
        """Start of the first epoch that the flush in flight makes durable."""
        self._created_count_flushed = 0
        """Number of created segments whose names in the directory were flushed."""

    @property
    def durable_offset(self) -> int:
        """The durable offset of a replica of several: below the start of the first leader epoch
        that is not durable."""
        starts = (self._epochs.unflushed_from, self._epochs_in_flight_from)
        limits = [start - 1 for start in starts if start is not None]
        return min([self._state.durable_offset, *limits])

    def begin(
        self,
        end_offset: int,
        written_size: int,
        *,
        closed_only: bool = False,
        with_epochs: bool = False,
    ) -> LogFlush | None:
        """Return the flush that makes the log durable up to its end, or with `closed_only` up to
        the active segment; None if it is durable already.

        `with_epochs`: also if only the leader epochs are not durable, unless a flush in flight
        writes them.

        Raises KafkaStorageError if descriptors are short; a later call may succeed.
        """
        segments = self._segments
        if closed_only:
            end_offset = segments.active.base_offset
        only_epochs = end_offset <= self._state.durable_offset
        if only_epochs and (closed_only or not with_epochs or not self._are_epochs_due):
            return None
        files = self._closed_files()
        if not closed_only:
            files.append(segments.active.file)
            files += self._transaction_index_of(segments.active)
        directory = segments.directory
        directories = []
        if self._created_count_flushed < segments.created_count:
            directories += [directory, directory.parent]
            metadata = directory / layout.PARTITION_METADATA
            if self._created_count_flushed == 0 and metadata.exists():
                files.append(self._disk.open_to_flush(metadata))
        epochs = self._epochs_to_save()
        self._state.in_flight += 1
        target = self._target(end_offset, written_size)
        return LogFlush(directory, self._state, target, files, epochs, directories)

    def _target(self, end_offset: int, written_size: int) -> FlushTarget:
        segments = self._segments
        return FlushTarget(end_offset, segments.active.size, written_size, segments.created_count)

    def _closed_files(self) -> list[OpenFile]:
        """Return the files of closed segments that may not be durable."""
        files = []
        for segment, end_offset in self._segments.closed_from(self._state.durable_offset):
            files += [segment.file, segment.offset_index.file, segment.time_index.file]
            files += self._transaction_index_of(segment)
            snapshot = segment.directory / layout.file_name(end_offset, layout.SNAPSHOT)
            if snapshot.exists():
                files.append(self._disk.open_to_flush(snapshot))
        return files

    def _transaction_index_of(self, segment: LogSegment) -> list[OpenFile]:
        """Return the file of a segment's transaction index, with all entries written to it.

        Raises KafkaStorageError if the disk is full.
        """
        index = segment.transaction_index
        if index is None or not index.count:
            return []
        try:
            index.write()
        except OSError as error:
            failed(error, f"{index.path} cannot be written")
        return [index.file]

    @property
    def _are_epochs_due(self) -> bool:
        return self._epochs.unflushed_from is not None and not self._is_epochs_in_flight

    def _epochs_to_save(self) -> EpochsFile | None:
        epochs = self._epochs
        is_on_disk = not epochs.unsaved and epochs.unflushed_from is None
        if is_on_disk or self._is_epochs_in_flight:
            # One flush at a time writes this file: two would share the name of its replacement,
            # and the older content might be written last.  The next flush writes it, and recovery
            # checks that the file has the epoch it starts in.
            return None
        directory = None
        if self._segments.directory.exists():
            directory = self._disk.open_to_flush(self._segments.directory)
        epochs.unsaved = False
        self._epochs_in_flight_from, epochs.unflushed_from = epochs.unflushed_from, None
        self._is_epochs_in_flight = True
        return EpochsFile(directory, epochs.encoded())

    def reach(self, end_offset: int, written_size: int) -> None:
        """Note that the log was flushed up to its end, with its whole file system; so were the
        leader epochs, if they were saved before."""
        if not self._epochs.unsaved:
            self._epochs.unflushed_from = None
        self._advance(self._target(end_offset, written_size))

    def end(self, flush: LogFlush) -> None:
        """Take the result of a flush of a log that is not lost.

        Raises KafkaStorageError if the disk had no room for a small file, or descriptors were
        short; the flush must be repeated, and the durable offset has not moved.
        """
        assert flush.error is None, "a failed flush ends the process"
        self._state.in_flight -= 1
        if flush.is_superseded:
            return
        if flush.refused is not None:
            self._return_epochs()
            raise KafkaStorageError(
                f"{flush.directory} cannot be flushed: {flush.refused.strerror}"
            )
        if flush.epochs is not None:
            self._is_epochs_in_flight = False
            self._epochs_in_flight_from = None
        if not flush.is_lost:
            self._advance(flush.target)

    def _return_epochs(self) -> None:
        """Note that the flush in flight has not written the epochs, or another must again."""
        self._is_epochs_in_flight = False
        self._epochs.unsaved = True
        if self._epochs_in_flight_from is not None:
            self._epochs.set_unflushed_from(self._epochs_in_flight_from)
            self._epochs_in_flight_from = None

    def lower(self, end_offset: int, position: int, *, is_whole_log: bool) -> None:
        """Lower the durable offset, before the log is truncated to this end.  If the whole log is
        removed, no record of it counts as durable any more.

        The flushes in flight do not advance the durable offset then, and those that do not run yet
        write no leader epochs.
        """
        state = self._state
        state.truncation_count += 1
        if is_whole_log:
            end_offset = min(end_offset, self._segments[0].base_offset)
        if state.durable_offset > end_offset:
            state.durable_offset, state.durable_position = end_offset, position
        if self._is_epochs_in_flight:
            self._return_epochs()

    def _advance(self, target: FlushTarget) -> None:
        self._created_count_flushed = max(self._created_count_flushed, target.created_count)
        state = self._state
        if target.end_offset > state.durable_offset:
            state.durable_offset = target.end_offset
            state.durable_position = target.position
            state.flushed_size = max(state.flushed_size, target.written_size)
