"""LateTransactions: finds transactions that no coordinator will end, and ends them.

    open for too long,                does a coordinator      ╭▶ it is open: nothing
    or since before a power cut ─▶    know it?               ─┼▶ it was committed: commit
                                                              ╰▶ unknown: abort

An open transaction holds back the last stable offset.  Its coordinator ends it after a timeout at
the latest, unless it has forgotten it: a power cut can take the coordinator's records and leave
those of the partition (`durability=os`).  So each node reports to the coordinators the transactions
that are open for longer than any timeout allows, and all that were open when the host lost power.

The same power cut can take a partition's marker and leave the coordinator's record that all markers
are written.  Such a transaction is committed here as well, if the coordinator still knows that it
was.

What is unknown is aborted as Kafka's tool aborts a hanging transaction (KIP-664): a marker with the
producer's epoch.  It is left alone if the producer has written since the report, because then it
may have added the partition again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kafkalite.broker.future import Future
from kafkalite.broker.stepping import Work, in_steps
from kafkalite.errors import KafkaError
from kafkalite.ids import written_id
from kafkalite.records.control import TransactionMarker

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.storage.state.producer_state import ProducerStateEntry
    from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

CHECK_MS = 10_000
LATE_MS = 300_000
"""Time after the longest transaction timeout from which a transaction is late, as in Kafka."""
REPORT_COUNT_MAX = 500
"""Maximum number of transactions in one report, and of those that are aborted in one tick."""


class LateTransaction(NamedTuple):
    """An open transaction of a partition, as it was when it was reported."""

    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    """Offset of the producer's last record."""
    is_uncertain: bool = False
    """True if it began before an unclean end of the host, which may have taken its marker."""


class OrphanTransaction(NamedTuple):
    """An open transaction that no coordinator will end."""

    transaction: LateTransaction
    is_committed: bool
    """True if its coordinator had committed it, False if none knows it."""


FindOrphans = Callable[[Sequence[LateTransaction]], Future[Sequence[OrphanTransaction]]]
"""Returns those of these open transactions that no coordinator will end."""


class LateTransactions:
    """The late transactions of a node's partitions; see the module."""

    def __init__(
        self, replicas: ReplicaManager, reactor: Reactor, find_orphans: FindOrphans
    ) -> None:
        self.timeout_max_ms = 0
        """The longest timeout of a transaction."""
        self.partition_count = 0
        """Metrics: the number of partitions with late transactions."""
        self._replicas = replicas
        self._reactor = reactor
        self._find_orphans = find_orphans
        self._seen_ms: dict[tuple[Partition, int, int], int] = {}
        """Since when a transaction is known to be open, by partition, producer and first offset."""
        self._passed_count = 0
        """Number of late transactions before the next report: the earlier reports had them."""

    def open(self) -> None:
        """Begin to check periodically."""
        self._reactor.call_later(CHECK_MS, self._check)

    def _check(self) -> None:
        found: Future[list[LateTransaction]] = Future()
        found.then(self._found)
        found.follow(in_steps(self._reactor, self._find()))

    def _find(self) -> Work[list[LateTransaction]]:
        """Return the next late transactions; all steps together visit each partition once.

        The first ones may be open at their coordinators for a long time, so each report continues
        after the last one.
        """
        late: list[LateTransaction] = []
        late_count = 0
        seen_ms: dict[tuple[Partition, int, int], int] = {}
        now_ms = self._reactor.clock.monotonic_ms()
        late_since_ms = now_ms - self.timeout_max_ms - LATE_MS
        partitions: set[Partition] = set()
        for partition in [*self._replicas]:
            transactions = partition.log.producers.transactions
            for producer_id, first_offset in [*transactions] if transactions else ():
                key = partition, producer_id, first_offset
                since_ms = seen_ms[key] = self._seen_ms.get(key, now_ms)
                if since_ms <= late_since_ms or first_offset < transactions.uncertain_below:
                    partitions.add(partition)
                    producer = partition.log.producers.get(producer_id)
                    if producer is not None:
                        late_count += 1
                        if late_count > self._passed_count and len(late) < REPORT_COUNT_MAX:
                            late.append(_described(partition, producer))
                yield
            yield
        self._seen_ms = seen_ms
        self.partition_count = len(partitions)
        self._passed_count += len(late)
        if self._passed_count >= late_count:
            self._passed_count = 0
        return late

    def _found(self, late: list[LateTransaction] | None, _: KafkaError | None) -> None:
        if late:
            self._find_orphans(late).then(self._end_orphans)
        else:
            self._reactor.call_later(CHECK_MS, self._check)

    def _end_orphans(
        self, orphans: Sequence[OrphanTransaction] | None, error: KafkaError | None
    ) -> None:
        if error is not None:
            log.debug("Late transactions could not be checked. error=%r", str(error))
        for orphan in orphans or ():
            self._end(*orphan)
        self._reactor.call_later(CHECK_MS, self._check)

    def _end(self, orphan: LateTransaction, is_commit: bool) -> None:
        """Commit or abort a transaction, unless its producer has written since the report."""
        try:
            partition = self._replicas.leader(orphan.topic_id, orphan.partition)
            producer = partition.log.producers.get(orphan.producer_id)
            if producer is None or _described(partition, producer) != orphan:
                return
            marker = TransactionMarker(
                orphan.producer_id, orphan.producer_epoch, is_commit,
                max(producer.coordinator_epoch, 0),
            )  # fmt: skip
            self._replicas.append_marker(partition, marker)
        except KafkaError as error:
            log.warning(
                "Transaction without a coordinator could not be ended; retrying later."
                " topic_id=%s partition=%d producer_id=%d error=%r",
                written_id(orphan.topic_id), orphan.partition, orphan.producer_id, str(error),
            )  # fmt: skip
            return
        log.warning(
            "Transaction was %s. partition=%s producer_id=%d producer_epoch=%d first_offset=%d",
            "committed: its marker was lost" if is_commit
            else "aborted: its coordinator does not know it",
            partition, orphan.producer_id, orphan.producer_epoch, orphan.first_offset,
        )  # fmt: skip


def _described(partition: Partition, producer: ProducerStateEntry) -> LateTransaction:
    transactions = partition.log.producers.transactions
    return LateTransaction(
        partition.topic_id,
        partition.index,
        producer.producer_id,
        producer.epoch,
        producer.txn_first_offset,
        producer.batches[-1].last_offset if producer.batches else -1,
        producer.txn_first_offset < transactions.uncertain_below,
    )
