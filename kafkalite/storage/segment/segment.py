"""LogSegment: a file of record batches with an offset index and a time index.

    00000000000000004096.log          batches, one after another
    00000000000000004096.index        OffsetIndex
    00000000000000004096.timeindex    TimeIndex
    00000000000000004096.txnindex     TransactionIndex, if a transaction was aborted

`size` is the position at which the batches end.  The file may be longer: by preallocated space
(zeros), or by the rest of a failed write; neither is read, and the next write overwrites it.
Nothing here is flushed: Log decides when, and the Flusher does it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite._ext import segment_walk
from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite._ext.segment_walk import AT_END, GAP, STORAGE_ERROR, WHOLE, ZEROS
from kafkalite.clock import Clock
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import (
    DISK_FULL_ERRORS,
    TRANSIENT_ERRORS,
    Disk,
    failed,
    pwritev_all,
)
from kafkalite.storage.files.open_segments import OpenSegments
from kafkalite.storage.segment.index import OffsetIndex, TimeIndex
from kafkalite.storage.segment.segment_scan import LEADER_EPOCHS_KNOWN, OFFSET_MAX, SegmentScan
from kafkalite.storage.segment.transaction_index import TransactionIndex
from kafkalite.storage.state.flush_state import FlushState
from kafkalite.storage.state.open_transactions import CompletedTransaction

PREALLOCATED_MAX = 4 << 20
PREALLOCATED_FIRST = 64 << 10
"""Maximum number of bytes preallocated after the end of a segment, and in a new segment."""

INDEX_PAGE = 4096

RELATIVE_OFFSET_MAX = (1 << 31) - 1
"""Maximum relative offset in an index entry."""

TIMESTAMP_NOT_READ = -2
"""Marks that the first batch's timestamp was not read yet; no batch has this timestamp."""

