"""Transaction calls: begin, offsets, commit and abort of a producer's transactions.

Each runs in the calling thread: it changes the state (producer_transaction_state.py) in locked
sections, waits for the batches (batch_waiter.py), and sends the requests to the coordinator
(client/net/transaction_requests.py).  Partitions are added by the background thread, version 1.

A call that exceeds its timeout raises RequestTimedOut and can be repeated, also if it waited for a
call of another thread.  After a commit whose outcome is not known only the commit can be repeated:
an abort would hide that records and offsets may be committed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from kafkalite._ext.locking import LockGuard
from kafkalite.client.net.cluster import TRANSACTION_KEY, Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.producer_identity import NO_IDENTITY, ProducerIdentity
from kafkalite.client.net.transaction_requests import TransactionRequests, TransactionVersion
from kafkalite.client.producer.batch_waiter import BatchWaiter
from kafkalite.client.producer.lifetime import EXIT_TIMEOUT_S, FORKED, ProducerLifetime
from kafkalite.client.producer.producer_transaction_state import Phase, ProducerTransactionState
from kafkalite.client.producer.sender import Sender
from kafkalite.config.client import MAX_BLOCK_MS, TRANSACTION_TIMEOUT_MS, TRANSACTIONAL_ID
from kafkalite.errors import (
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    RequestTimedOut,
    Retriable,
    TransactionAbortable,
)

UNKNOWN_OUTCOME = (
    "The outcome of the last commit is not known: call commit() of that transaction again, or close"
    " the producer and continue from the committed offsets."
)
UNFINISHED_COMMIT = (
    "The commit of the open transaction has timed out before its records were written: commit() or"
    " abort() it first."
)
ENDED_BY_OTHERS = (
    "The coordinator has ended the transaction already: another producer has the transactional id,"
    " or transaction.timeout.ms has passed. This producer cannot continue."
)

log = logging.getLogger(__name__)


def transaction_calls(
    sender: Sender,
    waiter: BatchWaiter,
    cluster: Cluster,
    lifetime: ProducerLifetime,
) -> TransactionCalls | None:
    """Return the transaction calls of a producer; None if it has no transactional id."""
    settings, transaction = sender.state.settings, sender.state.transaction
    transactional_id = settings[TRANSACTIONAL_ID]
    if transaction is None or transactional_id is None:
        return None
    requests = TransactionRequests(cluster, transactional_id, settings[TRANSACTION_TIMEOUT_MS])
    return TransactionCalls(sender, waiter, cluster, requests, transaction, lifetime)


class TransactionCalls:
    """The calls of one producer; one runs at a time."""

    def __init__(
        self,
        sender: Sender,
        waiter: BatchWaiter,
        cluster: Cluster,
        requests: TransactionRequests,
        transaction: ProducerTransactionState,
        lifetime: ProducerLifetime,
    ) -> None:
        self._sender = sender
        self._locked = sender.locked
        self._waiter = waiter
        self._cluster = cluster
        self._requests = requests
        self._transaction = transaction
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._owner: object | None = None

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch of the open transaction."""
        return self._transaction.identity

    def deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline of a call; None: max.block.ms."""
        block_s = self._cluster.settings[MAX_BLOCK_MS] / 1000
        return Deadline(block_s if timeout is None else timeout)

    def is_open(self, owner: object) -> bool:
        """Return whether the owner's transaction has not ended; False in a forked child."""
        return self._owner is owner and not self._lifetime.forked

    def may_abort(self, owner: object) -> bool:
        """Return whether the owner's transaction can be aborted."""
        transaction = self._transaction
        return (
            self._owner is owner
            and not transaction.end_requested
            and transaction.fatal_error is None
        )

    def check_ended(self, was_open: bool) -> None:
        """Raise RuntimeError at the end of a block in which the producer was closed."""
        if was_open and self._lifetime.closed:
            raise RuntimeError(
                "The producer was closed inside the transaction's block: the transaction was"
                " aborted, not committed."
            )

    def check_owner(self, owner: object) -> None:
        """Raise RuntimeError unless the owner's transaction is the one that is open; another thread
        may end it before the caller has the lock."""
        self._check_process()
        if self._owner is not owner:
            raise RuntimeError("The transaction is not open: it was not begun, or has ended.")

    # Begin.

    def init(self, deadline: Deadline) -> None:
        """Request a producer id, once; fences other producers, and ends their transactions."""
        self._check_may_wait()
        with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
            _check_locked(is_locked)
            self.check_fatal()
            if self._transaction.identity == NO_IDENTITY:
                self._request_identity(deadline)

    def begin(
        self,
        owner: object,
        deadline: Deadline,
        joined: ProducerIdentity | None,
        shared: bool,
    ) -> None:
        """Open a transaction, a joined one under another producer's identity."""
        self._check_may_wait()
        with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
            _check_locked(is_locked)
            self._check_open()
            transaction = self._transaction
            self.check_fatal()
            if transaction.phase is Phase.OPEN:
                raise RuntimeError("A transaction is open: commit or abort it first.")
            if transaction.phase is Phase.COMMITTING:
                raise RuntimeError(
                    UNKNOWN_OUTCOME if transaction.end_requested else UNFINISHED_COMMIT
                )
            if transaction.phase is Phase.ABORTING:
                self._finish_abort(deadline)
            if joined is not None:
                self._check_joined(joined)
                self._cluster.coordinator(
                    self._requests.transactional_id, deadline.left_s, TRANSACTION_KEY
                )  # its connection has the finalized features
                identity = joined
            else:
                identity = self._next_identity(deadline, shared)
            self._locked(self._begin, identity, joined is not None, shared)
            self._owner = owner

    def _begin(self, identity: ProducerIdentity, joined: bool, shared: bool) -> None:
        version = self._requests.version
        self._transaction.begin(identity, version, joined=joined, shared=shared)
        self._sender.state.identity = identity
        self._sender.state.transaction_number += 1

    def _check_joined(self, joined: ProducerIdentity) -> None:
        transaction = self._transaction
        if joined == transaction.identity and transaction.needs_new_epoch:
            raise RuntimeError(
                "The part of the transaction that this producer wrote has failed: abort the"
                " transaction, and join the next one."
            )

    def _next_identity(self, deadline: Deadline, shared: bool) -> ProducerIdentity:
        """Return the identity of the next transaction; request it if it must be a new one."""
        transaction = self._transaction
        is_upgraded = self._requests.version > transaction.version
        if (
            transaction.identity == NO_IDENTITY
            or transaction.is_joined
            or transaction.needs_new_epoch
            or (transaction.has_numbered and (shared or is_upgraded))
        ):
            self._request_identity(deadline)
        return transaction.identity

    def _request_identity(self, deadline: Deadline) -> None:
        transaction = self._transaction
        # A joined identity is another producer's; only its own can be continued.
        current = NO_IDENTITY if transaction.is_joined else transaction.identity
        try:
            identity = self._requests.init_producer_id(current, deadline)
        except Retriable:
            raise
        except KafkaError as error:
            raise self._fatal(error) from None
        self._locked(self._take_identity, identity)

    def _take_identity(self, identity: ProducerIdentity) -> None:
        self._transaction.take_identity(identity)
        self._transaction.is_joined = False
        self._sender.state.counts["identities"] += 1

    # Offsets.

    def commit_offsets(
        self,
        owner: object,
        group: GroupMetadata,
        offsets: Mapping[tuple[str, int], tuple[int, str | None]],
        deadline: Deadline,
    ) -> None:
        """Commit offsets of a group with the open transaction."""
        if not offsets:
            return
        self._check_may_wait()
        with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
            _check_locked(is_locked)
            self.check_owner(owner)
            transaction, requests = self._transaction, self._requests
            self._locked(transaction.check_writable)
            identity = transaction.identity
            transaction.may_have_begun = True
            try:
                if transaction.version is TransactionVersion.ADDED:
                    requests.add_offsets(identity, group.group_id, deadline)
                transaction.is_begun = True
                requests.commit_offsets(identity, transaction.version, group, offsets, deadline)
            except Retriable:
                raise
            except (InvalidProducerIdMapping, InvalidTxnState) as error:
                raise self._fatal(error) from None
            except KafkaError as error:
                self._fail(error)
                raise

    # Commit.

    def commit(self, owner: object, deadline: Deadline) -> None:
        """Commit the owner's transaction, or raise its first error."""
        self._check_may_wait()
        with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
            _check_locked(is_locked)
            self.check_owner(owner)
            transaction = self._transaction
            self.check_fatal()
            if transaction.phase is Phase.ABORTING:
                raise RuntimeError("The transaction is being aborted: call abort() again.")
            self._locked(self._set_phase, Phase.COMMITTING)
            try:
                self._lifetime.flush(deadline.left_s)
            except TimeoutError as error:
                raise RequestTimedOut(
                    f"{error}; the transaction is open: commit() or abort() it."
                ) from None
            failure = transaction.fatal_error or transaction.error
            if failure is not None:
                self._locked(self._set_phase, Phase.OPEN)
                raise failure.copy()
            self._end(True, deadline)

    # Abort.

    def abort(self, owner: object, deadline: Deadline) -> None:
        """Abort the owner's transaction; records that are not sent yet fail."""
        self._check_may_wait()
        with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
            _check_locked(is_locked)
            self.check_owner(owner)
            self.check_fatal()
            self._start_abort()
            self._finish_abort(deadline)

    def close(self, timeout: float | None) -> None:
        """Abort the open transaction, if there is one whose commit was not requested."""
        self._waiter.check_may_wait()
        deadline = self.deadline(timeout)
        try:
            with LockGuard(self._lock, _wait_s(deadline)) as is_locked:
                _check_locked(is_locked)
                transaction = self._transaction
                if (
                    transaction.phase is Phase.NONE
                    or transaction.end_requested
                    or transaction.fatal_error is not None
                ):
                    return
                if transaction.phase is Phase.ABORTING:  # an abort has exceeded its timeout
                    deadline = deadline.within(EXIT_TIMEOUT_S)
                self._start_abort()
                self._finish_abort(deadline)
        except KafkaError as error:
            log.warning(
                "Transaction of a closed producer could not be aborted; the broker aborts it"
                " after transaction.timeout.ms. transactional_id=%s error=%r",
                self._requests.transactional_id, str(error),
            )  # fmt: skip

    def _start_abort(self) -> None:
        if self._transaction.end_requested:
            raise RuntimeError(UNKNOWN_OUTCOME)
        self._locked(self._set_phase, Phase.ABORTING)
        self._locked(self._sender.state.drop_unsent)

    def _finish_abort(self, deadline: Deadline) -> None:
        """Wait for the batches in flight, and have the coordinator abort."""
        transaction, state = self._transaction, self._sender.state

        def is_idle() -> bool:
            return not state.active_queues and not transaction.is_adding

        if not self._waiter.work_until(is_idle, deadline.left_s):
            raise RequestTimedOut("Batches of the transaction are in flight; call abort() again.")
        self._end(False, deadline)

    # Both.

    def _end(self, commit: bool, deadline: Deadline) -> None:
        """Request the end of the transaction, unless nothing was written or others end it."""
        transaction = self._transaction
        identity = transaction.identity
        if not transaction.is_joined and (transaction.is_begun or transaction.may_have_begun):
            transaction.end_requested = commit
            try:
                identity = self._requests.end(identity, transaction.version, commit, deadline)
            except Retriable:
                raise
            except TransactionAbortable as error:
                if not commit:
                    raise self._fatal(error) from None
                self._locked(self._set_phase, Phase.OPEN)
                transaction.end_requested = False
                self._fail(error)
                raise
            except InvalidTxnState:
                if transaction.is_begun:
                    raise self._fatal(InvalidTxnState(ENDED_BY_OTHERS)) from None
                # Nothing was added: the coordinator has no transaction of this epoch to end.
                transaction.needs_new_epoch = True
            except KafkaError as error:
                raise self._fatal(error) from None
        self._locked(transaction.end, identity)
        self._owner = None

    def _set_phase(self, phase: Phase) -> None:
        self._transaction.phase = phase

    def _fatal(self, error: KafkaError) -> KafkaError:
        """Register a fatal error, and return it."""
        self._fail(error, fatal=True)
        return error

    def _fail(self, error: KafkaError, *, fatal: bool = False) -> None:
        """Register an error of the transaction or the producer, and fail what is not sent yet."""
        self._locked(self._transaction.failed, error, fatal)
        self._locked(self._sender.state.drop_unsent)

    def _check_process(self) -> None:
        if self._lifetime.forked:
            raise RuntimeError(FORKED)

    def _check_open(self) -> None:
        if self._lifetime.closed:
            raise RuntimeError("The producer is closed; create a new one for more transactions.")

    def _check_may_wait(self) -> None:
        """Raise RuntimeError in a forked child, and in a delivery callback: the thread that has the
        lock may wait for that."""
        self._check_process()
        self._waiter.check_may_wait()

    def check_fatal(self) -> None:
        """Raise the fatal error of the producer, if there is one."""
        if self._transaction.fatal_error is not None:
            raise self._transaction.fatal_error.copy()


def _wait_s(deadline: Deadline) -> float:
    """Return the time to wait for a call of another thread."""
    return min(deadline.left_s, threading.TIMEOUT_MAX)


def _check_locked(is_locked: bool) -> None:
    """Raise RequestTimedOut for a call that waited in vain for that of another thread."""
    if not is_locked:
        raise RequestTimedOut(
            "Another thread's call of this producer's transaction has not ended in time."
        )
