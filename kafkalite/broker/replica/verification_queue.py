"""VerificationQueue: holds the first batches of a transaction until the coordinator has responded.

    batch ─▶ transaction open in the partition? ── yes ─▶ AppendQueue
                    └ no: take the producer's guard, verify (TransactionVerifier)
                              └┄┄ response ┄┄▶ AppendQueue, with the guard

Producers have several batches in flight.  Those of the same partition and producer id are held
behind the first, and appended in the order in which they came; other partitions and producers are
not delayed.  Held batches use memory: one that would exceed `HELD_SIZE_MAX` bytes in the node is
refused with NOT_ENOUGH_REPLICAS, which producers repeat.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite._ext.record_batch import HEADER_SIZE, TRANSACTIONAL, check_client_batch
from kafkalite.broker.future import Future
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.errors import KafkaError, NotEnoughReplicas, raise_for
from kafkalite.storage.log.batch_validator import ATTRIBUTES_LOW

if TYPE_CHECKING:
    from kafkalite.broker.replica.append_queue import AppendQueue
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.transaction_verifier import (
        RequestTransaction,
        TransactionVerifier,
    )
    from kafkalite.storage.log.log import LogAppendResult
    from kafkalite.storage.state.verification import VerificationGuard

HELD_SIZE_MAX = 64 << 20
"""Maximum size in bytes of all held batches, as clients sent them."""

PRODUCER = struct.Struct(">qhi")
PRODUCER_POSITION = 43
"""Position in a batch of the producer id, its epoch and the base sequence."""
SEQUENCE_POSITION = 53

PartitionProducer: TypeAlias = "tuple[Partition, int]"
"""A partition and a producer id."""


def names_one_producer(batches: Iterable[memoryview | bytes | None]) -> bool:
    """Return whether all transactional batches have the same producer id and epoch."""
    first: memoryview | bytes | None = None
    for batch in batches:
        if batch is None or len(batch) < HEADER_SIZE or not batch[ATTRIBUTES_LOW] & TRANSACTIONAL:
            continue
        producer = batch[PRODUCER_POSITION:SEQUENCE_POSITION]
        if first is None:
            first = producer
        elif first != producer:
            return False
    return True


class HeldBatch(NamedTuple):
    """A batch that waits for the coordinator, or behind one that does."""

    batch: bytes
    producer: ProducerEpoch
    transaction: RequestTransaction
    guard: VerificationGuard | None
    future: Future[LogAppendResult]


class VerificationQueue:
    """The batches that wait for the coordinator, by partition and producer id; see the module."""

    def __init__(self, verifier: TransactionVerifier, append_queue: AppendQueue) -> None:
        self._verifier = verifier
        self._append_queue = append_queue
        self._queues: dict[PartitionProducer, deque[HeldBatch]] = {}
        self.held_size = 0
        """Size in bytes of all held batches."""

    def append(
        self, partition: Partition, batch: memoryview | bytes, transaction: RequestTransaction
    ) -> LogAppendResult | Future[LogAppendResult]:
        """Append a client's transactional batch now or later.

        Raises KafkaError if the batch is not valid.
        """
        if len(batch) < HEADER_SIZE:
            return self._append_queue.append(partition, batch)  # which refuses it
        producer_id, epoch, sequence = PRODUCER.unpack_from(batch, PRODUCER_POSITION)
        is_behind = bool(self._queues) and (partition, producer_id) in self._queues
        if not is_behind and partition.log.producers.has_open_transaction(producer_id, epoch):
            return self._append_queue.append(partition, batch)
        key = (partition, producer_id)
        raise_for(check_client_batch(batch))
        if self.held_size and self.held_size + len(batch) > HELD_SIZE_MAX:
            raise NotEnoughReplicas("Too many batches wait for verification; retry later.")
        guard = partition.log.begin_verification(
            producer_id, epoch, sequence, is_implicit=transaction.adds
        )
        held = HeldBatch(
            bytes(batch), ProducerEpoch(producer_id, epoch), transaction, guard, Future()
        )
        self.held_size += len(batch)
        if is_behind:
            self._queues[key].append(held)
        else:
            self._queues[key] = deque([held])
            self._verify(key)
        return held.future

    def _verify(self, key: PartitionProducer) -> None:
        """Verify the partition for the first batch of a queue."""
        partition, held = key[0], self._queues[key][0]
        self._verifier.verify(
            held.transaction.transactional_id,
            held.producer,
            (partition.topic, partition.index),
            adds=held.transaction.adds,
        ).then(partial(self._verified, key))

    def _verified(self, key: PartitionProducer, _: None, error: KafkaError | None) -> None:
        """Append or refuse the batches that the response is about; verify the next producer epoch
        behind them."""
        partition, queue = key[0], self._queues[key]
        producer = queue[0].producer
        while queue:
            if queue[0].producer != producer:
                if not partition.log.producers.has_open_transaction(*queue[0].producer):
                    self._verify(key)
                    return
                producer, error = queue[0].producer, None
            held = queue.popleft()
            self.held_size -= len(held.batch)
            try:
                if error is not None:
                    raise held.transaction.produce_error(error)
                outcome = self._append_queue.append_if_led(partition, held.batch, held.guard)
            except KafkaError as raised:
                held.future.fail(raised)
            else:
                held.future.follow(outcome)
        del self._queues[key]
