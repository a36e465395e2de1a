"""Transaction partitions: adds partitions to a transaction before their first batch, version 1.

The background thread does this: a batch whose partition is not added yet waits in its queue.  With
version 2 of the protocol nothing is ever missing, because Produce adds the partition.
"""

from __future__ import annotations

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Backoff, Deadline
from kafkalite.client.net.transaction_requests import CONCURRENT_BACKOFF_MS, TransactionRequests
from kafkalite.client.producer.partition_queue import PartitionQueue
from kafkalite.client.producer.producer_transaction_state import ProducerTransactionState
from kafkalite.client.producer.sender import Sender
from kafkalite.config.client import (
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    TRANSACTION_TIMEOUT_MS,
    TRANSACTIONAL_ID,
)
from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
)


class TransactionPartitions:
    """The AddPartitionsToTxn requests of a producer, if it is transactional."""

    def __init__(self, sender: Sender, cluster: Cluster) -> None:
        settings = sender.state.settings
        transactional_id = settings[TRANSACTIONAL_ID]
        self._sender = sender
        self._transaction = sender.state.transaction
        self._requests = TransactionRequests(
            cluster, transactional_id or "", settings[TRANSACTION_TIMEOUT_MS]
        )
        backoff_max_ms = settings[RETRY_BACKOFF_MAX_MS]
        self._others = Backoff(settings[RETRY_BACKOFF_MS], backoff_max_ms)
        self._concurrent = Backoff(CONCURRENT_BACKOFF_MS, backoff_max_ms)

    @property
    def are_missing(self) -> bool:
        """True if batches wait for their partitions to be added."""
        return self._transaction is not None and bool(self._transaction.missing)

    @property
    def backoff_left_s(self) -> float:
        """Seconds until the next attempt."""
        return max(self._others.left_s, self._concurrent.left_s)

    def add(self, timeout_s: float) -> None:
        """Add the missing partitions, in one attempt."""
        transaction = self._transaction
        assert transaction is not None
        queues = self._sender.locked(self._begin, transaction)
        if not queues:
            return
        try:
            self._requests.add_partitions(
                transaction.identity,
                [(queue.topic.name, queue.index) for queue in queues],
                Deadline(timeout_s),
            )
        except KafkaError as error:
            self._sender.locked(self._failed, transaction, error)
        else:
            self._others.succeeded()
            self._concurrent.succeeded()
            self._sender.locked(transaction.added, queues)
        finally:
            transaction.is_adding = False

    def _begin(self, transaction: ProducerTransactionState) -> list[PartitionQueue]:
        """Return the queues to add, unless their batches are not sent any more."""
        if transaction.drops_unsent:
            transaction.missing.clear()
        queues = list(transaction.missing)
        if queues:
            transaction.is_adding = transaction.may_have_begun = True
        return queues

    def _failed(self, transaction: ProducerTransactionState, error: KafkaError) -> None:
        if error.retriable:
            backoff = (
                self._concurrent if isinstance(error, ConcurrentTransactions) else self._others
            )
            backoff.failed(error)
            return
        is_fatal = isinstance(error, InvalidProducerIdMapping | InvalidTxnState)
        transaction.failed(error, fatal=is_fatal)
        self._sender.state.drop_unsent()
