"""PartitionJournal: a coordinator's journal in a partition of an internal topic.

This node leads the partition, and clients may read it.  The records are Kafka's own, with keys; the
last one of a key is valid.  A decision is committed when the high watermark has passed it, so it is
as safe as the topic's `durability` makes it.

The records of a transaction are one batch of its producer; its marker is written in their order by
the leader of the partition, with a MarkerListener that passes it to the machine.

The log cleaner skips internal topics: the journal rewrites itself.  Once enough was written since
the last time, the machine's live records are appended to the log in steps between other work, and
when they are on the disk the log start moves to the first of them:

    ░░░░░░░░░░░░░ old ░░░░░░░░░░░░░│ live records, and decisions made meanwhile │ …
                                   ╰ the new log start

Each record is complete in itself and later ones of its key follow in order, so reading from there
restores the same state.  A crash in between leaves the log start as it was.

The record of a key with a pending offset (TransactionalRecord) is written only once the transaction
has ended: a copy behind the pending record would seem to have replaced it.  So when the log start
moves, no earlier record is undecided.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from kafkalite.broker.coordinator.journal_loader import JournalLoader, RecordCodec
from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.coordination.machine import TransactionalRecord
from kafkalite.errors import KafkaError, KafkaStorageError
from kafkalite.records import batch as record_batch

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.coordination.machine import StateMachine
    from kafkalite.storage.flusher import Flusher
    from kafkalite.storage.log_flushes import LogFlush
    from kafkalite.transport.reactor import Reactor

REWRITE_AFTER_SIZE = 16 << 20
"""Minimum number of bytes written before live records are rewritten."""
REWRITE_COUNT = 200
"""Number of live records written per step: about a millisecond."""
REWRITE_PAUSE_MS = 5
REWRITE_WAIT_MS = 50
"""Interval of checks whether the transactions that a rewrite waits for have ended."""
REWRITE_RETRY_MS = 60_000

log = logging.getLogger("kafkalite.broker")


class PartitionJournal:
    """A journal in a partition of an internal topic."""

    on_commit: Callable[[], object]

    def __init__(
        self,
        partition: Partition,
        replicas: ReplicaManager,
        flusher: Flusher,
        reactor: Reactor,
        codec: RecordCodec,
    ) -> None:
        self.partition = partition
        self._replicas = replicas
        self._flusher = flusher
        self._reactor = reactor
        self._codec = codec
        self._written_size = partition.log.size  # since the last rewrite
        self._rewritten_size = 0
        self._rewriting = False
        self.on_commit = lambda: None
        partition.waiting[HighWatermarkListener(self)] = None

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.partition.log.end_offset

    @property
    def committed_offset(self) -> int:
        """The offset after the last record that the topic's durability holds for."""
        return self.partition.high_watermark

    def append(self, records: Sequence[Any]) -> None:
        """Append these records as one batch; those of a transaction as one of its producer."""
        producer_id = producer_epoch = -1
        guard = None
        if isinstance(records[0], TransactionalRecord):
            _, producer_id, producer_epoch, guard = first = records[0]
            assert all(each[1:] == first[1:] for each in records), "one transaction"
            records = [each.record for each in records]
        now_ms = self._reactor.clock.wall_ms()
        batch = record_batch.build(
            (
                record_batch.Record(timestamp=now_ms, key=key, value=value)
                for key, value in map(self._codec.write, records)
            ),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        self._replicas.append_own(self.partition, batch, guard)
        self.note_written(len(batch))

    def note_written(self, size: int) -> None:
        """Note bytes that were appended to the partition."""
        self._written_size += size

    def push(self) -> None:
        """Do nothing: the end of the tick flushes what must be flushed."""

    def load(self, machine: StateMachine) -> Iterator[int]:
        """Replay the log, in steps of about a millisecond; see JournalLoader.steps."""
        return JournalLoader(self.partition, self._codec, machine).steps()

    # -- rewriting the live records ----------------------------------------------------------

    def rewrite_if_large(self, machine: StateMachine) -> None:
        """Begin to rewrite the live records, if enough was written since the last time."""
        if self._rewriting or self._written_size < max(
            REWRITE_AFTER_SIZE, 2 * self._rewritten_size
        ):
            return
        self._rewriting = True
        try:
            self.partition.log.roll()
        except KafkaStorageError as error:
            self._retry_later(error)
            return
        self._written_size = 0
        self._rewrite(machine.records(), self.end_offset)

    def _rewrite(self, left: Iterator[Any], begin: int) -> None:
        if self.partition.error is not None:
            return  # it is deleted or closed
        some: list[Any] = []
        pause_ms = None
        for record in islice(left, REWRITE_COUNT):
            if record is None:
                pause_ms = REWRITE_WAIT_MS
                break
            some.append(record)
            pause_ms = REWRITE_PAUSE_MS
        try:
            if some:
                self.append(some)
            if pause_ms is not None:
                self._reactor.call_later(pause_ms, lambda: self._rewrite(left, begin))
                return
            self._rewritten_size = self._written_size
            flush = self.partition.log.flush_begin()
        except KafkaError as error:
            self._retry_later(error)
            return
        if flush is None:
            self._delete_before(begin)
            return
        flush.done = lambda flush: self._flushed(flush, begin)
        self._flusher.submit([flush])

    def _flushed(self, flush: LogFlush, begin: int) -> None:
        try:
            self.partition.log.flush_end(flush)
        except KafkaError as error:
            self._retry_later(error)
            return
        if self.partition.error is None:
            self._delete_before(begin)

    def _delete_before(self, offset: int) -> None:
        self._rewriting = False
        try:
            self.partition.log.delete_records(offset)
        except KafkaError as error:
            log.warning(
                "Old coordinator records are not deleted yet. partition=%s error=%r",
                self.partition, str(error),
            )  # fmt: skip
        else:
            log.info(
                "Coordinator log was rewritten. partition=%s log_start_offset=%d",
                self.partition, offset,
            )  # fmt: skip

    def _retry_later(self, error: KafkaError) -> None:
        log.warning(
            "Coordinator log cannot be rewritten now; retrying later. partition=%s error=%r",
            self.partition, str(error),
        )  # fmt: skip

        def end_wait() -> None:
            self._rewriting = False

        self._reactor.call_later(REWRITE_RETRY_MS, end_wait)


class HighWatermarkListener(DelayedOperation):
    """Notifies the journal of each change of its partition; stays registered with it."""

    is_urgent = True

    def __init__(self, journal: PartitionJournal) -> None:
        self._journal = journal

    def check(self, partition: WatchedPartition) -> bool:
        self._journal.on_commit()
        return False
