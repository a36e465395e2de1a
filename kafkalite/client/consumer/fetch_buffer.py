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
import math
import os
import select
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kafkalite._ext.locking import LockGuard
from kafkalite._ext.message_reader import Message, RowBuilder
from kafkalite.client.consumer.assignment_reader import AssignmentReader, no_member
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.group_reading import (
    GroupReading,
    RebalanceCall,
    RebalanceCallbacks,
)
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import RecordRange, ShortRead
from kafkalite.client.consumer.rows import NO_ROWS, DecodedRows
from kafkalite.client.decoding.arrow_batches import ColumnReader
from kafkalite.client.decoding.record_sets import Builder
from kafkalite.client.group.member_session import MemberSession
from kafkalite.client.group.subscription import Subscription, Topics
from kafkalite.client.net.arguments import checked_partition
from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.deadline import FOREVER, Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, consumer_settings
from kafkalite.client.net.topology import TopicMetadata, TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import (
    CHECK_CRCS,
    CONSUMER_TIMEOUT_MS,
    ENABLE_AUTO_COMMIT,
    GROUP_ID,
)
from kafkalite.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SIZE = 64 << 10
"""Approximate size in bytes of the records that are decoded into messages at once."""

POLL_S_MAX = 1e6

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
        topics: Topics | None,
        group: str | None,
        settings: Mapping[str, Any],
        callbacks: RebalanceCallbacks,
    ) -> None:
        if group is not None:
            if any(name.replace("_", ".") == GROUP_ID.name for name in settings):
                raise InvalidConfig(f"{GROUP_ID.name} is given twice.")
            settings = {**settings, GROUP_ID.name: group}
        self.settings = consumer_settings(bootstrap, settings)
        subscription = Subscription(topics)
        self._callbacks = callbacks
        self.group: GroupReading | None = None
        """The membership in a group; None while the consumer is no member."""
        self._polling_thread: int | None = None
        """Id of the thread that called for records last, as a member of a group."""
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
        self.cluster = Cluster(self.settings, warn_unreachable=True)
        self.waker = Waker()
        self.assignment_reader = AssignmentReader(self.cluster, self.settings, "fetch", self.waker)
        self._subscribe(subscription)
        _buffers.add(self)

    def subscribe(self, topics: Topics) -> None:
        """Read all partitions of these topics instead of the current ones, or join the group."""
        subscription = Subscription(topics)
        if self.group is None:
            self.discard()
        elif not subscription:
            raise ValueError("there are no topics to subscribe to; unsubscribe() leaves the group")
        self._subscribe(subscription)

    def _subscribe(self, subscription: Subscription) -> None:
        if self.settings[GROUP_ID] is None:
            self.assignment_reader.subscribe(subscription)
            return
        if not subscription:
            return
        if self.group is None:
            member = MemberSession(self.cluster, self.settings, self.waker)
            self.assignment_reader.assign(())
            self.assignment_reader.member_of = member.identity_to_fetch
            commits = self.settings[ENABLE_AUTO_COMMIT]
            self.group = GroupReading(
                member, self.cluster, self.assignment_reader, self._callbacks, commits
            )
        self.group.member.subscribe(subscription)

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, as no member of a group."""
        if self.group is not None:
            raise RuntimeError(
                "The consumer is a member of its group, which assigns the partitions; call"
                " unsubscribe() first."
            )
        self.discard()
        self.assignment_reader.assign(partitions)

    # Membership.

    def prepare(self) -> RebalanceCall | None:
        """Apply what the group has decided; return the callback to run first, or None.

        The callback runs without the lock, between `begin` and `finish`.
        """
        if self.group is None:
            return None
        with self.locked():
            self._polling_thread = threading.get_ident()
            self.settle()
            return self.group.prepare(self.discard)

    def polled(self) -> None:
        """Note that a call that takes long goes on, which counts as polling for a member."""
        if self.group is not None:
            self.group.member.polled()

    def begin(self, call: RebalanceCall) -> bool:
        """Note that a callback begins to run; no record is returned before it ends.

        Return False if another task runs it, or has run it.
        """
        self.waker.set()  # ends the shortcut to messages that are ready
        return self.group is not None and self.group.begin(call)

    @property
    def is_in_callback(self) -> bool:
        """True while a rebalance callback runs."""
        return self.group is not None and self.group.is_in_callback

    def finish(self, call: RebalanceCall) -> None:
        """Complete the change of a callback that has returned or raised."""
        with self.locked():
            if self.group is not None and self.group.call is call:  # else the group was left
                self.group.finish(call)

    def stop_commits(self) -> None:
        """Commit nothing more automatically: the last record was perhaps not processed."""
        if self.group is not None:
            self.group.commits = False

    def begin_leave(self, closes: bool) -> bool:
        """Begin to leave the group; return False if that is not for this thread to do.

        A consumer that `closes` may do so in any thread.  If another one called for records last,
        it may still process what it was given; then nothing is committed or revoked, and the
        session timeout ends the membership.
        """
        if self.group is None or self.closed or os.getpid() != self._pid:
            return False
        is_other_thread = self._polling_thread != threading.get_ident()
        if closes and (is_other_thread or self._owner_thread is not None):
            return False
        with self.locked():
            self.settle()
            self.group.member.begin_leave()
        return True

    def end_leave(self, deadline: Deadline) -> None:
        """Wait for the response to the leave, and be no member any more."""
        group, self.group = self.group, None
        try:
            if group is not None:
                group.member.await_left(deadline)
        finally:  # also after an interrupt: a session that is not closed closes the cluster
            if group is not None:
                group.member.close()
            self.discard()
            self.assignment_reader.assign(())
            self.assignment_reader.member_of = no_member

    def await_stable(self, deadline: Deadline) -> bool:
        """Wait until a member has its whole assignment; return False if the waker was set."""
        with self.locked():
            if self.group is None or self.group.member.is_stable:
                return True
            poll = select.poll()
            poll.register(self.waker, select.POLLIN)
            poll.poll(math.ceil(min(deadline.left_s, POLL_S_MAX) * 1000))
            return False

    def check_assigned(self) -> None:
        """Raise RuntimeError if nothing is subscribed or assigned."""
        if self.group is not None:
            return
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
        if os.getpid() == self._pid:  # a forked child shares the waker with its parent
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
        if self.group is not None:
            self.group.member.close()
        self.assignment_reader.close()
        self.waker.close()

    # Messages.

    def fill(self, deadline: Deadline) -> bool:
        """Decode messages into `ready`; return False if the time is up or the waker was set."""
        with self.locked():
            self.check_no_callback()
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

    def check_no_callback(self) -> None:
        """Raise RuntimeError while a rebalance callback runs."""
        if self.group is not None:
            self.group.check_no_callback()

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
            self.check_no_callback()
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

    def metrics(self) -> dict[str, Any]:
        """Return the consumer's metrics."""
        reader = self.assignment_reader
        kinds = reader.transports.kinds
        return {
            "transports": kinds,
            "lanes": dict(kinds),
            "offset_resets": reader.resets,
            "missed_records": reader.missed_records,
        }

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
