"""AsyncShareConsumer: the ShareConsumer for asyncio.

    async with AsyncShareConsumer("127.0.0.1:9092", topics=["jobs"], group="workers") as consumer:
        async for message in consumer:
            await work(message.value)

Methods have the names and arguments of ShareConsumer's; those that may wait are coroutines.  They
run one after the other in a thread that belongs to this consumer.  A cancelled call loses nothing:
what it fetched is returned by the next call.

One event loop uses it, and closes it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar, Unpack

from kafkalite.client.net.arguments import checked_integer
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.share.share_consumer import CLOSE_TIMEOUT_S, AcknowledgementCallback
from kafkalite.client.share.share_messages import AcquiredItem, ShareBatch, ShareMessage
from kafkalite.client.share.share_reader import ShareReader
from kafkalite.config.client_keywords import ShareConsumerConfig
from kafkalite.errors import KafkaError

T = TypeVar("T")


class AsyncShareConsumer:
    """Kafka consumer of a share group for asyncio; the counterpart of ShareConsumer."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: str | Iterable[str] | None = None,
        group: str | None = None,
        *,
        on_acknowledge: AcknowledgementCallback | None = None,
        **settings: Unpack[ShareConsumerConfig],
    ) -> None:
        """Create a consumer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys.
            topics: Names of topics.  None: subscribe() follows.
            group: Share group to join (group.id).
            on_acknowledge: As for ShareConsumer; a function that is called in the event loop.
            settings: Kafka's keys with underscores.

        Raises:
            InvalidConfig: As for ShareConsumer.
        """
        self._reader = ShareReader(bootstrap, topics, group, settings)
        self._on_acknowledge = on_acknowledge
        self._thread = ThreadPoolExecutor(1, "kafkalite-share-consumer")
        self._urgent = 0
        """Number of pending calls that take precedence over waiting for records."""

    async def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer and end calls that wait in it; a second call does nothing.

        In the implicit mode what was returned last is accepted.

        Args:
            timeout: Seconds to send acknowledgements and to leave the group.
        """
        await self._close(timeout, accepts=True)

    async def _close(self, timeout: float, *, accepts: bool) -> None:
        reader = self._reader
        if accepts and not reader.closed:
            reader.begin_call()
        # Not the event loop's default executor, which the application may have filled.
        closing = ThreadPoolExecutor(1, "kafkalite-share-consumer-close")

        def close() -> None:
            reader.close(timeout, accepts=False)
            self._thread.shutdown()

        try:
            await asyncio.get_running_loop().run_in_executor(closing, close)
        except BaseException:  # cancelled: the thread closes the consumer
            closing.shutdown(wait=False)
            raise
        closing.shutdown()
        self._report()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._reader.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(CLOSE_TIMEOUT_S, accepts=kind is None)

    # Subscription.

    async def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read these topics instead of the current ones; the next call for records joins the group.

        Args:
            topics: One or several names.

        Raises:
            InvalidConfig: There is no name, or one is a pattern.
        """
        await self._call(self._reader.subscribe, topics)

    async def unsubscribe(self) -> None:
        """Leave the group.  What was returned can still be acknowledged."""
        await self._call(self._reader.unsubscribe)

    @property
    def subscription(self) -> list[str]:
        """The topics that are subscribed."""
        return self._reader.topics

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the group has assigned; other members may have them as well."""
        return self._reader.assignment

    # Records.

    async def poll(self, timeout: float | None = None) -> ShareMessage | None:
        """Return the next message.

        Args:
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The message, or None if none arrived in time.

        Raises:
            KafkaError: An error that is not retriable.
            RuntimeError: Nothing is subscribed.
            ClientClosed: The consumer was closed.
        """
        return next(iter(await self._next(1, Deadline(limit_s(timeout)))), None)

    async def consume(
        self, num_messages: int = 1, timeout: float | None = None
    ) -> list[ShareMessage]:
        """Return the messages of one partition that are there, waiting for the first one.

        Args:
            num_messages: Maximum number of messages.
            timeout: Seconds to wait for the first one; None waits without limit.

        Returns:
            Messages in the order of their offsets; none if the time is up.

        Raises:
            ValueError: `num_messages` is less than 1.
            KafkaError: An error that is not retriable.
        """
        count = checked_integer(num_messages, "num_messages must be an integer")
        if count < 1:
            raise ValueError(f"num_messages must be at least 1, not {num_messages}")
        return await self._next(count, Deadline(limit_s(timeout)))

    async def __aiter__(self) -> AsyncIterator[ShareMessage]:
        """Iterate over messages; ends as iteration over a ShareConsumer does."""
        while True:
            try:
                messages = await self._next(1, self._reader.poll_deadline(None))
            except ClientClosed:
                return
            if not messages:
                return
            yield messages[0]

    async def _next(self, count: int, deadline: Deadline) -> list[ShareMessage]:
        reader = self._reader
        reader.begin_call()
        while reader.has_current() or await self._wait(deadline, reader.fill):
            messages = reader.take(count)
            if messages:  # another task may have taken what was ready
                return messages
        return []

    def batches(
        self,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
        timestamp_unit: str = "ms",
    ) -> AsyncIterator[ShareBatch]:
        """Return an asynchronous iterator over batches of columns.

        Args:
            columns: Columns to decode, as for Consumer.batches(); None: all.
            timeout: Seconds to wait for the next batch; None: consumer.timeout.ms, by default
                without limit.
            timestamp_unit: "ms", "us" or "ns".

        Returns:
            An asynchronous iterator of ShareBatch; a step accepts the batch before, in the implicit
            mode.

        Raises:
            ImportError: pyarrow is not installed.
            InvalidConfig: An unknown column or timestamp unit.
        """
        wanted = self._reader.columns(columns, timestamp_unit)
        reader = self._reader

        async def found() -> AsyncIterator[ShareBatch]:
            fill = functools.partial(reader.fill_columns, wanted=wanted)
            while True:
                try:
                    reader.begin_call()
                    if not await self._wait(reader.poll_deadline(timeout), fill):
                        return
                except ClientClosed:
                    return
                batch = reader.take_columns()
                if batch is not None:
                    yield batch

        return found()

    # Acknowledgements.

    async def commit(
        self, timeout: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Send what was acknowledged, and wait for the responses.

        In the implicit mode what was returned before is accepted.

        Args:
            timeout: Seconds to wait; None: default.api.timeout.ms.

        Returns:
            For each partition with acknowledgements since the last commit None, or its first error.

        Raises:
            ClientClosed: The consumer was closed.
        """
        self._reader.begin_call()
        return await self._call(self._reader.commit, timeout)

    async def renew(self, *items: AcquiredItem, timeout: float | None = None) -> None:
        """Restart the locks of records that take longer; their delivery counts stay.

        Args:
            items: Messages or batches that are not acknowledged yet.
            timeout: Seconds to wait for the responses; None: default.api.timeout.ms.

        Raises:
            ValueError: One is acknowledged already.
            InvalidRecordState: A lock had ended, or the group does not allow renewals.
            UnsupportedVersion: The broker does not know renewals (before Kafka 4.2).
            KafkaError: Another error of the broker.
        """
        await self._call(self._reader.renew, items, timeout)

    # The thread.

    async def _wait(self, deadline: Deadline, fill: Callable[..., bool]) -> bool:
        """Wait for records in the thread; return False if the time is up.

        Other calls take precedence: they interrupt the wait, which restarts after them.
        """
        while True:
            is_cancelled = threading.Event()

            def is_interrupted(is_cancelled: threading.Event = is_cancelled) -> bool:
                return self._urgent > 0 or is_cancelled.is_set()

            found = await self._submit(
                functools.partial(fill, deadline, is_interrupted=is_interrupted), is_cancelled
            )
            if found or deadline.passed:
                return found

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a call in the thread, before any wait for records."""
        self._urgent += 1
        try:
            self._reader.waker.set()
            return await self._submit(functools.partial(function, *arguments), threading.Event())
        finally:
            self._urgent -= 1

    async def _submit(self, job: Callable[[], T], is_cancelled: threading.Event) -> T:
        """Run a job in the thread; mark it as cancelled if this task is cancelled."""
        self._reader.check()
        try:
            return await asyncio.wrap_future(self._thread.submit(job))
        except asyncio.CancelledError:
            is_cancelled.set()
            self._reader.waker.set()
            raise
        finally:
            self._report()

    def _report(self) -> None:
        """Call on_acknowledge with the outcomes that have arrived."""
        for outcome in self._reader.reports():
            if self._on_acknowledge is not None:
                self._on_acknowledge(*outcome)
