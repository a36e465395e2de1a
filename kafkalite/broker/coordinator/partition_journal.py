"""PartitionJournal: a coordinator's journal in a partition of an internal topic.

This node leads the partition, and clients may read it.  The records are Kafka's own, with keys; the
last one of a key is valid.  A decision is committed when the high watermark has passed it, so it is
as safe as the topic's `durability` makes it, and on every in-sync replica.

The records of a transaction are a batch of its producer.  The leader of the partition appends its
marker, and passes it to the machine by the MarkerListener.

The log cleaner removes what later records have replaced (docs/design/compaction.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kafkalite.broker.coordinator.journal_loader import JournalLoader, RecordCodec
from kafkalite.broker.replica.delayed_operation import DelayedOperation, WatchedPartition
from kafkalite.coordination.machine import TransactionalRecord
from kafkalite.records import batch as record_batch

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.coordination.machine import StateMachine
    from kafkalite.transport.reactor import Reactor


class PartitionJournal:
    """A journal in a partition of an internal topic."""

    on_commit: Callable[[], object]

    def __init__(
        self,
        partition: Partition,
        replicas: ReplicaManager,
        reactor: Reactor,
        codec: RecordCodec,
    ) -> None:
        self.partition = partition
        self._replicas = replicas
        self._reactor = reactor
        self._codec = codec
        self.on_commit = lambda: None
        self._listener = HighWatermarkListener(self)
        partition.waiting[self._listener] = None

    def close(self) -> None:
        """Report no more commits: the partition is led here no longer."""
        self.partition.waiting.pop(self._listener, None)
        self.on_commit = lambda: None

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.partition.log.end_offset

    @property
    def committed_offset(self) -> int:
        """The offset after the last record that the topic's durability holds for."""
        return self.partition.high_watermark

    def append(self, records: Sequence[Any]) -> None:
        """Append these records as one batch; those of a transaction as one of its producer.

        Raises NotEnoughReplicas if they could not be committed now.
        """
        if self.partition.replication is not None:
            self.partition.replication.check_min_isr()
        producer_id = producer_epoch = -1
        guard = None
        if isinstance(records[0], TransactionalRecord):
            _, producer_id, producer_epoch, guard = first = records[0]
            assert all(each[1:] == first[1:] for each in records), "one transaction"
            records = [each.record for each in records]
        now_ms = self._reactor.clock.wall_ms()
        batch = record_batch.build_at(
            now_ms,
            map(self._codec.write, records),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        self._replicas.append_own(self.partition, batch, guard)

    def push(self) -> None:
        """Do nothing: the end of the tick flushes what must be flushed."""

    def load(self, machine: StateMachine) -> Iterator[int]:
        """Replay the log, in steps of about a millisecond; see JournalLoader.steps."""
        return JournalLoader(self.partition, self._codec, machine).steps()


class HighWatermarkListener(DelayedOperation):
    """Notifies the journal of each change of its partition; stays registered with it."""

    is_urgent = True

    def __init__(self, journal: PartitionJournal) -> None:
        self._journal = journal

    def check(self, partition: WatchedPartition) -> bool:
        self._journal.on_commit()
        return False