PREALLOCATION_ERRORS_IGNORED = frozenset(
    {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
)
"""Errors of preallocation that are ignored: the write itself reports a real one."""


class BatchPosition(NamedTuple):
    """The position of a batch and fields of its header."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class LogSegment:
    """One segment of a log."""

    __slots__ = ("_descriptor", "_disk", "_file", "_pwritev", "_is_timestamp_loaded", "allocated",
                 "base_offset", "created_ms", "directory", "first_timestamp", "flush_state",
                 "index_interval", "max_timestamp", "offset_index", "offset_of_max",
                 "open_segments", "path", "size_since_entry", "size", "time_index",
                 "indexed_timestamp", "transaction_index")  # fmt: skip

    def __init__(
        self, directory: Path, base_offset: int, disk: Disk, index_interval: int, now_ms: int
    ) -> None:
        self._disk = disk
        self._pwritev = disk.pwritev
        self._file: OpenFile | None = None
        self._descriptor = -1
        self._is_timestamp_loaded = False
        self.open_segments: OpenSegments | None = None
        """Limits the number of open files, and may release those of this segment."""
        self.flush_state: FlushState | None = None
        """The flush state of its log while it is the active segment; None once it is closed."""
        self.directory = directory
        self.base_offset = base_offset
        self.path = self.file_path(layout.LOG)
        self.offset_index = OffsetIndex(self.file_path(layout.OFFSET_INDEX), disk)
        self.time_index = TimeIndex(self.file_path(layout.TIME_INDEX), disk)
        self.transaction_index: TransactionIndex | None = None
        """None if no transaction was aborted in this segment, as in most."""
        self.index_interval = index_interval
        self.created_ms = now_ms
        self.size_since_entry = 0
        self.first_timestamp = TIMESTAMP_NOT_READ
        self.max_timestamp = -1
        self.offset_of_max = base_offset
        self.indexed_timestamp = -1
        try:
            self.size = os.stat(self.path).st_size
        except FileNotFoundError:
            self.size = 0
        self.allocated = self.size

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, disk: Disk, index_interval: int, now_ms: int
    ) -> LogSegment:
        """Make a segment with three empty files."""
        for suffix in (layout.LOG, layout.OFFSET_INDEX, layout.TIME_INDEX):
            path = directory / layout.file_name(base_offset, suffix)
            disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC).close()
        stale = directory / layout.file_name(base_offset, layout.TXN_INDEX)
        if stale.exists():
            # A crash came while a segment with this base offset was being removed.
            disk.unlink(stale)
        segment = cls(directory, base_offset, disk, index_interval, now_ms)
        segment._is_timestamp_loaded = True
        return segment

    @classmethod
    def open_cleaned(
        cls, directory: Path, base_offset: int, disk: Disk, index_interval: int, now_ms: int
    ) -> LogSegment:
        """Open a segment that the log cleaner has written."""
        segment = cls(directory, base_offset, disk, index_interval, now_ms)
        if segment.file_path(layout.TXN_INDEX).exists():
            segment.open_transaction_index()
        return segment

    def __repr__(self) -> str:
        return f"LogSegment({self.path})"

    def file_path(self, suffix: str) -> Path:
        return self.directory / layout.file_name(self.base_offset, suffix)

    @property
    def disk(self) -> Disk:
        """The disk that holds its files."""
        return self._disk

    @property
    def file(self) -> OpenFile:
        """The file of batches, opened when first needed."""
        if self._file is None:
            self._file = self._opened(lambda: self._disk.open_to_keep(self.path, os.O_RDWR))
            self._descriptor = self._file.fileno()
            if self.open_segments is not None:
                self.open_segments.used(self)
        return self._file

    @property
    def descriptor(self) -> int:
        return self._descriptor if self._descriptor >= 0 else self.file.fileno()

    def reopened(self, reserved: int) -> OpenFile:
        """Return the file of batches opened again, read-only, for a caller that keeps it."""
        # `file` is held until it is reopened: this segment may be released to free a descriptor,
        # whose number could then be another file's.
        file = self.file
        path = f"/proc/self/fd/{file.fileno()}"
        return self._opened(lambda: self._disk.open_to_keep(path, os.O_RDONLY, reserved))

    def _opened(self, open_file: Callable[[], OpenFile]) -> OpenFile:
        return open_file() if self.open_segments is None else self.open_segments.open(open_file)

    def share(self, open_segments: OpenSegments, flush_state: FlushState | None = None) -> None:
        """Let `open_segments` release the files when there are too many; with the log's
        `flush_state`, as the active segment."""
        self.flush_state = flush_state
        self.open_segments = open_segments
        self.offset_index.open_segments = self.time_index.open_segments = open_segments
        if self.transaction_index is not None:
            self.transaction_index.open_segments = open_segments

    @property
    def is_open(self) -> bool:
        """True if its log file is open."""
        return self._file is not None

    @property
    def is_active(self) -> bool:
        """True if this is the active segment of its log."""
        return self.flush_state is not None

    @property
    def is_idle(self) -> bool:
        """True if everything written to the active segment is durable."""
        state = self.flush_state
        return self.size == 0 or (
            state is not None
            and state.durable_offset > self.base_offset
            and state.durable_position == self.size
        )

    # -- writing -----------------------------------------------------------------------------

    def append(
        self,
        header: bytearray,
        body: memoryview,
        size: int,
        last_offset: int,
        max_timestamp: int,
    ) -> None:
        """Append a batch; raise KafkaStorageError or DiskFailed, and then nothing was written."""
        position = self.size
        try:
            written = self._pwritev(self.descriptor, (header, body), position)
            if written != size:
                self._write_rest(header, body, written)
        except OSError as error:
            self._truncate_torn()
            failed(error, f"{self.path} cannot be written")
        self._note_batch(size, last_offset, max_timestamp)

    def append_run(self, run: memoryview, batches: Sequence[BatchPosition]) -> None:
        """Append consecutive batches as they are, in one write; raise KafkaStorageError or
        DiskFailed, and then none of them was written."""
        try:
            pwritev_all(self._disk, self.descriptor, [run], self.size)
        except OSError as error:
            self._truncate_torn()
            failed(error, f"{self.path} cannot be written")
        for batch in batches:
            self._note_batch(batch.size, batch.last_offset, batch.max_timestamp)

    def _note_batch(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Count a batch that was written at the end."""
        position = self.size
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.size_since_entry > self.index_interval:
            self._add_entry(last_offset, position)
        self.size_since_entry += size
        self.size = position + size

    def _write_rest(self, header: bytearray, body: memoryview, written: int) -> None:
        left = memoryview(bytes(header) + bytes(body))[written:]
        pwritev_all(self._disk, self.descriptor, [left], self.size + written)

    def _truncate_torn(self) -> None:
        try:
            self._disk.ftruncate(self.descriptor, self.size)
            self.allocated = self.size
        except OSError:
            # These bytes are not read, the next write overwrites them, recovery truncates them.
            pass

    def _add_entry(self, last_offset: int, position: int) -> None:
        index = self.offset_index
        index.tail += index.pack(last_offset - self.base_offset, position)
        index.count += 1
        self._add_time_entry()
        self.size_since_entry = 0

    def _add_time_entry(self) -> None:
        if self.max_timestamp > self.indexed_timestamp:
            index = self.time_index
            index.tail += index.pack(self.max_timestamp, self.offset_of_max - self.base_offset)
            index.count += 1
            self.indexed_timestamp = self.max_timestamp

    def open_transaction_index(self) -> TransactionIndex:
        """Return the transaction index; it has a file once an entry is written."""
        if self.transaction_index is None:
            path = self.file_path(layout.TXN_INDEX)
            self.transaction_index = TransactionIndex(path, self._disk)
            self.transaction_index.open_segments = self.open_segments
        return self.transaction_index

    def note_completed(self, completed: CompletedTransaction) -> None:
        """Add a transaction whose marker is in this segment to the index, if it was aborted."""
        if not completed.is_commit:
            self.open_transaction_index().add(completed)

    def preallocate(self, size: int, segment_size_max: int) -> None:
        """Preallocate file space for the next `size` bytes, and some more."""
        # In proportion to the segment, so that small partitions use little space.
        ahead = min(PREALLOCATED_MAX, max(PREALLOCATED_FIRST, self.size))
        wanted = max(size, min(ahead, segment_size_max - self.size))
        try:
            self._disk.posix_fallocate(self.descriptor, self.size, wanted)
        except OSError as error:
            if error.errno not in PREALLOCATION_ERRORS_IGNORED:
                failed(error, f"{self.path} cannot be written")
        self.allocated = self.size + wanted

    def write_index_page(self, size_min: int = INDEX_PAGE) -> None:
        """Write the index entries if more than `size_min` bytes were collected; those that cannot
        be written now stay in memory."""
        if len(self.offset_index.tail) + len(self.time_index.tail) > size_min:
            try:
                self.write_indexes()
            except KafkaStorageError:
                pass
            except OSError as error:
                if error.errno not in TRANSIENT_ERRORS:
                    failed(error, f"{self.offset_index.path} cannot be written")

    def write_indexes(self) -> None:
        self.offset_index.write()
        self.time_index.write()
        if self.transaction_index is not None:
            self.transaction_index.write()

    def finish(self) -> None:
        """Close the segment for appends: write the indexes and truncate preallocated space."""
        self.load_timestamps()
        if self.size:
            self._add_time_entry()
        self.write_indexes()
        self.trim()

    def trim(self) -> None:
        """Truncate the file to `size`, which frees preallocated space."""
        if self.file_size != self.size:
            self._disk.ftruncate(self.descriptor, self.size)
        self.allocated = self.size

    @property
    def file_size(self) -> int:
        # Most logs are not written to between start and shutdown; they are not opened for this.
        if self._descriptor < 0:
            return self.path.stat().st_size
        return os.fstat(self._descriptor).st_size

    # -- reading -----------------------------------------------------------------------------

    def find(self, offset: int) -> BatchPosition | None:
        """Return the batch that holds `offset`, or else the first one after it; None if there is
        none."""
        if self.open_segments is not None:
            self.open_segments.used(self)
        expected, position = -1, 0
        if offset > self.base_offset:
            if not self.offset_index.is_sound(self.size):
                self.rebuild()
            relative, position = self.offset_index.floor(offset - self.base_offset)
            expected = self.base_offset + relative if relative >= 0 else -1
        code, *found = segment_walk.find_offset(
            self.descriptor, position, self.size, offset, expected
        )
        if code != WHOLE and code != AT_END and position:
            # The index is wrong: search from the beginning, then rebuild it.
            code, *found = segment_walk.find_offset(self.descriptor, 0, self.size, offset)
            if code in (WHOLE, AT_END):
                self.rebuild()
        if code == WHOLE:
            return BatchPosition(*found)
        if code == AT_END:
            return None
        raise KafkaStorageError(self.error_text(code, found[0]))

    def offset_bound(self, position: int) -> int | None:
        """Return an offset after all batches before a position, as near as the index knows."""
        relative, begin = self.offset_index.first_from(position)
        if relative < 0:
            return None
        # The index is a cache: its entry counts only if the batch agrees.
        head = os.pread(self.descriptor, HEADER_SIZE, begin)
        if len(head) < HEADER_SIZE:
            return None
        fields = header(head)
        last_offset: int = fields[0] + fields[6]
        return last_offset + 1 if last_offset == self.base_offset + relative else None

    def find_timestamp(self, timestamp: int, offset: int) -> BatchPosition | None:
        """Return the first batch, of those that end at `offset` or later, whose maximum timestamp
        is at least `timestamp`; None if there is none."""
        start = self.find(max(self._time_floor(timestamp), offset))
        if start is None:
            return None
        code, position, size = segment_walk.find_timestamp(
            self.descriptor, start.position, self.size, timestamp, offset
        )
        if code == AT_END:
            return None
        if code != WHOLE:
            raise KafkaStorageError(self.error_text(code, position))
        return BatchPosition(position, size, -1, -1, -1)

    def _time_floor(self, timestamp: int) -> int:
        if not self.time_index.is_sound(RELATIVE_OFFSET_MAX):
            self.rebuild()
        return self.base_offset + self.time_index.floor(timestamp)[1]

    def read(self, found: BatchPosition) -> bytes:
        """Return the bytes of a whole batch, for the few times its records are needed."""
        try:
            batch = os.pread(self.descriptor, found.size, found.position)
        except OSError as error:
            raise KafkaStorageError(self.error_text(STORAGE_ERROR, found.position)) from error
        if len(batch) != found.size:
            raise KafkaStorageError(self.error_text(segment_walk.TORN, found.position))
        return batch

    def error_text(self, code: int, position: int) -> str:
        """Return the error message for a result code of a walk."""
        if code == GAP:
            return f"{self.path} lacks offsets before byte {position}"
        if code == STORAGE_ERROR:
            return f"{self.path} cannot be read at byte {position}"
        return f"{self.path} is damaged at byte {position}"

    def load_timestamps(self) -> None:
        """Load the maximum timestamp from the last entry of the time index."""
        if self._is_timestamp_loaded:
            return
        self._is_timestamp_loaded = True
        timestamp, relative = self.time_index.last()
        if not self.time_index.is_sound(RELATIVE_OFFSET_MAX):
            self.rebuild()
        else:
            self.max_timestamp, self.offset_of_max = timestamp, self.base_offset + relative
            self.indexed_timestamp = timestamp
        # Retention needs this of a segment of every log, most of which are not read otherwise.
        self.time_index.release()

    @property
    def largest_timestamp(self) -> int:
        """The maximum timestamp of a record, or the file's modification time if none has one."""
        self.load_timestamps()
        if self.max_timestamp >= 0:
            return self.max_timestamp
        try:
            return int(self.path.stat().st_mtime * 1000)
        except OSError as error:
            raise KafkaStorageError(f"{self.path} cannot be read: {error.strerror}") from error

    def age_ms(self, timestamp: int, clock: Clock) -> int:
        """Return the age at this timestamp of a segment that is not empty: by the records'
        timestamps, else by the clock."""
        first = self.timestamp_of_first_batch()
        if first >= 0 and timestamp >= 0:
            return timestamp - first
        return clock.wall_ms() - self.created_ms

    def timestamp_of_first_batch(self) -> int:
        """Return the maximum timestamp of the first batch; negative if it has none."""
        if self.first_timestamp == TIMESTAMP_NOT_READ:
            first = self.find(self.base_offset)
            self.first_timestamp = first.max_timestamp if first else TIMESTAMP_NOT_READ
        return self.first_timestamp

    # -- recovery ----------------------------------------------------------------------------

    def resume(self, position: int, next_offset: int) -> None:
        """Restore the state that appends need, from the batches before `position`."""
        if not (
            self.offset_index.is_sound(self.size) and self.time_index.is_sound(RELATIVE_OFFSET_MAX)
        ):
            position = 0
        self.offset_index.truncate(self.offset_index.count_before(position))
        self.time_index.truncate(self.time_index.count_before(next_offset - self.base_offset))
        self.size_since_entry = position - self.offset_index.last()[1]
        self.indexed_timestamp, relative = self.time_index.last()
        self.max_timestamp, self.offset_of_max = self.indexed_timestamp, self.base_offset + relative
        self._is_timestamp_loaded = True
        # Records after the last entry may have a greater timestamp.
        start = self.find(self.offset_of_max) if position else None
        if start is not None and start.position < position:
            _, _, _, timestamp, offset = segment_walk.walk_to_end(
                self.descriptor, start.position, position
            )
            if timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max = timestamp, offset

    def boundary(self, offset: int) -> int | None:
        """Return the position at which the batch with base offset `offset` is or would be; None if
        no batch ends just before `offset`."""
        if offset == self.base_offset:
            return 0
        before = self.find(offset - 1)
        if before is None or before.last_offset != offset - 1:
            return None
        return before.position + before.size

    def leader_epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of the batch that holds `offset`; None if there is none."""
        found = self.find(offset)
        if found is None:
            return None
        leader_epoch: int = header(self.read(found._replace(size=HEADER_SIZE)))[2]
        return leader_epoch

    def end_offset(self) -> int:
        """Return the offset after the last batch of a closed segment."""
        relative, position = self.offset_index.last()
        start = self.find(self.base_offset + max(0, relative))
        code, at, next_offset, _, _ = segment_walk.walk_to_end(
            self.descriptor, start.position if start else 0, self.size
        )
        if next_offset < 0:
            next_offset = self.base_offset
        if code != AT_END:
            ended = SegmentScan.begin(at, next_offset).step(
                self.descriptor, self.size, self.base_offset
            )
            if ended.code != ZEROS:
                raise KafkaStorageError(self.error_text(code, at))
            # Preallocated space that was truncated, but came back with a power cut.
            self.truncate(at)
        return next_offset

    def scan(
        self,
        position: int,
        next_offset: int,
        leader_epoch: int = LEADER_EPOCHS_KNOWN,
        note: Callable[[SegmentScan], None] | None = None,
        *,
        gaps_to: int = OFFSET_MAX,
    ) -> SegmentScan:
        """Check every batch from a position on and add their index entries.

        The transactions that end there are added by `note`, which knows the producers.  Above
        `gaps_to` no offset may be missing.
        """
        self.resume(position, next_offset)
        step = SegmentScan.begin(
            position, next_offset, self.size_since_entry, self.max_timestamp,
            self.offset_of_max, self.indexed_timestamp, leader_epoch,
        )  # fmt: skip
        while step.code == WHOLE:
            step = step.step(
                self.descriptor, self.size, self.base_offset, self.index_interval, gaps_to
            )
            self.offset_index.extend(step.offset_entries)
            self.time_index.extend(step.time_entries)
            if note is not None:
                note(step)
        self.size_since_entry = step.size_since_entry
        self.max_timestamp, self.offset_of_max = step.max_timestamp, step.offset_of_max
        self.indexed_timestamp = step.indexed_timestamp
        # The last time index entry of a closed segment must be its maximum timestamp.
        self._add_time_entry()
        return step

    def produced_before(self, position: int, size: int) -> list[tuple[int, ...]]:
        """Return the batches of idempotent producers in about `size` bytes before a position, as
        far as they can be read."""
        if not self.offset_index.is_sound(self.size):
            return []
        begin = self.offset_index.floor_position(max(0, position - size))
        found: list[tuple[int, ...]] = []
        step = SegmentScan.begin(begin, self.base_offset)
        while step.code == WHOLE:
            step = SegmentScan.begin(step.position, self.base_offset).step(
                self.descriptor, position, self.base_offset, self.index_interval
            )
            found += step.produced
        return found

    def rebuild(self) -> None:
        """Rebuild both indexes from the batches; on a full disk they stay in memory."""
        self.offset_index.truncate(0)
        self.time_index.truncate(0)
        self.scan(0, self.base_offset)
        try:
            self.write_indexes()
        except OSError as error:
            if error.errno not in DISK_FULL_ERRORS:
                raise

    def end_before(self, position: int) -> int:
        """Return the offset after the last batch before a position at which a batch begins."""
        if position == 0:
            return self.base_offset
        begin = self.offset_index.floor_position(position - 1)
        code, at, next_offset, _, _ = segment_walk.walk_to_end(self.descriptor, begin, position)
        if code != AT_END and begin:
            # The index is wrong, and is rebuilt by `cut`.
            code, at, next_offset, _, _ = segment_walk.walk_to_end(self.descriptor, 0, position)
        if code != AT_END:
            raise KafkaStorageError(self.error_text(code, at))
        return next_offset

    def cut(self, position: int, end_offset: int) -> None:
        """Remove the batches from a position on, and close the segment; flush its files."""
        if not (
            self.offset_index.is_sound(self.size) and self.time_index.is_sound(RELATIVE_OFFSET_MAX)
        ):
            self.rebuild()
        self.resume(position, end_offset)
        if self.transaction_index is not None:
            self.transaction_index.truncate_to(end_offset)
        self.truncate(position)
        self.finish()
        files = [self.file, self.offset_index.file, self.time_index.file]
        if self.transaction_index is not None and self.transaction_index.written:
            files.append(self.transaction_index.file)
        for file in files:
            self._disk.fdatasync(file.fileno())

    def truncate(self, position: int) -> None:
        """Truncate the file to `position`; the indexes must have no entry beyond it."""
        self._disk.ftruncate(self.descriptor, position)
        self.size = self.allocated = position

    # -- closing -----------------------------------------------------------------------------

    def mark_deleted(self) -> list[Path]:
        """Rename the files so that no start opens them; return the paths to delete later."""
        self.release()
        marked = []
        for suffix in (layout.LOG, layout.OFFSET_INDEX, layout.TIME_INDEX, layout.TXN_INDEX):
            path = self.file_path(suffix)
            if path.exists():
                aside = path.with_name(path.name + layout.DELETED)
                self._disk.rename(path, aside)
                marked.append(aside)
        return marked

    def release(self) -> None:
        """Release the files; a reader that holds a slice keeps its file open."""
        if self.open_segments is not None:
            self.open_segments.released(self)
        self._file = None
        self._descriptor = -1
        self.offset_index.release()
        self.time_index.release()
        if self.transaction_index is not None:
            self.transaction_index.release()
