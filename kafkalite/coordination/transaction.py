"""Transitions of a transactional id: pure functions of its state and a request.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ──▶ Ongoing, or Empty
                   ╰────▶ PrepareAbort ───▶ CompleteAbort ───▶ Ongoing, or Empty

InitProducerId makes Empty of Empty and Complete.  With transaction version 2 (KIP-890) an abort may
also begin in Empty and Complete, because its client does not know whether it added a partition.
The outcome is decided when the Prepare record is committed; the transaction is Complete once each
of its partitions has the marker.

Versions 0 and 1 keep the epoch for the next transaction.  Version 2 raises it at the end of each,
in the Prepare record, so that a delayed request of an earlier transaction cannot touch the next.
An epoch of EPOCH_MAX or above is exhausted: no client gets a higher one, so that the coordinator
can always raise it once more to fence the client.

With two-phase commit (KIP-939) a restarted producer may keep its Ongoing transaction.  It gets the
next pair of producer id and epoch, and ends the transaction under it; earlier pairs are fenced, and
nothing can be added.  The markers still have the pair under which the records were written, its
epoch raised by one.

Source: KIP-98, KIP-360, KIP-588, KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from kafkalite.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
)
from kafkalite.protocol.schemas.transaction_records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TopicPartition,
    Transaction,
    TransactionState,
)

EPOCH_MAX = (1 << 15) - 2
"""The highest epoch of a client."""
FENCING_EPOCH = EPOCH_MAX + 1

BUMPS_EPOCH_SINCE = 2
"""The transaction version from which the end of a transaction raises the epoch."""

PREPARED = {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
IDLE = {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


class ProducerEpoch(NamedTuple):
    """A producer id and one of its epochs."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


# -- InitProducerId --------------------------------------------------------------------------------


