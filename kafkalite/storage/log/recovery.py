"""Recovery: opens a log, by its known end after a clean shutdown, else by scanning it.

The recovery point, the offset up to which the last checkpoint knew the log to be durable, separates
flushed records from unflushed ones.

    known end                 the last segment ends where the clean-shutdown file, or the handover
                              file of the node that had the log before, says; nothing is scanned
    from the recovery point   after a crash every batch is checked; at the first invalid one the log
                              is truncated, and later segments are removed (renamed, then deleted)
    in the same boot          no page is lost when a process is killed, and only its last write may
                              be torn: an invalid batch that valid ones follow is damage
    below the recovery point  nothing is ever truncated.  Damage there is not a torn write: the log
                              keeps its files, reports the error and is not served (quarantine)

Producer state comes from the newest valid snapshot below the end, some batches before it, and the
batches after it; leader epochs come from their file and the batches scanned.  If a snapshot or the
epochs file is lost, the scan starts further back.  Indexes are rebuilt for what is scanned, and for
any segment whose index is missing.

A scan reads the page cache, which need not be on the disk, so the records kept are flushed before
the log is served: at once if the log was truncated; else at once or, with many other logs, together
(shared_flush.py).  In the same boot a log that is left to the kernel is not flushed.

Nothing that is already correct is written: the zeros of preallocated space stay for the next
append, and snapshots and indexes are written only if they save the next start a long scan.

A segment swap that a crash interrupted is completed or undone first (segment_swap.py).  Offsets may
be missing where the log cleaner has removed records; elsewhere a gap means that records are lost
(`Recovery.allow_gaps`).
"""

from __future__ import annotations

import enum
import logging
import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext import segment_walk
from kafkalite._ext.segment_walk import AT_END, GAP, STORAGE_ERROR, WHOLE, ZEROS
from kafkalite.errors import KafkaStorageError
from kafkalite.storage.compaction import segment_swap
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK_FULL_ERRORS, Disk, DiskFailed, sync_directory
from kafkalite.storage.files.opening_lock import OpeningLock
from kafkalite.storage.segment.segment import LogSegment
from kafkalite.storage.segment.segment_scan import OFFSET_MAX, SegmentScan
from kafkalite.storage.state.known_state import KnownEnd, KnownLogState
from kafkalite.storage.state.leader_epochs import LeaderEpochCache
from kafkalite.storage.state.producer_state import ProducerStateManager

log = logging.getLogger("kafkalite.storage")

RESTORED_FIRST = 64 << 10
RESTORED_GROWTH = 8
RESTORED_SIZE = 8 << 20
"""Number of bytes before a snapshot that are scanned for batches that producers may send again:
FIRST at first, as most producers write small batches, then GROWTH times as many, up to SIZE."""

SAVED_SIZE_MIN = 1 << 20
"""Number of scanned bytes that are worth a snapshot: their scan takes a tenth of a millisecond."""


class RecoveryFlush(enum.Enum):
    """The time at which the records kept by a recovery are flushed."""

    NOW = enum.auto()
    SHARED = enum.auto()
    """By the caller, together with other logs, before the log is served."""
    KERNEL = enum.auto()
    """As after any append to a log with `durability=os`, in the same boot."""


class ScanStart(NamedTuple):
    """The place in a log where its scan starts."""

    number: int
    position: int
    offset: int


