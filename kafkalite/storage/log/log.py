"""Log: the append-only record log of one partition, stored as Kafka segment files.

    log start offset                   durable offset      log end offset
        │ deleted by retention             │ on the disk       │
        ▼                                  ▼                   ▼
      [segment 0   ][segment 4096   ][segment 9120  (active)   ]

Guarantees: offsets increase and are never reused.  Records that were flushed survive a crash, or
the log is not served; recovery truncates unflushed records at the first batch that is not valid.
Reads return file slices, never bytes, and never pass the upper bound given by the caller.

Not thread-safe: each log belongs to one worker process and is used on its event loop only.
Partition decides who may append and the upper bound of reads (broker/replica/partition.py),
`record_batch` knows the layout of a batch, and batch_validator.py the rules of its topic.

A log with a `failure` is not served: it is damaged below its recovery point, or a write to it
failed for a reason other than a full disk.

Left out: time-based rolling without an append, as in Kafka.  A clock that jumps years ahead makes
time-based retention delete segments, as in Kafka too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext.record_batch import (
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    assign_offset,
    check,
    check_client_batch,
    control_record,
    header,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import KafkaStorageError, OffsetOutOfRange, raise_for
from kafkalite.records.control import TransactionMarker
from kafkalite.records.decode_steps import DecodeSteps
from kafkalite.storage.compaction import segment_swap
from kafkalite.storage.compaction.cleaning_job import CleanedGroup, SourceSegment
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DiskFailed, LogFilesLost, failed
from kafkalite.storage.files.opening_lock import OpeningLock
from kafkalite.storage.files.write_back import write_back_failed
from kafkalite.storage.log import replicated_append
from kafkalite.storage.log.batch_validator import BatchValidator
from kafkalite.storage.log.checkpoint_snapshots import CheckpointSnapshots
from kafkalite.storage.log.log_flushes import LogFlush, LogFlushes
from kafkalite.storage.log.log_truncation import LogTruncation, TruncationJob
from kafkalite.storage.log.recovery import Recovery, RecoveryFlush
from kafkalite.storage.log.replicated_append import (
    GAP_RESERVE,
    InvalidReplicatedBatch,
    ReplicatedAppendResult,
)
from kafkalite.storage.log.truncatable_log import TruncatableLog
from kafkalite.storage.segment import retention
from kafkalite.storage.segment.segment import RELATIVE_OFFSET_MAX, BatchPosition, LogSegment
from kafkalite.storage.segment.segments import Segments
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.known_state import NOTHING_KNOWN, KnownEnd, KnownLogState
from kafkalite.storage.state.log_config import LogConfig
from kafkalite.storage.state.log_environment import LogEnvironment
from kafkalite.storage.state.partition_metadata import TopicIdPartition
from kafkalite.storage.state.verification import VerificationGuard

log = logging.getLogger("kafkalite.storage")


class LogAppendResult(NamedTuple):
    """The result of an append: the offsets and timestamps of the batch."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool


class OpenOptions(NamedTuple):
    """The circumstances in which a log is opened."""

    is_new: bool = False
    """True if its directory was just made: there is nothing to recover."""
    shares_flush: bool = False
    """True if the caller flushes the log when it `awaits_flush` (shared_flush.py)."""
    lock: OpeningLock | None = None
    """Held by the caller, and released during long scans."""


RECOVERED = OpenOptions()
"""Recovered and flushed at once, on the calling thread."""


