"""Purgatory: delayed requests.  A produce waits for commit, a fetch for bytes to read.

A delayed request is checked each time one of its partitions changes (`look`).  When it is due or
has timed out, its last steps run (`finish`) and its response is resolved.  It is removed when its
connection closes.  Not thread-safe: everything runs on the node's event loop.

The duration of a tick is bounded, regardless of how many requests an append wakes and how many
partitions each of them has: produce responses are sent immediately, everything else runs in steps,
UNITS_PER_TICK a tick, round robin over the requests (`run`).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.broker.later import Later
from kafkalite.errors import KafkaError, KafkaStorageError, RequestTimedOut

if TYPE_CHECKING:
    from kafkalite.broker.replica.partition import Partition

log = logging.getLogger("kafkalite.broker")

SLICE = 64
"""Number of partitions of a request, or requests of a partition, in one step."""

SLICE_UNITS = 4
"""The cost of such a step.  Completing a fetch of one partition costs 1, about 0.1 ms."""

UNITS_PER_TICK = 32
AT_ONCE_UNITS = 16
"""Maximum cost of the steps that run while a request is handled; further steps are queued."""


class Timer(Protocol):
    """A scheduled call of the reactor."""

    def cancel(self) -> None:
        """Cancel the call."""


class Timers(Protocol):
    """The part of the reactor that schedules calls."""

    def call_later(self, ms: int, callback: Any) -> Timer:
        """Call `callback()` in `ms` milliseconds."""


class Delayed:
    """A request that cannot be completed yet."""

    partitions: Collection[Partition] = ()

    urgent = False
    """True if the response is cheap and is sent as soon as the request is due."""

    stepped = False
    """True if its response takes several steps; otherwise `answer()` returns it."""

    later: Later[Any] | None = None
    """The Later of its response, once it is held."""

    response: Any = None
    timer: Timer | None = None
    expired = False
    queued = False
    """True while its steps are queued or running."""

    gone = False

    def resolve(self, response: Any) -> None:
        """Store the response, and resolve the Later if there is one."""
        self.response = response
        if self.later is not None:
            self.later.resolve(response)

    def attach(self) -> None:
        """Register with its partitions, so that their changes are checked."""
        for partition in self.partitions:
            partition.waiting[self] = None

    def detach(self) -> None:
        """Unregister from its partitions."""
        for partition in self.partitions:
            partition.waiting.pop(self, None)

    def look(self, partition: Partition) -> bool:
        """Check one partition that changed; return whether the request is due."""
        raise AssertionError("every delayed request looks at its partitions")

    def answer(self) -> Any:
        """Return the response of a request that is due or timed out."""
        raise AssertionError("every delayed request has an answer")

    def finish(self) -> Iterator[int]:
        """Resolve the response, step by step; yield the cost of each step but the last."""
        self.detach()
        self.resolve(self.answer())
        yield from ()


class SteppedRequest(Delayed):
    """A delayed request that takes steps before it waits."""

    def begin(self) -> Iterator[int]:
        """Run until the request is complete or waits; yield the cost of each step but the last."""
        raise AssertionError("every stepped request has a beginning")


class DelayedProduce(Delayed):
    """A produce with acks=all whose records are not yet below the high watermark.

    Complete when, for every partition that it wrote to,
    A  the high watermark has passed its last record, or
    B  the partition has failed or is no longer led here (the entry has the error), or
    C  the request has timed out: open entries get REQUEST_TIMED_OUT (their records may still be
       committed later; the client retries with the same sequence).
    """

    urgent = True

    def __init__(self, response: dict[str, Any], open_entries: Iterable[OpenEntry]) -> None:
        self._answer = response
        self._open: dict[Partition, list[OpenEntry]] = {}
        for entry in open_entries:
            self._open.setdefault(entry.partition, []).append(entry)
        self.partitions = list(self._open)

    def look(self, partition: Partition) -> bool:
        entries = self._open.get(partition, ())
        still_open = [entry for entry in entries if not entry.closed()]
        if still_open:
            self._open[partition] = still_open
        else:
            self._open.pop(partition, None)
        return not self._open

    def answer(self) -> Any:
        for entries in self._open.values():
            for entry in entries:
                if not entry.closed():
                    entry.fail(RequestTimedOut())
                    self._answer["any_fault"] = True
        return self._answer


class OpenEntry:
    """The response entry of one partition in a delayed produce."""

    __slots__ = ("answers", "last_offset", "partition", "position")

    def __init__(
        self, partition: Partition, last_offset: int, answers: list[Any], position: int
    ) -> None:
        self.partition = partition
        self.last_offset = last_offset
        self.answers = answers
        self.position = position

    def closed(self) -> bool:
        """Return whether this entry is complete."""
        if self.partition.high_watermark > self.last_offset:  # A
            return True
        if self.partition.fault is not None:  # B
            self.fail(self.partition.fault)
            return True
        return False

    def fail(self, fault: KafkaError) -> None:
        """Replace the response entry by one with this error."""
        index = self.answers[self.position][0]
        self.answers[self.position] = (index, fault.code, -1, -1, -1, (), str(fault), None)


class Purgatory:
    """The delayed requests of a node."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._work: deque[tuple[Delayed | None, Iterator[int] | None]] = deque()
        self._moving: set[Partition] = set()
        """Partitions whose check of many waiting requests is queued and has not begun."""
        self.counts: Counter[type[Delayed]] = Counter()
        """Number of delayed requests by class."""

    @property
    def size(self) -> int:
        """Number of delayed requests."""
        return self.counts.total()

    def park(self, delayed: Delayed, wait_ms: int) -> Later[Any]:
        """Register `delayed` with its partitions; complete it when due or after `wait_ms`."""
        delayed.attach()
        return self.hold(delayed, wait_ms)

    def begin(self, request: SteppedRequest, wait_ms: int) -> Any:
        """Run the first steps of a request now; return its response, or a Later of it."""
        steps = request.begin()
        left = AT_ONCE_UNITS
        for units in steps:
            left -= units
            if left <= 0:
                self._queue(request, steps)
                break
        if request.response is not None:
            return request.response
        return self.hold(request, wait_ms)

    def hold(self, delayed: Delayed, wait_ms: int) -> Later[Any]:
        """Complete a request that is already registered when it is due or after `wait_ms`."""
        later = delayed.later = Later(partial(self._forget, delayed))
        self.counts[type(delayed)] += 1
        delayed.timer = self._timers.call_later(wait_ms, partial(self._expire, delayed))
        return later

    def wake(self, partition: Partition) -> None:
        """Check the requests that wait for a partition that changed."""
        if not partition.waiting:
            return
        patient = []
        for delayed in list(partition.waiting):
            if not delayed.urgent:
                patient.append(delayed)
            # Completing one request may, through its connection, remove another.
            elif delayed in partition.waiting and delayed.look(partition):
                self._finish(delayed)
        if len(patient) <= SLICE:
            for delayed in patient:
                self._look(delayed, partition)
        elif partition not in self._moving:
            self._moving.add(partition)
            self._work.append((None, self._look_at_all(partition)))

    def run(self) -> None:
        """Run queued steps up to UNITS_PER_TICK; called at the end of each tick."""
        work = self._work
        left = UNITS_PER_TICK
        while work and left > 0:
            delayed, steps = work.popleft()
            if delayed is not None and delayed.gone:
                continue
            if steps is None:
                assert delayed is not None
                self._finish(delayed)
                left -= 1
                continue
            try:
                units = next(steps, None)
            except OSError as error:
                if delayed is None:
                    raise
                _unreadable(delayed, error)
                units = None
            if units is not None:
                work.append((delayed, steps))
            elif delayed is not None:
                self._step_ended(delayed)
            left -= units or 1
        if work:
            self._timers.call_later(0, _wake_the_loop)

    def _look_at_all(self, partition: Partition) -> Iterator[int]:
        # A change from here on queues another check.
        self._moving.discard(partition)
        for count, delayed in enumerate(list(partition.waiting), start=1):
            self._look(delayed, partition)
            if count % SLICE == 0:
                yield 1

    def _look(self, delayed: Delayed, partition: Partition) -> None:
        if delayed in partition.waiting and delayed.look(partition):
            self._due(delayed)

    def _expire(self, delayed: Delayed) -> None:
        delayed.expired = True
        self._due(delayed)

    def _due(self, delayed: Delayed) -> None:
        if delayed.urgent:
            self._finish(delayed)
        elif not delayed.queued:
            self._queue(delayed, delayed.finish() if delayed.stepped else None)

    def _queue(self, delayed: Delayed, steps: Iterator[int] | None) -> None:
        delayed.queued = True
        self._work.append((delayed, steps))

    def _step_ended(self, delayed: Delayed) -> None:
        """Remove the request if its steps completed it; otherwise it waits."""
        delayed.queued = False
        if delayed.later is None or delayed.later.settled:
            self._forget(delayed)

    def _finish(self, delayed: Delayed) -> None:
        """Complete the request immediately."""
        self._forget(delayed)
        try:
            delayed.resolve(delayed.answer())
        except OSError as error:
            _unreadable(delayed, error)

    def _forget(self, delayed: Delayed) -> None:
        if delayed.gone:
            return
        delayed.gone = True
        self.counts[type(delayed)] -= 1
        delayed.detach()
        if delayed.timer is not None:
            delayed.timer.cancel()


def _unreadable(delayed: Delayed, error: OSError) -> None:
    """Fail a request whose log cannot be read; other requests of this tick are not affected."""
    log.error("Delayed request failed: a log cannot be read. error=%s", error)
    if delayed.later is not None and not delayed.later.settled:
        delayed.later.fail(KafkaStorageError("A log's files cannot be read."))


def _wake_the_loop() -> None:
    """Do nothing: the steps run at the end of the tick."""
