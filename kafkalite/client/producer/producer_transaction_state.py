"""Transaction state: what a transactional producer may send, and the errors that end a transaction.

    NONE ──begin──▶ OPEN ──▶ COMMITTING ──▶ NONE        records are taken while it is OPEN
                     └─────▶ ABORTING ────▶ NONE        nothing unsent is sent any more

A failed batch fails its transaction: batches that are not in flight fail too, records are refused,
and a commit raises the error.  After an abort the next transaction works.  A fatal error ends the
producer: most often another producer has taken over its transactional id.

Inside a transaction no batch gets another producer id or epoch.  With version 1 of the protocol
the next epoch is requested after a failed transaction, as sequences may be unknown then; with
version 2 each transaction has its own epoch.

No I/O, no clock.  All methods are called in locked sections (locked_section.py).
"""

from __future__ import annotations

from enum import Enum

from kafkalite.client.net.producer_identity import NO_IDENTITY, ProducerIdentity
from kafkalite.client.net.transaction_requests import TransactionVersion
from kafkalite.client.producer.background_wakeup import BackgroundWakeup
from kafkalite.client.producer.partition_queue import PartitionQueue
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAborted,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)

FATAL_ERRORS = (
    ClusterAuthorizationFailed,
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)
"""Errors of any request after which the producer cannot continue."""


class Phase(Enum):
    """The phase of a producer's transaction."""

    NONE = "no transaction is open"
    OPEN = "a transaction is open"
    COMMITTING = "the transaction is being committed"
    ABORTING = "the transaction is being aborted"


class ProducerTransactionState:
    """The transaction of a producer, if one is open."""

    def __init__(self, wakeup: BackgroundWakeup) -> None:
        self._wakeup = wakeup
        self.phase = Phase.NONE
        self.version = TransactionVersion.ADDED
        self.identity = NO_IDENTITY
        """The producer id and epoch of the open transaction, or of the next one."""
        self.is_joined = False
        """True if another producer ends the transaction."""
        self.error: KafkaError | None = None
        """The first error of the open transaction."""
        self.fatal_error: KafkaError | None = None
        self.is_begun = False
        """True if the coordinator knows a partition or a group of the transaction."""
        self.may_have_begun = False
        """True if it perhaps does: a response was lost, or others write in the transaction."""
        self.is_shared = False
        """True if other producers write in the transaction, under its identity."""
        self.end_requested = False
        """True if a commit was sent, whose outcome may not be known."""
        self.needs_new_epoch = False
        """True if sequences of this epoch are not known any more."""
        self.missing: dict[PartitionQueue, None] = {}
        """Version 1: queues whose partitions must be added before they can be sent."""
        self.is_adding = False
        """True while the background thread adds partitions."""
        self._added: set[PartitionQueue] = set()
        self._numbered: set[PartitionQueue] = set()
        """Queues with sequences of `identity`."""

    # Sending.

    @property
    def is_writable(self) -> bool:
        """True if records are taken."""
        return self.phase is Phase.OPEN and self.error is None and self.fatal_error is None

    @property
    def drops_unsent(self) -> bool:
        """True if batches that are not in flight fail instead of being sent."""
        return self.phase is Phase.ABORTING or (
            self.phase is not Phase.NONE
            and (self.error is not None or self.fatal_error is not None)
        )

    @property
    def has_numbered(self) -> bool:
        """True if batches of this identity were sent."""
        return bool(self._numbered)

    def check_writable(self) -> None:
        """Raise the error with which records are refused, if they are."""
        if self.is_writable:
            return
        if (error := self.fatal_error or self.error) is not None:
            raise error.copy()
        raise InvalidTxnState(
            "A producer with a transactional id sends only inside a transaction: use `with"
            f" producer.transaction():`. Now {self.phase.value}."
        )

    def may_send(self, queue: PartitionQueue) -> bool:
        """Return whether a batch of the queue can be sent now; if not, have its partition added."""
        if self.phase in (Phase.NONE, Phase.ABORTING) or self.drops_unsent:
            return False
        if self.version is TransactionVersion.ADDED and queue not in self._added:
            self.missing[queue] = None
            self._wakeup.set()
            return False
        self.is_begun = True
        self._numbered.add(queue)
        return True

    @property
    def dropped_error(self) -> KafkaError:
        """The error of a batch that is not sent."""
        cause = self.fatal_error or self.error
        if cause is None:
            return TransactionAborted()
        return TransactionAborted(f"The transaction had failed before the record was sent: {cause}")

    def added(self, queues: list[PartitionQueue]) -> None:
        """Register that the coordinator has added the partitions of these queues."""
        self.is_begun = True
        self._added.update(queues)
        for queue in queues:
            self.missing.pop(queue, None)

    # Errors.

    def failed(self, error: KafkaError, fatal: bool = False) -> None:
        """Register an error: of the transaction, or of the producer if it is fatal."""
        if fatal or isinstance(error, FATAL_ERRORS):
            self.fatal_error = self.fatal_error or error.copy()
        elif self.phase in (Phase.OPEN, Phase.COMMITTING):
            self.error = self.error or error.copy()
            self.needs_new_epoch = True
        self.missing.clear()
        self._wakeup.set()

    def batch_failed(self, queue: PartitionQueue, error: KafkaError) -> None:
        """Register that a batch of the queue failed, or was not sent."""
        if queue.identity == NO_IDENTITY and queue in self._numbered:
            self.needs_new_epoch = True
        if self.phase in (Phase.OPEN, Phase.COMMITTING) and not self.drops_unsent:
            self.failed(error)

    # The calls that begin and end it.

    def begin(
        self, identity: ProducerIdentity, version: TransactionVersion, *, joined: bool, shared: bool
    ) -> None:
        """Open a transaction under this identity."""
        assert self.phase is Phase.NONE
        self.take_identity(identity)
        self.version = version
        self.is_joined = joined
        self.phase = Phase.OPEN
        self.error = None
        self.is_begun = False
        self.is_shared = self.may_have_begun = shared
        self.end_requested = False
        self._added.clear()
        self.missing.clear()

    def take_identity(self, identity: ProducerIdentity) -> None:
        """Continue with this identity, whose sequences begin at 0 if it is another one."""
        if identity == self.identity:
            return
        self.identity = identity
        self.needs_new_epoch = False
        for queue in self._numbered:
            queue.drop_producer_id()
        self._numbered.clear()

    def end(self, identity: ProducerIdentity) -> None:
        """Close the transaction, and continue with this identity."""
        if self.is_shared:
            self.needs_new_epoch = True
        self.take_identity(identity)
        self.phase = Phase.NONE
        self.error = None
