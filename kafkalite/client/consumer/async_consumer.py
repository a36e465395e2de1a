"""AsyncConsumer: the Consumer's twin for asyncio.

    async with AsyncConsumer("127.0.0.1:9092", topics=["flights"]) as consumer:
        async for message in consumer:
            ...

Everything it has is the Consumer's under the same name, to be awaited where that waits.  What waits
runs in one thread of its own, call after call; messages that are there already are given without
it.  A call that is cancelled takes nothing with it: what it had fetched is given to the next one.

One event loop uses it, and it is closed in that loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kafkalite._ext.message_reader import Message
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.consumer import BATCH_SIZE, Consumer, Watermarks
from kafkalite.client.consumer.fetch_buffer import Wait
from kafkalite.client.consumer.offsets import OffsetAt
from kafkalite.client.consumer.tables import Bounds
from kafkalite.client.net import foreign_names as hints
from kafkalite.client.net.cluster import Closed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


@hints.hinting(hints.CONSUMER)
class AsyncConsumer:
    """Reads `topics`, or what it is assigned; keywords as for a Consumer."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        **settings: Any,
    ) -> None:
        self._consumer = Consumer(bootstrap, topics, group, **settings)
        self._intake = self._consumer.intake
        self._thread = ThreadPoolExecutor(1, "kafkalite-consumer")
        self._urgent = 0
        """Calls that no wait for records shall hold up."""
        self._waiting = False
        """Whether the thread waits for records, or is about to."""

    async def close(self) -> None:
        """End it, and whoever waits in it; closing twice is nothing."""
        # Not the loop's default executor, which the program may have filled.
        closing = ThreadPoolExecutor(1, "kafkalite-consumer-close")
        try:
            await asyncio.get_running_loop().run_in_executor(closing, self._close)
        except BaseException:  # cancelled: the thread closes it
            closing.shutdown(wait=False)
            raise
        closing.shutdown()

    def _close(self) -> None:
        self._consumer.close()
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Messages and columns.

    async def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none has come within `timeout` seconds (None: wait)."""
        deadline = Deadline(limit_s(timeout))
        while True:
            message = self._intake.take()
            if message is not None:
                return message
            if not await self._wait(deadline, self._intake.fill):
                return None

    async def getmany(
        self, timeout: float = 0.0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Message]]:
        """Return the messages that are there by partition, waiting for the first of them.

        Args:
            timeout: Seconds to wait for the first message.
            max_records: How many messages at the most; None: all that are decoded.

        Returns:
            Lists of messages by partition; empty when none has come in time.
        """
        if max_records is not None and max_records < 1:
            raise ValueError(f"max_records is at least 1, not {max_records}")
        found: dict[TopicPartition, list[Message]] = {}
        message = await self.poll(timeout)
        count = 0
        while message is not None:
            place = TopicPartition(message.topic, message.partition)
            found.setdefault(place, []).append(message)
            count += 1
            message = self._intake.take() if count != max_records else None
        return found

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Message after message; ends as a Consumer's iteration does."""
        self._intake.check()
        while True:
            while (message := self._intake.take()) is not None:
                yield message
            try:
                if not await self._wait(self._intake.patience(None), self._intake.fill):
                    return
            except Closed:
                return

    def batches(
        self,
        max_bytes: int = BATCH_SIZE,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> AsyncIterator[pa.RecordBatch]:
        """Columns of records, as Consumer.batches gives them."""
        reader = self._consumer.column_reader(columns, timestamp_unit, max_bytes)
        return self._batches(reader, max_bytes, timeout)

    async def _batches(
        self, reader: ColumnReader, max_bytes: int, timeout: float | None
    ) -> AsyncIterator[pa.RecordBatch]:
        intake = self._intake
        while True:
            try:
                if not await self._wait(
                    intake.patience(timeout), intake.fill_columns, reader, max_bytes
                ):
                    return
                found = intake.take_columns()
            except Closed:
                return
            for batch in found:
                yield batch

    async def to_table(
        self,
        start: Bounds = None,
        end: Bounds = None,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> pa.Table:
        """What Consumer.to_table gives."""
        return await self._call(
            self._consumer.to_table, start, end, columns, timeout, timestamp_unit
        )

    # Where it reads.

    async def subscribe(self, topics: str | Iterable[str]) -> None:
        await self._call(self._consumer.subscribe, topics)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        await self._call(self._consumer.assign, partitions)

    @property
    def assignment(self) -> list[TopicPartition]:
        return self._consumer.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        return self._consumer.paused

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        return await self._call(self._consumer.position, partition, timeout)

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        await self._call(self._consumer.seek_to_time, when, *partitions)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        await self._call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        await self._call(self._consumer.resume, *partitions)

    # What the partitions hold, and the group's offsets.

    async def watermarks(
        self, partition: tuple[str, int], timeout: float | None = None
    ) -> Watermarks:
        return await self._call(self._consumer.watermarks, partition, timeout)

    async def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
        return await self._call(self._consumer.lag, *partitions, timeout=timeout)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], datetime | int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAt | None]:
        return await self._call(self._consumer.offsets_for_times, times, timeout)

    async def commit(
        self,
        offsets_to_keep: Mapping[tuple[str, int], int | tuple[int, str | None]] | None = None,
        timeout: float | None = None,
    ) -> None:
        await self._call(self._consumer.commit, offsets_to_keep, timeout)

    async def committed(
        self, *partitions: tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        return await self._call(self._consumer.committed, *partitions, timeout=timeout)

    def metrics(self) -> dict[str, Any]:
        return self._consumer.metrics()

    # The thread.

    async def _wait(
        self, deadline: Deadline, fill: Callable[..., bool], *arguments: Any
    ) -> bool:
        """Wait for records in the thread; False when the time is up.

        Other calls come first: they end the wait, and it begins again behind them.
        """

        def waiting() -> bool:
            # Who rings says first why, and here is first cleared and then looked.
            self._waiting = True
            try:
                self._intake.waker.clear()
                if self._urgent or self._intake.wait.abandoned:
                    return False
                return fill(deadline, *arguments)
            finally:
                self._waiting = False

        while not await self._submit(waiting):
            if deadline.passed:
                return False
        return True

    async def _call(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run a call in the thread, before any wait for records."""
        self._urgent += 1
        try:
            if self._waiting:
                self._intake.waker.set()
            return await self._submit(lambda: function(*arguments, **keywords))
        finally:
            self._urgent -= 1

    async def _submit(self, job: Callable[[], T]) -> T:
        """Run it in the thread; when this is cancelled, tell it so."""
        self._intake.check()
        wait = Wait()

        def run() -> T:
            self._intake.wait = wait
            return job()

        try:
            return await asyncio.wrap_future(self._thread.submit(run))
        except asyncio.CancelledError:
            wait.abandoned = True
            self._intake.waker.set()
            raise
