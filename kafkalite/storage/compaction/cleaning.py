"""Cleaning: one pass of the log cleaner over the files of one log.

    first dirty ┄┄┄┄┄┄┄┄┄ upper bound          offset map: last offset of each key, up to `end`
    log start ┄┄┄┄┄┄┄┄┄┄┄ end                  each group of segments is filtered to .cleaned ones

What is kept below `end`:

record with a key        the last one of its key; a tombstone until its batch's delete horizon
record without a key     not kept
aborted transaction      no record; its marker as long as a batch of it is met
transaction marker       until no batch of its transaction is left, and then until a delete horizon
emptied batch            its header, if it is the last one of a live producer, ends at the high
                         watermark or ends a group: each segment ends where the next one begins

Offsets, timestamps and the order of records do not change.  A batch from which nothing is dropped
is copied byte for byte.

Runs in any process that may read the directory; the log's owner keeps the sources until the result
has replaced them (segment_swap.py).  Source: LogCleaner and Cleaner of Apache Kafka (KIP-534).
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from kafkalite._ext import cleaner
from kafkalite._ext.cleaner import BatchFilter, BatchReader, OffsetMap
from kafkalite._ext.record_batch import CODEC_MASK, control_record
from kafkalite.errors import KafkaStorageError
from kafkalite.records.batch import BatchHeader, RecordBatch
from kafkalite.records.compression import compress
from kafkalite.records.control import ControlType
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.compaction import segment_swap
from kafkalite.storage.compaction.cleaned_writer import CleanedWriter
from kafkalite.storage.compaction.cleaning_job import (
    CleanedGroup,
    CleaningCounts,
    CleaningJob,
    CleaningResult,
    SourceSegment,
)
from kafkalite.storage.compaction.segment_groups import groups_of
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK, Disk, sync_directory
from kafkalite.storage.segment.transaction_index import AbortedTransaction

Throttle = Callable[[int], None]
"""Called for about each window with the number of bytes read and written since the last call.  It
may sleep, and cancels the pass by raising CleaningCancelled."""

HORIZON_MS_MAX = (1 << 62) - 1
"""The latest delete horizon: any timestamp relative to it has 64 bits."""

WRITTEN = (layout.CLEANED,)
"""Kind of the files that a pass writes and deletes; the owner may be renaming other ones."""


class CleaningCancelled(Exception):
    """A pass was cancelled; its files are deleted."""


def clean(job: CleaningJob, throttle: Throttle, disk: Disk = DISK) -> CleaningResult:
    """Clean a log: write and flush the segments that are to replace its own.

    Raises:
        CleaningCancelled: By `throttle`.
        OSError: A file cannot be read or written; with a full disk a later pass may succeed.
        KafkaError: A segment is damaged, or a batch cannot be decompressed.
    """
    directory = Path(job.directory)
    segment_swap.purge(disk, directory, WRITTEN)
    try:
        result = CleaningPass(job, throttle, disk).run()
        sync_directory(disk, directory)
        return result
    except BaseException:
        segment_swap.discard(disk, directory, WRITTEN)
        raise


class AbortedTransactions:
    """The aborted transactions of a log, by producer."""

    def __init__(self, entries: tuple[AbortedTransaction, ...]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for entry in sorted(entries, key=lambda entry: entry.first_offset):
            self._by_producer.setdefault(entry.producer_id, []).append(entry)

    def holding(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """Return the aborted transaction that a producer's batch or marker belongs to."""
        entries = self._by_producer.get(producer_id)
        if entries is None:
            return None
        slot = bisect_right(entries, offset, key=lambda entry: entry.first_offset) - 1
        return entries[slot] if slot >= 0 and offset <= entries[slot].last_offset else None


