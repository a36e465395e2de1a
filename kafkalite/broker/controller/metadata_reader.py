"""MetadataReader: the metadata log, read as its files stand, beside the supervisor that writes it.

A worker starts without asking anybody: it replays the newest snapshot and the log behind it, and
then follows by the deltas it is sent.  Should it miss one, it reads on here.

Nothing is changed and nothing is locked.  The supervisor may be in the middle of a write, or have
died there, so reading ends at the first batch that does not check; what is behind it comes later,
or never was.  Segments are only removed when two snapshots stand for what was in them.

No record is replayed before it is durable: what was read is flushed first, whoever wrote it.  Else
a worker could create a log and acknowledge records to it, and a power cut take the topic away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from kafkalite._ext import record_batch
from kafkalite.broker.controller.metadata_log import SNAPSHOT, read_snapshot
from kafkalite.errors import CorruptMessage, Fatal, KafkaError, Refusal
from kafkalite.protocol.schemas import internal
from kafkalite.records.batch import RecordBatch
from kafkalite.storage import layout
from kafkalite.storage.disk import DISK, SHORTAGES, Disk, sync_directory
from kafkalite.storage.write_back import write_back_failed

log = logging.getLogger("kafkalite.broker")

Replay = Callable[[internal.Record], None]

OFFSET_MAX = 2**63 - 1
ROLLED_TIMES_MAX = 10
"""How often a file may vanish between its being listed and its being opened."""


class MetadataReader:
    """Where in the metadata log a follower is; see the module."""

    def __init__(self, directory: Path, disk: Disk = DISK) -> None:
        self.directory = directory
        self._disk = disk
        self._named = -1
        """The newest segment whose name was flushed."""
        self.offset = 0
        """The offset of the next record."""
        self._segment = -1
        self._position = 0

    def load(self, replay: Replay) -> None:
        """Replay all there is; Refusal says why that cannot be."""
        for _ in range(ROLLED_TIMES_MAX):
            try:
                self._load_snapshot(replay)
                self.read_on(replay)
                return
            except FileNotFoundError:
                continue  # the supervisor has just tidied up
            except (OSError, KafkaError) as fault:
                raise self._unreadable(fault) from None
        raise self._unreadable("its files come and go.")

    def _unreadable(self, reason: object) -> Refusal:
        return Refusal(
            f"the metadata log in {self.directory} cannot be read at offset {self.offset}:"
            f" {str(reason).rstrip('.')}; restore the data directory from a copy"
        )

    def _load_snapshot(self, replay: Replay) -> None:
        if self.offset:
            return  # replayed already, before a file vanished
        for path in sorted(self.directory.glob("?" * 20 + SNAPSHOT), reverse=True):
            try:
                records = read_snapshot(path)
            except CorruptMessage as fault:
                log.warning("%s is passed over: %s", path, fault)
                continue
            for record in records:
                replay(record)
            self.offset = int(path.stem)
            return

    def read_on(self, replay: Replay, end_offset: int = OFFSET_MAX) -> None:
        """Replay what has been written since, up to an offset; CorruptMessage if it is not there
        any more."""
        while self.offset < end_offset and self._read_segment(replay, end_offset):
            pass

    def _read_segment(self, replay: Replay, end_offset: int) -> bool:
        """Read on in the segment that holds the next record; whether another follows it."""
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
                raise CorruptMessage("records are missing there.")
            for record in batch if batch.header.last_offset >= self.offset else ():
                if record.offset >= self.offset:
                    replay(internal.read(record.value or b""))
                    self.offset = record.offset + 1
            self._position += batch.header.size
        return number + 1 < len(bases) and bases[number + 1] == self.offset

    def _make_durable(self, descriptor: int) -> None:
        """Flush the segment, and its name where it is new here."""
        try:
            self._disk.fdatasync(descriptor)
            if self._segment != self._named:
                sync_directory(self._disk, self.directory)
                self._named = self._segment
        except OSError as error:
            if error.errno in SHORTAGES:
                # Nothing is known to be lost, so this process ends alone and starts again.
                reason = f"{self.directory} cannot be flushed now: {error.strerror}"
                raise Fatal(reason) from error
            raise write_back_failed(self._disk, self.directory, error) from error

    def _bases(self) -> list[int]:
        if not self.directory.exists():
            return []  # the first start of all, and the supervisor is about to make it
        found = (layout.offset_of(path.name, layout.LOG) for path in self.directory.iterdir())
        return sorted(base for base in found if base is not None)


def _whole_batches(content: bytes) -> list[RecordBatch]:
    """The batches up to the first that does not check."""
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
