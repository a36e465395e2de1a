"""TransactionCoordinator: the transactional ids of one `__transaction_state` partition.

    request or timer ──decide──▶ DecisionResult(replies, records) ──the host writes──▶ replay

The transitions are pure functions (transaction.py); this machine keeps the state of each id, its
timeouts, and the search for expired ids.  A decision that ends a transaction writes a Prepare
record.  Once that record is committed, the host has the markers written and then calls `complete`;
after a load it does the same for each transaction in `prepared`.

The host replays a decision's records before the next decision, or has failed to write them.  So
the machine has no pending state: the next request sees the result of the one before.

Timeouts are monotonic, so that a change of the wall clock does not abort a transaction; a restart
continues them by the wall clock, within the bounds of the timeout.  With two-phase commit (KIP-939)
a transaction has no timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from kafkalite.coordination.deadlines import Deadlines
from kafkalite.coordination.groups.offsets.commit_records import TEXT_SIZE_MAX, is_storable
from kafkalite.coordination.machine import DecisionResult, Reply
from kafkalite.coordination.transaction import (
    BUMPS_EPOCH_SINCE,
    IDLE,
    NO_PRODUCER,
    PREPARED,
    ProducerEpoch,
    add_partitions,
    check_producer,
    complete,
    end_transaction,
    fence,
    init_producer,
    is_kept,
    new_transaction,
    producer_after,
)
from kafkalite.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidRequest,
    InvalidTransactionTimeout,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.transaction_records import (
    NO_TIMEOUT_MS,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
)

Decision: TypeAlias = DecisionResult[list[Reply]]

TICK_COUNT_MAX = 100
"""Maximum number of transactions that one tick aborts."""
TICK_PARTITIONS_MAX = 5_000
"""Number of partitions in these, of which a record is written, after which the tick aborts no
more."""
SWEEP_COUNT = 1_000
"""Maximum number of transactional ids that one tick searches for expired ones."""
RETRY_MS = 1_000
"""Time after which a timeout is handled again that could not be, for lack of a producer id."""

FLEXIBLE_RECORDS_SINCE = 1
"""The transaction version from which records have version 1."""


class TransactionLimits(NamedTuple):
    """Settings of a transaction coordinator."""

    timeout_max_ms: int
    expiration_ms: int
    expiration_check_ms: int
    transaction_version: int
    """The finalized level of the feature: the version of records, and of the broker's aborts."""


class InitOptions(NamedTuple):
    """The options of an InitProducerId request."""

    timeout_ms: int
    enable_2pc: bool = False
    """The transactions of the producer have no timeout."""
    keep_prepared: bool = False
    """An Ongoing transaction is kept for the producer, instead of aborted."""


