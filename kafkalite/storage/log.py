"""A partition's log: records in the order they were placed, each under its offset.

    log start                          durable           log end
        │ deleted by retention          │ on the disk      │
        ▼                               ▼  itself          ▼
      [segment 0   ][segment 4096   ][segment 9120  (active)]

A Log promises three things.  Offsets only grow, and never twice for two records.  What was
flushed is found again after a crash, or the log is not served; what was not is cut at the first
batch that does not check.  A reader is given file slices, never bytes, and never past the bound
it asked under.

One worker owns a Log; nothing here is locked.  Partition decides about permission to append and
the upper bound of reads (broker/replica/partition.py), `record_batch` about the layout of a batch,
and batch_validator.py about the rules of its topic.

A log with a `fault` is not served: what it holds below its recovery point is damaged, or a write
to it failed in a way that a full disk does not explain.

Left out: roll by time without an append, as in Kafka; a clock that leaps years ahead makes
retention by time remove segments, as in Kafka too.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext.record_batch import (
    HEADER_SIZE,
    check,
    header,
    judge,
    place,
)
from kafkalite.clock import Clock
from kafkalite.config.settings import Settings
from kafkalite.config.topic import (
    DURABILITY,
    FILE_DELETE_DELAY_MS,
    INDEX_INTERVAL_BYTES,
    SEGMENT_BYTES,
    SEGMENT_INDEX_BYTES,
    SEGMENT_JITTER_MS,
    SEGMENT_MS,
)
from kafkalite.errors import KafkaStorageError, OffsetOutOfRange, raise_for
from kafkalite.records.file_slice import FileSlice
from kafkalite.records.opening import Steps
from kafkalite.storage import layout, retention
from kafkalite.storage.batch_validator import Intake
from kafkalite.storage.deferred_delete import Doomed
from kafkalite.storage.disk import DISK, OF_ONE_LOG, PASSING, Disk, DiskFailed, FreeSpace, failed
from kafkalite.storage.flusher import Flush
from kafkalite.storage.log_flushes import LogFlushes
from kafkalite.storage.open_segments import OpenSegments
from kafkalite.storage.opening_lock import OpeningLock
from kafkalite.storage.recovery import NOTES_FROM, Flushing, KnownEnd, Recovery
from kafkalite.storage.segment import AHEAD_FIRST, RELATIVE_OFFSET_MAX, LogSegment
from kafkalite.storage.write_back import write_back_failed

log = logging.getLogger("kafkalite.storage")

SNAPSHOT_EVERY = NOTES_FROM
SNAPSHOT_EVERY_PRODUCER = 4 << 10
"""So many bytes are written, and so many more for each producer, before a snapshot is left between
two segments: to read them again would take longer than to write it."""


class Appended(NamedTuple):
    """Where a batch stands."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool


