"""MetadataReader: reads the metadata log's files while the supervisor writes them.

A worker starts without the supervisor: it replays the newest snapshot and the log after it, and
then follows the deltas that it receives.  If it misses one, it reads on here.

Files are not changed or locked.  The supervisor may be in the middle of a write, or have died
during one, so reading ends at the first batch that fails its check; the rest is read later, or was
never committed.  Segments are removed only when two snapshots cover them.

No record is replayed before it is durable: the segment is flushed first, whichever process wrote
it.  Otherwise a worker could create a log and acknowledge records, and a power cut remove the
topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kafkalite._ext import record_batch
from kafkalite.broker.controller.snapshot import SNAPSHOT, read_snapshot
from kafkalite.errors import CorruptMessage, Fatal, KafkaError, Refusal
from kafkalite.protocol.schemas import internal
from kafkalite.records.batch import RecordBatch
from kafkalite.storage.files import layout
from kafkalite.storage.files.disk import DISK, SHORTAGE_ERRORS, Disk, sync_directory
from kafkalite.storage.files.write_back import write_back_failed

log = logging.getLogger("kafkalite.broker")

Replay = Callable[[internal.TypedRecord], None]

OFFSET_MAX = 2**63 - 1
LOAD_ATTEMPTS_MAX = 10
"""Number of times that a file may vanish between listing and opening it."""


class MetadataReader:
    """A reader's position in the metadata log."""

    def __init__(self, directory: Path, disk: Disk = DISK) -> None:
        self.directory = directory
        self._disk = disk
        self._synced_segment = -1
        """The newest segment whose directory entry was flushed."""
        self.offset = 0
        """The offset of the next record."""
        self._segment = -1
        self._position = 0

    def load(self, replay: Replay) -> None:
        """Replay snapshot and log; raise Refusal if they cannot be read."""
        for _ in range(LOAD_ATTEMPTS_MAX):
            try:
                self._load_snapshot(replay)
                self.read_to(replay)
                return
            except FileNotFoundError:
                continue  # the supervisor has just removed old files
            except (OSError, KafkaError) as error:
                raise self._unreadable(error) from None
        raise self._unreadable("its files were replaced while they were read.")

    def _unreadable(self, reason: object) -> Refusal:
        return Refusal(
            f"the metadata log in {self.directory} cannot be read at offset {self.offset}:"
            f" {str(reason).rstrip('.')}; restore the data directory from a copy"
        )

    def _load_snapshot(self, replay: Replay) -> None:
        if self.offset:
            return  # replayed before a file vanished
        for path in sorted(self.directory.glob("?" * 20 + SNAPSHOT), reverse=True):
            try:
                records = read_snapshot(path)
            except CorruptMessage as error:
                log.warning("Snapshot is skipped. path=%s error=%r", path, str(error))
                continue
            for record in records:
                replay(record)
            self.offset = int(path.stem)
            return

    def read_to(self, replay: Replay, end_offset: int = OFFSET_MAX) -> None:
        """Replay what was written since, up to an offset; raise CorruptMessage if it is missing."""
        while self.offset < end_offset and self._read_segment(replay, end_offset):
            pass

    def _read_segment(self, replay: Replay, end_offset: int) -> bool:
        """Read on in the segment of the next record; return whether another segment follows."""
        bases = self._bases()
        number = sum(base <= self.offset for base in bases) - 1
        if number < 0:
            if not bases:
                return False
            raise CorruptMessage(f"it begins at offset {bases[0]}.")
        if bases[number] != self._segment:
            self._segment, self._position = bases[number], 0
        with (self.directory / layout.file_name(self._segment, layout.LOG)).open("rb") as file:
            file.seek(self._position)
            content = file.read()
            if content:
                self._make_durable(file.fileno())
        for batch in _whole_batches(content):
            if batch.header.base_offset >= end_offset:
                break
            if batch.header.base_offset > self.offset:
                raise CorruptMessage("records are missing at this offset.")
            for record in batch if batch.header.last_offset >= self.offset else ():
                if record.offset >= self.offset:
                    replay(internal.read(record.value or b""))
                    self.offset = record.offset + 1
            self._position += batch.header.size
        return number + 1 < len(bases) and bases[number + 1] == self.offset

    def _make_durable(self, descriptor: int) -> None:
        """Flush the segment, and its directory entry if it is new here."""
        try:
            self._disk.fdatasync(descriptor)
            if self._segment != self._synced_segment:
                sync_directory(self._disk, self.directory)
                self._synced_segment = self._segment
        except OSError as error:
            if error.errno in SHORTAGE_ERRORS:
                # No data is known to be lost, so only this process ends and is restarted.
                reason = f"{self.directory} cannot be flushed now: {error.strerror}"
                raise Fatal(reason) from error
            raise write_back_failed(self._disk, self.directory, error) from error

    def _bases(self) -> list[int]:
        if not self.directory.exists():
            return []  # first start: the supervisor has not created it yet
        found = (layout.offset_of(path.name, layout.LOG) for path in self.directory.iterdir())
        return sorted(base for base in found if base is not None)


def _whole_batches(content: bytes) -> list[RecordBatch]:
    """Return the batches before the first one that fails its check."""
    view = memoryview(content)
    found = []
    position = 0
    while len(view) - position >= record_batch.HEADER_SIZE:
        length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        end = position + record_batch.PREFIX_SIZE + length
        if length <= 0 or end > len(view) or record_batch.check(view[position:end]):
            break
        found.append(RecordBatch(view[position:end]))
        position = end
    return found