class TransactionCoordinator:
    """The coordinator's state machine.

    `take_producer_id` returns an id that no producer has had, or raises CoordinatorNotAvailable if
    none is at hand.
    """

    def __init__(self, limits: TransactionLimits, take_producer_id: Callable[[], int]) -> None:
        self.limits = limits
        self.counts: Counter[TransactionState] = Counter()
        """Metrics: the number of transactional ids by state."""
        self._take_producer_id = take_producer_id
        self._transactions: dict[str, Transaction] = {}
        self._start_ms: dict[str, int] = {}
        """The starts of the Ongoing transactions, the oldest first."""
        self._timeouts: Deadlines[str] = Deadlines()
        self._uncertain: set[str] = set()
        """The transactional ids whose last records may be lost, until they have another producer
        id."""
        self.recovered: Sequence[Transaction] = ()
        """The transactions that were committed when the log was read after a power cut, whose
        markers may be lost."""
        self._next_sweep_ms: int | None = None
        self._sweep: Iterator[str] | None = None

    def __len__(self) -> int:
        return len(self._transactions)

    # -- requests ----------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str,
        current: ProducerEpoch,
        options: InitOptions,
        token: Any,
        wall_ms: int,
    ) -> Decision:
        """InitProducerId: begin to use a transactional id, and fence its earlier producer.

        An Ongoing transaction is kept, if that is requested.  Otherwise it is aborted, and the
        request refused with CONCURRENT_TRANSACTIONS: the client repeats it, and is served once the
        abort is complete.
        """
        check_init(transactional_id, options, self.limits)
        timeout_ms = NO_TIMEOUT_MS if options.enable_2pc else options.timeout_ms
        stored = self._transactions.get(transactional_id)
        if stored is None:
            stored = new_transaction(self._take_producer_id(), timeout_ms, wall_ms)
        state = init_producer(
            stored,
            current,
            timeout_ms,
            self.limits.transaction_version,
            self._take_producer_id,
            wall_ms,
            keep_prepared=options.keep_prepared,
            is_uncertain=transactional_id in self._uncertain,
        )
        if state.state in PREPARED:
            response = {"error_code": ConcurrentTransactions.code, **_pair(NO_PRODUCER)}
        else:
            response = {"error_code": 0, **_pair(producer_after(state))}
        if state.state is TransactionState.ONGOING:
            response["ongoing_txn_producer_id"] = state.producer_id
            response["ongoing_txn_producer_epoch"] = state.producer_epoch
        return DecisionResult([Reply(token, response)], [self._record(transactional_id, state)])

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        transaction_version: int,
        token: Any,
        now_ms: int,
        wall_ms: int,
    ) -> Decision:
        """AddPartitionsToTxn, AddOffsetsToTxn: add partitions, and begin a transaction if none is.

        The partitions exist, and the principal may write to them.  Raises UnsupportedVersion for
        partitions of version 2 that are new, while version 0 is finalized.
        """
        check_id(transactional_id)
        stored = self._transactions.get(transactional_id)
        changed = add_partitions(stored, producer, partitions, transaction_version, wall_ms)
        replies = [Reply(token, {"error_code": 0})]
        if changed is None:
            return DecisionResult(replies)
        self._check_version(transaction_version)
        if stored is None or stored.state is not TransactionState.ONGOING:
            self._set_timeout(transactional_id, changed, now_ms + changed.timeout_ms)
        return DecisionResult(replies, [self._record(transactional_id, changed)])

    def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: frozenset[TopicPartition],
        token: Any,
    ) -> Decision:
        """AddPartitionsToTxn, verify only: return the error code of each partition, as `codes`."""
        stored = check_producer(self._transactions.get(transactional_id), producer)
        known = stored.partitions if stored.state is TransactionState.ONGOING else frozenset()
        codes = {each: 0 if each in known else TransactionAbortable.code for each in partitions}
        return DecisionResult([Reply(token, {"error_code": 0, "codes": codes})])

    def end(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        is_commit: bool,
        transaction_version: int,
        token: Any,
        wall_ms: int,
    ) -> Decision:
        """EndTxn: decide the outcome; return the pair for the next transaction."""
        check_id(transactional_id)
        stored = self._transactions.get(transactional_id)
        prepared = end_transaction(
            stored, producer, is_commit, transaction_version, self._take_producer_id, wall_ms
        )
        if prepared is None:
            assert stored is not None
            response = {"error_code": 0, **_pair(producer_after(stored))}
            return DecisionResult([Reply(token, response)])
        response = {"error_code": 0, **_pair(producer_after(prepared))}
        return DecisionResult([Reply(token, response)], [self._record(transactional_id, prepared)])

    def complete(self, transactional_id: str, prepared: Transaction, wall_ms: int) -> Decision:
        """Complete a transaction whose markers are all written; nothing if it is completed."""
        if self._transactions.get(transactional_id) != prepared:
            return DecisionResult([])
        return DecisionResult([], [self._record(transactional_id, complete(prepared, wall_ms))])

    # -- queries -----------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """Return the state of a transactional id."""
        check_id(transactional_id)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise TransactionalIdNotFound()
        return transaction

    def partition_count(self, transactional_id: str) -> int:
        """Return the number of partitions of a transaction, at least 1."""
        transaction = self._transactions.get(transactional_id)
        return max(1, len(transaction.partitions)) if transaction is not None else 1

    def transactions(self) -> Sequence[tuple[str, Transaction]]:
        """Return the transactional ids as they are now."""
        return [*self._transactions.items()]

    @property
    def oldest_start_ms(self) -> int | None:
        """Start of the oldest Ongoing transaction, or None."""
        return next(iter(self._start_ms.values()), None)

    def prepared(self) -> Iterator[tuple[str, Transaction]]:
        """Yield the transactions whose markers are to be written."""
        for transactional_id, transaction in self._transactions.items():
            if transaction.state in PREPARED:
                yield transactional_id, transaction

    # -- timer -------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next `tick`, or None."""
        due = [each for each in (self._timeouts.next_ms, self._next_sweep_ms) if each is not None]
        return min(due, default=None)

    def tick(self, now_ms: int, wall_ms: int) -> Decision:
        """Abort transactions whose timeout has passed, and remove expired transactional ids.

        If there are many, handle a part and leave `next_due_ms` in the past.
        """
        records: list[TransactionRecord] = []
        partition_count = 0
        due = self._timeouts.due(now_ms)
        for transactional_id in islice(due, TICK_COUNT_MAX):
            stored = self._transactions.get(transactional_id)
            if stored is None or stored.state is not TransactionState.ONGOING:
                continue
            # A failed write replays nothing: the timeout is handled again.
            self._timeouts.set(transactional_id, now_ms + RETRY_MS)
            try:
                records.append(self._record(transactional_id, self._fenced(stored, wall_ms)))
            except CoordinatorNotAvailable:
                break
            partition_count += len(stored.partitions)
            if partition_count >= TICK_PARTITIONS_MAX:
                break
        if self._next_sweep_ms is not None and self._next_sweep_ms <= now_ms:
            records += self._expired(now_ms, wall_ms)
        return DecisionResult([], records)

    def _expired(self, now_ms: int, wall_ms: int) -> Iterator[TransactionRecord]:
        """Yield the tombstones of expired ids among the next SWEEP_COUNT."""
        if self._sweep is None:
            self._sweep = iter([*self._transactions])
        some = [*islice(self._sweep, SWEEP_COUNT)]
        if len(some) < SWEEP_COUNT:
            self._sweep = None
            self._next_sweep_ms = now_ms + self.limits.expiration_check_ms
        for transactional_id in some:
            stored = self._transactions.get(transactional_id)
            if stored is None or stored.state not in IDLE:
                continue
            if stored.last_update_ms + self.limits.expiration_ms <= wall_ms:
                yield self._record(transactional_id, None)

    # -- replay ------------------------------------------------------------------------------

    def replay(self, record: TransactionRecord) -> None:
        """Apply a record."""
        transactional_id, transaction = record.transactional_id, record.transaction
        before = self._transactions.get(transactional_id)
        if before is not None:
            self.counts[before.state] -= 1
            if transaction is None or transaction.producer_id != before.producer_id:
                self._uncertain.discard(transactional_id)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction
            self.counts[transaction.state] += 1
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            self._timeouts.drop(transactional_id)
            self._start_ms.pop(transactional_id, None)
        elif self._start_ms.get(transactional_id) != transaction.start_ms:
            self._start_ms[transactional_id] = transaction.start_ms

    def loaded(self, now_ms: int, wall_ms: int) -> None:
        """Begin after the last record of the log was replayed."""
        for transactional_id, transaction in self._transactions.items():
            if transaction.state is TransactionState.ONGOING:
                timeout_ms = transaction.timeout_ms
                left_ms = min(max(transaction.start_ms + timeout_ms - wall_ms, 0), timeout_ms)
                self._set_timeout(transactional_id, transaction, now_ms + left_ms)
        self._start_ms = dict(sorted(self._start_ms.items(), key=lambda each: each[1]))
        self._next_sweep_ms = now_ms + self.limits.expiration_check_ms

    def keep_committed(self) -> None:
        """Keep the committed transactions as they are now, until the next restart: InitProducerId
        removes the outcome of the last transaction from the state."""
        self.recovered = [
            transaction
            for transaction in self._transactions.values()
            if transaction.state is TransactionState.COMPLETE_COMMIT
        ]

    def replace_producer_ids(self) -> None:
        """Give each present transactional id a new producer id at its next InitProducerId.

        For a log that may have lost its last records, and with them epochs that were returned to
        producers.  If one were returned again, it would not fence the producer that has it, and
        partitions would take the first batches for repeated ones.  A restart forgets this.
        """
        self._uncertain = {*self._transactions}

    def drop_token(self, token: Any) -> None:
        """Do nothing: no request of this machine waits for another one."""

    def reconfigure(self, limits: TransactionLimits, now_ms: int) -> None:
        """Apply new limits; a new check interval counts from now."""
        before, self.limits = self.limits, limits
        if limits.expiration_check_ms != before.expiration_check_ms and self._sweep is None:
            self._next_sweep_ms = now_ms + limits.expiration_check_ms

    # -- internals ---------------------------------------------------------------------------

    def _set_timeout(self, transactional_id: str, transaction: Transaction, due_ms: int) -> None:
        if transaction.timeout_ms != NO_TIMEOUT_MS:
            self._timeouts.set(transactional_id, due_ms)

    def _check_version(self, client_version: int) -> None:
        """Raise UnsupportedVersion if the finalized level has no records for a client's version.

        A client that began to use version 2 gets the error once version 0 is finalized, as in
        Kafka, where records of version 0 cannot have the client's version.
        """
        level = self.limits.transaction_version
        if client_version >= BUMPS_EPOCH_SINCE and level < FLEXIBLE_RECORDS_SINCE:
            raise UnsupportedVersion(
                f"The client uses transaction version {client_version}, and the finalized version"
                f" is {level}: restart the client."
            )

    def _record(self, transactional_id: str, transaction: Transaction | None) -> TransactionRecord:
        is_flexible = self.limits.transaction_version >= FLEXIBLE_RECORDS_SINCE or (
            # A transaction of version 2 ends also where version 0 is finalized by now, and one that
            # was kept is aborted.  The producer continues with a pair that the earlier record has
            # no fields for.
            transaction is not None
            and (transaction.transaction_version >= BUMPS_EPOCH_SINCE or is_kept(transaction))
        )
        return TransactionRecord(transactional_id, transaction, int(is_flexible))

    def _fenced(self, stored: Transaction, wall_ms: int) -> Transaction:
        return fence(stored, self.limits.transaction_version, self._take_producer_id, wall_ms)


