"""TransactionVerifier: verifies partitions with the transaction coordinator, before their records.

    verify ─▶ pending, one for each producer ─▶ message of a tick ─▶ coordinator ─▶ Futures
                  ▲                                                      │
                  └──────── after `add.partitions.to.txn.retry.backoff.ms`, if another
                            transaction of the producer is not completed yet

Below transaction version 2 the coordinator verifies that it knows the partition; from version 2 on
it adds the partition, which the client no longer does itself (KIP-890).  With version 2 the
client continues before the markers of its last transaction are written, so an addition that is
refused with CONCURRENT_TRANSACTIONS is repeated here for a short time before the client gets it.

One request of a producer is in flight at a time.  Those that come meanwhile are merged; of
different epochs, only the newest is sent, and the others fail with INVALID_PRODUCER_EPOCH.  One
message is in flight at a time, so that the next one takes all that came in between.  On the
coordinator's own node the message is a function call.

`produce_error` and `commit_error` return what a client that uses an older version understands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.broker.future import Future
from kafkalite.config.broker import (
    ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS,
    ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS,
)
from kafkalite.config.settings import Settings
from kafkalite.coordination.transaction import ProducerEpoch
from kafkalite.errors import (
    BY_CODE,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidTxnState,
    KafkaError,
    KafkaStorageError,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicas,
    ProducerFenced,
    RequestTimedOut,
    TransactionAbortable,
    UnknownServerError,
)
from kafkalite.metrics import Histogram
from kafkalite.protocol.schemas.transaction_records import TopicPartition

if TYPE_CHECKING:
    from kafkalite.broker.scheduler import Scheduler

REQUESTS_MAX = 100
"""Maximum number of requests in a message, and of the coordinator's decisions in a tick for it."""

PAUSE_MS = 1
"""Pause before the next message, if a message was full."""

PRODUCE_ABORTABLE_SINCE, PRODUCE_ADDS_SINCE = 11, 12
COMMIT_ABORTABLE_SINCE, COMMIT_ADDS_SINCE = 4, 5

UNREACHABLE = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaStorageError,
    NetworkException,
    NotCoordinator,
    RequestTimedOut,
)
"""Errors of a coordinator that could not be reached; the client repeats its request."""


class RequestTransaction(NamedTuple):
    """The transaction of a client's request."""

    transactional_id: str
    adds: bool = True
    """True if the request adds its partitions to the transaction (transaction version 2)."""
    knows_abortable: bool = True
    """True if the client understands TRANSACTION_ABORTABLE."""

    @classmethod
    def of_commit(cls, transactional_id: str, version: int) -> RequestTransaction:
        """Return the transaction of a TxnOffsetCommit request."""
        adds, knows = version >= COMMIT_ADDS_SINCE, version >= COMMIT_ABORTABLE_SINCE
        return cls(transactional_id, adds, knows)

    def produce_error(self, error: KafkaError) -> KafkaError:
        """Return the error of a Produce request for one of its verification.

        NOT_ENOUGH_REPLICAS is repeated by every client, without a metadata request.
        """
        is_concurrent = isinstance(error, ConcurrentTransactions) and not self.adds
        if is_concurrent or isinstance(error, UNREACHABLE):
            return NotEnoughReplicas("The transaction could not be verified; retry later.")
        return self._error(error)

    def commit_error(self, error: KafkaError) -> KafkaError:
        """Return the error of a TxnOffsetCommit request for one of its verification."""
        if isinstance(error, NetworkException | RequestTimedOut):
            return CoordinatorLoadInProgress("The transaction could not be verified; retry later.")
        if isinstance(error, KafkaStorageError | NotCoordinator):
            # NOT_COORDINATOR would be about the group, whose coordinator was found.
            return CoordinatorNotAvailable(str(error))
        return self._error(error)

    def _error(self, error: KafkaError) -> KafkaError:
        if isinstance(error, ProducerFenced):
            return InvalidProducerEpoch(str(error))
        if isinstance(error, TransactionAbortable) and not self.knows_abortable:
            return InvalidTxnState("The partition is not in the transaction.")
        return error.copy()


@lru_cache(maxsize=1_000)  # each request of a transaction has the same
def produce_transaction(transactional_id: str, version: int) -> RequestTransaction:
    """Return the transaction of a Produce request."""
    adds, knows_abortable = version >= PRODUCE_ADDS_SINCE, version >= PRODUCE_ABORTABLE_SINCE
    return RequestTransaction(transactional_id, adds, knows_abortable)


class VerificationRequest(NamedTuple):
    """A request to the coordinator of one transactional id."""

    transactional_id: str
    producer: ProducerEpoch
    adds: bool
    partitions: Sequence[TopicPartition]


VerificationResults: TypeAlias = Sequence[Sequence[int]]
"""For each request, the error codes of its partitions."""

SendVerifications: TypeAlias = Callable[
    [Sequence[VerificationRequest]], "Future[VerificationResults]"
]


class VerifiedProducer(NamedTuple):
    """A producer of a transactional id, with one request in flight at a time."""

    transactional_id: str
    producer_id: int
    adds: bool


class WaitingPartition(NamedTuple):
    """One call of `verify`."""

    partition: TopicPartition
    begin_ns: int
    future: Future[None]


