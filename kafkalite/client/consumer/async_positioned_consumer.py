"""AsyncPositionedConsumer: topics, positions, offsets and group of a consumer, for asyncio.

AsyncConsumer adds the methods that return records.  Both run their calls in a thread that belongs
to the consumer, one after the other; rebalance callbacks are called in the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Self, TypeVar, Unpack

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.consumer.consumer_offsets import Watermarks
from kafkalite.client.consumer.fetch_buffer import FetchCall
from kafkalite.client.consumer.group_reading import RebalanceCall, RebalanceCallback
from kafkalite.client.consumer.positioned_consumer import CLOSE_TIMEOUT_S
from kafkalite.client.group.subscription import Topics
from kafkalite.client.net.arguments import OffsetsToCommit
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.deadline import FOREVER, Deadline
from kafkalite.client.net.group_metadata import GroupMetadata
from kafkalite.client.net.offset_requests import OffsetAt
from kafkalite.client.net.settings import Bootstrap
from kafkalite.client.net.topology import TopicPartition
from kafkalite.config.client_keywords import ConsumerConfig

T = TypeVar("T")

_own_call: ContextVar[RebalanceCall | None] = ContextVar("own_call", default=None)
"""The callback in which a task runs."""


class AsyncPositionedConsumer:
    """The part of an asynchronous consumer that returns no records."""

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        topics: Topics | None = None,
        group: str | None = None,
        *,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        **settings: Unpack[ConsumerConfig],
    ) -> None:
        """Create a consumer; it connects when it is first used.

        Args:
            bootstrap: Brokers as HOST:PORT, a list of them, or a mapping of Kafka's keys.
            topics: Topics to read, as for subscribe().
            group: Group to join with the topics, or whose offsets assign() begins at (group.id).
            on_assign: As for Consumer; it may be a coroutine function.
            on_revoke: As for Consumer; it may be a coroutine function.
            on_lost: As for Consumer; it may be a coroutine function.
            settings: Kafka's keys with underscores.

        Raises:
            InvalidConfig: As for Consumer.
        """
        self._consumer = Consumer(
            bootstrap, topics, group,
            on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost, **settings,
        )  # fmt: skip
        self._buffer = self._consumer.buffer
        self._thread = ThreadPoolExecutor(1, "kafkalite-consumer")
        self._urgent = 0
        """Number of pending calls that take precedence over waiting for records."""
        self._waiting = False
        """True while the thread waits for records, or is about to."""
        self._running: RebalanceCall | None = None
        """The callback that runs."""
        self._callback_ended = asyncio.Event()
        self._is_closing = False

    async def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Close the consumer and end calls that wait in it; a second call does nothing.

        A member commits, calls on_revoke and leaves its group; in a callback it does not, and the
        session timeout ends its membership.

        Args:
            timeout: Seconds to leave the group.
        """
        deadline = Deadline(self._buffer.limit_s(timeout))
        is_first, self._is_closing = not self._is_closing, True
        try:
            if is_first and self._buffer.group is not None and not self._buffer.closed:
                await self._leave(deadline, closes=True)
        finally:
            await self._close_in_thread()

    async def _close_in_thread(self) -> None:
        # Not the event loop's default executor, which the application may have filled.
        closing = ThreadPoolExecutor(1, "kafkalite-consumer-close")
        try:
            await asyncio.get_running_loop().run_in_executor(closing, self._close)
        except BaseException:  # cancelled: the thread closes the consumer
            closing.shutdown(wait=False)
            raise
        closing.shutdown()

    def _close(self) -> None:
        self._consumer.close()
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._buffer.stop_commits()
        await self.close()

    # Subscription and positions.

    async def subscribe(self, topics: Topics) -> None:
        """Read these topics instead of the current ones: all partitions, or those of a group.

        Partitions that are already read keep their positions.  A consumer with a group joins it
        with the next call for records.

        Args:
            topics: Names or patterns of topics, as for Consumer.

        Raises:
            InvalidConfig: A pattern is not a regular expression.
            ValueError: There are no topics, and the consumer is a member of a group.
        """
        await self._call(self._consumer.subscribe, topics)

    async def unsubscribe(self) -> None:
        """Read nothing; a member commits, calls on_revoke and leaves its group.

        Raises:
            ClientClosed: The consumer was closed.
            RuntimeError: A rebalance callback calls this.
        """
        await self._leave(Deadline(CLOSE_TIMEOUT_S), closes=False)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions instead of the current ones.

        Partitions that are already read keep their positions.  Others start at the group's
        committed offset if there is one, else where auto.offset.reset sets it.

        Args:
            partitions: (topic, partition) pairs.

        Raises:
            TypeError: An element is not such a pair.
            RuntimeError: The consumer is a member of a group; unsubscribe() first.
        """
        await self._call(self._consumer.assign, partitions)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read, as far as they are known."""
        return self._consumer.assignment

    @property
    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._consumer.paused

    async def position(self, partition: tuple[str, int], timeout: float | None = None) -> int:
        """Return the offset of the next message of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            timeout: Seconds to find the first offset.

        Returns:
            The position; it counts messages that were returned, not those fetched ahead.

        Raises:
            ValueError: The partition is not assigned.
            RequestTimedOut: The first offset was not found in time.
        """
        return await self._call(self._consumer.position, partition, timeout)

    async def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Set the position of a partition.

        Args:
            partition: (topic, partition), one of the assignment.
            offset: Offset of the next message, 0 to 2**63 - 1.

        Raises:
            ValueError: The partition is not assigned, or the offset is out of these bounds.
        """
        await self._call(self._consumer.seek, partition, offset)

    async def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the log start offsets of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.seek_to_beginning, *partitions)

    async def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Set the positions to the current ends of these partitions, or of all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.seek_to_end, *partitions)

    async def seek_to_time(self, when: datetime | int, *partitions: tuple[str, int]) -> None:
        """Set the positions to the first record at or after a time.

        Args:
            when: A datetime with a time zone, or milliseconds since 1970.
            partitions: Partitions to seek; none: all of the assignment.  A partition without such a
                record is set to its end.

        Raises:
            ValueError: The datetime has no time zone, or a partition is not assigned.
        """
        await self._call(self._consumer.seek_to_time, when, *partitions)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Return no messages of these partitions, or of all, until they are resumed.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.pause, *partitions)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Resume these partitions, or all.

        Args:
            partitions: Partitions of the assignment; none: all.

        Raises:
            ValueError: A partition is not assigned.
        """
        await self._call(self._consumer.resume, *partitions)

    # Watermarks, lag and committed offsets.

    async def watermarks(
        self, partition: tuple[str, int], timeout: float | None = None
    ) -> Watermarks:
        """Return the current first and end offsets of a partition.

        Args:
            partition: (topic, partition); need not be assigned.
            timeout: Seconds to wait.

        Returns:
            Watermarks(low, high).  With isolation.level=read_committed, `high` is the last stable
            offset.

        Raises:
            UnknownTopicOrPartition: The topic or partition does not exist.
        """
        return await self._call(self._consumer.watermarks, partition, timeout)

    async def lag(self, *partitions: tuple[str, int], timeout: float | None = None) -> int:
        """Return the current number of offsets between the positions and the ends.

        Args:
            partitions: Partitions to sum over; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            The sum over the partitions; offsets without a record count as well.

        Raises:
            UnknownTopicOrPartition: A topic does not exist.
            ValueError: A partition is not assigned.
        """
        return await self._call(self._consumer.lag, *partitions, timeout=timeout)

    async def offsets_for_times(
        self, times: Mapping[tuple[str, int], datetime | int], timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAt | None]:
        """Return the first record at or after each time.

        Args:
            times: For each (topic, partition) a datetime with a time zone, or milliseconds since
                1970.
            timeout: Seconds to wait.

        Returns:
            OffsetAt(offset, timestamp) by partition; None if there is no such record.

        Raises:
            UnknownTopicOrPartition: A topic or partition does not exist.
            ValueError: A datetime has no time zone.
        """
        return await self._call(self._consumer.offsets_for_times, times, timeout)

    async def commit(
        self,
        offsets: OffsetsToCommit | None = None,
        timeout: float | None = None,
        *,
        offsets_to_keep: OffsetsToCommit | None = None,
    ) -> None:
        """Commit offsets for the group.

        Args:
            offsets: For each (topic, partition) the offset of the next message, or (offset,
                metadata).  None: all current positions.
            timeout: Seconds to wait.
            offsets_to_keep: Former name of `offsets`.

        Raises:
            InvalidGroupId: The consumer has no group.
            UnknownMemberId, IllegalGeneration, FencedMemberEpoch, StaleMemberEpoch,
                RebalanceInProgress: Other members may commit now, and this consumer may not.
        """
        await self._call(self._consumer.commit, offsets, timeout, offsets_to_keep=offsets_to_keep)

    async def committed(
        self, *partitions: tuple[str, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the committed offsets of the group; wait for transactions that may change them.

        Args:
            partitions: Partitions to look up; none: all of the assignment.
            timeout: Seconds to wait.

        Returns:
            Offsets by partition; None where nothing is committed.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return await self._call(self._consumer.committed, *partitions, timeout=timeout)

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the current positions, without a request.

        Returns:
            The offset of the next message, of each partition that has a position.
        """
        return await self._call(self._consumer.positions)

    def group_metadata(self) -> GroupMetadata:
        """Return what a transaction needs to commit offsets of this consumer's group.

        Returns:
            The group, and the membership in it if the consumer is a member.

        Raises:
            InvalidGroupId: The consumer has no group.
        """
        return self._consumer.group_metadata()

    def metrics(self) -> dict[str, Any]:
        """Return the consumer's metrics.

        Returns:
            `transports`: the transport of each node id, "direct" or "tcp" (also under its
            former name); `offset_resets`: how often auto.offset.reset was used;
            `missed_records`: offsets deleted before they were read.
        """
        return self._consumer.metrics()

    # The thread.

    async def _wait(self, deadline: Deadline, fill: Callable[..., bool], *arguments: Any) -> bool:
        """Wait for records in the thread; return False if the time is up.

        Other calls take precedence: they interrupt the wait, which restarts after them.
        """

        def waiting() -> bool | RebalanceCall:
            # _call and _submit set their flag before the waker; so clear the waker, then check.
            self._waiting = True
            try:
                self._buffer.waker.clear()
                if self._urgent or self._buffer.call.is_cancelled:
                    return False
                return self._buffer.prepare() or fill(deadline, *arguments)
            finally:
                self._waiting = False

        while not self._is_closing:
            if not await self._await_callback(deadline):
                return False
            found = await self._submit(waiting)
            if isinstance(found, RebalanceCall):
                await self._run(found)
            elif found or deadline.passed:
                return found
        raise ClientClosed

    # Rebalance callbacks.

    async def _await_callback(self, deadline: Deadline) -> bool:
        """Wait for the end of a callback that another task runs; return False if it is late."""
        while self._running is not None:
            if _own_call.get() is self._running:
                self._buffer.check_no_callback()
            left_s = deadline.left_s
            try:
                async with asyncio.timeout(None if left_s == FOREVER else left_s):
                    await self._callback_ended.wait()
            except TimeoutError:
                return False
        return True

    async def _run(self, call: RebalanceCall) -> None:
        """Run a rebalance callback in the event loop and complete its change, unless others do."""
        if not self._buffer.begin(call):
            return
        self._running = call
        self._callback_ended.clear()
        before = _own_call.set(call)
        try:
            outcome = call.function(call.partitions)
            if inspect.isawaitable(outcome):
                await outcome
        finally:
            _own_call.reset(before)
            await asyncio.shield(self._finish(call))  # a second cancellation does not prevent it

    async def _finish(self, call: RebalanceCall) -> None:
        try:
            await self._call(self._buffer.finish, call)
        finally:
            self._running = None
            self._callback_ended.set()

    async def _leave(self, deadline: Deadline, closes: bool) -> None:
        """Leave the group, with the callbacks for what is revoked, also if one of them raises."""
        if closes and self._running is not None and _own_call.get() is self._running:
            return

        def end_leave() -> None:
            with self._buffer.locked() as buffer:
                buffer.end_leave(deadline)

        await self._await_callback(deadline)
        is_member = await self._call(self._buffer.begin_leave, closes)
        try:
            while is_member and await self._await_callback(deadline):
                call = await self._call(self._buffer.prepare)
                if call is None:
                    break
                await self._run(call)
        except asyncio.CancelledError:
            deadline = Deadline(0)  # the leave is not waited for
            raise
        finally:
            if is_member or not closes:
                await self._call(end_leave)

    async def _call(self, function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run a call in the thread, before any wait for records."""
        self._urgent += 1
        try:
            if self._waiting:
                self._buffer.waker.set()
            return await self._submit(lambda: function(*arguments, **keywords))
        finally:
            self._urgent -= 1

    async def _submit(self, job: Callable[[], T]) -> T:
        """Run a job in the thread; mark it as cancelled if this task is cancelled."""
        self._buffer.check()
        call = FetchCall()

        def run() -> T:
            self._buffer.call = call
            return job()

        try:
            return await asyncio.wrap_future(self._thread.submit(run))
        except asyncio.CancelledError:
            call.is_cancelled = True
            self._buffer.waker.set()
            raise
