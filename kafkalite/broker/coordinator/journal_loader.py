"""JournalLoader: replays the records of a coordinator's partition into its state machine.

Only the last valid record of each key is replayed.  A record of a transaction is valid if the
transaction was committed, and replaces only records that are before it in the log.  Records of
transactions that are still open are replayed as pending ones.  So the log cleaner may remove all
other records, before a load and once during it.  If records are cumulative, all are replayed.

A record that cannot be decoded is skipped and logged, so that the others can be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext import journal_scan
from kafkalite._ext.journal_scan import JournalScan
from kafkalite.coordination.machine import TransactionalRecord
from kafkalite.errors import (
    CorruptMessage,
    KafkaStorageError,
    UnsupportedVersion,
    raise_for,
)
from kafkalite.records.batch import RECORDS_DIFFER, batches
from kafkalite.storage.log.log_reader import read

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.coordination.machine import StateMachine

READ_SIZE = 256 << 10
"""Number of bytes in a step of reading."""
STEP_SIZE, RECORD_SIZE = 16 << 10, 160
"""Size of the records in a step of replaying, and size of a record besides its value: a step has
about a hundred small records, or a single large one."""

log = logging.getLogger("kafkalite.broker")


class RecordCodec(NamedTuple):
    """Conversion of a machine's records to keys and values, and back."""

    write: Callable[[Any], tuple[bytes, bytes | None]]
    read: Callable[[bytes, bytes | None], Any]
    """Returns None for a record of a kind that is not the machine's."""
    is_transactional: bool = False
    """Records can be part of transactions; the machine replays TransactionalRecord and
    TransactionEnd."""
    is_cumulative: bool = False
    """A record adds to the earlier ones of its key, so all of them are replayed."""


class PendingRecord(NamedTuple):
    """A record of a transaction that is open at the end of the log."""

    offset: int
    key: bytes
    value: bytes | None
    producer_id: int
    producer_epoch: int


class JournalLoader:
    """One load of a machine."""

    def __init__(self, partition: Partition, codec: RecordCodec, machine: StateMachine) -> None:
        self._partition = partition
        self._codec = codec
        self._machine = machine
        self._scan = JournalScan(codec.is_transactional)
        self._next_offset = 0
        self._step_size = 0
        self._replayed_count = 0
        self._skipped_count = 0

    def steps(self) -> Iterator[int]:
        """Load in steps of about a millisecond; yield the number of records replayed so far.

        Nothing may be appended meanwhile.  A KafkaError means that the log is damaged and its
        content unknown.
        """
        if self._codec.is_cumulative:
            yield from self._replay_all()
        else:
            yield from self._replay_last()
        if self._skipped_count > 1:
            log.error(
                "Coordinator records are skipped: they cannot be decoded. partition=%s records=%d",
                self._partition, self._skipped_count,
            )  # fmt: skip
        yield self._replayed_count

    def _replay_all(self) -> Iterator[int]:
        for content in self._contents():
            for batch in batches(content):
                for record in () if batch.header.is_control else batch.records():
                    if record.key is not None:
                        self._replay(record.key, record.value)
                        if self._ends_step(record.value):
                            yield self._replayed_count
                self._next_offset = batch.header.last_offset + 1
            yield self._replayed_count

    def _replay_last(self) -> Iterator[int]:
        for content in self._contents():
            self._scan_batches(content)
            self._next_offset = self._scan.next_offset
            yield 0
        for key, value, pending in self._last_records():
            self._replay(key, value, pending)
            if self._ends_step(value):
                yield self._replayed_count

    def _ends_step(self, value: bytes | None) -> bool:
        self._step_size += RECORD_SIZE + len(value or b"")
        if self._step_size < STEP_SIZE:
            return False
        self._step_size = 0
        return True

    def _contents(self) -> Iterator[bytes]:
        """Yield the bytes from the next offset on, until it is the end of the log."""
        stored = self._partition.log
        if stored.failure is not None:
            raise KafkaStorageError(stored.failure)
        self._next_offset = stored.log_start_offset
        while self._next_offset < stored.end_offset:
            offset = self._next_offset
            try:
                found = read(stored, offset, READ_SIZE, stored.end_offset)
                content = found.read() if found is not None else b""
            except OSError as error:
                reason = f"{stored.directory} cannot be read at offset {offset}: {error.strerror}"
                raise KafkaStorageError(reason) from error
            yield content
            if self._next_offset <= offset:
                raise CorruptMessage(f"{stored.directory} cannot be read at offset {offset}.")

    def _scan_batches(self, content: bytes) -> None:
        """Scan whole batches; an incomplete last one is ignored."""
        scan = self._scan
        code, position = scan.run(content)
        while code == journal_scan.COMPRESSED:
            batch = next(batches(memoryview(content)[position:]))
            raise_for(scan.add_payload(batch.view, batch.payload()), RECORDS_DIFFER)
            code, position = scan.run(content, position + len(batch))
        if code != journal_scan.AT_END:
            raise_for(code)

    def _last_records(self) -> Iterator[tuple[bytes, bytes | None, PendingRecord | None]]:
        """Yield the last record of each key, and the pending ones before and after it."""
        latest = self._scan.latest
        pending = sorted(
            PendingRecord(offset, key, value, producer_id, epoch)
            for producer_id, records in self._scan.pending.items()
            for key, (offset, value, epoch) in records.items()
        )
        for each in pending:
            if each.key in latest and each.offset < latest[each.key][0]:
                yield each.key, each.value, each
        for key, (_, value) in latest.items():
            yield key, value, None
        for each in pending:
            if each.key not in latest or each.offset > latest[each.key][0]:
                yield each.key, each.value, each

    def _replay(
        self, key: bytes, value: bytes | None, pending: PendingRecord | None = None
    ) -> None:
        try:
            record = self._codec.read(key, value)
        except (CorruptMessage, UnsupportedVersion) as error:
            self._skipped_count += 1
            if self._skipped_count == 1:
                log.error(
                    "Coordinator record is skipped: it cannot be decoded. partition=%s error=%r",
                    self._partition, str(error),
                )  # fmt: skip
            return
        if record is not None:
            if pending is not None:
                record = TransactionalRecord(record, pending.producer_id, pending.producer_epoch)
            self._machine.replay(record)
        self._replayed_count += 1
