"""Answers that wait: a produce for its records to be committed, a fetch for bytes to read.

A delayed request says what it waits for (`ready`) and what it then answers (`answer`).  It is
looked at again whenever one of its partitions moves, answered when it is ready or when its time is
up, and forgotten when its client goes away.  Everything happens on the node's one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.broker.later import Later
from kafkalite.errors import KafkaError, RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.broker.partition import Partition
    from kafkalite.broker.replica_manager import FetchItem, ReplicaManager


class Timer(Protocol):
    """What the reactor gives back for a call to come."""

    def cancel(self) -> None:
        """The call will not come."""


class Timers(Protocol):
    """The part of the reactor that is needed here."""

    def call_later(self, ms: int, callback: Any) -> Timer:
        """Call `callback()` in `ms` milliseconds."""


class Delayed:
    """A request that cannot be answered yet."""

    partitions: Collection[Partition]

    def __init__(self) -> None:
        self.later: Later[Any] = Later()
        self.timer: Timer | None = None

    def ready(self) -> bool:
        """Whether what was waited for has come, or never will."""
        raise AssertionError("every delayed request says when it is ready")

    def answer(self) -> Any:
        """The response, ready or out of time."""
        raise AssertionError("every delayed request has an answer")


class DelayedProduce(Delayed):
    """A produce with acks=all whose records are not yet below the high watermark.

    Answered when, for every partition it wrote to,
    A  the high watermark has passed its last record, or
    B  the partition is not led here any more (the entry says so), or
    C  the time is up: the entries still open answer REQUEST_TIMED_OUT (the records may well be
       committed later; the client asks again under the same sequence).
    """

    def __init__(self, response: dict[str, Any], open_entries: Iterable[OpenEntry]) -> None:
        super().__init__()
        self.response = response
        self.open_entries = list(open_entries)
        self.partitions = {entry.partition for entry in self.open_entries}

    def ready(self) -> bool:
        self.open_entries = [entry for entry in self.open_entries if not entry.closed()]
        return not self.open_entries

    def answer(self) -> Any:
        for entry in self.open_entries:
            if not entry.closed():
                entry.fail(RequestTimedOut())
                self.response["any_fault"] = True
        return self.response


class OpenEntry:
    """One partition's answer inside a delayed produce."""

    __slots__ = ("answers", "last_offset", "partition", "position")

    def __init__(
        self, partition: Partition, last_offset: int, answers: list[Any], position: int
    ) -> None:
        self.partition = partition
        self.last_offset = last_offset
        self.answers = answers
        self.position = position

    def closed(self) -> bool:
        """Whether this entry's answer is settled."""
        if self.partition.high_watermark > self.last_offset:  # A
            return True
        if self.partition.fault is not None:  # B
            self.fail(self.partition.fault)
            return True
        return False

    def fail(self, fault: KafkaError) -> None:
        """Answer `fault` in the entry's place."""
        index = self.answers[self.position][0]
        self.answers[self.position] = (index, fault.code, -1, -1, -1, (), str(fault), None)


class DelayedFetch(Delayed):
    """A fetch that found fewer bytes than it asked for.

    Answered when
    A  the partitions together hold `min_bytes` it may read, or
    B  one of them would answer an error: not led here any more, a new leader epoch, its offset
       out of range, or
    C  the time is up.
    Whatever there is by then is read anew, since a slice taken before is too short by now.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        items: Sequence[FetchItem],
        min_bytes: int,
        max_bytes: int,
        isolation_level: int,
        respond: Any,
    ) -> None:
        super().__init__()
        self.replicas = replicas
        self.items = items
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.isolation_level = isolation_level
        self.respond = respond
        self.partitions = {item.partition for item in items if item.partition is not None}

    def ready(self) -> bool:
        found = 0
        for item in self.items:
            try:
                # Most ask for one byte, and then it need not be known how many there are.
                if self.min_bytes > 1:
                    found += item.available(self.isolation_level)
                else:
                    found += item.readable(self.isolation_level)
            except KafkaError:  # B
                return True
            if found >= self.min_bytes:  # A
                return True
        return False

    def answer(self) -> Any:
        return self.respond(self.replicas.fetch(self.items, self.max_bytes, self.isolation_level))


class Purgatory:
    """The delayed requests of a node."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self.size = 0

    def park(self, delayed: Delayed, wait_ms: int) -> Later[Any]:
        """Answer `delayed` once it is ready, in `wait_ms` milliseconds at the latest."""
        later = delayed.later
        later.abandoned = lambda: self._forget(delayed)
        self.size += 1
        for partition in delayed.partitions:
            partition.waiting[delayed] = None
        delayed.timer = self._timers.call_later(wait_ms, lambda: self._settle(delayed))
        return later

    def wake(self, partition: Partition) -> None:
        """Look again at what waits for `partition`, which has moved."""
        if partition.waiting:
            for delayed in list(partition.waiting):
                # Settling one may, through its connection, take another away.
                if delayed in partition.waiting and delayed.ready():
                    self._settle(delayed)

    def _settle(self, delayed: Delayed) -> None:
        self._forget(delayed)
        delayed.later.resolve(delayed.answer())

    def _forget(self, delayed: Delayed) -> None:
        self.size -= 1
        for partition in delayed.partitions:
            partition.waiting.pop(delayed, None)
        if delayed.timer is not None:
            delayed.timer.cancel()