class Log(TruncatableLog):
    """The log of one partition."""

    is_replicated = False
    """True if its partition has several replicas; set by `open`, then by the partition."""
    lost_write_back = False
    """True if it was recovered after a failed write-back, which may have lost pages."""
    high_watermark_at_start = 0
    """The high watermark with which a replicated log was opened (high_watermarks.py)."""
    committed_limit: Callable[[], int] | None = None
    """Returns the high watermark of a replicated log: what is above may be truncated, so retention
    and the log cleaner leave it alone."""

    def __init__(
        self,
        recovered: Recovery,
        identity: TopicIdPartition,
        config: LogConfig,
        environment: LogEnvironment,
        log_start_offset: int,
    ) -> None:
        self.topic, self.partition, self.topic_id = identity
        self.directory = recovered.directory
        self.failure = recovered.failure
        self.is_quarantined = recovered.failure is not None
        self.damaged_to = recovered.damaged_to
        self.awaits_flush = recovered.awaits_flush
        self.may_have_lost_tail = recovered.may_have_lost_tail and not config.is_metadata_log
        """True if the log needs a new leader epoch before the next append."""
        self.producers = recovered.producers
        self.leader_epochs = recovered.leader_epochs
        self.end_offset = recovered.end_offset
        # Position of the last batch, so that reads near the end need no index lookup.
        self.last_batch_offset = recovered.end_offset
        self.last_batch_position = 0
        self.written_size = 0
        """Number of bytes written by this process."""
        durable = recovered.unflushed_from or (recovered.end_offset, recovered.segments[-1].size)
        self.flush_state = FlushState(*durable)
        self.segments = Segments(
            recovered.segments, config, environment, self.flush_state, recovered.created_count
        )
        self._flushes = LogFlushes(
            self.segments, self.leader_epochs, self.flush_state, environment.disk
        )
        self.log_start_offset = max(log_start_offset, self.segments[0].base_offset)
        self.cleaner_offset = -1
        """Offset up to which the log was cleaned; -1 if it never was."""
        self.gaps_to = recovered.gaps_to
        """Offset up to which offsets are missing between segments; 0 if none are."""
        self.is_being_cleaned = False
        """True while the log cleaner reads its segments, so that retention keeps them."""
        self.generation = 0
        """Increases whenever segments are removed or replaced, for readers that keep some."""
        self._snapshots = CheckpointSnapshots(self.segments, self.producers, environment.disk)
        self._clock = environment.clock
        self._disk = environment.disk
        self._checkpoint = environment.checkpoint
        self._truncating: TruncationJob | None = None
        self._truncation = LogTruncation(
            self.segments, self.producers, self.leader_epochs, environment.deferred_deletes,
            environment.disk,
        )  # fmt: skip
        self._space = environment.space
        self._header = bytearray(HEADER_SIZE)
        self.deferred_deletes = environment.deferred_deletes
        self.config = config
        self._apply_config()
        self.deferred_deletes.add(recovered.removed, config.file_delete_delay_ms)

    @classmethod
    def open(
        cls,
        directory: Path,
        identity: TopicIdPartition,
        config: LogConfig,
        environment: LogEnvironment,
        known: KnownLogState = NOTHING_KNOWN,
        options: OpenOptions = RECOVERED,
    ) -> Log:
        """Open the log in a directory.  Recover it, unless it is new or was closed cleanly and its
        files agree with the known end."""
        recovery = Recovery(
            directory, environment.disk, config.index_interval_bytes,
            environment.clock.wall_ms(), options.lock,
        )  # fmt: skip
        recovery.list_segments(known.log_start_offset)
        recovery.allow_gaps(known, is_compacted=config.compacts)
        if not options.is_new and (known.end is None or not recovery.open_at_known_end(known.end)):
            flushing = RecoveryFlush.SHARED if options.shares_flush else RecoveryFlush.NOW
            if config.durability.is_left_to_kernel and known.same_boot and not known.drop_cache:
                flushing = RecoveryFlush.KERNEL
            recovery.recover(known, flushing)
        recovery.release()
        opened = cls(recovery, identity, config, environment, known.log_start_offset)
        opened.cleaner_offset = min(known.cleaner_offset, opened.end_offset)
        opened.is_replicated = known.is_replicated
        opened.lost_write_back = known.drop_cache and opened.may_have_lost_tail
        return opened

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset}..{self.end_offset})"

    def reconfigure(self, settings: Settings) -> None:
        """Apply new settings of the topic."""
        self.config = LogConfig.of(settings, is_metadata_log=self.config.is_metadata_log)
        self.segments.reconfigure(self.config)
        self._apply_config()

    def _apply_config(self) -> None:
        self._validator = BatchValidator(self.config.settings)
        # Read for each log in each tick, so not a property.
        self.is_left_to_kernel = self.config.durability.is_left_to_kernel
        self.producers.reconfigure(self.config.settings)

    @property
    def active(self) -> LogSegment:
        """The segment that appends go to."""
        return self.segments.active

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return self.segments.size

    @property
    def is_released(self) -> bool:
        """True once the log is closed."""
        return self.flush_state.is_released

    @property
    def kept_free_bytes(self) -> int:
        """Size of the disk space that is kept free."""
        return self._space.kept_free

    @property
    def unflushed_size(self) -> int:
        """Number of bytes that a power cut now would lose."""
        return self.written_size - self.flush_state.flushed_size

    @property
    def readable_offset(self) -> int:
        """The offset below which records are not truncated any more; retention never passes it."""
        flushed = self.config.durability.flushes_each_append
        return self.committed_end(self.durable_offset if flushed else self.end_offset)

    def committed_end(self, offset: int) -> int:
        """Return an offset, or the high watermark of a replicated log if that is lower."""
        return offset if self.committed_limit is None else min(offset, self.committed_limit())

    # -- appending ---------------------------------------------------------------------------

    def begin_validation(self, batch: bytes | memoryview) -> DecodeSteps[bytes] | None:
        """Return the steps that check a client's batch before the append; see
        BatchValidator.begin_validation."""
        return self._validator.begin_validation(batch, self._clock)

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        leader_epoch: int,
        *,
        from_client: bool = True,
        validated: bool = False,
        guard: VerificationGuard | None = None,
    ) -> LogAppendResult:
        """Append one batch; raise the error of an invalid one, in which case nothing was written.

        `validated`: its records were checked by `begin_validation`.  `guard`: needed to begin a
        transaction (verification.py).
        """
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        code = 0 if validated else check_client_batch(batch) if from_client else check(batch)
        if code:
            raise_for(code)
        (_, _, _, _, _, attributes, last_offset_delta, _, max_timestamp,
         producer_id, producer_epoch, base_sequence, count) = header(batch)  # fmt: skip
        append_time_ms = -1
        if from_client:
            now_ms = self._clock.wall_ms()
            kept = self._validator.validate_batch(
                batch, attributes, max_timestamp, count, now_ms, validated=validated
            )
            if kept is not batch:  # recompressed, corrected or stamped
                batch, max_timestamp = kept, header(kept)[8]
            if self._validator.sets_append_time:
                append_time_ms = max_timestamp = now_ms
        size = len(batch)
        if producer_id >= 0 and from_client:
            retried = self.producers.check_batch(
                producer_id, producer_epoch, base_sequence, last_offset_delta,
                transactional=attributes & TRANSACTIONAL, guard=guard,
            )  # fmt: skip
            if retried is not None:
                start = self.log_start_offset
                _, _, base_offset, last_offset, time_ms = retried
                return LogAppendResult(base_offset, last_offset, time_ms, start, True)
        elif attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
            self.producers.check_transactional(producer_id, producer_epoch, guard)
        base_offset = self.end_offset
        last_offset = base_offset + last_offset_delta
        self._write(batch, size, base_offset, last_offset, max_timestamp, leader_epoch)
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            control = control_record(batch) if attributes & CONTROL else ()
            completed = self.producers.replay(
                base_offset, last_offset_delta, attributes, max_timestamp,
                producer_id, producer_epoch, base_sequence, *control,
            )  # fmt: skip
            if completed is not None:
                self.segments.note_completed(completed)
        self._advance(base_offset, last_offset, size)
        start = self.log_start_offset
        return LogAppendResult(base_offset, last_offset, append_time_ms, start, False)

    def _advance(self, base_offset: int, last_offset: int, size: int) -> None:
        """Move the log end offset behind a batch that was written."""
        self.end_offset = last_offset + 1
        self.written_size += size
        self.last_batch_offset = base_offset
        self.last_batch_position = self.segments.active.size - size

    def append_replicated(self, batches: bytes | bytearray | memoryview) -> ReplicatedAppendResult:
        """Append the batches that the leader sent, as they are; see replicated_append.py.

        Raises:
            InvalidReplicatedBatch: One is invalid; those before it were appended.
            KafkaStorageError: They could not be written; the log end offset tells how far they
                were.
        """
        self.finish_truncation()
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        view = memoryview(batches)
        positions, headers, reason = replicated_append.checked(
            view, self.end_offset, self.leader_epochs.latest
        )
        gap = replicated_append.last_gap(positions, self.end_offset, self.gaps_to)
        if gap:
            # Recovery takes a gap for lost records, unless the checkpoint allows it.
            self.gaps_to = gap + GAP_RESERVE
            self._checkpoint(self.topic, self.partition, self.end_offset)
        first = 0
        while first < len(positions):
            count = self._write_run(view, positions, first)
            replicated_append.replay(
                view, positions[first : first + count], headers[first : first + count],
                self.segments, self.producers, self.leader_epochs,
            )  # fmt: skip
            first += count
        result = ReplicatedAppendResult(len(positions), self.end_offset)
        if reason:
            raise InvalidReplicatedBatch(reason, result)
        return result

    def _write_run(self, view: memoryview, positions: list[BatchPosition], first: int) -> int:
        """Write as many batches as fit into one segment, rolled before if that is due; return
        their number."""
        begin, size, base_offset, last_offset, timestamp = positions[first]
        segments = self.segments
        try:
            if segments.is_roll_due(size, last_offset, timestamp):
                if last_offset - self.end_offset > RELATIVE_OFFSET_MAX:
                    # The gap does not fit into the next segment either, so that begins behind it.
                    self.end_offset = base_offset
                self._roll()
            active = segments.active
            count = segments.count_fitting(positions, first)
            last = positions[first + count - 1]
            size = last.position + last.size - begin
            self._space.take(size)
            segments.preallocate(size)
            active.append_run(view[begin : begin + size], positions[first : first + count])
        except (DiskFailed, LogFilesLost) as error:
            self._write_failed(error)
            raise
        self._advance(last.base_offset, last.last_offset, size)
        self.last_batch_position = active.size - last.size
        return count

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, is_implicit: bool
    ) -> VerificationGuard | None:
        """Return the guard to take before records are verified; see
        ProducerStateManager.begin_verification."""
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        now_ms = self._clock.wall_ms()
        return self.producers.begin_verification(
            producer_id, epoch, sequence, now_ms, is_implicit=is_implicit
        )

    def append_marker(self, marker: TransactionMarker, leader_epoch: int) -> LogAppendResult:
        """Append the marker that ends a producer's transaction here; raise the error of one that is
        refused, in which case nothing was written."""
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        self.producers.check_marker(marker)
        return self.append(marker.batch(self._clock.wall_ms()), leader_epoch, from_client=False)

    def _write(
        self,
        batch: bytes | bytearray | memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        leader_epoch: int,
    ) -> None:
        """Write the batch to the active segment, or to a new one if a roll is due."""
        self._space.take(size)
        segments = self.segments
        try:
            if segments.is_roll_due(size, last_offset, max_timestamp):
                self._roll()
            active = segments.active
            segments.preallocate(size)
            view = memoryview(batch)
            head = self._header
            head[:] = view[:HEADER_SIZE]
            assign_offset(head, base_offset, leader_epoch)
            active.append(head, view[HEADER_SIZE:], size, last_offset, max_timestamp)
        except (DiskFailed, LogFilesLost) as error:
            self._write_failed(error)
            raise

    def _write_failed(self, error: DiskFailed | LogFilesLost) -> None:
        """End the use of the log if another replica can lead; else its files may be put back."""
        if self.is_replicated or isinstance(error, DiskFailed):
            self.failure = str(error)

    def roll(self) -> None:
        """Close the active segment and begin a new one, unless it is empty."""
        self.finish_truncation()
        if self.active.size:
            self._roll()

    def _roll(self) -> None:
        """Roll the active segment; after an error nothing has changed and it may be retried."""
        try:
            self.active.finish()
            self.producers.take_snapshot(self.end_offset)
            self.segments.roll(self.end_offset)
        except OSError as error:
            failed(error, f"{self.directory} cannot create a segment")
        self.last_batch_offset = self.end_offset

    def take_snapshot_if_due(self) -> None:
        """Take a producer snapshot if enough was written since the last one; see
        CheckpointSnapshots."""
        if self.failure is None and not self.is_truncating:
            durable_offset = self.flush_state.durable_offset
            self._snapshots.take_if_due(self.written_size, self.end_offset, durable_offset)

    def write_index_page(self) -> None:
        """Write index entries once a page of them has been collected."""
        if not self.is_truncating:
            self.active.write_index_page()

    # -- flushing ----------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """The offset below which the log is durable.

        At most the end of the flushed records.  Of a replicated log it is below the start of a
        leader epoch until the epoch itself is flushed, and -1 if that starts at offset 0.
        """
        if self.is_replicated:
            return self._flushes.durable_offset
        return self.flush_state.durable_offset

    @property
    def is_flushing(self) -> bool:
        """True if a flush is in flight, however it was begun."""
        return self.flush_state.in_flight > 0

    def flush_begin(self, *, closed_only: bool = False) -> LogFlush | None:
        """Begin a flush, to be submitted to a Flusher; see LogFlushes.begin.  None is begun during
        a truncation."""
        if self.is_truncating:
            return None
        return self._flushes.begin(
            self.end_offset, self.written_size, closed_only=closed_only,
            with_epochs=self.is_replicated,
        )  # fmt: skip

    def flush_end(self, flush: LogFlush) -> None:
        """Take the result of a flush; see LogFlushes.end."""
        self._flushes.end(flush)
        if flush.is_lost:
            self.failure = f"{self.directory} was removed"

    def flush(self) -> None:
        """Flush synchronously."""
        self.finish_truncation()
        flush = self.flush_begin()
        if flush is not None:
            flush.run(self._disk)
            if flush.error is not None:
                raise write_back_failed(self._disk, self.directory, flush.error)
            self.flush_end(flush)

    def flushed_with_file_system(self) -> None:
        """Note that the whole log was flushed, with its file system.

        Unless a transaction index could not be written, on a full disk; the next flush writes it.
        """
        if any(index.tail for index in self.segments.transaction_indexes()):
            return
        self._flushes.reach(self.end_offset, self.written_size)

    # -- epochs ------------------------------------------------------------------------------

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the greatest leader epoch at or below; see
        LeaderEpochCache."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.end_offset)

    # -- deleting ----------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Advance the log start offset and return it; whole segments before it are removed.

        Raises KafkaStorageError for a log that is not served, or if files cannot be renamed or
        deleted: the log start offset is advanced all the same.
        """
        self.finish_truncation()
        if self.failure is not None:
            raise KafkaStorageError(self.failure)
        if not 0 <= before_offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"Records before {before_offset} cannot be deleted: the log ends at"
                f" {self.end_offset}."
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self.leader_epochs.truncate_from_start(before_offset)
            try:
                self._remove_first(retention.before(self.segments, before_offset))
            except OSError as error:
                raise KafkaStorageError(
                    f"Segments of {self.directory} cannot be removed: {error.strerror}"
                ) from error
        return self.log_start_offset

    def retain(self) -> None:
        """Remove the segments that retention no longer keeps, and expire producers."""
        if self.failure is not None or self.is_truncating:
            return
        now_ms = self._clock.wall_ms()
        self.producers.expire(now_ms)
        if self.is_being_cleaned:
            return
        count = retention.removable(
            self.segments, self.config, now_ms, self.log_start_offset, self.readable_offset,
            self.end_offset,
        )  # fmt: skip
        if count == len(self.segments):
            self.roll()
            count = min(count, len(self.segments) - 1)
        if count:
            start = max(self.log_start_offset, self.segments[count].base_offset)
            self.log_start_offset = start
            self.leader_epochs.truncate_from_start(start)
            self._remove_first(count)

    def _remove_first(self, count: int) -> None:
        self.generation += 1
        paths = self.segments.remove_first(count)
        kept = self.segments[0].base_offset
        for offset in self.producers.snapshots():
            if offset < kept:
                self._disk.unlink(self.producers.snapshot_path(offset))
        self.deferred_deletes.add(paths, self.config.file_delete_delay_ms)

    # -- compaction --------------------------------------------------------------------------

    def replace_segments(self, group: CleanedGroup) -> None:
        """Replace closed segments by cleaned ones, whose files segment_swap.check has accepted.

        The directory must be flushed before the cleaner checkpoint is written.

        Raises KafkaStorageError if the segments are not those of the group, or if a file cannot be
        renamed: nothing has changed, and the files of the pass are deleted.
        """
        self.finish_truncation()
        first = self.segments.number_of(group.sources[0].base_offset)
        replaced = self.segments[first : first + len(group.sources)]
        found = [SourceSegment(segment.base_offset, segment.size) for segment in replaced]
        if found != list(group.sources) or self.active in replaced or self.failure is not None:
            self.discard_cleaned()
            raise KafkaStorageError(f"{self.directory} has changed since it was cleaned")
        try:
            segment_swap.commit(self._disk, self.directory, group)
        except OSError as error:
            raise KafkaStorageError(
                f"{self.directory} cannot be cleaned: {error.strerror}"
            ) from error
        try:
            self._put_in_place(first, replaced, group)
        except Exception as error:
            self.failure = (
                f"{self.directory} cannot be cleaned: {error}; the next start completes the"
                " segment swap"
            )
            raise DiskFailed(self.failure) from error

    def discard_cleaned(self) -> None:
        """Delete the files of a pass that was cancelled.

        Not those of a log with an error: a swap may be committed but not complete, and its .swap
        files are all that is left of the records then.  The next start completes or deletes them.
        """
        if self.failure is None:
            segment_swap.discard(self._disk, self.directory)

    def _put_in_place(self, first: int, replaced: list[LogSegment], group: CleanedGroup) -> None:
        """Put committed segments in the place of these."""
        paths = segment_swap.set_sources_aside(self._disk, replaced)
        segment_swap.put_in_place(self._disk, self.directory, group)
        cleaned = [
            LogSegment.open_cleaned(
                self.directory, each.base_offset, self._disk, self.config.index_interval_bytes,
                self._clock.wall_ms(),
            )
            for each in group.segments
        ]  # fmt: skip
        self.segments.replace(first, len(replaced), cleaned)
        self.generation += 1
        self.deferred_deletes.add(paths, self.config.file_delete_delay_ms)
        for segment in replaced:
            if not self.segments.has_base_offset(segment.base_offset):
                self._unlink_snapshot(segment.base_offset)

    def _unlink_snapshot(self, offset: int) -> None:
        try:
            self._disk.unlink(self.producers.snapshot_path(offset))
        except OSError as error:
            # Recovery ignores a snapshot at which no batch begins.
            log.debug(
                "Producer snapshot cannot be deleted. path=%s error=%r",
                self.directory, error.strerror,
            )  # fmt: skip

    # -- closing -----------------------------------------------------------------------------

    def finish(self, *, flushed: bool = True) -> KnownEnd | None:
        """Write everything that a clean shutdown needs, to be flushed next; return the known end,
        or None if the log has an error.

        Without `flushed` the result is valid only until the machine stops.
        """
        self.finish_truncation()
        if self.failure is not None:
            return None
        self.active.finish()
        snapshots = self.producers.snapshots()
        for offset in snapshots:
            if offset != self.end_offset and not self.segments.has_base_offset(offset):
                self._disk.unlink(self.producers.snapshot_path(offset))
        self.producers.take_snapshot(self.end_offset)
        if self.leader_epochs.unsaved:
            path = self.directory / layout.LEADER_EPOCHS
            self.leader_epochs.save(self._disk, path, flushed=flushed)
        retained_batches = self.producers.retained_batches()
        return KnownEnd(
            self.end_offset, self.active.size, self.flush_state.durable_offset,
            retained_batches, True,
        )  # fmt: skip

    def release(self) -> None:
        """Release the files; readers that hold slices keep theirs."""
        try:
            self.finish_truncation()
        finally:
            self.flush_state.is_released = True
            self.failure = self.failure or "The log is closed."
            self.segments.release()
