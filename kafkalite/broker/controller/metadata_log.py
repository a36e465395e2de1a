"""MetadataLog: the controller's journal and its snapshots.

A decision is committed once the flush that covers it has completed, whatever `durability` is, and
once it is in the copies in other log directories (metadata_copy.py).

To keep the log short, a load that had to replay many records writes a snapshot: the machine's
fewest records, in a file of the log's directory (snapshot.py), and the log start moves to the
previous snapshot.  So there are always two ways to load: from the newest snapshot or, if that is
damaged, from the previous one, each with the log after it.

Left out: snapshots while running; a node that never restarts replays a longer log when it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalite.broker.controller.metadata_copy import MetadataCopies
from kafkalite.broker.controller.snapshot import (
    LEADER_EPOCH,
    SNAPSHOT,
    encode_batch,
    read_snapshot,
    write_snapshot,
)
from kafkalite.coordination.machine import SnapshotMachine
from kafkalite.errors import CorruptMessage, Fatal, KafkaError, KafkaStorageError, Refusal
from kafkalite.protocol.schemas import internal
from kafkalite.records import batch as record_batch
from kafkalite.storage.files.disk import DISK
from kafkalite.storage.files.layout import file_name
from kafkalite.storage.files.write_back import write_back_failed
from kafkalite.storage.log.log_reader import read

if TYPE_CHECKING:
    from kafkalite.clock import Clock
    from kafkalite.storage.files.flusher import Flusher
    from kafkalite.storage.log.log import Log
    from kafkalite.storage.log.log_flushes import LogFlush

READ_SIZE = 1 << 20
SNAPSHOT_AFTER_COUNT = 10_000
"""Minimum number of records replayed by a load that then writes a snapshot."""

FLUSH_RETRY_MS = 1_000
"""Delay before the retry of a flush that could not begin for lack of a descriptor."""

log = logging.getLogger("kafkalite.broker")


class MetadataLog:
    """The controller's journal."""

    on_commit: Callable[[], object]

    def __init__(
        self,
        log: Log,
        flusher: Flusher,
        clock: Clock,
        call_later: Callable[[int, Callable[[], object]], object],
        copied_to: Sequence[Path] = (),
    ) -> None:
        self.log = log
        self.copies = MetadataCopies(log, copied_to, flusher, call_later, self._copied)
        self._flusher = flusher
        self._clock = clock
        self._call_later = call_later
        self._flushing = False

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.log.end_offset

    @property
    def committed_offset(self) -> int:
        """The offset after the last record that is on the disk, and in the copies."""
        return min(self.log.durable_offset, self.copies.end_offset)

    def append(self, records: Sequence[internal.TypedRecord]) -> None:
        """Append these records as one batch."""
        batch = encode_batch(records, self.log.end_offset, self._clock.wall_ms())
        self.log.append(batch, LEADER_EPOCH, from_client=False)

    def push(self) -> None:
        """Flush the log in the background, one flush after the other, and extend its copies."""
        self.copies.push()
        if self._flushing or self.log.durable_offset >= self.log.end_offset:
            return
        try:
            flush = self.log.flush_begin()
        except KafkaStorageError as error:
            self._schedule_retry(error)
            return
        if flush is not None:
            self._flushing = True
            flush.done = self._flushed
            self._flusher.submit([flush])

    def _schedule_retry(self, error: KafkaStorageError) -> None:
        log.error(
            "Metadata log cannot be flushed; retrying. error=%r retry_ms=%d",
            str(error), FLUSH_RETRY_MS,
        )  # fmt: skip
        self._flushing = True
        self._call_later(FLUSH_RETRY_MS, self._retry_push)

    def _retry_push(self) -> None:
        self._flushing = False
        self.push()

    def _flushed(self, flush: LogFlush) -> None:
        self._flushing = False
        try:
            self.log.flush_end(flush)
        except KafkaStorageError as error:
            self._schedule_retry(error)
            return
        if self.log.failure is not None:
            raise Fatal(f"{self.log.failure}; a broker cannot run without its metadata log")
        self.log.write_index_page()
        self.push()
        self.on_commit()

    def _copied(self) -> None:
        self.on_commit()

    def flush_now(self) -> None:
        """Flush and wait for it: before anything is served."""
        flush = self.log.flush_begin()
        if flush is not None:
            flush.run(DISK)
            if flush.error is not None:
                raise write_back_failed(DISK, self.log.directory, flush.error)
            self.log.flush_end(flush)
        self.copies.extend_now()

    # -- loading -----------------------------------------------------------------------------

    def load(self, machine: SnapshotMachine) -> None:
        """Restore a machine from snapshot and log; raise Refusal if they cannot be read."""
        if self.log.failure is not None:
            raise self._unreadable(self.log.end_offset, self.log.failure)
        begin = self._load_snapshot(machine)
        if not self.log.log_start_offset <= begin <= self.log.end_offset:
            raise self._unreadable(begin, "the log does not reach this offset.")
        offset = begin
        try:
            while offset < self.log.end_offset:
                offset = self._load_from(machine, offset)
        except (KafkaError, OSError) as error:
            raise self._unreadable(offset, error) from None
        if offset - begin >= SNAPSHOT_AFTER_COUNT:
            self._write_snapshot(machine, offset)
        self.copies.renew_now()

    def _unreadable(self, offset: int, reason: object) -> Refusal:
        return Refusal(
            f"the metadata log in {self.log.directory} cannot be read at offset {offset}:"
            f" {str(reason).rstrip('.')}; restore the data directory from a copy, or start with"
            " another one"
        )

    def _load_from(self, machine: SnapshotMachine, offset: int) -> int:
        found = read(self.log, offset, READ_SIZE, self.log.end_offset)
        next_offset = offset
        for batch in record_batch.batches(found.read()) if found is not None else ():
            if batch.header.base_offset > next_offset:
                break
            for record in batch:
                if record.offset >= offset:
                    machine.replay(internal.read(record.value or b""))
            next_offset = batch.header.last_offset + 1
        if next_offset == offset:
            raise CorruptMessage("records are missing at this offset.")
        return next_offset

    def _load_snapshot(self, machine: SnapshotMachine) -> int:
        """Replay the newest valid snapshot; return the offset at which the log continues."""
        for path in sorted(self._snapshots(), reverse=True):
            try:
                records = read_snapshot(path)
            except (KafkaError, OSError) as error:
                log.warning("Snapshot is skipped. path=%s error=%r", path, str(error))
                continue
            for record in records:
                machine.replay(record)
            return int(path.stem)
        return 0

    def _write_snapshot(self, machine: SnapshotMachine, offset: int) -> None:
        path = self.log.directory / file_name(offset, SNAPSHOT)
        try:
            write_snapshot(path, machine.records(), self._clock.wall_ms())
            # A segment that ends at a snapshot can be deleted with the previous snapshot.
            self.log.roll()
            snapshots = sorted(self._snapshots())
            for old in snapshots[:-2]:
                old.unlink()
            if len(snapshots) > 1:
                self.log.delete_records(int(snapshots[-2].stem))
        except (OSError, KafkaStorageError) as error:
            log.warning(
                "Snapshot was not completed; the next start retries it. path=%s error=%r",
                path, str(error),
            )  # fmt: skip

    def _snapshots(self) -> Iterator[Path]:
        return self.log.directory.glob("?" * 20 + SNAPSHOT)
