"""AsyncProducer: a Producer whose waiting is awaiting.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("flights", b"EWR-IAH")     # it is on its way
        print(await delivery)                                     # RecordMetadata

`send` stops the loop no longer than it takes to append a record.  For room in buffer.memory it
waits in the loop, task after task in the order they came.  Topics are looked up, and send_arrow,
flush and close run, in threads of the producer's own, never in the loop's default executor.  A
send() that was cancelled appends nothing; a send_arrow() that has begun goes on.  Awaiting a
delivery sends its batch at the end of the loop's turn, so that tasks which run in the same turn
share it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from kafkalite._ext.gathering import Delivery
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.producer.accumulator import BufferExhausted, Topic
from kafkalite.client.producer.batch import Batch, OnDelivery, RecordMetadata
from kafkalite.client.producer.column_batches import Deliveries
from kafkalite.client.producer.lifetime import exit_timeout_s
from kafkalite.client.producer.producer import Producer, closed
from kafkalite.errors import RequestTimedOut

T = TypeVar("T")

THREADS = 4
"""For topics that are looked up, tables and flushes; what comes when all are busy waits."""


class WouldWait(Exception):
    """The topic has to be asked for first."""


class Deferred(Exception):
    """A record cannot be taken yet.

    `record` holds the arguments of Producer.gather(): iterators of headers have been read and
    serializers called, which must happen once.
    """

    def __init__(self, record: tuple[Any, ...], cause: Exception) -> None:
        super().__init__(str(cause))
        self.record = record
        self.is_topic_unknown = isinstance(cause, WouldWait)


class Impatient(Producer):
    """A Producer that does not wait in the loop's own thread."""

    def __init__(self, bootstrap: Bootstrap, **keywords: Any) -> None:
        super().__init__(bootstrap, **keywords)
        self._loop_thread = threading.get_ident()

    def _topic(self, name: str, wait_s: float | None = None) -> Topic:
        if self._may_not_wait() and name not in self.topics:
            raise WouldWait
        return super()._topic(name, wait_s)

    def _send_slowly(self, *record: Any) -> Delivery:
        try:
            return super()._send_slowly(*record)
        except (WouldWait, BufferExhausted) as cause:
            raise Deferred(record, cause) from cause

    @property
    def block_s(self) -> float:
        return self._block_s

    def await_progress(self, gate: Room) -> None:
        """Let nothing linger, and have the gate opened when the next batch is decided."""
        sender = self._sender
        sender.turn(sender.outcomes.gates.append, gate)
        sender.turn(sender.want_all)

    def check_open(self) -> None:
        """Raise RuntimeError if it is closed, or another process's."""
        self._check_open()

    @property
    def is_forked(self) -> bool:
        """True if this process is a child of the one that made it."""
        return self._lifetime.forked

    def _patience_s(self) -> float:
        return 0.0 if self._may_not_wait() else super()._patience_s()

    def _may_not_wait(self) -> bool:
        return threading.get_ident() == self._loop_thread


class Room:
    """A gate that a task waits at until there may be room; any thread opens it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.create_future()

    def release(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._open)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits any more

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    @property
    def is_open(self) -> bool:
        return self._opened.done()

    async def wait(self) -> None:
        await asyncio.shield(self._opened)


class AsyncDelivery:
    """What becomes of a record; awaited, it is the RecordMetadata, or raises why it failed."""

    __slots__ = ("_delivery", "_producer")

    def __init__(self, producer: AsyncProducer, delivery: Delivery) -> None:
        self._producer = producer
        self._delivery = delivery

    def done(self) -> bool:
        return self._delivery.done()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._delivery.done():
            yield from self._producer._decided(self._delivery.batch).__await__()
        return self._delivery.result(0)

    def __repr__(self) -> str:
        return f"<Async{self._delivery!r}"[:-1] + ">"


class AsyncDeliveries:
    """What becomes of a table's rows; awaited, (partition, base offset, count) of each batch."""

    __slots__ = ("_deliveries", "_producer")

    def __init__(self, producer: AsyncProducer, deliveries: Deliveries) -> None:
        self._producer = producer
        self._deliveries = deliveries

    def done(self) -> bool:
        return self._deliveries.done()

    def __await__(self) -> Generator[Any, None, list[tuple[int, int, int]]]:
        for batch in self._deliveries.batches:
            if not batch.done:
                yield from self._producer._decided(batch).__await__()
        return self._deliveries.result(0)