class CleaningPass:
    """The state of one pass."""

    def __init__(self, job: CleaningJob, throttle: Throttle, disk: Disk) -> None:
        self._job = job
        self._directory = Path(job.directory)
        self._throttle = throttle
        self._disk = disk
        self._aborted = AbortedTransactions(job.aborted)
        self._met: set[AbortedTransaction] = set()
        """The aborted transactions of which a batch was met."""
        self._committing: set[int] = set()
        """The producers of which a batch was met since their last commit marker."""
        self._kept_abort: AbortedTransaction | None = None
        """The transaction of the current batch, if that is an abort marker that is kept."""
        self._reader = BatchReader(job.io_buffer_bytes)
        upper_offset = min(job.upper_offset, job.last_stable_offset)
        dirty_size = sum(
            source.size for source, next_base in job.spans() if next_base > job.first_dirty_offset
        )
        self._offsets = OffsetMap(
            job.map_bytes, job.load_factor, job.first_dirty_offset, upper_offset,
            huge_pages=dirty_size >= job.map_bytes,
        )  # fmt: skip
        self._upper_offset = upper_offset
        self._bytes_read = self._map_bytes_read = 0

    def run(self) -> CleaningResult:
        self._build()
        job, offsets = self._job, self._offsets
        if offsets.end_offset <= job.first_dirty_offset:
            counts = CleaningCounts(map_bytes_read=self._map_bytes_read)
            return CleaningResult(job.first_dirty_offset, (), counts)
        horizon_ms = min(job.now_ms + job.delete_retention_ms, HORIZON_MS_MAX)
        self._batches = BatchFilter(offsets, job.now_ms, horizon_ms, job.high_watermark)
        groups = [self._clean_group(group) for group in groups_of(job, offsets.end_offset)]
        counts = CleaningCounts(
            records_read=self._batches.records_read,
            records_written=self._batches.records_written,
            bytes_read=self._bytes_read,
            bytes_written=sum(each.size for group in groups for each in group.segments),
            map_records_read=offsets.records_read,
            map_bytes_read=self._map_bytes_read,
            keyless_dropped=self._batches.keyless_dropped,
            map_utilization=offsets.utilization,
        )
        return CleaningResult(offsets.end_offset, tuple(groups), counts)

    # -- the offset map ----------------------------------------------------------------------

    def _build(self) -> None:
        """Fill the offset map from the dirty segments, until it is full."""
        job = self._job
        for source, next_base in job.spans():
            if next_base <= job.first_dirty_offset:
                continue
            if source.base_offset >= self._upper_offset:
                return
            file = self._open(source)
            try:
                if not self._build_from(source):
                    return
            finally:
                file.close()
            self._offsets.pass_gap(next_base)

    def _build_from(self, source: SourceSegment) -> bool:
        """Add the records of one segment; return False once the map is full."""
        reader, offsets, before = self._reader, self._offsets, 0
        while True:
            code = offsets.build(reader)
            if code == cleaner.DECIDE:
                code = self._add_batch()
            self._throttle(reader.position - before)
            self._map_bytes_read += reader.position - before
            before = reader.position
            if code in (cleaner.AT_END, cleaner.FULL):
                return code == cleaner.AT_END
            self._check(code, source)

    def _add_batch(self) -> int:
        """Add the current batch, unless its transaction was aborted; return the code."""
        batch = RecordBatch(self._reader.batch_bytes())
        header = batch.header
        if header.is_transactional and self._aborted.holding(
            header.producer_id, header.base_offset
        ):
            self._offsets.skip_batch(self._reader)
            return cleaner.WHOLE
        return self._offsets.add_batch(self._reader, batch.payload())

    # -- the filter --------------------------------------------------------------------------

    def _clean_group(self, group: list[SourceSegment]) -> CleanedGroup:
        """Write the segments that replace a group."""
        job = self._job
        filled = [source for source in group if source.size]
        writer = self._writer = CleanedWriter(
            self._directory, self._disk, self._batches, group[0].base_offset,
            job.index_interval_bytes,
        )  # fmt: skip
        try:
            for source in filled:
                file = self._open(source)
                try:
                    self._filter(source, is_last=source is filled[-1])
                    # A swapped group lacks records that a later group replaces: a power cut
                    # before that is swapped must not take the later group's sources.
                    self._disk.fdatasync(file.fileno())
                    modified_ns = os.fstat(file.fileno()).st_mtime_ns
                finally:
                    file.close()
            writer.close(modified_ns)
        finally:
            writer.abandon()
        return CleanedGroup(tuple(group), tuple(writer.segments))

    def _filter(self, source: SourceSegment, *, is_last: bool) -> None:
        """Filter one segment into the writer's."""
        reader, before = self._reader, 0
        while True:
            code = self._batches.run(reader, is_last)
            while code == cleaner.DECIDE and reader.position - before < reader.window_size:
                self._decide(is_last=is_last and reader.is_at_last)
                code = self._batches.run(reader, is_last)
            if code == cleaner.ROLL:
                self._writer.roll()
                code = cleaner.WHOLE
            read = reader.position - before
            self._bytes_read += read
            before = reader.position
            self._throttle(read + self._write())
            if code == cleaner.AT_END:
                return
            self._check(code, source)

    def _decide(self, *, is_last: bool) -> None:
        """Keep, rewrite, empty or drop the current batch; the last one of a group is kept."""
        batch = RecordBatch(self._reader.batch_bytes())
        header = batch.header
        self._kept_abort = None
        if header.is_control:
            code = self._filter_marker(batch)
        elif self._is_aborted(header):
            code = cleaner.EMPTIED
        else:
            code = self._filter_records(batch)
        if code == cleaner.DAMAGED:
            raise KafkaStorageError(
                f"{self._directory} is damaged in the batch at offset {header.base_offset}"
            )
        if code == cleaner.EMPTIED:
            if not is_last and not self._is_last_of_producer(header):
                if header.last_offset + 1 != self._job.high_watermark:
                    self._batches.drop(self._reader)
                    return
            self._batches.empty_batch(self._reader)
        append = self._batches.keep if code == cleaner.UNCHANGED else self._batches.keep_rewritten
        if append(self._reader) == cleaner.ROLL:
            self._writer.roll()
            append(self._reader)
        if self._kept_abort is not None:
            self._writer.add_aborted(self._kept_abort)

    def _is_aborted(self, header: BatchHeader) -> bool:
        """Return whether a batch belongs to an aborted transaction, and note that it was met."""
        if not header.is_transactional:
            return False
        aborted = self._aborted.holding(header.producer_id, header.base_offset)
        if aborted is None:
            self._committing.add(header.producer_id)
            return False
        self._met.add(aborted)
        return True

    def _filter_records(self, batch: RecordBatch) -> int:
        """Drop records of a batch; return whether it is UNCHANGED, REWRITTEN or EMPTIED."""
        code = self._batches.filter_batch(self._reader, batch.payload())
        if code == cleaner.REWRITTEN and batch.header.attributes & CODEC_MASK:
            records = self._batches.kept_records()
            self._batches.replace_records(compress(batch.header.codec, records))
        return code

    def _filter_marker(self, batch: RecordBatch) -> int:
        """Keep a marker, or drop it in two passes; return the code as for records."""
        header = batch.header
        aborted = self._aborted.holding(header.producer_id, header.base_offset)
        if aborted is not None and aborted.last_offset != header.base_offset:
            aborted = None
        is_clean = header.base_offset < self._offsets.end_offset
        if not is_clean or not self._is_droppable(batch, aborted):
            self._kept_abort = aborted
            return cleaner.UNCHANGED
        if not header.count:
            return cleaner.EMPTIED
        if header.delete_horizon_ms is None:
            return self._batches.filter_batch(
                self._reader, batch.payload(), keep_all=True, rebase=True
            )
        return (
            cleaner.EMPTIED if header.delete_horizon_ms <= self._job.now_ms else cleaner.UNCHANGED
        )

    def _is_droppable(self, batch: RecordBatch, aborted: AbortedTransaction | None) -> bool:
        """Return whether no batch of a marker's transaction is left."""
        header = batch.header
        if not header.count:
            return True
        control_type = control_record(batch.view)[0]
        if control_type == ControlType.ABORT:
            return aborted not in self._met
        if control_type == ControlType.COMMIT:
            is_met = header.producer_id in self._committing
            self._committing.discard(header.producer_id)
            return not is_met
        return False

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Return whether a live producer's state would be lost with this batch."""
        producer = self._job.producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.last_data_offset >= 0:
            return header.last_offset == producer.last_data_offset
        return header.is_control and header.producer_epoch == producer.epoch

    # -- files -------------------------------------------------------------------------------

    def _write(self) -> int:
        """Write the output that the filter has, and return its size; raise OSError if less space
        than appends need would be left."""
        found = os.statvfs(self._directory)
        if found.f_bavail * found.f_frsize < self._job.kept_free_bytes:
            raise OSError(errno.ENOSPC, "storage.min.free.bytes would not be left free")
        return self._writer.write()

    def _open(self, source: SourceSegment) -> OpenFile:
        """Open a segment, and have the reader begin with it."""
        path = self._directory / layout.file_name(source.base_offset, layout.LOG)
        file = self._disk.open(path, os.O_RDONLY)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._reader.open(file.fileno(), 0, source.size)
        return file

    def _check(self, code: int, source: SourceSegment) -> None:
        if code in (cleaner.DAMAGED, cleaner.TORN, cleaner.STORAGE_ERROR):
            path = self._directory / layout.file_name(source.base_offset, layout.LOG)
            reason = "cannot be read" if code == cleaner.STORAGE_ERROR else "is damaged"
            raise KafkaStorageError(f"{path} {reason} at byte {self._reader.position}")