def check_id(transactional_id: str) -> None:
    """Raise InvalidRequest for an empty transactional id."""
    if not transactional_id:
        raise InvalidRequest("The transactional id is empty.")


def check_init(transactional_id: str, options: InitOptions, limits: TransactionLimits) -> None:
    """Check what InitProducerId refuses in any state of the transactional id.

    Raises:
        InvalidRequest: No record can have the transactional id.
        UnsupportedVersion: A transaction cannot be kept before transaction.version 2.
        InvalidTransactionTimeout: The timeout is outside of the limits.
    """
    check_id(transactional_id)
    if not is_storable(transactional_id):
        raise InvalidRequest(f"The transactional id is longer than {TEXT_SIZE_MAX} bytes.")
    # Earlier records have no next epoch, and the response to EndTxn has no pair to continue with.
    if options.keep_prepared and limits.transaction_version < BUMPS_EPOCH_SINCE:
        raise UnsupportedVersion(
            f"Keeping a transaction requires transaction.version={BUMPS_EPOCH_SINCE}."
        )
    if not options.enable_2pc:
        _check_timeout(options.timeout_ms, limits)


def _check_timeout(timeout_ms: int, limits: TransactionLimits) -> None:
    if not 0 < timeout_ms <= limits.timeout_max_ms:
        raise InvalidTransactionTimeout(
            f"Transaction timeout {timeout_ms} ms is not between 1 and"
            f" transaction.max.timeout.ms={limits.timeout_max_ms}."
        )


def _pair(producer: ProducerEpoch) -> dict[str, int]:
    return {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