@hints.hinting(hints.PRODUCER)
class AsyncProducer:
    """Writes records to topics, from the tasks of one loop."""

    def __init__(self, bootstrap: Bootstrap = None, **keywords: Any) -> None:
        """Open a producer; arguments as for a Producer."""
        self._producer = Impatient(bootstrap, **keywords)
        self._threads = ThreadPoolExecutor(THREADS, "kafkalite-async-producer")
        self._lookups: dict[str, asyncio.Future[int]] = {}
        self._turns = asyncio.Lock()
        """Held by the task that waits for room; the others stand in line for it."""
        self._room: Room | None = None
        self._awaited: dict[Batch, asyncio.Future[None]] = {}
        """Batches that tasks wait for, each with what wakes them."""
        self._wanted: list[Batch] = []

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
        """Take a record for a topic; await the answer to wait for it.

        Arguments and errors are Producer.send's.  Waits up to max.block.ms for the topic and for
        room; a call that is cancelled has written nothing.
        """

        try:
            delivery = self._producer.send(
                topic, value, key, headers, timestamp, partition, on_delivery,
                serializer=serializer,
            )  # fmt: skip
        except Deferred as deferred:
            delivery = await self._send_deferred(topic, deferred)
        return AsyncDelivery(self, delivery)

    async def _send_deferred(self, topic: str, deferred: Deferred) -> Delivery:
        """Take the record once its topic is known and there is room."""

        def attempt() -> Delivery | None:
            try:
                delivery: Delivery = self._producer.gather(*deferred.record)
            except Deferred:
                return None
            return delivery

        delivery = None
        if deferred.is_topic_unknown:
            await self._look_up(topic)
            delivery = attempt()
        if delivery is None:
            delivery = await self._when_there_is_room(attempt)
        return delivery

    async def _when_there_is_room(self, attempt: Callable[[], Delivery | None]) -> Delivery:
        """Repeat the attempt after each completed batch until there is room; return its result."""
        try:
            async with asyncio.timeout(self._producer.block_s), self._turns:
                while True:
                    room = self._room
                    if room is None or room.is_open:
                        room = self._room = Room()
                        self._producer.await_progress(room)
                    # Only now: what is decided from here on opens the gate.
                    delivery = attempt()
                    if delivery is not None:
                        return delivery
                    await room.wait()
        except TimeoutError:
            raise BufferExhausted(
                "buffer.memory was used up for as long as max.block.ms allows: records come"
                " faster than they are taken."
            ) from None

    async def _look_up(self, topic: str) -> None:
        """Learn of a topic, in a thread; one question for all tasks that want to know."""
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
                " are being looked up."
            ) from None

    def _looked_up(self, topic: str, done: asyncio.Future[int]) -> None:
        self._lookups.pop(topic, None)
        if not done.cancelled():
            done.exception()  # seen, also when all who wanted to know were cancelled

    def _in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a call in a thread; RuntimeError when the producer is closed before it begins."""
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

        job = loop.run_in_executor(self._threads, function, *arguments)
        job.add_done_callback(ended)
        outcome.add_done_callback(lambda done: job.cancel() if done.cancelled() else None)
        return outcome

    async def send_arrow(self, topic: str, rows: Any) -> AsyncDeliveries:
        """Send the rows of an Arrow table; back when all are on their way."""
        deliveries = await self._in_thread(self._producer.send_arrow, topic, rows)
        return AsyncDeliveries(self, deliveries)

    async def send_table(
        self, topic: str, frame: Any, format: str = "json", **options: Any
    ) -> AsyncDeliveries:
        """Send the rows of a data frame, each as one record; encoded and sent in a thread.

        Args:
            topic: Name of the topic.
            frame: pyarrow Table or RecordBatch, pandas or polars DataFrame, with any columns.
            format: "json", "csv" or "avro".
            options: `key`, `timestamp`, `columns` and `schema` of Producer.send_table.

        Returns:
            What is awaited for the outcomes, when all rows are on their way.

        Raises:
            TypeError, ValueError, KafkaError: As Producer.send_table.
        """
        send = partial(self._producer.send_table, topic, frame, format, **options)
        deliveries = await self._in_thread(send)
        return AsyncDeliveries(self, deliveries)

    async def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has."""
        return await self._in_thread(self._producer.partitions_for, topic)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is decided; TimeoutError when that takes longer."""
        if self._producer.is_open:  # a closed one has nothing to wait for
            await self._in_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left and end; what is not decided in time has failed."""
        closing = ThreadPoolExecutor(1, "kafkalite-async-producer-close")
        try:
            await asyncio.get_running_loop().run_in_executor(
                closing, self._producer.close, timeout
            )
        finally:
            closing.shutdown(wait=False)
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As the end of a Producer's with block."""
        if self._producer.is_forked:
            return
        await self.close(exit_timeout_s(kind))
        if kind is None:
            self._producer.check_unseen()

    def metrics(self) -> dict[str, int]:
        """What it has counted, and what is waiting now."""
        return self._producer.metrics()

    def _decided(self, batch: Batch) -> asyncio.Future[None]:
        """What tasks wait on until the batch is decided; one for all of them."""
        loop = asyncio.get_running_loop()
        waiting = self._awaited.get(batch)
        if waiting is None:
            waiting = self._awaited[batch] = loop.create_future()
            batch.tell_when_done(batch, lambda done: self._wake_soon(loop, done))
            if not self._wanted:
                loop.call_soon(self._want)
            self._wanted.append(batch)
        # A task that is cancelled does not cancel what the others wait for.
        return asyncio.shield(waiting)

    def _want(self) -> None:
        wanted, self._wanted = self._wanted, []
        for batch in wanted:
            self._producer.want(batch)

    def _wake_soon(self, loop: asyncio.AbstractEventLoop, batch: Batch) -> None:
        """Called by whichever thread learned of it."""
        try:
            loop.call_soon_threadsafe(self._wake, batch)
        except RuntimeError:
            pass  # the loop is closed, and nobody waits any more

    def _wake(self, batch: Batch) -> None:
        waiting = self._awaited.pop(batch, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
