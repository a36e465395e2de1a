"""LogSegment: a file of batches, and two indexes into it.

    00000000000000004096.log          batches, one after the other
    00000000000000004096.index        OffsetIndex
    00000000000000004096.timeindex    TimeIndex

`size` is where the file's batches end.  The file itself may be longer: by space set aside ahead
of the writer (zeros), or by what is left of a write that failed; neither is ever read, and the
next write goes over it.  Nothing here is flushed: Log says when, the Flusher does it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkalite._ext import segment_walk
from kafkalite._ext.record_batch import HEADER_SIZE, header
from kafkalite._ext.segment_walk import AT_END, GAP, STORAGE_ERROR, WHOLE, ZEROS
from kafkalite.errors import KafkaStorageError
from kafkalite.records.file_slice import OpenFile
from kafkalite.storage import layout
from kafkalite.storage.disk import NO_ROOM, PASSING, Disk, failed, pwritev_all
from kafkalite.storage.index import OffsetIndex, TimeIndex
from kafkalite.storage.open_segments import OpenSegments

if TYPE_CHECKING:
    from kafkalite.storage.log_flushes import LogFlushes

AHEAD = 4 << 20
AHEAD_FIRST = 64 << 10
"""How far ahead of the writer space is set aside at the most, and in a segment just begun."""

INDEX_PAGE = 4096

RELATIVE_OFFSET_MAX = (1 << 31) - 1
"""What an index can say of an offset."""

LEADER_EPOCHS_KNOWN = RELATIVE_OFFSET_MAX
"""An epoch no batch is newer than."""

NOT_READ = -2
"""No batch bears this timestamp: the first one was not looked at yet."""

NOT_SET_ASIDE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Setting space aside is a favour: without it the write itself has the last word."""


