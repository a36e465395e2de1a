"""ShareReader: state shared by ShareConsumer and AsyncShareConsumer.

    reader.begin_call()                     accept what was given before, in the implicit mode
    reader.fill(deadline)                   wait until there are messages; False: none in time
    reader.take(count)                      take them; from then on they are given
    reader.fill_columns(deadline, columns)
    reader.take_columns()                   the same for a batch

Waiting and taking are separate steps, so that a cancelled wait loses nothing.  Messages are given
only while enough is left of their locks; others are released.

One thread runs a call at a time (`locked`).  `begin_call` and the `take`s may be called by another
thread, the event loop's, between them; what is acknowledged goes through a queue, from any thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from kafkalite._ext.locking import LockGuard
from kafkalite.client.decoding.arrow_batches import ColumnReader
from kafkalite.client.group.member_session import MemberSession
from kafkalite.client.group.membership import AssignmentChange, ChangeKind
from kafkalite.client.group.share_protocol_member import ShareProtocolMember
from kafkalite.client.group.subscription import PATTERN, Subscription
from kafkalite.client.net.arguments import topic_names
from kafkalite.client.net.cluster import ClientClosed, Cluster
from kafkalite.client.net.deadline import Deadline, limit_s
from kafkalite.client.net.requirements import require_pyarrow
from kafkalite.client.net.settings import Bootstrap, share_consumer_settings
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.client.share.acquired_partition import Acknowledgement
from kafkalite.client.share.adaptive_record_count import AdaptiveRecordCount
from kafkalite.client.share.leader_session import AcknowledgementOutcome, LockRenewal
from kafkalite.client.share.share_leaders import ShareLeaders
from kafkalite.client.share.share_messages import AcquiredItem, ShareBatch, ShareMessage
from kafkalite.config.client import (
    CHECK_CRCS,
    CONSUMER_TIMEOUT_MS,
    GROUP_ID,
    MAX_POLL_RECORDS,
    SHARE_ACKNOWLEDGEMENT_MODE,
    SHARE_ACQUIRE_MODE,
)
from kafkalite.errors import InvalidConfig, KafkaError, RequestTimedOut
from kafkalite.ids import new_id, written_id

BATCH_SIZE = 1 << 20
"""Approximate size in bytes of the records that are decoded into columns at once."""


def never() -> bool:
    """Return False: the wait is not interrupted."""
    return False


def subscribed_names(topics: str | Iterable[str]) -> list[str]:
    """Return the names of topics; raise InvalidConfig if there is none, or a pattern."""
    names = topic_names(topics)
    if not names:
        raise InvalidConfig("Name at least one topic, or unsubscribe().")
    for name in names:
        if name.startswith(PATTERN):
            raise InvalidConfig(f"A share group has no patterns of topics: {name!r}.")
    return names


class ColumnsWanted:
    """The columns of batches, and the reader that decodes them and the offsets."""

    def __init__(
        self, columns: Sequence[str] | None, timestamp_unit: str, check_crcs: bool
    ) -> None:
        require_pyarrow("batches()")
        self.reader = ColumnReader(columns, timestamp_unit, check_crcs)
        self.names: list[str] = self.reader.schema.names
        if "offset" not in self.names:
            self.reader = ColumnReader([*self.names, "offset"], timestamp_unit, check_crcs)


class ShareReader:
    """A member of a share group, its sessions, and the messages that were not given yet."""

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
        self.settings = share_consumer_settings(bootstrap, settings)
        names = [] if topics is None else subscribed_names(topics)
        self.is_implicit = self.settings[SHARE_ACKNOWLEDGEMENT_MODE] == "implicit"
        self.closed = False
        self.waker = Waker()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Held during a call."""
        self._delivery_lock = threading.Lock()
        """Held while messages are given or dropped."""
        self._calling_thread: int | None = None
        """Id of the thread that called for records last."""
        group_id = str(self.settings[GROUP_ID])
        member_id = written_id(new_id())
        self._cluster = Cluster(self.settings, warn_unreachable=True)
        self._member = MemberSession(
            self._cluster, self.settings, self.waker,
            lambda member_settings: ShareProtocolMember(member_settings, member_id),
        )  # fmt: skip
        self._leaders = ShareLeaders(self._cluster, group_id, member_id, self.waker)
        self._topics = names
        self._ready: deque[ShareMessage] = deque()
        """Decoded messages of the first of the fetched records."""
        self._batches: deque[ShareBatch] = deque()
        self._columns_count = AdaptiveRecordCount(
            self.settings[MAX_POLL_RECORDS],
            is_fixed=self.settings.is_given(MAX_POLL_RECORDS)
            or self.settings[SHARE_ACQUIRE_MODE] != "batch_optimized"
            or not self.is_implicit,
        )
        self._given: list[AcquiredItem] = []
        """Messages and batches that the next call accepts, in the implicit mode."""
        self._outcomes: dict[TopicPartition, KafkaError | None] = {}
        """The outcomes since the last commit; an error stays."""
        self._unreported: deque[AcknowledgementOutcome] = deque()
        if names:
            self._member.subscribe(Subscription(names))

    # Subscription.

    def subscribe(self, topics: str | Iterable[str]) -> None:
        """Subscribe to these topics instead of the current ones."""
        names = subscribed_names(topics)
        with self.locked():
            self._topics = names
            self._member.subscribe(Subscription(names))

    def unsubscribe(self) -> None:
        """Leave the group; what was given can still be acknowledged."""
        with self.locked():
            self._topics = []
            self._leave()

    @property
    def topics(self) -> list[str]:
        """The topics that are subscribed."""
        return list(self._topics)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that the group has assigned."""
        return sorted(self._leaders.assigned)

    # Calls.

    def check(self) -> None:
        """Raise ClientClosed after close(), and RuntimeError after a fork."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "A share consumer cannot be used after a fork; create a new one in the child."
            )
        if self.closed:
            raise ClientClosed

    @contextlib.contextmanager
    def locked(self, wait_s: float = 0.0) -> Iterator[Self]:
        """Hold the consumer for a call; RuntimeError if another thread has it."""
        self.check()
        with LockGuard(self._lock, min(wait_s, threading.TIMEOUT_MAX)) as is_locked:
            if not is_locked:
                raise RuntimeError("Another thread uses the share consumer; use one for each.")
            self._calling_thread = threading.get_ident()
            yield self

    def limit_s(self, timeout: float | None) -> float:
        """Return the time limit of a call that has the default timeout."""
        return self.settings.call_timeout_s if timeout is None else limit_s(timeout)

    def poll_deadline(self, timeout: float | None) -> Deadline:
        """Return the deadline of an iteration's wait for records."""
        if timeout is not None:
            return Deadline(limit_s(timeout))
        timeout_ms = self.settings[CONSUMER_TIMEOUT_MS]
        return Deadline(limit_s(None if timeout_ms < 0 else timeout_ms / 1000))

    def columns(self, columns: Sequence[str] | None, timestamp_unit: str) -> ColumnsWanted:
        """Return the columns to decode."""
        self.check()
        return ColumnsWanted(columns, timestamp_unit, self.settings[CHECK_CRCS])

    def begin_call(self) -> None:
        """Accept what was given and is not acknowledged, in the implicit mode."""
        self.check()
        with LockGuard(self._delivery_lock):
            given, self._given = self._given, []
        for item in given:
            if not item.is_acknowledged:
                item.accept()

    def fill(self, deadline: Deadline, is_interrupted: Callable[[], bool] = never) -> bool:
        """Wait until there are messages to take; return False if there are none in time."""
        return self.has_current() or self._fill(
            deadline, is_interrupted, self._decode_messages,
            lambda: self.settings[MAX_POLL_RECORDS],
        )  # fmt: skip

    def _decode_messages(self) -> bool:
        while self._batches:  # an iteration over batches was ended
            batch = self._batches.popleft()
            batch.acknowledge(Acknowledgement.RELEASE, is_reported=False)
        fetched = self._leaders.fetched
        while not self._ready and fetched:
            self._ready.extend(fetched[0].messages(self.settings[CHECK_CRCS]))
            if not self._ready:
                fetched.popleft()
        return bool(self._ready)

    def fill_columns(
        self,
        deadline: Deadline,
        wanted: ColumnsWanted,
        is_interrupted: Callable[[], bool] = never,
    ) -> bool:
        """Wait until there are batches to take; return False if there are none in time."""

        def decode() -> bool:
            fetched = self._leaders.fetched
            if self._ready:
                fetched[0].unread(self._ready)
                self._ready.clear()
            while not self._batches and fetched:
                self._batches.extend(fetched[0].columns(wanted.reader, wanted.names, BATCH_SIZE))
                if fetched[0].is_at_end:
                    fetched.popleft()
            if not self._batches:
                self._columns_count.finished(time.monotonic())
            return bool(self._batches)

        return self._fill(deadline, is_interrupted, decode, lambda: self._columns_count.count)

    def _fill(
        self,
        deadline: Deadline,
        is_interrupted: Callable[[], bool],
        decode: Callable[[], bool],
        records_max: Callable[[], int],
    ) -> bool:
        with self.locked():
            self._check_subscribed()
            has_pumped = False
            while True:
                self.check()
                if self.waker.is_set or not has_pumped:
                    self.waker.clear()
                    if is_interrupted():
                        return False
                    self._apply_changes()
                with LockGuard(self._delivery_lock):
                    self._drop_late()
                    is_ready = decode()
                if is_ready:
                    if time.monotonic() >= self._leaders.due_s and not has_pumped:
                        self._pump(Deadline(0.0), records_max())
                    return True
                if self._leaders.errors:
                    raise self._leaders.errors.popleft().copy()
                if has_pumped and deadline.passed:
                    return False
                self._pump(deadline, records_max())
                has_pumped = True

    def take(self, count: int) -> list[ShareMessage]:
        """Take messages that are ready, up to this many."""
        with LockGuard(self._delivery_lock):
            ready = self._ready
            taken = [ready.popleft() for _ in range(min(count, len(ready)))]
            if self.is_implicit:
                self._given += taken
        return taken

    def has_more(self) -> bool:
        """Return whether other messages are ready at once; the next call raises an error."""
        try:
            with LockGuard(self._delivery_lock):
                self._drop_late()
                return self._decode_messages()
        except KafkaError as error:
            self._leaders.errors.appendleft(error)
            return False

    def take_columns(self) -> ShareBatch | None:
        """Take a batch that is ready; None if its lock is about to end, which releases it."""
        with LockGuard(self._delivery_lock):
            batch = self._batches.popleft()
            acquired, now_s = batch.acquired, time.monotonic()
            if acquired.error is not None or now_s >= acquired.give_until_s:
                batch.acknowledge(Acknowledgement.RELEASE, is_reported=False)
                return None
            self._columns_count.given(len(batch), now_s)
            if self.is_implicit:
                self._given.append(batch)
            return batch

    def has_current(self) -> bool:
        """Return whether messages are ready, and nothing else is due."""
        now_s = time.monotonic()
        with LockGuard(self._delivery_lock):
            return (
                bool(self._ready)
                and not self.waker.is_set
                and now_s < self._leaders.due_s
                and self._may_be_given(now_s)
            )

    def _may_be_given(self, now_s: float) -> bool:
        """Return whether the first of the fetched records may be given."""
        acquired = self._leaders.fetched[0].acquired
        return (
            acquired.error is None
            and now_s < acquired.give_until_s
            and acquired.partition in self._leaders.assigned
        )

    def _drop_late(self) -> None:
        """Release what is not given any more: its lock is about to end, or it is not assigned."""
        now_s = time.monotonic()
        fetched = self._leaders.fetched
        while fetched and not self._may_be_given(now_s):
            fetched.popleft().release()
            for message in self._ready:
                message.acknowledge(Acknowledgement.RELEASE, is_reported=False)
            self._ready.clear()

    def _check_subscribed(self) -> None:
        if not self._topics:
            raise RuntimeError("Nothing is subscribed: pass topics=, or call subscribe().")

    def _apply_changes(self) -> None:
        """Apply the changes of the assignment, and raise the error that ended the membership."""
        member = self._member
        member.start()
        if self._topics:
            member.polled()
        while (change := member.take_change()) is not None:
            self._apply(change)
            member.applied(change)
        member.check()

    def _leave(self) -> None:
        """Begin to leave the group, with nothing assigned."""
        member = self._member
        member.begin_leave()
        while (change := member.take_change()) is not None:
            self._apply(change)
            member.applied(change)

    def _apply(self, change: AssignmentChange) -> None:
        assigned = dict(self._leaders.assigned)
        if change.kind is ChangeKind.ASSIGNED:
            assigned.update(change.partitions)
        else:
            for partition in change.partitions:
                assigned.pop(partition, None)
        self._leaders.assigned = assigned

    def _pump(self, deadline: Deadline, records_max: int = 0) -> None:
        self._leaders.pump(deadline, records_max=records_max)
        self._take_outcomes()

    # Acknowledgements.

    def _take_outcomes(self) -> None:
        while self._leaders.outcomes:
            outcome = self._leaders.outcomes.popleft()
            if self._outcomes.get(outcome.partition) is None:
                self._outcomes[outcome.partition] = outcome.error
            self._unreported.append(outcome)

    def reports(self) -> Iterator[AcknowledgementOutcome]:
        """Yield the outcomes that the application's callback was not called with."""
        while self._unreported:
            yield self._unreported.popleft()

    def commit(self, timeout: float | None) -> dict[TopicPartition, KafkaError | None]:
        """Send what was acknowledged; return the outcomes since the last commit."""
        deadline = Deadline(self.limit_s(timeout))
        with self.locked(deadline.left_s):
            while self._leaders.has_unconfirmed:
                self.check()
                self.waker.clear()
                self._pump(deadline)
                if deadline.passed:
                    break
            self._take_outcomes()
            found, self._outcomes = self._outcomes, {}
            for partition in self._leaders.unconfirmed:
                if found.get(partition) is None:
                    found[partition] = RequestTimedOut("The leader did not respond in time.")
            return found

    def renew(self, items: Sequence[AcquiredItem], timeout: float | None) -> None:
        """Renew the locks of messages or batches, and wait for the outcome."""
        deadline = Deadline(self.limit_s(timeout))
        for item in items:
            if item.is_acknowledged:
                raise ValueError(f"{item!r} is acknowledged already.")
        with self.locked(deadline.left_s):
            renewals = [LockRenewal(item.acquired, item.runs) for item in items]
            for renewal in renewals:
                self._leaders.renew(renewal)
            while not all(renewal.is_done for renewal in renewals):
                self.check()
                self.waker.clear()
                self._pump(deadline)
                if deadline.passed:
                    break
            for renewal in renewals:
                if not renewal.is_done:
                    raise RequestTimedOut("The leader did not respond in time.")
                if renewal.error is not None:
                    raise renewal.error.copy()

    # The end.

    def close(self, timeout: float, *, accepts: bool = True) -> None:
        """End the sessions and leave the group.

        `accepts`: what was given last is accepted, in the implicit mode, if the thread that closes
        the consumer is the one that called last.
        """
        if self.closed:
            return
        if os.getpid() != self._pid:
            self.closed = True
            self._close()
            return
        deadline = Deadline(limit_s(timeout))
        if accepts and threading.get_ident() == self._calling_thread:
            self.begin_call()
        self.closed = True
        self.waker.set()
        with LockGuard(self._lock, min(deadline.left_s, threading.TIMEOUT_MAX)) as is_locked:
            try:
                if is_locked:
                    self._end(deadline)
            finally:
                self._close()

    def _end(self, deadline: Deadline) -> None:
        """End the sessions, which releases what was not acknowledged; then leave the group."""
        self._leave()
        self._leaders.end(deadline)
        self._take_outcomes()
        self._member.await_left(deadline)

    def _close(self) -> None:
        self._member.close()
        self._cluster.close()
        self.waker.close()
