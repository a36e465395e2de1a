"""Fetch buffer: fetched records that are decoded and not yet returned to the application.

    buffer.fill(deadline)       decode messages into `ready`; False: timeout, or the waker was set
    next(buffer.ready, None)    take one; the position follows.  Other threads use `take`

    buffer.fill_columns(deadline, reader, max_bytes)
    buffer.take_columns()       the same for columns

Waiting and taking are separate steps, so that a cancelled wait loses nothing.  When a position is
moved, decoded records that were not taken are dropped and fetched again from the position.

One thread runs a call at a time; another thread may only take what is ready, and close it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kafkalite._ext.locking import LockGuard
from kafkalite._ext.message_reader import Message, RowBuilder
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.assignment_reader import AssignmentReader
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import RecordRange, ShortRead
from kafkalite.client.consumer.record_sets import Builder
from kafkalite.client.consumer.rows import NO_ROWS, DecodedRows
from kafkalite.client.consumer.subscription import Subscription
from kafkalite.client.net.arguments import checked_partition
from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.deadline import FOREVER, Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, consumer_settings
from kafkalite.client.net.topology import TopicMetadata, TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import CHECK_CRCS, CONSUMER_TIMEOUT_MS, GROUP_ID
from kafkalite.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SIZE = 64 << 10
"""Approximate size in bytes of the records that are decoded into messages at once."""

LAG_S = 1.0
"""Seconds for a new topic to become known to every node before it counts as missing."""
LAG_RETRY_S = 0.05

_buffers: weakref.WeakSet[FetchBuffer] = weakref.WeakSet()


class FetchCall:
    """A call for records; `is_cancelled` if its task was cancelled."""

    is_cancelled = False


class DecodedColumns(NamedTuple):
    """Decoded columns that were not taken yet.

    `next_offset` is the position after them, valid while the position epoch is `epoch`.
    """

    reader: ColumnReader
    position: Position
    epoch: int
    batches: list[pa.RecordBatch]
    next_offset: int


class FetchBuffer:
    """State shared by Consumer and AsyncConsumer: the assignment reader and the decoded records."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        topics: str | Iterable[str] | None,
        group: str | None,
        settings: Mapping[str, Any],
    ) -> None:
        if group is not None:
            if any(name.replace("_", ".") == GROUP_ID.name for name in settings):
                raise InvalidConfig(f"{GROUP_ID.name} is given twice.")
            settings = {**settings, GROUP_ID.name: group}
        self.settings = consumer_settings(bootstrap, settings)
        subscription = self._subscription(topics)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._delivery_lock = threading.Lock()
        """Held while records are taken or dropped."""
        self._owner_thread: int | None = None
        """Id of the thread that holds `_lock`."""
        self.closed = False
        self.call = FetchCall()
        """The call that currently runs."""
        self.ready: Iterator[Message] = NO_ROWS.iterator
        """Messages that are ready to be taken."""
        self._rows = NO_ROWS
        self._columns: DecodedColumns | None = None
        self._builders: dict[TopicPartition, RowBuilder] = {}
        self.cluster = Cluster(self.settings)
        self.waker = Waker()
        self.assignment_reader = AssignmentReader(self.cluster, self.settings, "fetch", self.waker)
        self.assignment_reader.subscribe(subscription)
        _buffers.add(self)

    def _subscription(self, topics: str | Iterable[str] | None) -> Subscription:
        subscription = Subscription(topics)
        if subscription and self.settings[GROUP_ID] is not None:
            raise InvalidConfig(
                "Group membership comes with a later version: leave out group to read all"
                " partitions of the topics, or leave out topics and assign() partitions."
            )
        return subscription

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics instead of the current ones."""
        subscription = self._subscription(topics)
        self.discard()
        self.assignment_reader.subscribe(subscription)

    def check_assigned(self) -> None:
        """Raise RuntimeError if nothing is subscribed or assigned."""
        if not self.assignment_reader.subscription and not self.assignment_reader.assignment:
            raise RuntimeError(
                "Nothing is subscribed or assigned: give the consumer topics, or assign()"
                " partitions."
            )

    def check_topics(self, topics: Iterable[str], timeout: float | None) -> None:
        """Raise UnknownTopicOrPartition for a topic that does not exist; create none."""
        names = [
            name
            for name in dict.fromkeys(topics)
            if not self.assignment_reader.has_metadata_of(name)
        ]
        deadline = Deadline(self.limit_s(timeout)).within(LAG_S)
        while names:
            found = self.cluster.retry(self.limit_s(timeout), partial(self._describe, names))
            errors = [error for error in found.values() if isinstance(error, KafkaError)]
            names = [name for name in names if isinstance(found[name], KafkaError)]
            if errors and (deadline.passed or not errors[0].retriable):
                raise errors[0]
            if names:
                self.cluster.sleep(min(LAG_RETRY_S, deadline.left_s))

    def _describe(
        self, names: Sequence[str], deadline: Deadline
    ) -> dict[str, TopicMetadata | KafkaError]:
        """Describe topics without creating them."""
        return self.cluster.describe(names, deadline.left_s, create=False)

    # Locking and close.

    @contextlib.contextmanager
    def locked(self) -> Iterator[Self]:
        """Hold the lock for one call; raise if the consumer is in use, closed, or was forked."""
        self.check()
        with LockGuard(self._lock, 0) as is_locked:
            if not is_locked:
                self.check()
                raise RuntimeError(
                    "The consumer is in use by another thread; use it in one thread at a time."
                )
            self._owner_thread = threading.get_ident()
            try:
                self.check()
                yield self
            finally:
                self._owner_thread = None
                if self.closed:
                    self._release()

    def check(self) -> None:
        """Raise if the consumer is closed, or was created in another process."""
        if os.getpid() != self._pid:
            raise RuntimeError("A consumer cannot be used after a fork; create a new one there.")
        if self.closed:
            raise ClientClosed

    def close(self) -> None:
        """Close it, from any thread; a second call does nothing."""
        self.closed = True
        self.waker.set()
        if self._owner_thread == threading.get_ident():
            # A signal handler that interrupted a call with its locks held: another thread closes
            # the cluster, which ends that call, and the call frees the rest when it leaves.
            threading.Thread(target=self.cluster.close, name="kafkalite-closing").start()
            return
        self.cluster.close()
        if os.getpid() != self._pid:
            self._release()  # the thread that held the lock does not exist in this process
        else:
            with LockGuard(self._lock):  # the waker has ended the call that holds the lock
                self._release()

    def _release(self) -> None:
        self.discard()
        self.assignment_reader.close()
        self.waker.close()

    # Messages.

    def fill(self, deadline: Deadline) -> bool:
        """Decode messages into `ready`; return False if the time is up or the waker was set."""
        with self.locked():
            self.settle()
            if self._rows.left:
                return True
            with LockGuard(self._delivery_lock):
                self._discard_columns(None)
            while (record_range := self._next_range(deadline)) is not None:
                builder = self._builder_of(record_range.position.partition)
                if self._decoded(record_range, builder, ROWS_SIZE):
                    rows = DecodedRows(
                        record_range.position, builder.take(), record_range.first_offset
                    )
                    self._rows, self.ready = rows, rows.iterator
                    return True
                if deadline.passed:
                    break
            return False

    def _builder_of(self, partition: TopicPartition) -> RowBuilder:
        builder = self._builders.get(partition)
        if builder is None:
            topic, number = partition
            builder = RowBuilder(topic, number, self.settings[CHECK_CRCS])
            self._builders[partition] = builder
        return builder

    # Columns.

    def fill_columns(self, deadline: Deadline, reader: ColumnReader, max_bytes: int) -> bool:
        """Decode columns; return False if the time is up or the waker was set."""
        with self.locked():
            if self._columns is not None and self._columns.reader is reader:
                return True
            self.discard()
            while (record_range := self._next_range(deadline)) is not None:
                if self._decoded(record_range, reader.builder, max_bytes):
                    batches = reader.take(*record_range.position.partition)
                    position = record_range.position
                    self._columns = DecodedColumns(
                        reader, position, position.epoch, batches, record_range.first_offset
                    )
                    return True
                if deadline.passed:
                    break
            return False

    def take(self) -> Message | None:
        """Return a message that is ready, or None; for a thread that does not hold the lock."""
        with LockGuard(self._delivery_lock):
            return next(self.ready, None)

    def take_columns(self) -> list[pa.RecordBatch]:
        """Return the columns that are ready, and advance the position past them."""
        self.check()
        with LockGuard(self._delivery_lock):
            found, self._columns = self._columns, None
            if found is None:  # another call moved the position
                return []
            if found.epoch == found.position.epoch:
                found.position.offset = found.next_offset
            return found.batches

    # Positions.

    def settle(self) -> None:
        """Set the position to the offset after the last message that was taken."""
        with LockGuard(self._delivery_lock):
            self._rows.settle()

    def discard(self, position: Position | None = None) -> None:
        """Drop what was decoded and not taken, of this position or of all."""
        with LockGuard(self._delivery_lock):
            if position is None or self._rows.position is position:
                self._rows.drop()
                self._rows, self.ready = NO_ROWS, NO_ROWS.iterator
            self._discard_columns(position)

    def discard_in_child(self) -> None:
        """Drop the decoded messages in a forked child; the parent returns them."""
        self._rows.drop()
        self._rows, self.ready = NO_ROWS, NO_ROWS.iterator

    def _discard_columns(self, position: Position | None) -> None:
        found = self._columns
        if found is not None and position in (None, found.position):
            self._columns = None
            found.position.rewind()

    def known(
        self,
        timeout: float | None,
        partitions: Sequence[tuple[str, int]] = (),
        resolved: bool = False,
    ) -> list[Position]:
        """Return the positions of these partitions, or of all, once their metadata is known.

        With `resolved`, wait also until their first offsets are resolved.
        """
        deadline = Deadline(self.limit_s(timeout))
        self.assignment_reader.await_offsets((), deadline)
        assignment = self.assignment_reader.assignment
        positions = [assignment[checked_partition(each)] for each in partitions] or list(assignment)
        if resolved:
            self.assignment_reader.await_offsets(positions, deadline)
        return positions

    # Timeouts.

    def limit_s(self, timeout: float | None) -> float:
        """Return the timeout in seconds of a call that does not wait for records."""
        return self.settings.call_timeout_s if timeout is None else limit_s(timeout)

    def poll_deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline for the next records of an iteration."""
        if timeout is not None:
            return Deadline(limit_s(timeout))
        timeout_ms = self.settings[CONSUMER_TIMEOUT_MS]
        return Deadline(FOREVER if timeout_ms < 0 else timeout_ms / 1000)

    # Decoding.

    def _next_range(self, deadline: Deadline) -> RecordRange | None:
        self.check_assigned()
        record_range = self.assignment_reader.next_range(deadline)
        if record_range is None and self.closed:
            raise ClientClosed
        return record_range

    def _decoded(self, record_range: RecordRange, builder: Builder, size_max: int) -> bool:
        """Decode the next records of a range; return False if it yields none."""
        try:
            more = decode(record_range, builder, size_max)
        except ShortRead:
            self.assignment_reader.refetch(record_range)
            return False
        except BaseException:  # also an interrupt, which may come during decompression
            builder.take()
            self.assignment_reader.refetch(record_range)
            raise
        if not more:
            self.assignment_reader.release(record_range)
        if not builder.count:
            record_range.position.offset = record_range.first_offset  # control records only
            return False
        return True


def column_reader(
    columns: Sequence[str] | None, timestamp_unit: str, check_crcs: bool
) -> ColumnReader:
    """Return a reader of these columns; raise ImportError with advice if pyarrow is missing."""
    require_pyarrow("batches() and to_table() return Arrow columns")
    return ColumnReader(columns, timestamp_unit, check_crcs)


def _after_fork() -> None:
    for buffer in list(_buffers):
        buffer.discard_in_child()


os.register_at_fork(after_in_child=_after_fork)