class Recovery:
    """The parts of a log, as found in its directory and recovered."""

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        index_interval: int,
        now_ms: int,
        opening_lock: OpeningLock | None = None,
    ) -> None:
        self.directory = directory
        self.disk = disk
        self.index_interval = index_interval
        self.now_ms = now_ms
        self.segments: list[LogSegment] = []
        self.producers = ProducerStateManager(directory, disk)
        self.leader_epochs = LeaderEpochCache()
        self.end_offset = 0
        self.unflushed_from: tuple[int, int] | None = None
        """(offset, position) of the first record that is not known to be durable."""
        self.failure: str | None = None
        self.damaged_to = 0
        """Offset after damage above the recovery point; nothing below it may be truncated."""
        self.may_have_lost_tail = False
        """True if records that were read by clients may be lost: after a power cut, or a failed
        write-back."""
        self._same_boot = False
        self.removed: list[Path] = []
        self.created_count = 0
        self.awaits_flush = False
        """True if the caller must flush the log before it is served."""
        self._was_truncated = False
        self._scanned_size = 0
        self._names: set[str] = set()
        self._scan_from_max = OFFSET_MAX
        """Base offset of the first segment that must be scanned whole."""
        self._opening_lock = opening_lock
        self._cleaned_to = 0
        """Offset up to which the log may have been compacted, and offsets may be missing within
        its segments."""
        self.gaps_to = 0
        """Offset up to which offsets are missing between its segments, too; 0 if none are."""
        self._is_foreign = False
        """True if the log may have been compacted by another broker, and was not open here."""

    # -- the directory -----------------------------------------------------------------------

    def list_segments(self, log_start_offset: int) -> None:
        """List the segments in the directory, or make the first one."""
        names = self._swapped_names()
        bases = []
        for name in names:
            if name.endswith(layout.LOG):
                if (base := layout.offset_of(name, layout.LOG)) is not None:
                    bases.append(base)
            elif name.endswith(layout.DELETED):
                # May be large: deleted off the event loop, like any other.
                self.removed.append(self.directory / name)
            elif name.endswith(layout.TEMPORARY):
                self.disk.unlink(self.directory / name)
        bases.sort()
        self._names = names
        for base in bases:
            segment = LogSegment(self.directory, base, self.disk, self.index_interval, self.now_ms)
            self.segments.append(segment)
            if layout.file_name(base, layout.TXN_INDEX) in names:
                self._open_transaction_index(segment)
            for index in (segment.offset_index, segment.time_index):
                if index.path.name not in names and segment.size:
                    log.warning("Index is missing; rebuilding it. path=%s", index.path)
                    segment.rebuild()
                    segment.release()
        if not self.segments:
            self._create_segment(log_start_offset)

    def allow_gaps(self, known: KnownLogState, *, is_compacted: bool) -> None:
        """Accept that offsets are missing where a log cleaner has removed records.

        A crash may come between a swap and the checkpoint, so all closed segments may have been
        cleaned, and of a log without a checkpoint, which another broker may have cleaned, all.

        Our log cleaner has each segment end where the next one begins, Apache Kafka's does not.  So
        between segments offsets may be missing only in a log that was not open here before, or
        where they were missing then; elsewhere a segment is lost.
        """
        if known.cleaner_offset >= 0:
            self._cleaned_to = max(known.cleaner_offset, self.segments[-1].base_offset)
        elif is_compacted:
            self._cleaned_to = OFFSET_MAX
        self._is_foreign = known.gaps_to is None and self._cleaned_to > 0
        self.gaps_to = known.gaps_to or 0
        # Batches that a leader sent may have gaps before them (replicated_append.py).
        self._cleaned_to = max(self._cleaned_to, self.gaps_to)

    def _accepts_gap(self, end_offset: int, segment: LogSegment) -> bool:
        """Return whether offsets may be missing between this offset and the segment after it."""
        base_offset = segment.base_offset
        if end_offset >= base_offset:
            return False
        if self._is_foreign and base_offset <= self._cleaned_to and base_offset > self.gaps_to:
            log.warning(
                "Offsets are missing between two segments of a compacted log that was not open here"
                " before; accepting it as cleaned by another broker. path=%s from=%d to=%d",
                segment.path, end_offset, base_offset - 1,
            )  # fmt: skip
            self.gaps_to = base_offset
        return base_offset <= self.gaps_to

    def _swapped_names(self) -> set[str]:
        """Complete an interrupted segment swap; return the names in the directory."""
        names = set(os.listdir(self.directory))
        try:
            return segment_swap.complete(self.disk, self.directory, names)
        except KafkaStorageError as error:
            self._quarantine(str(error))
            return names

    def _open_transaction_index(self, segment: LogSegment) -> None:
        """Open the index of aborted transactions; if it is damaged, the segment is scanned."""
        index = segment.open_transaction_index()
        if not index.is_sound(segment.base_offset):
            index.discard()
            log.warning(
                "Transaction index is damaged; rebuilding it. path=%s",
                segment.file_path(layout.TXN_INDEX),
            )
            self._scan_from_max = min(self._scan_from_max, segment.base_offset)

    def _create_segment(self, offset: int) -> None:
        self.segments.append(
            LogSegment.create(self.directory, offset, self.disk, self.index_interval, self.now_ms)
        )
        self.end_offset = offset
        self.created_count += 1

    def release(self) -> None:
        """Release the files: at a start few of many logs are read or written soon."""
        for segment in self.segments:
            segment.release()

    # -- a known end -------------------------------------------------------------------------

    def open_at_known_end(self, end: KnownEnd) -> bool:
        """Open the log by its known end; return False if the files do not agree with it."""
        active = self.segments[-1]
        epochs = self._load_epochs()
        if active.size != end.active_size or epochs is None or self._scan_from_max != OFFSET_MAX:
            return False
        try:
            if active.boundary(end.end_offset) != end.active_size:
                return False
            if not self._find_unflushed(end):
                return False
            if not end.is_contiguous:
                self._check_contiguous(len(self.segments))
        except KafkaStorageError:
            return False
        if self.failure is None and not self.producers.load_snapshot(end.end_offset):
            return False
        self.producers.restore_batches(end.retained_batches)
        self.leader_epochs = epochs
        self.end_offset = end.end_offset
        active.resume(active.size, end.end_offset)
        return True

    def _find_unflushed(self, end: KnownEnd) -> bool:
        """Note the offset from which the log is unflushed; return False if no batch begins
        there."""
        active = self.segments[-1]
        offset = end.end_offset if end.durable_offset is None else end.durable_offset
        if offset < end.end_offset:
            # The position is needed in the last segment only.
            position = active.boundary(offset) if offset > active.base_offset else 0
            if position is None:
                return False
            self.unflushed_from = (offset, position)
            # The names of its files may be unflushed as well.
            self.created_count += 1
        return True

    def _check_contiguous(self, count: int) -> None:
        """Quarantine the log unless each of the first `count` segments ends where the next
        begins."""
        for segment, later in zip(self.segments, self.segments[1:count], strict=False):
            end_offset = segment.end_offset()
            segment.release()
            is_lost = end_offset != later.base_offset and not self._accepts_gap(end_offset, later)
            if is_lost and self.failure is None:
                self._quarantine(
                    f"{segment.path} ends at offset {end_offset}, the next segment begins at"
                    f" {later.base_offset}"
                )

    # -- any other end -----------------------------------------------------------------------

    def recover(self, known: KnownLogState, flushing: RecoveryFlush = RecoveryFlush.NOW) -> None:
        """Scan the log from where its state is known; see the module."""
        self._same_boot = known.same_boot and not known.drop_cache
        self.may_have_lost_tail = not self._same_boot
        try:
            self._recover(known, flushing)
        except KafkaStorageError as error:
            self._quarantine(str(error))
        if known.is_replicated and self.leader_epochs.epochs:
            # The file was read from the page cache: the flush that wrote it may not have ended.
            self.leader_epochs.unsaved = True
            self.leader_epochs.set_unflushed_from(self.leader_epochs.starts[0])

    def _truncate_epochs(self, known: KnownLogState) -> None:
        """Remove the epochs behind the end.

        Of a replicated log, one that begins at the end stays: by it the controller knows that the
        log has all that its leader had.  The log of a partition with one replica does not need it.
        """
        if not known.is_replicated:
            self.leader_epochs.truncate_from_end(self.end_offset)
        elif self.leader_epochs.starts and self.leader_epochs.starts[-1] > self.end_offset:
            self.leader_epochs.truncate_from_end(self.end_offset + 1)
            self.leader_epochs.unsaved = True

    def _recover(self, known: KnownLogState, flushing: RecoveryFlush) -> None:
        recovery_point, log_start_offset = known.recovery_point, known.log_start_offset
        start = self._scan_start(recovery_point)
        if known.drop_cache:
            self._flush(start.number, drop_cache=True)
        self._check_contiguous(start.number + 1)
        self._scan_from(start, recovery_point)
        if self.end_offset < recovery_point:
            self._quarantine(
                f"it ends at offset {self.end_offset}, but was flushed up to {recovery_point}"
            )
        if self.failure is not None:
            return
        if self.end_offset < log_start_offset:
            self._remove_from(0)
            self.producers.clear()
            self._create_segment(log_start_offset)
        self._truncate_epochs(known)
        for offset in self._snapshots():
            if offset > self.end_offset:
                self.disk.unlink(self.producers.snapshot_path(offset))
        now = flushing is RecoveryFlush.NOW or self._was_truncated
        self._save_state(start.number, epochs=now)
        is_index_written = self._write_transaction_indexes(start.number)
        if now:
            self._flush(start.number)
            sync_directory(self.disk, self.directory)
            if is_index_written:
                return
        self.unflushed_from = self._unflushed_from(start, recovery_point)
        if self.unflushed_from is not None:
            # The names of its files may be unflushed as well.
            self.created_count += 1
            self.awaits_flush = flushing is RecoveryFlush.SHARED

    def _unflushed_from(self, start: ScanStart, recovery_point: int) -> tuple[int, int] | None:
        """Return the offset and position in the last segment of the first record that is not known
        to be durable, or None."""
        active = self.segments[-1]
        if recovery_point > start.offset and not self.leader_epochs.unsaved:
            if recovery_point >= self.end_offset:
                return None
            # The position is needed in the last segment only.
            known = active.boundary(recovery_point) if recovery_point > active.base_offset else 0
            if known is not None:
                return recovery_point, known
        if start.offset >= self.end_offset:
            return None
        return start.offset, start.position if self.segments[start.number] is active else 0

    def _save_state(self, number: int, *, epochs: bool) -> None:
        """Write the snapshot, epochs and indexes that save the next start this scan; a full disk
        is ignored."""
        much = self._scanned_size >= SAVED_SIZE_MIN
        try:
            if much:
                self.producers.take_snapshot(self.end_offset)
            if epochs and self.leader_epochs.unsaved:
                self.leader_epochs.save(self.disk, self.directory / layout.LEADER_EPOCHS)
            for segment in self.segments[number:]:
                if much or segment is not self.segments[-1]:
                    segment.write_indexes()
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            log.warning(
                "Recovered state cannot be written; the next start repeats the recovery."
                " path=%s error=%r", self.directory, error.strerror,
            )  # fmt: skip

    def _write_transaction_indexes(self, number: int) -> bool:
        """Write the transaction indexes of these segments; return False if the disk is full.

        Their entries are then kept in memory, and written by the next flush.
        """
        try:
            for segment in self.segments[number:]:
                if segment.transaction_index is not None:
                    segment.transaction_index.write()
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise
            return False
        return True

    def _load_epochs(self) -> LeaderEpochCache | None:
        """Return the epochs in the file; None if they are lost, since every batch has an epoch."""
        epochs = LeaderEpochCache.load(self.directory / layout.LEADER_EPOCHS)
        if epochs is not None and not epochs.epochs and self.segments[0].size:
            return None
        return epochs

    def _scan_start(self, recovery_point: int) -> ScanStart:
        """Return the latest place at or before the recovery point where the producer state and the
        leader epochs are known, and load both."""
        epochs = self._load_epochs()
        if epochs is not None:
            self.leader_epochs = epochs
            start = self._load_latest_snapshot(min(recovery_point, self._scan_from_max))
            if start is not None:
                return start
        else:
            self.leader_epochs.unsaved = True
        return self._load_first_snapshot()

    def _load_latest_snapshot(self, latest: int) -> ScanStart | None:
        """Load the newest valid snapshot at or before an offset; return its place, or None."""
        for offset in reversed(self._snapshots()):
            number = sum(segment.base_offset <= offset for segment in self.segments) - 1
            # Nothing before the first segment can be scanned, so its snapshot is always used.
            if number < 0 or offset > max(latest, self.segments[0].base_offset):
                continue
            try:
                position = self.segments[number].boundary(offset)
                if position is None or not self._are_epochs_known(number, offset):
                    continue
            except KafkaStorageError:
                continue
            if self.producers.load_snapshot(offset):
                self._restore_batches(number, position)
                return ScanStart(number, position, offset)
        return None

    def _load_first_snapshot(self) -> ScanStart:
        first_offset = self.segments[0].base_offset
        if not self.producers.load_snapshot(first_offset):
            self.producers.clear()
        return ScanStart(0, 0, first_offset)

    @classmethod
    def reload_producers(
        cls,
        segments: list[LogSegment],
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
        end_offset: int,
    ) -> None:
        """Replace the state of a log's producers by that before `end_offset`, where these segments
        end: from the newest snapshot, and the batches after it.

        Raises KafkaStorageError if the batches cannot be read.
        """
        first = segments[0]
        recovery = cls(first.directory, first.disk, first.index_interval, first.created_ms)
        recovery.segments, recovery.leader_epochs = segments, epochs
        recovery.producers = producers
        recovery._names = set(os.listdir(first.directory))
        earlier = producers.transactions
        producers.clear()
        start = recovery._load_latest_snapshot(end_offset) or recovery._load_first_snapshot()
        position = start.position
        for segment in segments[start.number :]:
            step = SegmentScan.begin(position, max(start.offset, segment.base_offset))
            while step.code == WHOLE:
                step = step.step(
                    segment.descriptor, segment.size, segment.base_offset, segment.index_interval
                )
                for batch in step.produced:
                    producers.replay(*batch)
            if step.code != AT_END:
                raise KafkaStorageError(segment.error_text(step.code, step.position))
            position = 0
        producers.transactions.keep_ended(earlier, end_offset)
        producers.transactions.uncertain_below = min(earlier.uncertain_below, end_offset)

    def _are_epochs_known(self, number: int, offset: int) -> bool:
        """Return whether the epochs file has the epoch of the record before `offset`, at which the
        scan of segment `number` starts.

        Of two flushes in flight only one writes the file, and the other may end before it.
        """
        if number > 0 and offset == self.segments[number].base_offset:
            number -= 1
        if offset == self.segments[number].base_offset:
            return True  # there are no records before it
        epoch = self.leader_epochs.epoch_at(offset - 1)
        return epoch is None or epoch == self.segments[number].leader_epoch_of(offset - 1)

    def _snapshots(self) -> list[int]:
        """Return the offsets of the snapshots that were found, ascending."""
        return sorted(
            offset
            for name in self._names
            if name.endswith(layout.SNAPSHOT)
            and (offset := layout.offset_of(name, layout.SNAPSHOT)) is not None
        )

    def _restore_batches(self, number: int, position: int) -> None:
        """Load the batches before each producer's last, which a snapshot does not hold: after two
        crashes, or a transfer and a crash, producers may send all of them again."""
        since_offset = self._offset_before(number, position, RESTORED_SIZE)
        size = min(RESTORED_FIRST, RESTORED_SIZE)
        while self.producers.lacks_batches(since_offset):
            earlier = ProducerStateManager(self.directory, self.disk)
            for batch in self._produced_before(number, position, size):
                earlier.replay(*batch)
            self.producers.restore_batches(earlier.retained_batches())
            if size >= RESTORED_SIZE:
                return
            size = min(RESTORED_GROWTH * size, RESTORED_SIZE)

    def _offset_before(self, number: int, position: int, size: int) -> int:
        """Return an offset at or before the start of the `size` bytes before a position."""
        while position < size and number > 0:
            size -= position
            number -= 1
            position = self.segments[number].size
        segment = self.segments[number]
        return segment.base_offset + max(0, segment.offset_index.last_at(position - size)[0])

    def _produced_before(self, number: int, position: int, size: int) -> list[tuple[int, ...]]:
        """Return the batches of idempotent producers in about `size` bytes before a position."""
        produced: list[tuple[int, ...]] = []
        while number >= 0 and size > 0:
            produced[:0] = self.segments[number].produced_before(position, size)
            size -= position
            number -= 1
            position = self.segments[number].size
        return produced

    def _flush(self, number: int, drop_cache: bool = False) -> None:
        """Flush these segments; after a failed write-back drop their cached pages, so that they are
        read from the disk."""
        for segment in self.segments[number:]:
            descriptors = [segment.descriptor]
            if segment.transaction_index is not None and segment.transaction_index.written:
                descriptors.append(segment.transaction_index.file.fileno())
            for descriptor in descriptors:
                try:
                    self.disk.fdatasync(descriptor)
                except OSError as error:
                    if not drop_cache:
                        raise DiskFailed(f"{segment.path} cannot be flushed: {error}") from error
                if drop_cache:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _scan_from(self, start: ScanStart, recovery_point: int) -> None:
        self.end_offset = start.offset
        position = start.position
        for number, segment in enumerate(self.segments[start.number :], start.number):
            if number > start.number and segment.base_offset != self.end_offset:
                if not self._accepts_gap(self.end_offset, segment):
                    self._handle_gap(segment, number, recovery_point)
                    return
                self.end_offset = segment.base_offset
            if segment.transaction_index is not None:
                segment.transaction_index.truncate_to(self.end_offset)
            with self._scanning(segment.size - position):
                ended = segment.scan(
                    position, self.end_offset, self.leader_epochs.latest,
                    partial(self._replay, segment), gaps_to=self._cleaned_to,
                )  # fmt: skip
            self._scanned_size += ended.position - position
            self.end_offset, position = ended.next_offset, 0
            if ended.code == ZEROS and self._begins_at(ended.next_offset, number + 1):
                segment.truncate(ended.position)
            elif ended.code != AT_END:
                # A write that was torn leaves no valid batch of a later offset behind it.
                if self.end_offset < recovery_point or ended.code in (STORAGE_ERROR, GAP):
                    self._quarantine(segment.error_text(ended.code, ended.position))
                elif self._same_boot and self._is_followed(segment, ended, number + 1):
                    self._quarantine_unflushed(segment.error_text(ended.code, ended.position))
                else:
                    self._truncate(segment, ended, number + 1)
                return

    def _scanning(self, size: int) -> AbstractContextManager[None]:
        return nullcontext() if self._opening_lock is None else self._opening_lock.scanning(size)

    def _is_followed(self, segment: LogSegment, ended: SegmentScan, number: int) -> bool:
        """Return whether valid batches follow the place where a scan ended.

        Left out: a record value that is itself a batch of a later offset, within a batch that a
        killed process was writing, is taken for one.
        """
        if any(later.size for later in self.segments[number:]):
            return True
        if ended.code == ZEROS:
            return False
        position = segment_walk.next_whole(
            segment.descriptor, ended.position + 1, segment.size, ended.next_offset
        )
        return position >= 0

    def _quarantine_unflushed(self, reason: str) -> None:
        """Quarantine the log for damage above the recovery point, at later starts as well."""
        self.damaged_to = self.end_offset + 1
        self._quarantine(
            f"{reason}; valid batches follow, and the machine was not restarted since", "written"
        )

    def _begins_at(self, offset: int, number: int) -> bool:
        return number < len(self.segments) and self.segments[number].base_offset == offset

    def _replay(self, segment: LogSegment, step: SegmentScan) -> None:
        for batch in step.produced:
            completed = self.producers.replay(*batch)
            if completed is not None:
                segment.note_completed(completed)
        for epoch, base_offset in step.began:
            self.leader_epochs.assign(epoch, base_offset)

    def _handle_gap(self, segment: LogSegment, number: int, recovery_point: int) -> None:
        """Handle a gap before this segment: quarantine the log, or remove what follows it."""
        if self.end_offset < recovery_point:
            self._quarantine(f"offsets {self.end_offset} to {segment.base_offset - 1} are missing")
        elif self._same_boot and segment.size:
            self._quarantine_unflushed(
                f"offsets {self.end_offset} to {segment.base_offset - 1} are missing"
            )
        else:
            log.warning("Segment removed: records before it are lost. path=%s", segment.path)
            self._remove_from(number)

    def _truncate(self, segment: LogSegment, ended: SegmentScan, number: int) -> None:
        behind = sum(later.size for later in self.segments[number:])
        if ended.code == ZEROS and number == len(self.segments):
            segment.size = ended.position  # preallocated space stays for the next append
            return
        if ended.code != ZEROS or behind:
            log.warning(
                "Log truncated at an incomplete write. path=%s position=%d end_offset=%d"
                " truncated_bytes=%d removed_segment_bytes=%d",
                segment.path, ended.position, self.end_offset, segment.size - ended.position,
                behind,
            )  # fmt: skip
        segment.truncate(ended.position)
        self._remove_from(number)

    def _remove_from(self, number: int) -> None:
        self._was_truncated = True
        for segment in self.segments[number:]:
            self.removed += segment.mark_deleted()
        del self.segments[number:]

    def _quarantine(self, reason: str, already: str = "flushed") -> None:
        if self.failure is None:
            self.failure = (
                f"{self.directory.name} is damaged in records that were already {already}"
                f" ({reason}); nothing was truncated, and it is not served until its files are"
                " restored"
            )
            log.error("Log is not served. path=%s error=%r", self.directory, self.failure)
