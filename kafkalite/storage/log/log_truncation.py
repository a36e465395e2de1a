"""LogTruncation: removes the records of a log from an offset on, on the disk.

    [segment 0   ][segment 4096   ][segment 9120  (active)   ]
                        ╷ offset
    [segment 0   ][segm][new]         the segment that was cut is closed, appends go to a new one

A follower truncates its log where it differs from its leader's.  Before any file changes, Log has
lowered the durable offset, and no checkpoint that a start may read has a greater recovery point:
it is written if one has (CheckpointVersions in recovery_points.py).  Then:

1. later segments are renamed, the last one first, so that the log has no hole at any time
2. the directory is flushed, if a name was removed: no later segment can come back
3. the segment is cut, closed and flushed, with its indexes: no record above the cut can come back
4. producer state is loaded from the newest snapshot and the batches after it
5. the leader epochs are written, and the new segment is created

A crash in between leaves the log as it was, up to some batch at or after the cut.  The bytes at a
position of a segment file never change, even so: a reader of a slice or a segment grant gets the
records that it was given, or too few bytes.

Steps 1 to 5 are a TruncationJob, which a flusher's thread runs (flusher.Flushable).  Until its end
was taken (Log.truncation_end) nothing else uses the files and the state of the log:

- no flush, snapshot, index entry, retention or append is begun on the event loop: Log refuses or
  omits them, and what cannot wait (an election, a deletion, the shutdown) runs the job first
- the flushes begun before have no effect; the job waits for one that runs (FlushState.lock)
- its segments are not in the node's OpenSegments, which only the event loop uses
- the log already has the end offset and the leader epochs of the log after it, and a durable
  offset that is not greater

Left out: the checkpoint is written on the event loop, if a greater point must be replaced, before
the job begins; and an election or a deletion while the job runs waits for it, on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.disk import Disk, DiskFailed, sync_directory
from kafkalite.storage.log.recovery import Recovery
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.producer_state import ProducerStateManager


class LogCut(NamedTuple):
    """The place where a log is truncated."""

    number: int
    """Index of the segment that is cut."""
    position: int
    end_offset: int
    """The log end offset after the truncation."""
    is_whole_log: bool = False
    """True if all records are removed and the empty log may begin at any offset."""


class RemovedFiles(NamedTuple):
    """The files of removed segments, to be deleted."""

    granted: list[Path]
    """Those that other processes may read: deleted, and with it revoked, at once."""
    others: list[Path]


def find_cut(segments: Segments, offset: int) -> LogCut:
    """Return the last batch boundary at or before an offset within the log.

    The log then ends behind a batch, also if offsets are missing before `offset`.
    """
    number = segments.number_of(offset)
    segment = segments[number]
    found = segment.find(offset)
    position = segment.size if found is None else found.position
    return LogCut(number, position, segment.end_before(position))


class LogTruncation:
    """The truncation of one log's files and of the state that follows from its batches."""

    __slots__ = ("_deferred_deletes", "_disk", "_epochs", "_producers", "_segments")

    def __init__(
        self,
        segments: Segments,
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
        deferred_deletes: DeferredDeletes,
        disk: Disk,
    ) -> None:
        self._segments = segments
        self._producers = producers
        self._epochs = epochs
        self._deferred_deletes = deferred_deletes
        self._disk = disk

    def run(self, cut: LogCut, *, has_gaps: bool) -> RemovedFiles:
        """Truncate the log; return the files to delete.

        `has_gaps`: offsets may be missing between segments, so recovery would not notice a hole.

        Raises OSError, DiskFailed or KafkaStorageError; the log must be recovered then.
        """
        if cut.is_whole_log:
            return self._run_whole(cut.end_offset, has_gaps=has_gaps)
        kept = cut.number + 1 if cut.position else cut.number
        removed = self._remove_from(kept, cut.end_offset, has_gaps=has_gaps)
        if cut.position:
            self._segments[cut.number].cut(cut.position, cut.end_offset)
        if kept:
            Recovery.reload_producers(
                self._segments[:], self._producers, self._epochs, cut.end_offset
            )
        else:
            # Of the records before the log the first snapshot tells.
            if not self._producers.load_snapshot(cut.end_offset):
                self._producers.clear()
            self._producers.verifications.entries.clear()
        self._begin(cut.end_offset, is_only=not kept)
        return removed

    def _run_whole(self, offset: int, *, has_gaps: bool) -> RemovedFiles:
        """Remove all records and begin an empty log at an offset."""
        stale = self._producers.snapshot_path(offset)
        if stale.exists():
            self._disk.unlink(stale)
        removed = self._remove_from(0, -1, has_gaps=has_gaps)
        self._producers.clear()
        self._begin(offset, is_only=True)
        return removed

    def truncate_epochs(self, cut: LogCut) -> None:
        """Remove the epochs from the cut on, also one that begins there: it would refuse records of
        an earlier one after a restart.  `run` writes the file."""
        end_offset = -1 if cut.is_whole_log else cut.end_offset
        count = len(self._epochs)
        self._epochs.truncate_from_end(end_offset)
        self._epochs.unsaved = self._epochs.unsaved or len(self._epochs) != count

    def _remove_from(self, kept: int, end_offset: int, *, has_gaps: bool) -> RemovedFiles:
        """Set the segments behind the first `kept` aside, and delete snapshots of a later state."""
        directory = self._segments.directory
        # The recovery point of a handover file is that of the log before.
        stale = [path for path in [directory / layout.HANDOVER] if path.exists()]
        stale += [
            self._producers.snapshot_path(offset)
            for offset in self._producers.snapshots()
            if offset > end_offset
        ]
        removed = RemovedFiles([], [])
        for segment in reversed(self._segments.remove_last(len(self._segments) - kept)):
            self._set_aside(segment, removed)
            if has_gaps:
                sync_directory(self._disk, directory)
        for path in stale:
            self._disk.unlink(path)
        if stale or removed.granted or removed.others:
            sync_directory(self._disk, directory)
        return removed

    def _set_aside(self, segment: LogSegment, removed: RemovedFiles) -> None:
        is_granted = self._deferred_deletes.is_granted(segment.path)
        paths = segment.mark_deleted()
        (removed.granted if is_granted else removed.others).extend(paths)

    def _begin(self, offset: int, *, is_only: bool) -> None:
        """Create the segment for the next append; the state before it is written first.

        Without its name a log that has other segments ends there, too, so the next flush writes it.
        """
        directory = self._segments.directory
        if self._epochs.unsaved:
            self._epochs.save(self._disk, directory / layout.LEADER_EPOCHS)
        self._producers.take_snapshot(offset)
        self._segments.roll(offset)
        if is_only:
            sync_directory(self._disk, directory)


class TruncationJob:
    """A truncation that has begun (flusher.Flushable); it is run once, on any thread."""

    def __init__(
        self,
        truncation: LogTruncation,
        directory: Path,
        state: FlushState,
        cut: LogCut,
        *,
        has_gaps: bool,
    ) -> None:
        self.where = directory
        self.cut = cut
        self.files: list[OpenFile] = []
        self.error: OSError | None = None
        self.failure: Exception | None = None
        """The error if the log could not be truncated; it must be recovered then."""
        self.removed = RemovedFiles([], [])
        self.done: Callable[[TruncationJob], None] | None = None
        self._truncation = truncation
        self._state = state
        self._has_gaps = has_gaps
        self._has_run = False

    def run(self, disk: Disk, *, files_flushed: bool = False) -> None:
        """Truncate, or wait for the thread that does; a failure is kept for Log.truncation_end."""
        with self._state.lock:
            if self._has_run:
                return
            self._has_run = True
            try:
                if self._state.error is not None:
                    raise self._state.error
                self.removed = self._truncation.run(self.cut, has_gaps=self._has_gaps)
            except (OSError, KafkaStorageError, DiskFailed) as error:
                self.failure = error