def new_transaction(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the state of a transactional id that is used for the first time."""
    return Transaction(
        producer_id, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY,
        last_update_ms=now_ms, previous_producer_id=producer_id,
    )  # fmt: skip


def init_producer(
    stored: Transaction,
    current: ProducerEpoch,
    timeout_ms: int,
    transaction_version: int,
    take_producer_id: Callable[[], int],
    now_ms: int,
    *,
    keep_prepared: bool = False,
    is_uncertain: bool = False,
) -> Transaction:
    """Return the state in which the producer can begin a transaction.

    `current` is the pair that the client names, or NO_PRODUCER.  An Ongoing transaction is kept for
    the producer to end it with `keep_prepared`.  Otherwise it is aborted first: the state is
    PrepareAbort, and the client repeats its request.  `is_uncertain`: records with higher epochs
    may be lost, so that only a new producer id is sure to be unused.

    Raises:
        ProducerFenced: The pair is of a producer that another one has replaced.
        ConcurrentTransactions: The previous transaction is not completed.
    """
    is_named = current != NO_PRODUCER
    _check_not_next(stored, current)
    if is_named and not _may_continue(stored, current):
        raise ProducerFenced()
    if stored.state in PREPARED:
        raise ConcurrentTransactions()
    if stored.state is TransactionState.ONGOING:
        if keep_prepared:
            if is_named and current != producer_after(stored):
                raise ProducerFenced()
            return _kept(stored, take_producer_id, now_ms, is_uncertain=is_uncertain)
        return fence(stored, transaction_version, take_producer_id, now_ms)
    epoch = stored.producer_epoch
    ready = _updated(stored, TransactionState.EMPTY, now_ms)._replace(
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=NO_TIME,
        last_epoch=epoch if is_named else NO_PRODUCER_EPOCH,
    )
    if (epoch >= EPOCH_MAX or is_uncertain) and (not is_named or current.epoch == epoch):
        return ready._replace(producer_id=take_producer_id(), producer_epoch=0)
    if not is_named or current.epoch == epoch or epoch == NO_PRODUCER_EPOCH:
        return ready._replace(producer_epoch=epoch + 1)
    if current.epoch == stored.last_epoch:
        return ready._replace(last_epoch=stored.last_epoch)  # a repeated request
    raise ProducerFenced()


def _may_continue(stored: Transaction, current: ProducerEpoch) -> bool:
    if is_kept(stored):
        return current == producer_after(stored)
    if stored.producer_epoch == NO_PRODUCER_EPOCH or current.producer_id == stored.producer_id:
        return True
    return current.producer_id == stored.previous_producer_id and current.epoch >= EPOCH_MAX


def is_kept(stored: Transaction) -> bool:
    """Return whether a restarted producer has kept the transaction (KIP-939)."""
    return stored.next_producer_epoch != NO_PRODUCER_EPOCH


def _kept(
    stored: Transaction,
    take_producer_id: Callable[[], int],
    now_ms: int,
    *,
    is_uncertain: bool,
) -> Transaction:
    """Return an Ongoing transaction with a new pair for the producer that ends it."""
    if is_uncertain:
        next_producer = ProducerEpoch(take_producer_id(), 0)
    else:
        next_producer = _raised(producer_after(stored), take_producer_id)
    return _updated(stored, stored.state, now_ms)._replace(
        next_producer_id=next_producer.producer_id, next_producer_epoch=next_producer.epoch
    )


def _raised(producer: ProducerEpoch, take_producer_id: Callable[[], int]) -> ProducerEpoch:
    """Return the pair after this one."""
    if producer.epoch >= EPOCH_MAX:
        return ProducerEpoch(take_producer_id(), 0)
    return ProducerEpoch(producer.producer_id, producer.epoch + 1)


def _check_not_next(stored: Transaction, producer: ProducerEpoch) -> None:
    """Raise ConcurrentTransactions for a producer id that is to follow a prepared transaction.

    A client of version 2 knows it from the response to EndTxn, before the markers are written.
    """
    is_next = stored.next_producer_id == producer.producer_id >= 0 and not is_kept(stored)
    if stored.state in PREPARED and is_next:
        raise ConcurrentTransactions()


# -- partitions ------------------------------------------------------------------------------------


def add_partitions(
    stored: Transaction | None,
    producer: ProducerEpoch,
    partitions: frozenset[TopicPartition],
    transaction_version: int,
    now_ms: int,
) -> Transaction | None:
    """Return the transaction with these partitions added; None if it has them already.

    Raises:
        InvalidProducerIdMapping: The transactional id is unknown, or has another producer id.
        ProducerFenced: The producer has another epoch.
        ConcurrentTransactions: The previous transaction is not completed.
        InvalidTxnState: The transaction was kept; its producer can only end it.
    """
    stored = check_producer(stored, producer)
    is_ongoing = stored.state is TransactionState.ONGOING
    if not partitions or (is_ongoing and partitions <= stored.partitions):
        return None
    return _updated(stored, TransactionState.ONGOING, now_ms)._replace(
        partitions=stored.partitions | partitions if is_ongoing else partitions,
        start_ms=stored.start_ms if is_ongoing else now_ms,
        transaction_version=transaction_version,
    )


def check_producer(stored: Transaction | None, producer: ProducerEpoch) -> Transaction:
    """Return the state of a transactional id whose producer this is; raise as add_partitions."""
    if stored is None:
        raise InvalidProducerIdMapping()
    has_next = stored.next_producer_id != NO_PRODUCER_ID
    current = _by_next_producer(stored) if has_next else stored
    if current[:2] != producer:
        raise _other_producer(stored, current, producer)
    if stored.state in PREPARED:
        raise ConcurrentTransactions()
    if has_next:
        raise InvalidTxnState()
    return stored


def _by_next_producer(stored: Transaction) -> Transaction:
    """Return the state as the next producer knows it, with its own pair."""
    producer_id, epoch = producer_after(stored)
    return stored._replace(producer_id=producer_id, producer_epoch=epoch)


def _other_producer(
    stored: Transaction, current: Transaction, producer: ProducerEpoch
) -> KafkaError:
    """Return the error for a producer that is not the current one."""
    if producer.producer_id in (current.producer_id, stored.producer_id):
        return ProducerFenced()
    return InvalidProducerIdMapping()


# -- the end ---------------------------------------------------------------------------------------


class EndAction(Enum):
    """Response to an EndTxn request that is not refused."""

    PREPARE = auto()
    REPEAT_RESPONSE = auto()  # the request was handled before


EndActions: TypeAlias = Mapping[TransactionState, EndAction | type[KafkaError]]


def _end_actions(
    empty: EndAction | type[KafkaError],
    ongoing: EndAction | type[KafkaError],
    prepare_commit: EndAction | type[KafkaError],
    prepare_abort: EndAction | type[KafkaError],
    complete_commit: EndAction | type[KafkaError],
    complete_abort: EndAction | type[KafkaError],
) -> EndActions:
    return {
        TransactionState.EMPTY: empty,
        TransactionState.ONGOING: ongoing,
        TransactionState.PREPARE_COMMIT: prepare_commit,
        TransactionState.PREPARE_ABORT: prepare_abort,
        TransactionState.COMPLETE_COMMIT: complete_commit,
        TransactionState.COMPLETE_ABORT: complete_abort,
    }


# Columns: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort.
COMMIT = _end_actions(
    InvalidTxnState, EndAction.PREPARE, ConcurrentTransactions, InvalidTxnState,
    EndAction.REPEAT_RESPONSE, InvalidTxnState,
)  # fmt: skip
ABORT = _end_actions(
    InvalidTxnState, EndAction.PREPARE, InvalidTxnState, ConcurrentTransactions,
    InvalidTxnState, EndAction.REPEAT_RESPONSE,
)  # fmt: skip
"""Versions 0 and 1: the epoch is the stored one."""

COMMIT_WITH_EPOCH = _end_actions(
    InvalidTxnState, EndAction.PREPARE, ProducerFenced, ProducerFenced,
    InvalidTxnState, InvalidTxnState,
)  # fmt: skip
ABORT_WITH_EPOCH = _end_actions(
    EndAction.PREPARE, EndAction.PREPARE, ProducerFenced, ProducerFenced,
    EndAction.PREPARE, EndAction.PREPARE,
)  # fmt: skip
"""Version 2: the epoch is the stored one."""

REPEATED_COMMIT = _end_actions(
    ProducerFenced, ProducerFenced, ConcurrentTransactions, InvalidTxnState,
    EndAction.REPEAT_RESPONSE, InvalidTxnState,
)  # fmt: skip
REPEATED_ABORT = _end_actions(
    ProducerFenced, ProducerFenced, InvalidTxnState, ConcurrentTransactions,
    InvalidTxnState, EndAction.REPEAT_RESPONSE,
)  # fmt: skip
"""Version 2: the epoch is the one before the stored one."""


def end_transaction(
    stored: Transaction | None,
    producer: ProducerEpoch,
    is_commit: bool,
    transaction_version: int,
    take_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction | None:
    """Return the prepared transaction; None if this request has done so before.

    Raises:
        InvalidProducerIdMapping: The transactional id is unknown, or has another producer id.
        ProducerFenced: The producer has another epoch.
        ConcurrentTransactions: The end is prepared, but not completed.
        InvalidTxnState: There is no transaction, or it ended with the other outcome.
    """
    if stored is None:
        raise InvalidProducerIdMapping()
    _check_not_next(stored, producer)
    bumps = transaction_version >= BUMPS_EPOCH_SINCE
    has_next = stored.next_producer_id != NO_PRODUCER_ID
    current = _by_next_producer(stored) if has_next else stored
    if bumps and _is_repeated_end(current, producer):
        actions = REPEATED_COMMIT if is_commit else REPEATED_ABORT
    elif current[:2] != producer:
        raise _other_producer(stored, current, producer)
    elif bumps:
        actions = COMMIT_WITH_EPOCH if is_commit else ABORT_WITH_EPOCH
    else:
        actions = COMMIT if is_commit else ABORT
    action = actions[stored.state]
    if action is EndAction.REPEAT_RESPONSE:
        return None
    if action is not EndAction.PREPARE:
        raise action()
    return prepare(stored, is_commit, transaction_version, take_producer_id, now_ms)


def _is_repeated_end(stored: Transaction, producer: ProducerEpoch) -> bool:
    """Return whether a request names the pair before the epoch was raised."""
    if stored.producer_id == producer.producer_id:
        return stored.producer_epoch == producer.epoch + 1
    return (
        stored.previous_producer_id == producer.producer_id
        and producer.epoch >= EPOCH_MAX
        and stored.producer_epoch == 0
    )


def prepare(
    stored: Transaction,
    is_commit: bool,
    transaction_version: int,
    take_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    """Return the transaction with its outcome decided."""
    state = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
    is_ongoing = stored.state is TransactionState.ONGOING
    prepared = _updated(stored, state, now_ms)._replace(
        partitions=stored.partitions if is_ongoing else frozenset(),
        start_ms=stored.start_ms if is_ongoing else now_ms,
        transaction_version=transaction_version,
    )
    if is_kept(stored):
        next_producer = _raised(producer_after(stored), take_producer_id)
        return prepared._replace(
            producer_epoch=min(stored.producer_epoch + 1, FENCING_EPOCH),
            last_epoch=stored.next_producer_epoch,
            previous_producer_id=stored.next_producer_id,
            next_producer_id=next_producer.producer_id,
            next_producer_epoch=next_producer.epoch,
        )
    if transaction_version < BUMPS_EPOCH_SINCE:
        return prepared
    if stored.producer_epoch >= EPOCH_MAX:
        prepared = prepared._replace(next_producer_id=take_producer_id())
    epoch = min(stored.producer_epoch + 1, FENCING_EPOCH)
    return prepared._replace(producer_epoch=epoch, last_epoch=stored.producer_epoch)


def fence(
    stored: Transaction,
    transaction_version: int,
    take_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    """Return an Ongoing transaction as aborted by the coordinator, its producer fenced.

    The epoch is raised once, in any version.
    """
    assert stored.state is TransactionState.ONGOING, f"nothing to abort in {stored.state.title}"
    aborted = prepare(stored, False, transaction_version, take_producer_id, now_ms)
    epoch = min(stored.producer_epoch + 1, FENCING_EPOCH)
    return aborted._replace(producer_epoch=epoch, last_epoch=NO_PRODUCER_EPOCH)


def complete(prepared: Transaction, now_ms: int) -> Transaction:
    """Return the transaction once all of its partitions have the marker."""
    assert prepared.state in PREPARED, f"nothing to complete in {prepared.state.title}"
    is_commit = prepared.state is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    next_producer = producer_after(prepared)
    completed = _updated(prepared, state, now_ms)._replace(
        producer_id=next_producer.producer_id,
        producer_epoch=next_producer.epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )
    if not is_kept(prepared):
        return completed
    # The producer that ended the transaction may repeat its request.
    return completed._replace(
        next_producer_epoch=NO_PRODUCER_EPOCH, previous_producer_id=prepared.previous_producer_id
    )


def was_committed(completed: Transaction, producer: ProducerEpoch) -> bool:
    """Return whether the last transaction of a transactional id was committed, and this pair wrote
    its records.

    Before version 2 earlier transactions may have the same pair, and another outcome.  A
    transaction that was kept for a restarted producer (KIP-939) is not found.
    """
    if completed.state is not TransactionState.COMPLETE_COMMIT:
        return False
    if completed.transaction_version < BUMPS_EPOCH_SINCE:
        return completed[:2] == producer
    return _is_repeated_end(completed, producer)


def producer_after(transaction: Transaction) -> ProducerEpoch:
    """Return the pair with which the producer continues after the end of this transaction; before
    its end, the pair of the producer for which it was kept."""
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return ProducerEpoch(transaction.next_producer_id, max(transaction.next_producer_epoch, 0))
    return ProducerEpoch(transaction.producer_id, transaction.producer_epoch)


def _updated(stored: Transaction, state: TransactionState, now_ms: int) -> Transaction:
    return stored._replace(
        state=state, last_update_ms=now_ms, previous_producer_id=stored.producer_id
    )
