"""ProducerTransaction: records and offsets that become visible together, or not at all (KIP-98).

    with Producer("127.0.0.1:9092", transactional_id="billing") as producer:
        with producer.transaction() as transaction:
            for message in consumer.consume(100, timeout=1):
                producer.send("bills", bill_of(message))
            transaction.commit_offsets(consumer)

Leaving the block commits, and an exception aborts.  Errors are of three kinds:

    retriable    retried within the timeout of the call
    abortable    the transaction is aborted; the next one works
    fatal        ProducerFenced and others: `transaction()` raises it again; close the producer

The protocol is that of the cluster: version 2 where `transaction.version` is 2 (KIP-890), version 1
on older brokers, from Apache Kafka 2.5 on.  It is chosen when a transaction begins.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from kafkalite.client.net.arguments import OffsetsToCommit, offsets_to_commit
from kafkalite.client.net.deadline import limit_s
from kafkalite.client.net.group_metadata import GroupMetadata, checked_group
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.producer.lifetime import EXIT_TIMEOUT_S
from kafkalite.client.producer.transaction_calls import TransactionCalls
from kafkalite.errors import KafkaError

log = logging.getLogger(__name__)


class OffsetSource(Protocol):
    """A consumer whose positions are committed."""

    def positions(self) -> Mapping[TopicPartition, int]: ...
    def group_metadata(self) -> GroupMetadata: ...


def check_offset_source(offsets: Any, expected: str, *, is_async: bool) -> None:
    """Raise TypeError unless this is a consumer of the expected kind."""
    positions = getattr(offsets, "positions", None)
    if (
        not callable(positions)
        or not hasattr(offsets, "group_metadata")
        or inspect.iscoroutinefunction(positions) is not is_async
        or isinstance(offsets, type)
    ):
        raise TypeError(
            f"offsets must be those of an open {expected}, or {{(topic, number): offset}} with the"
            f" group, not {offsets!r}"
        )


class ProducerTransaction:
    """A transaction of a Producer; made by Producer.transaction().

    Records that other threads send while it is being committed or aborted are refused with
    InvalidTxnState, and so is a record whose call waited while the transaction ended: no record
    gets into the next transaction instead.
    """

    def __init__(
        self, calls: TransactionCalls, joined: ProducerIdentity | None, shared: bool
    ) -> None:
        self._calls = calls
        self._joined = joined
        self._shared = shared
        self._is_open = False
        """True from begin() until commit() or abort()."""

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch under which other producers may write in this transaction.

        Raises:
            RuntimeError: The transaction is not open, or was not created with `shared`.
        """
        self._calls.check_owner(self)
        if not self._shared:
            raise RuntimeError(
                "Only a shared transaction has other writers: producer.transaction(shared=True)."
            )
        return self._calls.identity

    def begin(self, timeout: float | None = None) -> None:
        """Open the transaction; a `with` block calls this.

        The first transaction of a producer fences all earlier producers with its transactional id
        and waits until the transaction they left open is aborted.

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            ProducerFenced: A newer producer has the transactional id.
            RuntimeError: Another transaction of the producer is open.
            KafkaError: The coordinator refused, or was not available in time.
        """
        self._calls.begin(self, self._calls.deadline(_limit(timeout)), self._joined, self._shared)
        self._is_open = True

    def commit_offsets(
        self,
        offsets: OffsetSource | OffsetsToCommit,
        group: GroupMetadata | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit the offsets of a group with this transaction.

        Args:
            offsets: A Consumer, whose current positions are committed; or for each (topic,
                partition) the offset of the next message, or (offset, metadata).
            group: The group, by its metadata or its name.  None: that of the Consumer.
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The offsets were refused.  Unless the error is retriable the transaction
                must be aborted.
            RuntimeError: The transaction is not open.
        """
        self._calls.check_owner(self)
        deadline = self._calls.deadline(_limit(timeout))
        if isinstance(offsets, Mapping):
            given: OffsetsToCommit = offsets
            if group is None:
                raise TypeError(
                    "offsets as a mapping need the group: commit_offsets(offsets, group)"
                )
        else:
            check_offset_source(offsets, "Consumer", is_async=False)
            given = dict(offsets.positions().items())
            group = offsets.group_metadata() if group is None else group
        metadata = checked_group(group)
        wanted = {
            each: offset if isinstance(offset, tuple) else (offset, "")
            for each, offset in offsets_to_commit(given).items()
        }
        self._calls.commit_offsets(self, metadata, wanted, deadline)

    def commit(self, timeout: float | None = None) -> None:
        """Wait until all records are written, and commit the transaction.

        In a joined transaction it only waits for the records; the producer that shares it commits.

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The error of the first record or offsets that were not written; the
                transaction must be aborted.
            RequestTimedOut: The time is up; call it again.
            ProducerFenced: A newer producer has the transactional id, or the transaction exceeded
                transaction.timeout.ms and was aborted.
            RuntimeError: The transaction is not open.
        """
        self._calls.commit(self, self._calls.deadline(_limit(timeout)))
        self._is_open = False

    def abort(self, timeout: float | None = None) -> None:
        """Abort the transaction; records that were not sent yet fail with TransactionAborted.

        In a joined transaction it only ends the part of this producer; the one that shares it must
        abort.

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            RequestTimedOut: The time is up; call it again, or begin the next transaction, which
                completes the abort.
            ProducerFenced: A newer producer has the transactional id.
            RuntimeError: The transaction is not open, or the outcome of its commit is not known.
        """
        self._calls.abort(self, self._calls.deadline(_limit(timeout)))
        self._is_open = False

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or abort after an exception, which is never replaced.

        A commit that fails is aborted, if its outcome is known; its error is raised.  After
        KeyboardInterrupt and SystemExit the abort has EXIT_TIMEOUT_S.
        """
        if not self._calls.is_open(self):
            if kind is None:
                self._calls.check_ended(self._is_open)
            return
        if kind is None:
            try:
                self.commit()
            except BaseException as failure:
                self._abort_quietly(_abort_timeout_s(type(failure)))
                self._calls.check_fatal()
                raise
        else:
            self._abort_quietly(_abort_timeout_s(kind))

    def _abort_quietly(self, timeout_s: float | None) -> None:
        """Abort after an error, which is raised instead of those of the abort."""
        if not self._calls.may_abort(self):
            return
        with contextlib.suppress(RuntimeError):  # the producer was closed, or forked
            try:
                self.abort(timeout_s)
            except KafkaError as error:
                log.warning("Transaction could not be aborted. error=%r", str(error))


def _abort_timeout_s(kind: type[BaseException]) -> float | None:
    """Return the timeout of the abort at the end of a block that this exception ends."""
    return None if issubclass(kind, Exception) else EXIT_TIMEOUT_S


def _limit(timeout: float | None) -> float | None:
    return None if timeout is None else limit_s(timeout)