class Found(NamedTuple):
    """A batch, by its header."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class Scanned(NamedTuple):
    """What a scan came upon and what it carries on with (segment_walk.scan)."""

    code: int
    position: int
    next_offset: int
    since_entry: int
    max_timestamp: int
    offset_of_max: int
    timestamp_entered: int
    leader_epoch: int
    batch_count: int
    offset_entries: bytes
    time_entries: bytes
    produced: list[tuple[int, int, int, int, int, int, int]]
    began: list[tuple[int, int]]


class LogSegment:
    """One segment; see the module."""

    __slots__ = ("_descriptor", "_disk", "_file", "_pwritev", "_timestamps_known", "allocated",
                 "base_offset", "created_ms", "directory", "first_timestamp", "flushes",
                 "index_interval",
                 "max_timestamp", "offset_index", "offset_of_max", "open_segments", "path",
                 "since_entry", "size", "time_index", "timestamp_entered")  # fmt: skip

    def __init__(
        self, directory: Path, base_offset: int, disk: Disk, index_interval: int, now_ms: int
    ) -> None:
        self._disk = disk
        self._pwritev = disk.pwritev
        self._file: OpenFile | None = None
        self._descriptor = -1
        self._timestamps_known = False
        self.open_segments: OpenSegments | None = None
        """By whom its files may be closed."""
        self.flushes: LogFlushes | None = None
        """The flushes of its log while it is the active segment; None once it is closed."""
        self.directory = directory
        self.base_offset = base_offset
        self.path = self.file_path(layout.LOG)
        self.offset_index = OffsetIndex(self.file_path(layout.OFFSET_INDEX), disk)
        self.time_index = TimeIndex(self.file_path(layout.TIME_INDEX), disk)
        self.index_interval = index_interval
        self.created_ms = now_ms
        self.since_entry = 0
        self.first_timestamp = NOT_READ
        self.max_timestamp = -1
        self.offset_of_max = base_offset
        self.timestamp_entered = -1
        try:
            self.size = os.stat(self.path).st_size
        except FileNotFoundError:
            self.size = 0
        self.allocated = self.size

    @classmethod
    def create(
        cls, directory: Path, base_offset: int, disk: Disk, index_interval: int, now_ms: int
    ) -> LogSegment:
        """Begin a segment: its three files, empty."""
        for suffix in (layout.LOG, layout.OFFSET_INDEX, layout.TIME_INDEX):
            path = directory / layout.file_name(base_offset, suffix)
            disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC).close()
        segment = cls(directory, base_offset, disk, index_interval, now_ms)
        segment._timestamps_known = True
        return segment

    def __repr__(self) -> str:
        return f"LogSegment({self.path})"

    def file_path(self, suffix: str) -> Path:
        return self.directory / layout.file_name(self.base_offset, suffix)

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
        """The file of batches once more, for reading only: for somebody else, who keeps it."""
        # Held meanwhile: room for a descriptor may be made by releasing this very segment, and its
        # number would then be another file's.
        file = self.file
        path = f"/proc/self/fd/{file.fileno()}"
        return self._opened(lambda: self._disk.open_to_keep(path, os.O_RDONLY, reserved))

    def _opened(self, open_file: Callable[[], OpenFile]) -> OpenFile:
        return open_file() if self.open_segments is None else self.open_segments.open(open_file)

    def share(self, open_segments: OpenSegments, flushes: LogFlushes | None = None) -> None:
        """Have the files closed by `open_segments` when there are too many; with the log's
        `flushes`, as the active segment."""
        self.flushes = flushes
        self.open_segments = open_segments
        self.offset_index.open_segments = self.time_index.open_segments = open_segments

    @property
    def is_active(self) -> bool:
        """True if the segment is appended to."""
        return self.flushes is not None

    @property
    def is_idle(self) -> bool:
        """True if all that was written to the active segment is on the disk."""
        flushes = self.flushes
        return self.size == 0 or (
            flushes is not None
            and flushes.durable_offset > self.base_offset
            and flushes.durable_position == self.size
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
        """Write a batch at the end; raises KafkaStorageError or DiskFailed and then wrote none."""
        position = self.size
        try:
            written = self._pwritev(self.descriptor, (header, body), position)
            if written != size:
                self._go_on(header, body, written)
        except OSError as error:
            self._cut_torn()
            failed(error, f"{self.path} cannot be written")
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.since_entry > self.index_interval:
            self._enter(last_offset, position)
        self.since_entry += size
        self.size = position + size

    def _go_on(self, header: bytearray, body: memoryview, written: int) -> None:
        left = memoryview(bytes(header) + bytes(body))[written:]
        pwritev_all(self._disk, self.descriptor, [left], self.size + written)

    def _cut_torn(self) -> None:
        try:
            self._disk.ftruncate(self.descriptor, self.size)
            self.allocated = self.size
        except OSError:
            # The bytes are not read, the next write goes over them, recovery would cut them.
            pass

    def _enter(self, last_offset: int, position: int) -> None:
        index = self.offset_index
        index.tail += index.pack(last_offset - self.base_offset, position)
        index.count += 1
        self._enter_time()
        self.since_entry = 0

    def _enter_time(self) -> None:
        if self.max_timestamp > self.timestamp_entered:
            index = self.time_index
            index.tail += index.pack(self.max_timestamp, self.offset_of_max - self.base_offset)
            index.count += 1
            self.timestamp_entered = self.max_timestamp

    def set_aside(self, size: int, segment_size_max: int) -> None:
        """Have the file system find room for the next `size` bytes, and some more ahead."""
        # A small partition does not take the room of a large one.
        ahead = min(AHEAD, max(AHEAD_FIRST, self.size))
        wanted = max(size, min(ahead, segment_size_max - self.size))
        try:
            self._disk.posix_fallocate(self.descriptor, self.size, wanted)
        except OSError as error:
            if error.errno not in NOT_SET_ASIDE:
                failed(error, f"{self.path} cannot be written")
        self.allocated = self.size + wanted

    def settle(self, size_min: int = INDEX_PAGE) -> None:
        """Write index entries if more than so many bytes have gathered; what cannot be written now
        waits."""
        if len(self.offset_index.tail) + len(self.time_index.tail) > size_min:
            try:
                self.write_indexes()
            except KafkaStorageError:
                pass
            except OSError as error:
                if error.errno not in PASSING:
                    failed(error, f"{self.offset_index.path} cannot be written")

    def write_indexes(self) -> None:
        self.offset_index.write()
        self.time_index.write()

    def finish(self) -> None:
        """Nothing more is appended: the indexes are written whole, and what is beyond is cut."""
        self.load_timestamps()
        if self.size:
            self._enter_time()
        self.write_indexes()
        self.trim()

    def indexes_full(self, size_max: int) -> bool:
        """Return whether an index of at most so many bytes has no place for another entry."""
        # The time index keeps a place for the entry that closes the segment.
        return (
            self.offset_index.count >= size_max // 8
            or self.time_index.count >= size_max // 12 - 1
        )

    def trim(self) -> None:
        """Give back what was set aside."""
        if self.file_size != self.size:
            self._disk.ftruncate(self.descriptor, self.size)
        self.allocated = self.size

    @property
    def file_size(self) -> int:
        # Most logs are not written to between a start and an end, and are not opened for this.
        if self._descriptor < 0:
            return self.path.stat().st_size
        return os.fstat(self._descriptor).st_size

    # -- reading -----------------------------------------------------------------------------

    def find(self, offset: int) -> Found | None:
        """The batch that holds this offset, or the next one; None when they all end before."""
        if self.open_segments is not None:
            self.open_segments.used(self)
        expected, position = -1, 0
        if offset > self.base_offset:
            if not self.offset_index.sound(self.size):
                self.rebuild()
            relative, position = self.offset_index.floor(offset - self.base_offset)
            expected = self.base_offset + relative if relative >= 0 else -1
        code, *found = segment_walk.find_offset(
            self.descriptor, position, self.size, offset, expected
        )
        if code != WHOLE and code != AT_END and position:
            # The index says what the segment does not: walk, then have a true index again.
            code, *found = segment_walk.find_offset(self.descriptor, 0, self.size, offset)
            if code in (WHOLE, AT_END):
                self.rebuild()
        if code == WHOLE:
            return Found(*found)
        if code == AT_END:
            return None
        raise KafkaStorageError(self.fault(code, found[0]))

    def find_timestamp(self, timestamp: int, offset: int) -> Found | None:
        """The first batch with a record at this time or later, among those at `offset` on."""
        start = self.find(max(self._time_floor(timestamp), offset))
        if start is None:
            return None
        code, position, size = segment_walk.find_timestamp(
            self.descriptor, start.position, self.size, timestamp, offset
        )
        if code == AT_END:
            return None
        if code != WHOLE:
            raise KafkaStorageError(self.fault(code, position))
        return Found(position, size, -1, -1, -1)

    def _time_floor(self, timestamp: int) -> int:
        if not self.time_index.sound(RELATIVE_OFFSET_MAX):
            self.rebuild()
        return self.base_offset + self.time_index.floor(timestamp)[1]

    def read(self, found: Found) -> bytes:
        """A whole batch, for the few times its records are looked at."""
        try:
            batch = os.pread(self.descriptor, found.size, found.position)
        except OSError as error:
            raise KafkaStorageError(self.fault(STORAGE_ERROR, found.position)) from error
        if len(batch) != found.size:
            raise KafkaStorageError(self.fault(segment_walk.TORN, found.position))
        return batch

    def fault(self, code: int, position: int) -> str:
        """What a walk came upon, as a sentence."""
        if code == GAP:
            return f"{self.path} lacks offsets before byte {position}"
        if code == STORAGE_ERROR:
            return f"{self.path} cannot be read at byte {position}"
        return f"{self.path} is damaged at byte {position}"

    def load_timestamps(self) -> None:
        """Know the greatest timestamp and the first; a closed segment's last entry says it."""
        if self._timestamps_known:
            return
        self._timestamps_known = True
        timestamp, relative = self.time_index.last()
        if not self.time_index.sound(RELATIVE_OFFSET_MAX):
            self.rebuild()
        else:
            self.max_timestamp, self.offset_of_max = timestamp, self.base_offset + relative
            self.timestamp_entered = timestamp
        # Retention asks this of some segment of every log, and most are asked nothing else.
        self.time_index.release()

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of a record, or when the file last changed if none has one."""
        self.load_timestamps()
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return int(self.path.stat().st_mtime * 1000)

    def age_ms(self, timestamp: int, now_ms: int) -> int:
        """How long this segment has been filled: between records' times, else by the clock."""
        if self.size == 0:
            return 0
        if self.first_timestamp == NOT_READ:
            first = self.find(self.base_offset)
            self.first_timestamp = first.max_timestamp if first else NOT_READ
        if self.first_timestamp >= 0 and timestamp >= 0:
            return timestamp - self.first_timestamp
        return now_ms - self.created_ms

    # -- taking up what is there -------------------------------------------------------------

    def resume(self, position: int, next_offset: int) -> None:
        """Know of the batches before `position` what an appender must know."""
        if not (self.offset_index.sound(self.size) and self.time_index.sound(RELATIVE_OFFSET_MAX)):
            position = 0
        self.offset_index.cut(self.offset_index.count_before(position))
        self.time_index.cut(self.time_index.count_before(next_offset - self.base_offset))
        self.since_entry = position - self.offset_index.last()[1]
        self.timestamp_entered, relative = self.time_index.last()
        self.max_timestamp, self.offset_of_max = self.timestamp_entered, self.base_offset + relative
        self._timestamps_known = True
        # Records after the last entry may be newer still.
        start = self.find(self.offset_of_max) if position else None
        if start is not None and start.position < position:
            _, _, _, timestamp, offset = segment_walk.walk_to_end(
                self.descriptor, start.position, position
            )
            if timestamp > self.max_timestamp:
                self.max_timestamp, self.offset_of_max = timestamp, offset

    def boundary(self, offset: int) -> int | None:
        """The position at which the batch that begins with `offset` stands, or would; None when
        no batch ends just before it."""
        if offset == self.base_offset:
            return 0
        before = self.find(offset - 1)
        if before is None or before.last_offset != offset - 1:
            return None
        return before.position + before.size

    def leader_epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch under which a record was appended; None if it is not there."""
        found = self.find(offset)
        if found is None:
            return None
        leader_epoch: int = header(self.read(found._replace(size=HEADER_SIZE)))[2]
        return leader_epoch

    def end_offset(self) -> int:
        """The offset after the last batch, of a segment that is closed."""
        relative, position = self.offset_index.last()
        start = self.find(self.base_offset + max(0, relative))
        code, at, next_offset, _, _ = segment_walk.walk_to_end(
            self.descriptor, start.position if start else 0, self.size
        )
        if next_offset < 0:
            next_offset = self.base_offset
        if code != AT_END:
            ended = Scanned(
                *segment_walk.scan(
                    self.descriptor, at, self.size, self.base_offset, next_offset, 0, 0, 0, 0, 0,
                    LEADER_EPOCHS_KNOWN,
                )
            )  # fmt: skip
            if ended.code != ZEROS:
                raise KafkaStorageError(self.fault(code, at))
            # Space set aside and cut off again, which a power cut has undone.
            self.cut(at)
        return next_offset

    def scan(
        self,
        position: int,
        next_offset: int,
        leader_epoch: int = LEADER_EPOCHS_KNOWN,
        note: Callable[[Scanned], None] | None = None,
        *,
        gapless: bool = False,
    ) -> Scanned:
        """Check every batch from here on and make their index entries again."""
        self.resume(position, next_offset)
        step = Scanned(
            WHOLE, position, next_offset, self.since_entry, self.max_timestamp,
            self.offset_of_max, self.timestamp_entered, leader_epoch, 0, b"", b"", [], [],
        )  # fmt: skip
        while step.code == WHOLE:
            step = Scanned(
                *segment_walk.scan(
                    self.descriptor, step.position, self.size, self.base_offset, step.next_offset,
                    self.index_interval, step.since_entry, step.max_timestamp, step.offset_of_max,
                    step.timestamp_entered, step.leader_epoch, gapless,
                )
            )  # fmt: skip
            self.offset_index.extend(step.offset_entries)
            self.time_index.extend(step.time_entries)
            if note is not None:
                note(step)
        self.since_entry = step.since_entry
        self.max_timestamp, self.offset_of_max = step.max_timestamp, step.offset_of_max
        self.timestamp_entered = step.timestamp_entered
        # The last entry is believed to be the segment's greatest, once it is closed.
        self._enter_time()
        return step

    def produced_before(self, position: int, size: int) -> list[tuple[int, ...]]:
        """What idempotent producers wrote in about so many bytes before a position, as far as it
        can be read."""
        if not self.offset_index.sound(self.size):
            return []
        begin = self.offset_index.floor_position(max(0, position - size))
        found: list[tuple[int, ...]] = []
        code = WHOLE
        while code == WHOLE:
            step = Scanned(
                *segment_walk.scan(
                    self.descriptor, begin, position, self.base_offset, self.base_offset,
                    self.index_interval, 0, 0, 0, 0, LEADER_EPOCHS_KNOWN,
                )
            )  # fmt: skip
            found += step.produced
            code, begin = step.code, step.position
        return found

    def rebuild(self) -> None:
        """Make both indexes again from the batches; on a full disk they stay in memory."""
        self.offset_index.cut(0)
        self.time_index.cut(0)
        self.scan(0, self.base_offset)
        try:
            self.write_indexes()
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def cut(self, position: int) -> None:
        """Drop every byte from here on; the indexes hold nothing of it."""
        self._disk.ftruncate(self.descriptor, position)
        self.size = self.allocated = position

    # -- leaving -----------------------------------------------------------------------------

    def mark_deleted(self) -> list[Path]:
        """Rename the files so that no start takes them up; answers what to remove later."""
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
        """Let go of the files; who holds a slice of one keeps it open."""
        if self.open_segments is not None:
            self.open_segments.released(self)
        self._file = None
        self._descriptor = -1
        self.offset_index.release()
        self.time_index.release()
