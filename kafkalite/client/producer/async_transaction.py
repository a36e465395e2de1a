"""AsyncTransaction: a transaction of an AsyncProducer; its calls run in a thread of the producer.

The thread runs the calls of all transactions of the producer one after another.  So after a block
that was cancelled, the next transaction begins when the cancelled one has ended.

async with producer.transaction() as transaction:
    await producer.send("bills", bill)
    await transaction.commit_offsets(consumer)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from kafkalite.client.net.arguments import OffsetsToCommit
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.producer.producer_transaction import (
    ProducerTransaction,
    check_offset_source,
)

InThread = Callable[..., "asyncio.Future[Any]"]


class AsyncOffsetSource(Protocol):
    """An asynchronous consumer whose positions are committed."""

    def positions(self) -> Awaitable[Mapping[TopicPartition, int]]: ...
    def group_metadata(self) -> GroupMetadata: ...


class AsyncTransaction:
    """A transaction of an AsyncProducer; made by AsyncProducer.transaction()."""

    def __init__(self, transaction: ProducerTransaction, in_thread: InThread) -> None:
        self._transaction = transaction
        self._in_thread = in_thread

    @property
    def identity(self) -> ProducerIdentity:
        """The identity of a shared transaction, as ProducerTransaction.identity."""
        return self._transaction.identity

    async def begin(self, timeout: float | None = None) -> None:
        """Open the transaction, as ProducerTransaction.begin().

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.
        """
        await self._in_thread(self._transaction.begin, timeout)

    async def commit_offsets(
        self,
        offsets: AsyncOffsetSource | OffsetsToCommit,
        group: GroupMetadata | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Commit the offsets of a group with this transaction.

        Args:
            offsets: An AsyncConsumer, or offsets by (topic, partition).
            group: The group, by its metadata or its name.  None: that of the AsyncConsumer.
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The offsets were refused.
        """
        if not isinstance(offsets, Mapping):
            check_offset_source(offsets, "AsyncConsumer", is_async=True)
            group = offsets.group_metadata() if group is None else group
            given: OffsetsToCommit = dict((await offsets.positions()).items())
        else:
            given = offsets
        await self._in_thread(self._transaction.commit_offsets, given, group, timeout)

    async def commit(self, timeout: float | None = None) -> None:
        """Wait until all records are written, and commit, as ProducerTransaction.commit().

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: A record was not written, or the coordinator refused.
        """
        await self._in_thread(self._transaction.commit, timeout)

    async def abort(self, timeout: float | None = None) -> None:
        """Abort the transaction, as ProducerTransaction.abort().

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The coordinator refused, or was not available in time.
        """
        await self._in_thread(self._transaction.abort, timeout)

    async def __aenter__(self) -> Self:
        begun = self._in_thread(self._transaction.begin)
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # The block does not run, so nothing else would end the transaction.
            begun.add_done_callback(_retrieve)
            with contextlib.suppress(RuntimeError):  # the producer was closed
                self._in_thread(self._transaction.abort).add_done_callback(_retrieve)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or abort after an exception; a cancelled task does not stop it halfway."""
        ending = self._in_thread(self._transaction.__exit__, kind, error, trace)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            ending.add_done_callback(_retrieve)
            raise


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of a call that nothing waits for any more."""
    if not done.cancelled():
        done.exception()