class PendingVerification(NamedTuple):
    """The next request of a producer."""

    epoch: int
    waiting: list[WaitingPartition]


class SentVerification(NamedTuple):
    """A request in flight."""

    producer: VerifiedProducer
    pending: PendingVerification
    partitions: Sequence[TopicPartition]


class TransactionVerifier:
    """The verifications of a node; see the module.

    `send` sends a message of requests, on the coordinator's node or to it; it is set by the node.
    """

    send: SendVerifications

    def __init__(self, scheduler: Scheduler, now_ns: Callable[[], int]) -> None:
        self._scheduler = scheduler
        self._now_ns = now_ns
        self._retry_ms = 0
        self._retry_ms_max = 0
        self.times = Histogram()
        """Time from the first `verify` of a request until its response."""
        self.failed_count = 0
        """Number of partitions whose verification failed."""
        self._ready: dict[VerifiedProducer, PendingVerification] = {}
        self._held: dict[VerifiedProducer, PendingVerification | None] = {}
        """The producers with a request in flight, or about to be repeated; with the next one."""
        self._is_in_flight = False
        self._is_scheduled = False

    def reconfigure(self, settings: Settings) -> None:
        """Apply the times after which an addition is repeated."""
        self._retry_ms = settings[ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS]
        self._retry_ms_max = settings[ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MAX_MS]

    def verify(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partition: TopicPartition,
        *,
        adds: bool,
    ) -> Future[None]:
        """Verify that a partition is in the producer's transaction, or add it.

        The Future fails with the coordinator's error, or with a retriable one if the coordinator
        could not be reached.
        """
        waiting = WaitingPartition(partition, self._now_ns(), Future())
        key = VerifiedProducer(transactional_id, producer.producer_id, adds)
        self._merge(key, producer.epoch, [waiting])
        return waiting.future

    def _merge(
        self, key: VerifiedProducer, epoch: int, waiting: list[WaitingPartition]
    ) -> None:
        """Add partitions to the next request of a producer."""
        place = self._held if key in self._held else self._ready
        pending = place.get(key)
        if pending is not None and pending.epoch > epoch:
            self._fail(waiting, InvalidProducerEpoch())
            return
        if pending is not None and pending.epoch == epoch:
            pending.waiting.extend(waiting)
            return
        place[key] = PendingVerification(epoch, waiting)
        if place is self._ready:
            self._schedule(0)
        if pending is not None:
            self._fail(pending.waiting, InvalidProducerEpoch())

    def _fail(self, waiting: Sequence[WaitingPartition], error: KafkaError) -> None:
        self.failed_count += len(waiting)
        for each in waiting:
            each.future.fail(error.copy())

    # -- messages ----------------------------------------------------------------------------

    def _schedule(self, delay_ms: int) -> None:
        """Send a message at the end of this tick's requests, or later."""
        if not self._is_scheduled and not self._is_in_flight:
            self._is_scheduled = True
            self._scheduler.call_later(delay_ms, self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        sent: list[SentVerification] = []
        for key in [*islice(self._ready, REQUESTS_MAX)]:
            pending = self._ready.pop(key)
            self._held[key] = None
            partitions = [*dict.fromkeys(each.partition for each in pending.waiting)]
            sent.append(SentVerification(key, pending, partitions))
        if not sent:
            return
        self._is_in_flight = True
        requests = [
            VerificationRequest(
                each.producer.transactional_id,
                ProducerEpoch(each.producer.producer_id, each.pending.epoch),
                each.producer.adds,
                each.partitions,
            )
            for each in sent
        ]
        self.send(requests).then(partial(self._received, sent))

    def _received(
        self,
        sent: Sequence[SentVerification],
        results: VerificationResults | None,
        error: KafkaError | None,
    ) -> None:
        self._is_in_flight = False
        for number, each in enumerate(sent):
            if results is not None:
                codes = dict(zip(each.partitions, results[number], strict=True))
            else:
                assert error is not None
                codes = dict.fromkeys(each.partitions, error.code)
            self._finish(each.producer, each.pending, codes)
        if self._ready:
            self._schedule(PAUSE_MS if len(sent) == REQUESTS_MAX else 0)

    def _finish(
        self, key: VerifiedProducer, pending: PendingVerification, codes: dict[TopicPartition, int]
    ) -> None:
        """Complete a request, or repeat it for the partitions that may still be added."""
        now_ns = self._now_ns()
        self.times.add(now_ns - pending.waiting[0].begin_ns)
        repeated: list[WaitingPartition] = []
        for each in pending.waiting:
            code = codes[each.partition]
            elapsed_ms = (now_ns - each.begin_ns) // 1_000_000
            if not code:
                each.future.resolve(None)
            elif (
                key.adds
                and code == ConcurrentTransactions.code
                and elapsed_ms < self._retry_ms_max
            ):
                repeated.append(each)
            else:
                self._fail([each], BY_CODE.get(code, UnknownServerError)())
        if repeated:
            self._merge(key, pending.epoch, repeated)
            self._scheduler.call_later(self._retry_ms, partial(self._release, key))
        else:
            self._release(key)

    def _release(self, key: VerifiedProducer) -> None:
        """Let the next request of a producer be sent."""
        pending = self._held.pop(key)
        if pending is not None:
            self._ready[key] = pending
            self._schedule(0)
