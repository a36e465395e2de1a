"""Purgatory: delayed requests.  A produce waits for commit, a fetch for bytes to read.

A delayed request is checked each time one of its partitions changes (`check`).  When it is due or
has timed out, its last steps run (`finish`) and its response is resolved.  It is removed when its
connection closes.  Not thread-safe: everything runs on the node's event loop.

The duration of a tick is bounded, regardless of how many requests an append wakes and how many
partitions each of them has: produce responses are sent immediately, everything else runs in steps,
UNITS_PER_TICK a tick, round robin over the requests (`run`).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_operation import (
    DelayedOperation,
    SteppedOperation,
    WatchedPartition,
)
from kafkalite.broker.scheduler import Scheduler
from kafkalite.errors import KafkaStorageError

log = logging.getLogger("kafkalite.broker")

SLICE = 64
"""Number of partitions of a request, or requests of a partition, in one step."""

SLICE_UNITS = 4
"""The cost of such a step.  Completing a fetch of one partition costs 1, about 0.1 ms."""

UNITS_PER_TICK = 32
AT_ONCE_UNITS = 16
"""Maximum cost of the steps that run while a request is handled; further steps are queued."""


class Purgatory:
    """The delayed requests of a node."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.steps: deque[tuple[DelayedOperation | None, Iterator[int] | None]] = deque()
        """The requests to complete, and the steps to run, from the end of this tick on."""
        self._changed: set[WatchedPartition] = set()
        """Partitions whose check of many waiting requests is queued and has not begun."""
        self.counts: Counter[type[DelayedOperation]] = Counter()
        """Number of delayed requests by class."""

    @property
    def size(self) -> int:
        """Number of delayed requests."""
        return self.counts.total()

    def watch(self, delayed: DelayedOperation, wait_ms: int) -> Future[Any]:
        """Register `delayed` with its partitions; complete it when due or after `wait_ms`."""
        delayed.attach()
        return self.watch_registered(delayed, wait_ms)

    def begin(self, request: SteppedOperation, wait_ms: int) -> Any:
        """Run the first steps of a request now; return its response, or a Future of it."""
        steps = request.begin()
        left = AT_ONCE_UNITS
        for units in steps:
            left -= units
            if left <= 0:
                self._queue(request, steps)
                break
        if request.response is not None:
            return request.response
        return self.watch_registered(request, wait_ms)

    def watch_registered(self, delayed: DelayedOperation, wait_ms: int) -> Future[Any]:
        """Complete a request that is already registered when it is due or after `wait_ms`."""
        future = delayed.future = Future(partial(self._remove, delayed))
        self.counts[type(delayed)] += 1
        delayed.timer = self._scheduler.call_later(wait_ms, partial(self._expire, delayed))
        return future

    def add(self, steps: Iterator[int]) -> None:
        """Run these steps from the end of this tick on."""
        self.steps.append((None, steps))

    def wake(self, partition: WatchedPartition) -> None:
        """Check the requests that wait for a partition that changed."""
        if not partition.waiting:
            return
        others = []
        for delayed in list(partition.waiting):
            if not delayed.is_urgent:
                others.append(delayed)
            # Completing one request may, through its connection, remove another.
            elif delayed in partition.waiting and delayed.check(partition):
                self._finish(delayed)
        if len(others) <= SLICE:
            for delayed in others:
                if delayed in partition.waiting and delayed.check(partition):
                    self._complete_when_due(delayed)
        elif partition not in self._changed:
            self._changed.add(partition)
            self.add(self._check_all(partition))

    def run(self) -> None:
        """Run queued steps up to UNITS_PER_TICK; called at the end of each tick."""
        work = self.steps
        left = UNITS_PER_TICK
        while work and left > 0:
            delayed, steps = work.popleft()
            if delayed is not None and delayed.is_removed:
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
            self._scheduler.call_later(0, _wake_the_loop)

    def _check_all(self, partition: WatchedPartition) -> Iterator[int]:
        # A change from here on queues another check.
        self._changed.discard(partition)
        for count, delayed in enumerate(list(partition.waiting), start=1):
            if delayed in partition.waiting and delayed.check(partition):
                self._complete_when_due(delayed)
            if count % SLICE == 0:
                yield 1

    def complete_early(self, delayed: DelayedOperation) -> None:
        """Complete a request as if it had timed out."""
        if not delayed.is_removed:
            self._expire(delayed)

    def complete_now(self, delayed: DelayedOperation) -> None:
        """Complete a request that takes no steps, before anything else changes."""
        if not delayed.is_removed:
            self._finish(delayed)

    def _expire(self, delayed: DelayedOperation) -> None:
        delayed.is_expired = True
        self._complete_when_due(delayed)

    def _complete_when_due(self, delayed: DelayedOperation) -> None:
        if delayed.is_urgent:
            self._finish(delayed)
        elif not delayed.is_queued:
            self._queue(delayed, delayed.finish() if delayed.takes_steps else None)

    def _queue(self, delayed: DelayedOperation, steps: Iterator[int] | None) -> None:
        delayed.is_queued = True
        self.steps.append((delayed, steps))

    def _step_ended(self, delayed: DelayedOperation) -> None:
        """Remove the request if its steps completed it; otherwise it waits."""
        delayed.is_queued = False
        if delayed.future is None or delayed.future.settled:
            self._remove(delayed)

    def _finish(self, delayed: DelayedOperation) -> None:
        """Complete the request immediately."""
        self._remove(delayed)
        try:
            delayed.resolve(delayed.build_response())
        except OSError as error:
            _unreadable(delayed, error)

    def _remove(self, delayed: DelayedOperation) -> None:
        if delayed.is_removed:
            return
        delayed.is_removed = True
        self.counts[type(delayed)] -= 1
        delayed.detach()
        if delayed.timer is not None:
            delayed.timer.cancel()


def _unreadable(delayed: DelayedOperation, error: OSError) -> None:
    """Fail a request whose log cannot be read; other requests of this tick are not affected."""
    log.error("Delayed request failed: a log cannot be read. error=%r", str(error))
    if delayed.future is not None and not delayed.future.settled:
        delayed.future.fail(KafkaStorageError("A segment file of the log cannot be read."))


def _wake_the_loop() -> None:
    """Do nothing: the steps run at the end of the tick."""
