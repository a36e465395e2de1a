"""AsyncProducer: the producer for asyncio.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("flights", b"EWR-IAH")     # appended to a batch
        print(await delivery)                                     # RecordMetadata

`send` blocks the event loop only to append a record.  If buffer.memory is used up, tasks wait in
the loop, in the order of their calls.  Topic lookups, send_arrow, flush and close run in the
producer's own threads, never in the loop's default executor.  A send() that was cancelled appends
nothing; a send_arrow() that has begun continues.  Awaiting a delivery sends its batch at the end of
the loop iteration, so that tasks of the same iteration share the batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from kafkalite._ext.gathering import Delivery
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.producer_identity import ProducerIdentity
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.producer.async_transaction import AsyncTransaction
from kafkalite.client.producer.batch_completion import BatchCompletion, OnDelivery
from kafkalite.client.producer.column_batches import Deliveries
from kafkalite.client.producer.lifetime import exit_timeout_s
from kafkalite.client.producer.partition_queue import ProducerTopic
from kafkalite.client.producer.producer import Producer, closed
from kafkalite.config.client_keywords import ProducerConfig
from kafkalite.errors import BufferExhausted, RequestTimedOut
from kafkalite.record_metadata import RecordMetadata

T = TypeVar("T")

THREADS = 4
"""Threads for topic lookups, tables and flushes; calls queue when all are busy."""


class WouldWait(Exception):
    """The topic must be looked up first."""


class DeferredSend(Exception):
    """A record that cannot be appended yet.

    `record` holds the arguments of Producer.gather(): iterators of headers have been read and
    serializers called, which must happen once.
    """

    def __init__(self, record: tuple[Any, ...], cause: Exception) -> None:
        super().__init__(str(cause))
        self.record = record
        self.is_topic_unknown = isinstance(cause, WouldWait)


class NonBlockingProducer(Producer):
    """A Producer that does not wait in the thread of the event loop."""

    def __init__(self, bootstrap: Bootstrap, **keywords: Unpack[ProducerConfig]) -> None:
        super().__init__(bootstrap, **keywords)
        self._loop_thread = threading.get_ident()

    def _topic(self, name: str, wait_s: float | None = None) -> ProducerTopic:
        if self._may_not_wait() and name not in self.topics:
            raise WouldWait
        return super()._topic(name, wait_s)

    def _send_slowly(self, *record: Any) -> Delivery:
        try:
            return super()._send_slowly(*record)
        except (WouldWait, BufferExhausted) as cause:
            raise DeferredSend(record, cause) from cause

    @property
    def block_s(self) -> float:
        return self._block_s

    def await_progress(self, gate: FreeMemory) -> None:
        """Send all batches without lingering; open the gate when the next batch completes."""
        sender = self._sender
        sender.locked(self._state.callbacks.gates.append, gate)
        sender.locked(sender.flush_lingering)

    @property
    def transaction_number(self) -> int:
        """Number of transactions begun."""
        return self._state.transaction_number

    def check_transaction(self, number: int) -> None:
        """Raise InvalidTxnState if another transaction was begun since."""
        self._state.check_transaction(number)

    def check_open(self) -> None:
        """Raise RuntimeError if it is closed, or was created before a fork."""
        self._check_open()

    @property
    def is_forked(self) -> bool:
        """True if this process is a child of the one that created it."""
        return self._lifetime.forked

    def _max_block_s(self) -> float:
        return 0.0 if self._may_not_wait() else super()._max_block_s()

    def _may_not_wait(self) -> bool:
        return threading.get_ident() == self._loop_thread


class FreeMemory:
    """A gate that tasks wait on until there may be memory; any thread opens it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()

    def release(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    @property
    def is_open(self) -> bool:
        return self._opened.done()

    async def wait(self) -> None:
        await asyncio.shield(self._opened)


class AsyncDelivery:
    """The outcome of a record; awaited, it returns RecordMetadata or raises the error.

    Raises:
        KafkaError: When awaited: the record failed.
    """

    __slots__ = ("_delivery", "_producer")

    def __init__(self, producer: AsyncProducer, delivery: Delivery) -> None:
        self._producer = producer
        self._delivery = delivery

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._delivery.done():
            yield from self._producer._completion_of(self._delivery.batch).__await__()
        return self._delivery.result(0)

    def __repr__(self) -> str:
        return f"<Async{self._delivery!r}"[:-1] + ">"


class AsyncDeliveries:
    """The outcomes of a table's rows, one per batch.

    Awaited, it returns a list of (partition, base offset, record count).

    Raises:
        KafkaError: When awaited: the first error of the batches.
    """

    __slots__ = ("_deliveries", "_producer")

    def __init__(self, producer: AsyncProducer, deliveries: Deliveries) -> None:
        self._producer = producer
        self._deliveries = deliveries

    def done(self) -> bool:
        """Return True if the outcomes of all rows are known."""
        return self._deliveries.done()

    def __await__(self) -> Generator[Any, None, list[tuple[int, int, int]]]:
        for batch in self._deliveries.batches:
            if not batch.done:
                yield from self._producer._completion_of(batch).__await__()
        return self._deliveries.result(0)


@hints.hinting(hints.PRODUCER)
class AsyncProducer:
    """Writes records to topics, from the tasks of one event loop."""

    def __init__(self, bootstrap: Bootstrap = None, **keywords: Unpack[ProducerConfig]) -> None:
        """Open a producer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys.
            keywords: Kafka's configuration keys with underscores, as for Producer.

        Raises:
            InvalidConfig: A key is unknown, a value is invalid, or settings contradict each other.
        """
        self._producer = NonBlockingProducer(bootstrap, **keywords)
        self._threads = ThreadPoolExecutor(THREADS, "kafkalite-async-producer")
        self._transaction_thread = ThreadPoolExecutor(1, "kafkalite-async-transactions")
        """Runs the calls of transactions in their order, not behind other calls that wait."""
        self._lookups: dict[str, asyncio.Future[int]] = {}
        self._turns = asyncio.Lock()
        """Held by the task that waits for memory; the others queue for it in order."""
        self._room: FreeMemory | None = None
        self._awaited: dict[BatchCompletion, asyncio.Future[None]] = {}
        """Futures of the batches that tasks wait for."""
        self._wanted: list[BatchCompletion] = []

    def __repr__(self) -> str:
        return f"Async{self._producer!r}"

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        serializer: Callable[[Any], Any] | None = None,
    ) -> AsyncDelivery:
        """Append a record to a batch; await the returned delivery to wait for the outcome.

        Waits up to max.block.ms for the topic and for memory.  A call that is cancelled appends
        nothing.

        Args:
            topic: Name of the topic.
            value: bytes, str (sent as UTF-8), None (a tombstone), or an argument of the serializer.
            key: bytes, str or None, or an argument of `key_serializer`.
            headers: (name, value) pairs, or a mapping of names to values.
            timestamp: Milliseconds since 1970, or a datetime with a time zone; None: now.
            partition: Partition to write to; None: selected by the key or the partitioner.
            on_delivery: Called as on_delivery(error, metadata) once the outcome is known, as in
                Producer.send().
            serializer: Function of the value, instead of the producer's `value_serializer`.

        Returns:
            An AsyncDelivery; awaited, it returns RecordMetadata.

        Raises:
            MessageTooLarge: The record is larger than max.request.size.
            BufferExhausted: buffer.memory was used up for max.block.ms.
            RequestTimedOut: The topic was not looked up within max.block.ms.
        """

        try:
            delivery = self._producer.send(
                topic, value, key, headers, timestamp, partition, on_delivery,
                serializer=serializer,
            )  # fmt: skip
        except DeferredSend as deferred:
            delivery = await self._send_deferred(topic, deferred)
        return AsyncDelivery(self, delivery)

    async def _send_deferred(self, topic: str, deferred: DeferredSend) -> Delivery:
        """Append the record once its topic is known and there is memory."""
        transaction_number = self._producer.transaction_number

        def attempt() -> Delivery | None:
            self._producer.check_transaction(transaction_number)
            try:
                delivery: Delivery = self._producer.gather(*deferred.record)
            except DeferredSend:
                return None
            return delivery

        delivery = None
        if deferred.is_topic_unknown:
            await self._look_up(topic)
            delivery = attempt()
        if delivery is None:
            delivery = await self._await_memory(attempt)
        return delivery

    async def _await_memory(self, attempt: Callable[[], Delivery | None]) -> Delivery:
        """Repeat the attempt after each completed batch, until there is memory."""
        try:
            async with asyncio.timeout(self._producer.block_s), self._turns:
                while True:
                    room = self._room
                    if room is None or room.is_open:
                        room = self._room = FreeMemory()
                        self._producer.await_progress(room)
                    # After registering the gate: batches completed from here on open it.
                    delivery = attempt()
                    if delivery is not None:
                        return delivery
                    await room.wait()
        except TimeoutError:
            raise BufferExhausted(
                "buffer.memory was used up for max.block.ms: records are sent faster than the"
                " brokers write them.  Raise buffer.memory or max.block.ms, or send fewer at a"
                " time."
            ) from None

    async def _look_up(self, topic: str) -> None:
        """Look up a topic in a thread; tasks that need the same topic share one request."""
        looking = self._lookups.get(topic)
        if looking is None:
            looking = self._in_thread(self._producer.partitions_for, topic)
            self._lookups[topic] = looking
            looking.add_done_callback(lambda done: self._looked_up(topic, done))
        try:
            async with asyncio.timeout(self._producer.block_s + 1):
                await asyncio.shield(looking)
        except TimeoutError:
            raise RequestTimedOut(
                f"Topic {topic!r} was not looked up within max.block.ms: too many other topics"
                " are looked up at the same time."
            ) from None

    def _looked_up(self, topic: str, done: asyncio.Future[int]) -> None:
        self._lookups.pop(topic, None)
        if not done.cancelled():
            done.exception()  # retrieved, even if all waiting tasks were cancelled

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a call in a thread; RuntimeError if the producer is closed before it begins."""
        return self._in_thread_of(self._threads, function, *arguments)

    def _in_transaction_thread(
        self, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        """Run a call of a transaction after the earlier ones; RuntimeError as _in_thread()."""
        return self._in_thread_of(self._transaction_thread, function, *arguments)

    def _in_thread_of(
        self, threads: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any
    ) -> asyncio.Future[T]:
        self._producer.check_open()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def ended(done: asyncio.Future[T]) -> None:
            if outcome.done():
                return
            if done.cancelled():
                outcome.set_exception(closed())
            elif (error := done.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(done.result())

        # The thread's own future is cancelled: one of the loop's passes it on an iteration later,
        # and a thread could begin the call meanwhile.
        job = threads.submit(function, *arguments)
        asyncio.wrap_future(job, loop=loop).add_done_callback(ended)
        outcome.add_done_callback(lambda done: job.cancel() if done.cancelled() else None)
        return outcome

    async def send_arrow(self, topic: str, rows: Any) -> AsyncDeliveries:
        """Send each row of an Arrow table as a record; runs in a thread.

        Args:
            topic: Name of the topic.
            rows: Table or data frame, as for Producer.send_arrow().

        Returns:
            An AsyncDeliveries, when all rows are sent or appended to a batch.

        Raises:
            TypeError, ValueError, KafkaError: As Producer.send_arrow().
        """
        deliveries = await self._in_thread(self._producer.send_arrow, topic, rows)
        return AsyncDeliveries(self, deliveries)

    async def send_table(
        self, topic: str, frame: Any, format: str = "json", **options: Any
    ) -> AsyncDeliveries:
        """Send each row of a data frame as a record; encoded and sent in a thread.

        Args:
            topic: Name of the topic.
            frame: pyarrow Table or RecordBatch, pandas or polars DataFrame, with any columns.
            format: "json", "csv" or "avro".
            options: `key`, `timestamp`, `columns` and `schema` of Producer.send_table().

        Returns:
            An AsyncDeliveries, when all rows are sent or appended to a batch.

        Raises:
            TypeError, ValueError, KafkaError: As Producer.send_table().
        """
        send = partial(self._producer.send_table, topic, frame, format, **options)
        deliveries = await self._in_thread(send)
        return AsyncDeliveries(self, deliveries)

    async def partitions_for(self, topic: str) -> int:
        """Return the current number of partitions of a topic; waits up to max.block.ms.

        Args:
            topic: Name of the topic.

        Returns:
            The number of partitions, at least 1.

        Raises:
            KafkaError: The topic does not exist, or no broker responded in time.
        """
        return await self._in_thread(self._producer.partitions_for, topic)

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Fence earlier producers with this transactional id, as Producer.init_transactions().

        Args:
            timeout: Seconds to wait; None: up to max.block.ms.

        Raises:
            KafkaError: The coordinator refused, or was not available in time.
        """
        await self._in_transaction_thread(self._producer.init_transactions, timeout)

    def transaction(
        self, *, identity: ProducerIdentity | None = None, shared: bool = False
    ) -> AsyncTransaction:
        """Return a transaction for an `async with` block, as Producer.transaction().

        Args:
            identity: Join a transaction that another producer shares.
            shared: Other producers write in it under its `identity`.

        Returns:
            An AsyncTransaction that is not begun.
        """
        transaction = self._producer.transaction(identity=identity, shared=shared)
        return AsyncTransaction(transaction, self._in_transaction_thread)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent so far are delivered or failed.

        Args:
            timeout: Seconds to wait; None: up to delivery.timeout.ms for each record.

        Raises:
            TimeoutError: The timeout has passed.
        """
        if self._producer.is_open:
            await self._in_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Flush and close the producer.

        Args:
            timeout: Seconds to wait; records that are not delivered by then fail.  None: up to
                delivery.timeout.ms for each record.
        """
        closing = ThreadPoolExecutor(1, "kafkalite-async-producer-close")
        try:
            await asyncio.get_running_loop().run_in_executor(closing, self._producer.close, timeout)
        finally:
            closing.shutdown(wait=False)
            for threads in (self._threads, self._transaction_thread):
                threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close and raise unrequested failures, as Producer.__exit__()."""
        if self._producer.is_forked:
            return
        await self.close(exit_timeout_s(kind))
        if kind is None:
            self._producer.check_unseen()

    def metrics(self) -> dict[str, int]:
        """Return counters since the producer was opened, and current gauges.

        Returns:
            The dict of Producer.metrics().
        """
        return self._producer.metrics()

    def _completion_of(self, batch: BatchCompletion) -> asyncio.Future[None]:
        """Return the future that is done with the batch; tasks share it."""
        loop = asyncio.get_running_loop()
        waiting = self._awaited.get(batch)
        if waiting is None:
            waiting = self._awaited[batch] = loop.create_future()
            batch.call_when_done(batch, lambda done: self._wake_soon(loop, done))
            if not self._wanted:
                loop.call_soon(self._send_lingering)
            self._wanted.append(batch)
        # Cancelling one task must not cancel the future for the others.
        return asyncio.shield(waiting)

    def _send_lingering(self) -> None:
        batches, self._wanted = self._wanted, []
        for batch in batches:
            batch.send_now()

    def _wake_soon(self, loop: asyncio.AbstractEventLoop, batch: BatchCompletion) -> None:
        """Wake the waiting tasks; called in the thread that ran the callback."""
        try:
            loop.call_soon_threadsafe(self._wake, batch)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    def _wake(self, batch: BatchCompletion) -> None:
        waiting = self._awaited.pop(batch, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