class Log:
    """One partition's log; see the module."""

    def __init__(
        self,
        found: Recovery,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: Settings,
        clock: Clock,
        space: FreeSpace,
        doomed: Doomed,
        open_segments: OpenSegments,
        log_start_offset: int,
        flushes_always: bool,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.directory = found.directory
        self.fault = found.fault
        self.quarantined = found.fault is not None
        self.damaged_to = found.damaged_to
        self.awaits_flush = found.awaits_flush
        self.may_have_lost_tail = found.may_have_lost_tail and not flushes_always
        """True if it needs a new leader epoch before it is appended to."""
        self.released = False
        self.producers = found.producers
        self.leader_epochs = found.leader_epochs
        self.end_offset = found.end_offset
        # Where the batch appended last stands: who reads at the end need not look for it.
        self._last_base_offset = found.end_offset
        self._last_position = 0
        self.log_start_offset = max(log_start_offset, found.segments[0].base_offset)
        self.segments = found.segments
        self.written_size = 0
        self.segments_made = found.segments_made
        self._bases = [segment.base_offset for segment in self.segments]
        self.active = self.segments[-1]
        self._open_segments = open_segments
        durable = found.unflushed_from or (found.end_offset, self.active.size)
        self.flushes = LogFlushes(found.disk, *durable)
        for segment in self.segments[:-1]:
            segment.share(open_segments)
        self.active.share(open_segments, self.flushes)
        self._noted_size = 0
        self._noted_offset = 0
        self._clock = clock
        self._disk = found.disk
        self._space = space
        self._flushes_always = flushes_always
        self._header = bytearray(HEADER_SIZE)
        self.doomed = doomed
        """Segments that were removed and whose files are still there."""
        self.reconfigure(config)
        self.doomed.add(found.removed, config[FILE_DELETE_DELAY_MS])

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: Settings,
        clock: Clock,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        clean: KnownEnd | None = None,
        drop_cache: bool = False,
        same_boot: bool = False,
        space: FreeSpace | None = None,
        doomed: Doomed | None = None,
        open_segments: OpenSegments | None = None,
        disk: Disk = DISK,
        flushes_always: bool = False,
        shares_flush: bool = False,
        opening_lock: OpeningLock | None = None,
        new: bool = False,
    ) -> Log:
        """Open the log in a directory, and recover it unless it is new, or a clean end is known
        and true.

        With `shares_flush` the caller flushes a log that `awaits_flush` (shared_flush.py).  An
        `opening_lock` is held by the caller, and released during long scans.
        """
        now_ms = clock.wall_ms()
        found = Recovery(directory, disk, config[INDEX_INTERVAL_BYTES], now_ms, opening_lock)
        found.list_segments(log_start_offset)
        if not new and (clean is None or not found.believe(clean)):
            flushing = Flushing.SHARED if shares_flush else Flushing.NOW
            if config[DURABILITY] == "os" and same_boot and not (flushes_always or drop_cache):
                flushing = Flushing.KERNEL
            found.recover(recovery_point, log_start_offset, drop_cache, same_boot, flushing)
        found.release()
        return cls(
            found,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            config=config,
            clock=clock,
            space=space or FreeSpace(directory, 0, disk),
            doomed=doomed or Doomed(clock, disk),
            open_segments=OpenSegments() if open_segments is None else open_segments,
            log_start_offset=log_start_offset,
            flushes_always=flushes_always,
        )

    def __repr__(self) -> str:
        return f"Log({self.directory}, {self.log_start_offset}..{self.end_offset})"

    def reconfigure(self, config: Settings) -> None:
        """Take new settings; what appending needs of them is looked up here, once."""
        self.config = config
        self._intake = Intake(config)
        self._segment_size_max = config[SEGMENT_BYTES]
        self.is_left_to_kernel = config[DURABILITY] == "os" and not self._flushes_always
        self._answers_durable = config[DURABILITY] == "fsync" or self._flushes_always
        # Into space set aside the kernel writes at 1.6 times the speed; small logs need none.
        self._sets_aside_from = 0 if self._answers_durable else AHEAD_FIRST
        self._entries_max = config[SEGMENT_INDEX_BYTES] // 12 - 1
        for segment in self.segments:
            segment.index_interval = config[INDEX_INTERVAL_BYTES]
        self._segment_age_ms_max = self._drawn_age()
        self.producers.reconfigure(config)

    def _drawn_age(self) -> int:
        """How old a segment may get: drawn for each, so that many logs do not roll at once."""
        age_ms = self.config[SEGMENT_MS]
        jitter = min(self.config[SEGMENT_JITTER_MS], age_ms)
        return age_ms - (random.randrange(jitter) if jitter > 0 else 0)

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def unflushed_size(self) -> int:
        """The bytes that a power cut now would lose."""
        return self.written_size - self.flushes.flushed_size

    @property
    def readable_offset(self) -> int:
        """Up to where records are out of danger of being taken back; retention never passes it."""
        return self.durable_offset if self._answers_durable else self.end_offset

    # -- appending ---------------------------------------------------------------------------

    def opening(self, batch: bytes | memoryview) -> Steps[bytes] | None:
        """Return the steps that check a client's batch beforehand, if any; see Intake.opening."""
        return self._intake.opening(batch, self._clock)

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        leader_epoch: int,
        *,
        from_client: bool = True,
        opened: bool = False,
    ) -> Appended:
        """Place one batch at the end; raises what is wrong with it, and then wrote nothing.

        A client's batch whose records were checked already is `opened` (see `Intake.opening`).
        """
        if self.fault is not None:
            raise KafkaStorageError(self.fault)
        code = 0 if opened else judge(batch) if from_client else check(batch)
        if code:
            raise_for(code)
        (_, _, _, _, _, attributes, last_offset_delta, _, max_timestamp,
         producer_id, producer_epoch, base_sequence, count) = header(batch)  # fmt: skip
        append_time_ms = -1
        if from_client:
            now_ms = self._clock.wall_ms()
            kept = self._intake.admit(
                batch, attributes, max_timestamp, count, now_ms, opened=opened
            )
            if kept is not batch:  # A header that disagrees with its records was corrected.
                batch, max_timestamp = kept, header(kept)[8]
            if self._intake.stamps:
                append_time_ms = max_timestamp = now_ms
        size = len(batch)
        if producer_id >= 0 and from_client:
            retried = self.producers.judge(
                producer_id, producer_epoch, base_sequence, last_offset_delta
            )
            if retried is not None:
                return Appended(
                    retried.base_offset, retried.last_offset, retried.timestamp,
                    self.log_start_offset, True,
                )  # fmt: skip
        base_offset = self.end_offset
        last_offset = base_offset + last_offset_delta
        self._write(batch, size, base_offset, last_offset, max_timestamp, leader_epoch)
        if leader_epoch != self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        if producer_id >= 0:
            self.producers.replay(
                base_offset, last_offset_delta, attributes, max_timestamp,
                producer_id, producer_epoch, base_sequence,
            )  # fmt: skip
        self.end_offset = last_offset + 1
        self.written_size += size
        self._last_base_offset = base_offset
        self._last_position = self.active.size - size
        return Appended(base_offset, last_offset, append_time_ms, self.log_start_offset, False)

    def _write(
        self,
        batch: bytes | bytearray | memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        leader_epoch: int,
    ) -> None:
        """Put the batch into the active segment, or into a new one when it is due."""
        self._space.take(size)
        segment = self.active
        end = segment.size + size
        try:
            if (
                end > self._segment_size_max
                or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
                or segment.offset_index.count >= self._entries_max
                or max_timestamp - segment.first_timestamp > self._segment_age_ms_max
                or max_timestamp < 0
            ) and self._roll_due(segment, size, last_offset, max_timestamp):
                segment = self._roll()
                end = size
            if end > segment.allocated and segment.size >= self._sets_aside_from:
                segment.set_aside(size, self._segment_size_max)
            view = memoryview(batch)
            head = self._header
            head[:] = view[:HEADER_SIZE]
            place(head, base_offset, leader_epoch)
            segment.append(head, view[HEADER_SIZE:], size, last_offset, max_timestamp)
        except DiskFailed as error:
            self.fault = str(error)
            raise

    def _roll_due(
        self, segment: LogSegment, size: int, last_offset: int, max_timestamp: int
    ) -> bool:
        if segment.size == 0:
            return last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        return (
            segment.size + size > self._segment_size_max
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.indexes_full(self.config[SEGMENT_INDEX_BYTES])
            or segment.age_ms(max_timestamp, self._clock.wall_ms()) > self._segment_age_ms_max
        )

    def roll(self) -> None:
        """Close the active segment and begin another; nothing when it is empty."""
        if self.active.size:
            self._roll()

    def _roll(self) -> LogSegment:
        """Nothing has changed when this fails, and it may be done again."""
        try:
            self.active.finish()
            self.producers.take_snapshot(self.end_offset)
            made = LogSegment.create(
                self.directory, self.end_offset, self._disk, self.active.index_interval,
                self._clock.wall_ms(),
            )  # fmt: skip
        except OSError as error:
            failed(error, f"{self.directory} cannot begin a segment")
        self.active.share(self._open_segments)
        self._open_segments.used(self.active)
        made.share(self._open_segments, self.flushes)
        self.segments.append(made)
        self._bases.append(made.base_offset)
        self.active = made
        self._last_base_offset = self.end_offset
        self.segments_made += 1
        self._segment_age_ms_max = self._drawn_age()
        return made

    def leave_snapshot(self) -> None:
        """Once much was written since the last, note what producers did and where batches stand,
        so that after a crash the log need not be read again from further back."""
        due = SNAPSHOT_EVERY + SNAPSHOT_EVERY_PRODUCER * len(self.producers)
        if self.fault is not None or self.written_size - self._noted_size < due:
            return
        if self._noted_offset > self.durable_offset:
            return  # No recovery point reaches the last one yet, so the one before is needed.
        self._noted_size = self.written_size
        self.active.settle(size_min=0)
        between = [offset for offset in self.producers.snapshots() if offset not in self._bases]
        try:
            # The last one serves until a recovery point reaches the new one.
            for offset in between[:-1]:
                self._disk.unlink(self.producers.snapshot_path(offset))
            self.producers.take_snapshot(self.end_offset)
            self._noted_offset = self.end_offset
        except OSError as error:
            if error.errno not in PASSING | OF_ONE_LOG:
                failed(error, f"{self.directory} cannot be written")
            log.warning(
                "Producer snapshot could not be written; the next checkpoint writes one."
                " path=%s error=%r", self.directory, error.strerror,
            )  # fmt: skip

    def settle(self) -> None:
        """Write index entries that have gathered."""
        self.active.settle()

    # -- flushing ----------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """Up to where the log is on the disk itself."""
        return self.flushes.durable_offset

    def flush_begin(self, *, closed_only: bool = False) -> Flush | None:
        """Begin a flush, for a Flusher and then for flush_end; see LogFlushes.begin."""
        return self.flushes.begin(self, closed_only=closed_only)

    def flush_end(self, flush: Flush) -> None:
        """Take a flush that came back; see LogFlushes.end."""
        self.flushes.end(flush)

    @property
    def flushing(self) -> bool:
        """Whether a flush is under way, by whomever it was begun."""
        return self.flushes.in_flight > 0

    def flush(self) -> None:
        """Flush here and now."""
        flush = self.flush_begin()
        if flush is not None:
            flush.run(self._disk)
            if flush.error is not None:
                raise write_back_failed(self._disk, self.directory, flush.error)
            self.flush_end(flush)

    # -- reading -----------------------------------------------------------------------------

    def read(
        self, offset: int, size_max: int, upper_offset: int, *, whole_first: bool = True
    ) -> FileSlice | None:
        """The bytes from the batch that holds `offset` on, of one segment and below
        `upper_offset`; None when there is nothing there yet.

        The first batch is given whole even if it is larger than `size_max`, or, without
        `whole_first`, not at all.
        """
        found = self.locate(offset, upper_offset)
        if found is None:
            return None
        segment, position, size, end = found
        if size > size_max:
            return FileSlice(segment.file, position, size) if whole_first else None
        return FileSlice(segment.file, position, min(size_max, end - position))

    def available(self, offset: int, upper_offset: int, size_max: int) -> int:
        """How many bytes such a read would give; all that was asked where an older segment ends,
        since waiting would not make it more."""
        found = self.locate(offset, upper_offset)
        if found is None:
            return 0
        segment, position, _, end = found
        return size_max if segment is not self.active else min(size_max, end - position)

    def locate(self, offset: int, upper_offset: int) -> tuple[LogSegment, int, int, int] | None:
        """Where such a read begins: (segment, position, size of the first batch, where what may be
        read of this segment ends)."""
        if self.fault is not None:
            raise KafkaStorageError(self.fault)
        if not self.log_start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"Offset {offset} is outside {self.log_start_offset} to {self.end_offset}."
            )
        if offset >= upper_offset or offset == self.end_offset:
            return None
        if offset >= self._last_base_offset:
            if self._last_base_offset >= upper_offset:
                return None
            size = self.active.size - self._last_position
            return self.active, self._last_position, size, self.active.size
        number = self._number_of(offset)
        found = self.segments[number].find(offset)
        while found is None and number + 1 < len(self.segments):
            number += 1
            found = self.segments[number].find(offset)
        if found is None or found.base_offset >= upper_offset:
            return None
        segment = self.segments[number]
        return segment, found.position, found.size, self._end_in(segment, number, upper_offset)

    def _number_of(self, offset: int) -> int:
        if offset >= self.active.base_offset:
            return len(self.segments) - 1
        return bisect_right(self._bases, offset) - 1

    def _end_in(self, segment: LogSegment, number: int, upper_offset: int) -> int:
        """Where in this segment the batches before `upper_offset` end."""
        if segment is not self.active:
            if upper_offset >= self._bases[number + 1]:
                return segment.size
        elif upper_offset >= self.end_offset:
            return segment.size
        elif upper_offset == self.flushes.durable_offset:
            return self.flushes.durable_position
        beyond = segment.find(upper_offset)
        return segment.size if beyond is None else beyond.position

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the greatest leader epoch at or below; see LeaderEpochCache."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.end_offset)

    # -- forgetting --------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log's start; answers the new one.  Whole segments before it are removed."""
        if self.fault is not None:
            raise KafkaStorageError(self.fault)
        if not 0 <= before_offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"Records before {before_offset} cannot be deleted: the log ends at"
                f" {self.end_offset}."
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self.leader_epochs.truncate_from_start(before_offset)
            self._remove_first(retention.before(self.segments, before_offset))
        return self.log_start_offset

    def retain(self) -> None:
        """Remove the segments that retention no longer keeps, and forget silent producers."""
        if self.fault is not None:
            return
        now_ms = self._clock.wall_ms()
        self.producers.expire(now_ms)
        count = retention.removable(
            self.segments, self.config, now_ms, self.log_start_offset, self.readable_offset,
            self.end_offset,
        )  # fmt: skip
        if count == len(self.segments):
            self.roll()
            count = min(count, len(self.segments) - 1)
        if count:
            start = max(self.log_start_offset, self._bases[count])
            self.log_start_offset = start
            self.leader_epochs.truncate_from_start(start)
            self._remove_first(count)

    def _remove_first(self, count: int) -> None:
        removed, self.segments = self.segments[:count], self.segments[count:]
        del self._bases[:count]
        paths = [path for segment in removed for path in segment.mark_deleted()]
        kept = self.segments[0].base_offset
        for offset in self.producers.snapshots():
            if offset < kept:
                self._disk.unlink(self.producers.snapshot_path(offset))
        self.doomed.add(paths, self.config[FILE_DELETE_DELAY_MS])

    # -- leaving -----------------------------------------------------------------------------

    def finish(self, *, flushed: bool = True) -> KnownEnd | None:
        """Write all that a known end needs, to be flushed then; None when it cannot be known.

        Without `flushed` it is for who opens the log before the machine is off.
        """
        if self.fault is not None:
            return None
        self.active.finish()
        snapshots = self.producers.snapshots()
        for offset in snapshots:
            if offset not in self._bases and offset != self.end_offset:
                self._disk.unlink(self.producers.snapshot_path(offset))
        self.producers.take_snapshot(self.end_offset)
        if self.leader_epochs.unsaved:
            path = self.directory / layout.LEADER_EPOCHS
            self.leader_epochs.save(self._disk, path, flushed=flushed)
        remembered = self.producers.remembered()
        return KnownEnd(self.end_offset, self.active.size, self.durable_offset, remembered, True)

    def release(self) -> None:
        """Let go of the files; readers that hold slices keep theirs."""
        self.released = True
        self.fault = self.fault or "The log is closed."
        for segment in self.segments:
            segment.release()
