"""AsyncProducer: a Producer whose waiting is awaiting.

    async with AsyncProducer("127.0.0.1:9092") as producer:
        delivery = await producer.send("flights", b"EWR-IAH")     # it is on its way
        print(await delivery)                                     # RecordMetadata

`send` stops the loop no longer than it takes to append a record.  Where a Producer would wait (an
unknown topic, no memory), this one does so in a thread.  Awaiting a delivery sends its batch at the
end of the loop's turn, so that tasks which run in the same turn share it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

from kafkalite._ext.gathering import Delivery
from kafkalite.client.accumulator import BufferExhausted, Topic
from kafkalite.client.arrow_sending import Deliveries
from kafkalite.client.batch import Batch, OnDelivery, RecordMetadata
from kafkalite.client.producer import Producer


class WouldWait(Exception):
    """The topic has to be asked for first."""


class Impatient(Producer):
    """A Producer that does not wait in the loop's own thread."""

    def __init__(self, bootstrap: str | list[str] | None, **keywords: Any) -> None:
        super().__init__(bootstrap, **keywords)
        self._loop_thread = threading.get_ident()

    def _topic(self, name: str, wait_s: float | None = None) -> Topic:
        if self._may_not_wait() and name not in self.topics:
            raise WouldWait
        return super()._topic(name, wait_s)

    def _patience_s(self) -> float:
        return 0.0 if self._may_not_wait() else super()._patience_s()

    def _may_not_wait(self) -> bool:
        return threading.get_ident() == self._loop_thread


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


class AsyncProducer:
    """Writes records to topics, from the tasks of one loop."""

    def __init__(self, bootstrap: str | list[str] | None = None, **keywords: Any) -> None:
        self._producer = Impatient(bootstrap, **keywords)
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
        timestamp: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> AsyncDelivery:
        """Take a record for a topic; await the answer to wait for it."""
        words = (topic, value, key, headers, timestamp, partition, on_delivery)
        try:
            delivery = self._producer.send(*words)
        except (WouldWait, BufferExhausted):
            delivery = await asyncio.to_thread(self._producer.send, *words)
        return AsyncDelivery(self, delivery)

    async def send_arrow(self, topic: str, rows: Any) -> AsyncDeliveries:
        """Send the rows of an Arrow table; back when all are on their way."""
        deliveries = await asyncio.to_thread(self._producer.send_arrow, topic, rows)
        return AsyncDeliveries(self, deliveries)

    async def partitions_for(self, topic: str) -> int:
        """How many partitions the topic has."""
        return await asyncio.to_thread(self._producer.partitions_for, topic)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is decided; TimeoutError when that takes longer."""
        await asyncio.to_thread(self._producer.flush, timeout)

    async def close(self, timeout: float | None = None) -> None:
        """Send what is left and end; what is not decided in time has failed."""
        await asyncio.to_thread(self._producer.close, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

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
