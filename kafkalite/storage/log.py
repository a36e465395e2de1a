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

A log with a `fault` is not served: it is damaged below its recovery point, or a write to it failed
for a reason other than a full disk.

Left out: time-based rolling without an append, as in Kafka.  A clock that jumps years ahead makes
time-based retention delete segments, as in Kafka too.
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
"""Bytes written, and further bytes for each producer, after which a producer snapshot is taken
between two segments: scanning them again would take longer than writing it."""


class Appended(NamedTuple):
    """The result of an append: the offsets and timestamps of the batch."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool


class Log:
    """The log of one partition."""

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
        """True if the log needs a new leader epoch before the next append."""
        self.released = False
        self.producers = found.producers
        self.leader_epochs = found.leader_epochs
        self.end_offset = found.end_offset
        # Position of the last batch, so that reads near the end need no index lookup.
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
        """The deferred deletes, which get the files of removed segments."""
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
        """Open the log in a directory.  Recover it, unless it is new or was closed cleanly and its
        files agree with the known end.

        With `shares_flush` the caller flushes a log that `awaits_flush` (shared_flush.py).  The
        caller holds `opening_lock`, which is released during long scans.
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
        """Apply new settings; those that appends need are looked up here, once."""
        self.config = config
        self._intake = Intake(config)
        self._segment_size_max = config[SEGMENT_BYTES]
        self.is_left_to_kernel = config[DURABILITY] == "os" and not self._flushes_always
        self._answers_durable = config[DURABILITY] == "fsync" or self._flushes_always
        # Writing into preallocated space is 1.6 times as fast; small logs do not need it.
        self._sets_aside_from = 0 if self._answers_durable else AHEAD_FIRST
        self._entries_max = config[SEGMENT_INDEX_BYTES] // 12 - 1
        for segment in self.segments:
            segment.index_interval = config[INDEX_INTERVAL_BYTES]
        self._segment_age_ms_max = self._drawn_age()
        self.producers.reconfigure(config)

    def _drawn_age(self) -> int:
        """Return the maximum age of the next segment, with jitter so that many logs do not roll at
        once."""
        age_ms = self.config[SEGMENT_MS]
        jitter = min(self.config[SEGMENT_JITTER_MS], age_ms)
        return age_ms - (random.randrange(jitter) if jitter > 0 else 0)

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def unflushed_size(self) -> int:
        """Number of bytes that a power cut now would lose."""
        return self.written_size - self.flushes.flushed_size

    @property
    def readable_offset(self) -> int:
        """The offset below which records are not truncated any more; retention never passes it."""
        return self.durable_offset if self._answers_durable else self.end_offset

    # -- appending ---------------------------------------------------------------------------

    def opening(self, batch: bytes | memoryview) -> Steps[bytes] | None:
        """Return the steps that check a client's batch before the append; see Intake.opening."""
        return self._intake.opening(batch, self._clock)

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        leader_epoch: int,
        *,
        from_client: bool = True,
        opened: bool = False,
    ) -> Appended:
        """Append one batch; raise the error of an invalid one, in which case nothing was written.

        `opened` is true for a client's batch whose records were checked by `opening`.
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
            if kept is not batch:  # recompressed, corrected or stamped
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
        """Write the batch to the active segment, or to a new one if a roll is due."""
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
        """Close the active segment and begin a new one, unless it is empty."""
        if self.active.size:
            self._roll()

    def _roll(self) -> LogSegment:
        """Roll the active segment; after an error nothing has changed and it may be retried."""
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
        """Take a producer snapshot and write the index entries once enough was written since the
        last one, so that recovery after a crash need not scan from further back."""
        due = SNAPSHOT_EVERY + SNAPSHOT_EVERY_PRODUCER * len(self.producers)
        if self.fault is not None or self.written_size - self._noted_size < due:
            return
        if self._noted_offset > self.durable_offset:
            return  # no recovery point has reached the last snapshot, so the one before is needed
        self._noted_size = self.written_size
        self.active.settle(size_min=0)
        between = [offset for offset in self.producers.snapshots() if offset not in self._bases]
        try:
            # The last snapshot is needed until a recovery point reaches the new one.
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
        """Write index entries once a page of them has been collected."""
        self.active.settle()

    # -- flushing ----------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """The offset below which the log is durable."""
        return self.flushes.durable_offset

    def flush_begin(self, *, closed_only: bool = False) -> Flush | None:
        """Begin a flush, to be submitted to a Flusher; see LogFlushes.begin."""
        return self.flushes.begin(self, closed_only=closed_only)

    def flush_end(self, flush: Flush) -> None:
        """Take the result of a flush; see LogFlushes.end."""
        self.flushes.end(flush)

    @property
    def flushing(self) -> bool:
        """True if a flush is in flight, however it was begun."""
        return self.flushes.in_flight > 0

    def flush(self) -> None:
        """Flush synchronously."""
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
        """Return a slice from the batch that holds `offset` on, within one segment and below
        `upper_offset`; None if there are no records there yet.

        If the first batch is larger than `size_max` it is returned whole, or, without
        `whole_first`, nothing is.
        """
        found = self.locate(offset, upper_offset)
        if found is None:
            return None
        segment, position, size, end = found
        if size > size_max:
            return FileSlice(segment.file, position, size) if whole_first else None
        return FileSlice(segment.file, position, min(size_max, end - position))

    def available(self, offset: int, upper_offset: int, size_max: int) -> int:
        """Return the number of bytes such a read would return; `size_max` if it ends in a closed
        segment, since waiting would not add to it."""
        found = self.locate(offset, upper_offset)
        if found is None:
            return 0
        segment, position, _, end = found
        return size_max if segment is not self.active else min(size_max, end - position)

    def locate(self, offset: int, upper_offset: int) -> tuple[LogSegment, int, int, int] | None:
        """Return the start of such a read as (segment, position, size of the first batch, end
        position in this segment); None if there are no records there yet."""
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
        """Return the position in this segment at which the batches before `upper_offset` end."""
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
        """Return (epoch, end offset) of the greatest leader epoch at or below; see
        LeaderEpochCache."""
        return self.leader_epochs.end_offset_for(leader_epoch, self.end_offset)

    # -- deleting ----------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Advance the log start offset and return it; whole segments before it are removed."""
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
        """Remove the segments that retention no longer keeps, and expire producers."""
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

    # -- closing -----------------------------------------------------------------------------

    def finish(self, *, flushed: bool = True) -> KnownEnd | None:
        """Write everything that a clean shutdown needs, to be flushed next; return the known end,
        or None if the log has an error.

        Without `flushed` the result is valid only until the machine stops.
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
        """Release the files; readers that hold slices keep theirs."""
        self.released = True
        self.fault = self.fault or "The log is closed."
        for segment in self.segments:
            segment.release()
