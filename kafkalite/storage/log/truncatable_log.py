"""TruncatableLog: the truncations of a Log, as jobs that a thread may run (log_truncation.py)."""

from __future__ import annotations

from pathlib import Path

from kafkalite.errors import KafkaStorageError
from kafkalite.storage.files.deferred_delete import DeferredDeletes
from kafkalite.storage.files.disk import Disk, DiskFailed
from kafkalite.storage.log import log_truncation
from kafkalite.storage.log.checkpoint_snapshots import CheckpointSnapshots
from kafkalite.storage.log.log_flushes import LogFlushes
from kafkalite.storage.log.log_truncation import LogCut, LogTruncation, TruncationJob
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import Checkpoint


class TruncatableLog:
    """The part of a Log that truncates it; Log sets the attributes."""

    topic: str
    partition: int
    directory: Path
    failure: str | None
    config: LogConfig
    segments: Segments
    leader_epochs: LeaderEpochCache
    flush_state: FlushState
    deferred_deletes: DeferredDeletes
    end_offset: int
    log_start_offset: int
    last_batch_offset: int
    last_batch_position: int
    cleaner_offset: int
    gaps_to: int
    generation: int
    _disk: Disk
    _flushes: LogFlushes
    _snapshots: CheckpointSnapshots
    _checkpoint: Checkpoint
    _truncation: LogTruncation
    _truncating: TruncationJob | None

    def truncate_to(self, offset: int) -> int:
        """Remove the records from the last batch boundary at or before an offset on; return the
        log end offset.  See log_truncation.py.

        Raises KafkaStorageError if the checkpoint could not be written: no record was removed.
        DiskFailed after any later error: the next start recovers the log.
        """
        self.truncation_begin(offset)
        self.finish_truncation()
        return self.end_offset

    def truncate_fully_and_start_at(self, offset: int) -> int:
        """Remove all records, and begin an empty log at an offset; else as `truncate_to`."""
        self.truncation_begin(offset, is_whole_log=True)
        self.finish_truncation()
        return self.end_offset

    def truncation_begin(self, offset: int, *, is_whole_log: bool = False) -> TruncationJob | None:
        """Begin a truncation; return the job to submit to a Flusher, or None if no record is to be
        removed.  Until `truncation_end` was called with it the log `is_truncating`.

        Raises KafkaStorageError if the checkpoint could not be written: nothing was begun.
        """
        self.finish_truncation()
        if is_whole_log or offset < self.segments[0].base_offset:
            return self._begin_truncation(LogCut(0, 0, offset, is_whole_log=True), offset)
        if offset < self.end_offset:
            cut = log_truncation.find_cut(self.segments, offset)
            return self._begin_truncation(cut, min(self.log_start_offset, cut.end_offset))
        # Its leader may not know an epoch that this node led without a record.
        self.leader_epochs.truncate_from_end(self.end_offset)
        return None

    def _begin_truncation(self, cut: LogCut, log_start_offset: int) -> TruncationJob:
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        self._flushes.lower(cut.end_offset, cut.position, is_whole_log=cut.is_whole_log)
        if self.cleaner_offset >= 0:
            self.cleaner_offset = min(self.cleaner_offset, cut.end_offset)
        before, self.log_start_offset = self.log_start_offset, log_start_offset
        try:
            self._checkpoint(self.topic, self.partition, cut.end_offset)
        except KafkaStorageError:
            self.log_start_offset = before
            raise
        self._truncation.truncate_epochs(cut)
        self.generation += 1
        self.end_offset = self.last_batch_offset = cut.end_offset
        self.flush_state.in_flight += 1
        self.segments.detach()
        self._truncating = TruncationJob(
            self._truncation, self.directory, self.flush_state, cut, has_gaps=self.gaps_to > 0
        )
        return self._truncating

    def truncation_end(self, job: TruncationJob) -> None:
        """Take the result of a truncation, unless `finish_truncation` has.

        Raises DiskFailed if it has failed: the next start recovers the log.
        """
        if job is not self._truncating:
            return
        self._truncating = None
        self.flush_state.in_flight -= 1
        self.segments.attach()
        if job.failure is not None:
            self.failure = f"{self.directory} cannot be truncated: {job.failure}"
            raise DiskFailed(self.failure) from job.failure
        end_offset = job.cut.end_offset
        if job.cut.is_whole_log:
            self.flush_state.durable_offset = end_offset
        self.generation += 1
        # Of the segment that was created, which holds no record.
        self.last_batch_position = self.flush_state.durable_position = 0
        self.gaps_to = min(self.gaps_to, end_offset)
        self._snapshots.lower(end_offset)
        self.deferred_deletes.add(job.removed.granted, 0)
        self.deferred_deletes.add(job.removed.others, self.config.file_delete_delay_ms)

    def finish_truncation(self) -> None:
        """Run the truncation that was begun, if any, or wait for the thread that does."""
        if self._truncating is not None:
            self._truncating.run(self._disk)
            self.truncation_end(self._truncating)

    @property
    def is_truncating(self) -> bool:
        """True while a truncation is in progress: its files and its state are those of a thread."""
        return self._truncating is not None

    @property
    def truncation_count(self) -> int:
        """Number of times the log was truncated; a cleaning that began before is cancelled."""
        return self.flush_state.truncation_count
