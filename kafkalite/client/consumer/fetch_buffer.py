"""What Consumer and AsyncConsumer both hold: a reading, and what of it is decoded and not given.

    intake.fill(deadline)       have messages in `ready`; False: the time is up, or the waker rang
    next(intake.ready, None)    take one; the position follows.  `take` is for another thread

    intake.fill_columns(deadline, reader, max_bytes)
    intake.take_columns()       the same for columns

To wait and to take are two steps, so that a wait that is given up takes nothing with it.  What is
decoded and not taken when a position is moved is taken back: it comes again from where the caller
is.

One thread is inside at a time; another one may take what is there, and close it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kafkalite._ext.locking import LockGuard
from kafkalite._ext.message_reader import Message, RowBuilder
from kafkalite.client.consumer.arguments import partition_named
from kafkalite.client.consumer.arrow_batches import ColumnReader
from kafkalite.client.consumer.assignment_reader import Reading
from kafkalite.client.consumer.decoding import decode
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import ShortRead, Stretch
from kafkalite.client.consumer.record_sets import Builder
from kafkalite.client.consumer.rows import NO_ROWS, Rows
from kafkalite.client.consumer.subscription import Subscription
from kafkalite.client.net.cluster import Closed, Cluster
from kafkalite.client.net.deadline import FOREVER, Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, consumer_settings
from kafkalite.client.net.topology import TopicMeta, TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.config.client import CHECK_CRCS, CONSUMER_TIMEOUT_MS, GROUP_ID
from kafkalite.errors import InvalidConfig, KafkaError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_SIZE = 64 << 10
"""About how many bytes of records become messages at once."""

LAG_S = 1.0
"""Time for a topic that was just created to be known to every node, before it counts as missing."""
LAG_REST_S = 0.05

_intakes: weakref.WeakSet[Intake] = weakref.WeakSet()


class Wait:
    """A call; whoever made it may have gone meanwhile."""

    abandoned = False


class Columns(NamedTuple):
    """Columns that were decoded and not taken yet; `next_offset` is behind them, as long as the
    position is in the same turn."""

    reader: ColumnReader
    position: Position
    turn: int
    batches: list[pa.RecordBatch]
    next_offset: int


class Intake:
    """The inside of a consumer."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        topics: str | Iterable[str] | None,
        group: str | None,
        settings: dict[str, Any],
    ) -> None:
        if group is not None:
            if any(name.replace("_", ".") == GROUP_ID.name for name in settings):
                raise InvalidConfig(f"{GROUP_ID.name} is said twice.")
            settings = {**settings, GROUP_ID.name: group}
        self.settings = consumer_settings(bootstrap, settings)
        subscription = self._subscription(topics)
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._handing = threading.Lock()
        """Held while something is taken, or taken back."""
        self._inside: int | None = None
        """The thread that has the turn."""
        self.closed = False
        self.wait = Wait()
        """The call that is inside."""
        self.ready: Iterator[Message] = NO_ROWS.iterator
        """Messages that are there."""
        self._rows = NO_ROWS
        self._columns: Columns | None = None
        self._builders: dict[TopicPartition, RowBuilder] = {}
        self.cluster = Cluster(self.settings)
        self.waker = Waker()
        self.reading = Reading(self.cluster, self.settings, "fetch", self.waker)
        self.reading.subscribe(subscription)
        _intakes.add(self)

    def _subscription(self, topics: str | Iterable[str] | None) -> Subscription:
        subscription = Subscription(topics)
        if subscription and self.settings[GROUP_ID] is not None:
            raise InvalidConfig(
                "A group whose members share topics comes with a later version: leave out group"
                " to read all partitions of the topics, or topics to assign() partitions."
            )
        return subscription

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Read all partitions of these topics, in the place of whatever was read before."""
        subscription = self._subscription(topics)
        self.take_back()
        self.reading.subscribe(subscription)

    def check_topics(self, topics: Iterable[str], timeout: float | None) -> None:
        """Raise UnknownTopicOrPartition for a topic that is not there, and create none."""
        names = [name for name in dict.fromkeys(topics) if not self.reading.knows(name)]
        deadline = Deadline(self.limit_s(timeout)).within(LAG_S)
        while names:
            told = self.cluster.until(self.limit_s(timeout), partial(self._describe, names))
            errors = [error for error in told.values() if isinstance(error, KafkaError)]
            names = [name for name in names if isinstance(told[name], KafkaError)]
            if errors and (deadline.passed or not errors[0].retriable):
                raise errors[0]
            if names:
                self.cluster.rest(min(LAG_REST_S, deadline.left_s))

    def _describe(
        self, names: Sequence[str], deadline: Deadline
    ) -> dict[str, TopicMeta | KafkaError]:
        """Describe topics without creating them."""
        return self.cluster.described(names, deadline.left_s, create=False)

    # Who is inside.

    @contextlib.contextmanager
    def entered(self) -> Iterator[Self]:
        """One thread at a time, of the process that made it, until it is closed."""
        self.check()
        with LockGuard(self._turn, 0) as is_locked:
            if not is_locked:
                self.check()
                raise RuntimeError(
                    "A consumer is used by one thread at a time; this one is in use."
                )
            self._inside = threading.get_ident()
            try:
                self.check()
                yield self
            finally:
                self._inside = None
                if self.closed:
                    self._let_go()

    def check(self) -> None:
        """Raise when it cannot be used any more."""
        if os.getpid() != self._pid:
            raise RuntimeError("A consumer cannot be used after a fork; make a new one there.")
        if self.closed:
            raise Closed

    def close(self) -> None:
        """End it, from any thread; closing twice is nothing."""
        self.closed = True
        self.waker.set()
        if self._inside == threading.get_ident():
            # A signal's handler, within a call that holds locks: another thread wakes that call,
            # and it lets go when it leaves.
            threading.Thread(target=self.cluster.close, name="kafkalite-closing").start()
            return
        self.cluster.close()
        if os.getpid() != self._pid:
            self._let_go()  # whoever was inside is not in this process
        else:
            with LockGuard(self._turn):  # whoever is inside has been woken
                self._let_go()

    def _let_go(self) -> None:
        self.take_back()
        self.reading.close()
        self.waker.close()

    # Messages.

    def fill(self, deadline: Deadline) -> bool:
        """Have messages ready; False when the time is up, or somebody woke us."""
        with self.entered():
            self.settle()
            if self._rows.left:
                return True
            with LockGuard(self._handing):
                self._take_columns_back(None)
            while (stretch := self._stretch(deadline)) is not None:
                builder = self._builder_of(stretch.position.partition)
                if self._decoded(stretch, builder, ROWS_SIZE):
                    rows = Rows(stretch.position, builder.take(), stretch.first_offset)
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
        """Have columns ready; False when the time is up, or somebody woke us."""
        with self.entered():
            if self._columns is not None and self._columns.reader is reader:
                return True
            self.take_back()
            while (stretch := self._stretch(deadline)) is not None:
                if self._decoded(stretch, reader.builder, max_bytes):
                    batches = reader.take(*stretch.position.partition)
                    position = stretch.position
                    self._columns = Columns(
                        reader, position, position.turn, batches, stretch.first_offset
                    )
                    return True
                if deadline.passed:
                    break
            return False

    def take(self) -> Message | None:
        """A message that is ready, for a thread that is not inside."""
        with LockGuard(self._handing):
            return next(self.ready, None)

    def take_columns(self) -> list[pa.RecordBatch]:
        """The columns that are ready; the position is behind them with that."""
        self.check()
        with LockGuard(self._handing):
            found, self._columns = self._columns, None
            if found is None:  # another call has moved its partition
                return []
            if found.turn == found.position.turn:
                found.position.offset = found.next_offset
            return found.batches

    # Positions.

    def settle(self) -> None:
        """Have the positions say what was taken."""
        with LockGuard(self._handing):
            self._rows.settle()

    def take_back(self, position: Position | None = None) -> None:
        """Take back what nobody has taken, of this position or of any."""
        with LockGuard(self._handing):
            if position is None or self._rows.position is position:
                self._rows.drop()
                self._rows, self.ready = NO_ROWS, NO_ROWS.iterator
            self._take_columns_back(position)

    def leave_to_parent(self) -> None:
        """Forget in a forked child the messages that the parent is about to be given."""
        self._rows.drop()
        self._rows, self.ready = NO_ROWS, NO_ROWS.iterator

    def _take_columns_back(self, position: Position | None) -> None:
        found = self._columns
        if found is not None and position in (None, found.position):
            self._columns = None
            found.position.rewind()

    def known(
        self,
        timeout: float | None,
        partitions: Sequence[tuple[str, int]] = (),
        begun: bool = False,
    ) -> list[Position]:
        """The positions of these partitions, or of all, once the topics are known; `begun`: and
        where they begin."""
        deadline = Deadline(self.limit_s(timeout))
        self.reading.await_offsets((), deadline)
        assignment = self.reading.assignment
        positions = [assignment[partition_named(each)] for each in partitions] or list(assignment)
        if begun:
            self.reading.await_offsets(positions, deadline)
        return positions

    # How long.

    def limit_s(self, timeout: float | None) -> float:
        """How long a call may take that waits for no records."""
        return self.settings.call_timeout_s if timeout is None else limit_s(timeout)

    def patience(self, timeout: float | None) -> Deadline:
        """How long an iteration waits for its next records."""
        if timeout is not None:
            return Deadline(limit_s(timeout))
        timeout_ms = self.settings[CONSUMER_TIMEOUT_MS]
        return Deadline(FOREVER if timeout_ms < 0 else timeout_ms / 1000)

    # Steps.

    def _stretch(self, deadline: Deadline) -> Stretch | None:
        if not self.reading.subscription and not self.reading.assignment:
            raise RuntimeError("It reads nothing yet: give it topics, or assign() partitions.")
        stretch = self.reading.stretch(deadline)
        if stretch is None and self.closed:
            raise Closed
        return stretch

    def _decoded(self, stretch: Stretch, builder: Builder, size_max: int) -> bool:
        """Decode the next records of a stretch; False when there are none in it."""
        try:
            more = decode(stretch, builder, size_max)
        except ShortRead:
            self.reading.again(stretch)
            return False
        except BaseException:  # an interrupt as well, which may come amid a compressed set
            builder.take()
            self.reading.again(stretch)
            raise
        if not more:
            self.reading.done(stretch)
        if not builder.count:
            stretch.position.offset = stretch.first_offset  # control records, and nothing else
            return False
        return True


def column_reader(
    columns: Sequence[str] | None, timestamp_unit: str, check_crcs: bool
) -> ColumnReader:
    """A reader of these columns; ImportError with what to do where there is no pyarrow."""
    require_pyarrow("batches() and to_table() return Arrow columns")
    return ColumnReader(columns, timestamp_unit, check_crcs)


def _after_fork() -> None:
    for intake in list(_intakes):
        intake.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)
