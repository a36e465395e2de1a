"""JournalLoader: replays the records of a coordinator's partition into its state machine.

Without transactions, only the last record of each key is replayed.  From a transaction's first
record to its marker, the records of all keys are replayed in the order of the log, because whether
a record is valid depends on the outcome of the transaction and on what came in between.

A record that cannot be decoded is skipped and logged, so that the others can be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite._ext.record_batch import control_record
from kafkalite.coordination.machine import TransactionalRecord, TransactionEnd
from kafkalite.errors import CorruptMessage, KafkaStorageError, UnsupportedVersion
from kafkalite.records import batch as record_batch
from kafkalite.records.control import ControlType
from kafkalite.storage.log_reader import read

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.coordination.machine import StateMachine

READ_SIZE = 1 << 20
LOAD_COUNT = 100
"""Number of records in a step of loading."""

log = logging.getLogger("kafkalite.broker")


class RecordCodec(NamedTuple):
    """Conversion of a machine's records to keys and values, and back."""

    write: Callable[[Any], tuple[bytes, bytes | None]]
    read: Callable[[bytes, bytes | None], Any]
    """Returns None for a record of a kind that is not the machine's."""
    is_transactional: bool = False
    """Records can be part of transactions; the machine replays TransactionalRecord and
    TransactionEnd."""


class JournalLoader:
    """One load of a machine."""

    def __init__(self, partition: Partition, codec: RecordCodec, machine: StateMachine) -> None:
        self._partition = partition
        self._codec = codec
        self._machine = machine
        self._latest: dict[bytes, bytes | None] = {}
        """The last record of each key since the last transaction."""
        self._open: set[int] = set()
        """The producers with an open transaction."""
        self._replayed_count = 0
        self._skipped_count = 0

    def steps(self) -> Iterator[int]:
        """Load in steps of about a millisecond; yield the number of records replayed so far.

        Nothing may be appended meanwhile.  A KafkaError means that the log is damaged and its
        content unknown.
        """
        read_count = 0
        for batch in self._batches():
            header = batch.header
            if header.is_control:
                self._end_transaction(batch)
                continue
            if header.is_transactional and self._codec.is_transactional:
                yield from self._replay_latest()
                self._open.add(header.producer_id)
            for record in batch.records():
                if record.key is not None:
                    if not self._open:
                        self._latest[record.key] = record.value
                    elif header.is_transactional:
                        self._replay(record.key, record.value, header)
                    else:
                        self._replay(record.key, record.value)
                if read_count % LOAD_COUNT == 0:
                    yield self._replayed_count
                read_count += 1
        yield from self._replay_latest()
        if self._skipped_count > 1:
            log.error(
                "Coordinator records are skipped: they cannot be decoded. partition=%s records=%d",
                self._partition, self._skipped_count,
            )  # fmt: skip
        yield self._replayed_count

    def _batches(self) -> Iterator[record_batch.RecordBatch]:
        stored = self._partition.log
        if stored.failure is not None:
            raise KafkaStorageError(stored.failure)
        offset = stored.log_start_offset
        while offset < stored.end_offset:
            try:
                found = read(stored, offset, READ_SIZE, stored.end_offset)
                content = found.read() if found is not None else b""
            except OSError as error:
                reason = f"{stored.directory} cannot be read at offset {offset}: {error.strerror}"
                raise KafkaStorageError(reason) from error
            next_offset = offset
            for batch in record_batch.batches(content):
                yield batch
                next_offset = batch.header.last_offset + 1
            if next_offset == offset:
                raise CorruptMessage(f"{stored.directory} cannot be read at offset {offset}.")
            offset = next_offset

    def _end_transaction(self, batch: record_batch.RecordBatch) -> None:
        control_type, _ = control_record(batch.view)
        if control_type not in (ControlType.ABORT, ControlType.COMMIT):
            return  # emptied by compaction, or of a type that readers ignore
        if batch.header.producer_id in self._open:
            self._open.remove(batch.header.producer_id)
            is_commit = control_type == ControlType.COMMIT
            self._machine.replay(TransactionEnd(batch.header.producer_id, is_commit))

    def _replay_latest(self) -> Iterator[int]:
        latest, self._latest = self._latest, {}
        for number, (key, value) in enumerate(latest.items()):
            self._replay(key, value)
            if number % LOAD_COUNT == 0:
                yield self._replayed_count

    def _replay(
        self, key: bytes, value: bytes | None, header: record_batch.BatchHeader | None = None
    ) -> None:
        """Replay a record, which is part of a transaction if a header is given."""
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
            if header is not None:
                record = TransactionalRecord(record, header.producer_id, header.producer_epoch)
            self._machine.replay(record)
        self._replayed_count += 1
