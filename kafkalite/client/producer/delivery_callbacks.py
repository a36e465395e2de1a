"""Delivery callbacks that have not run yet, and errors of batches that were not requested.

Callbacks are user code.  They never run inside send(), send_batch() or send_arrow(), where the
program may hold a lock that a callback takes: `run_callbacks_soon` leaves them to the background
thread.  Threads inside result(), flush() and close() run them with `run_callbacks`, but only
without a timeout: a callback that blocks must not make such a call exceed its timeout.

An error is seen if the outcome of its batch was requested, before or after: by result(),
exception(), a callback, or by awaiting it.  Other errors are logged, at most one line per
REPORT_EVERY_S, and counted in `unseen_records`; a `with` block that ends with such a count raises.
The unit is the batch: requesting one record's outcome marks its whole batch as seen.

All methods are called with the sender's lock, except those of the last section.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP, BatchCompletion
from kafkalite.errors import KafkaError

REPORT_EVERY_S = 10.0
"""Minimum time between two log lines about failures."""

UNSEEN_BATCHES_MAX = 1_000
"""Failed batches that are kept for `check`; of older ones only the number of records is kept."""

log = logging.getLogger(__name__)


class ProgressGate(Protocol):
    """A locked lock that a thread sleeps on, or its counterpart for an event loop."""

    def release(self) -> None: ...


class DeliveryCallbacks:
    """The outcomes of a producer's batches."""

    def __init__(self, wake_background: Callable[[], None]) -> None:
        self.gates: deque[ProgressGate] = deque()
        """Gates of threads that wait for another thread's progress.  A Condition does not survive
        a KeyboardInterrupt."""
        self.unseen_records = 0
        self._unseen: dict[BatchCompletion, None] = {}
        self._first_dropped: KafkaError | None = None
        """The error of the first batch that was dropped from `_unseen`."""
        self._wake_background = wake_background
        self._finished: deque[BatchCompletion] = deque()
        """Batches whose callbacks have not all run."""
        self._running: dict[int, BatchCompletion] = {}
        """The batch whose callbacks a thread runs, by the thread's ident."""
        self._unreported: deque[BatchCompletion] = deque()
        self._reported_s = -math.inf

    def completed(self, batch: BatchCompletion) -> None:
        """Register a completed batch, and its parent if this is the last part.  Idempotent."""
        if batch.has_callbacks:
            self._finished.append(batch)
        is_seen = batch.outcome_requested or batch.root.outcome_requested or batch in self._unseen
        if batch.error is not None and batch.count and not is_seen:
            self._unseen[batch] = None
            self.unseen_records += batch.count
            self._unreported.append(batch)
            if len(self._unseen) > UNSEEN_BATCHES_MAX:
                self._drop_oldest()
        parent = batch.parent
        if parent is not None and parent.ended and not parent.done:
            parent.complete(None, NO_OFFSET, NO_TIMESTAMP)
            self.completed(parent)
        self.open_gates()

    def _drop_oldest(self) -> None:
        """Keep only the number of records of the batch that failed first."""
        oldest = next(iter(self._unseen))
        del self._unseen[oldest]
        oldest.outcome_requested = True
        self._first_dropped = self._first_dropped or oldest.error

    def request_outcome(self, batch: BatchCompletion) -> None:
        """Register that the outcome of a batch was requested."""
        batch.outcome_requested = True
        for leaf in batch.leaves():
            if leaf in self._unseen:
                del self._unseen[leaf]
                self.unseen_records -= leaf.count

    def check(self) -> None:
        """Raise the first error of records that failed unseen since the last call."""
        count, self.unseen_records = self.unseen_records, 0
        unseen, self._unseen = self._unseen, {}
        first, self._first_dropped = self._first_dropped, None
        for batch in unseen:
            batch.outcome_requested = True
            first = first or batch.error
        if first is not None:
            raise type(first)(
                f"{count} records were not delivered, and their outcome was not"
                f" requested (result(), on_delivery).  The first error: {first}"
            )

    # Without the lock.

    @property
    def is_in_callback(self) -> bool:
        """True if the calling thread is inside a callback."""
        return threading.get_ident() in self._running

    @property
    def has_work(self) -> bool:
        """True if there are callbacks to run, or failures to log."""
        return bool(self._finished or self._unreported)

    @property
    def report_due_s(self) -> float:
        """Monotonic time at which the next failures are logged; infinite if there are none."""
        return self._reported_s + REPORT_EVERY_S if self._unreported else math.inf

    def open_gates(self) -> None:
        """Wake the threads that wait for progress."""
        while self.gates:
            try:
                gate = self.gates.popleft()
            except IndexError:
                return
            gate.release()

    def pending_batches(self) -> list[BatchCompletion]:
        """Return the batches whose callbacks are pending or running."""
        return [*self._finished.copy(), *self._running.copy().values()]

    def callbacks_done(self, batch: BatchCompletion) -> bool:
        """Return whether all callbacks of a completed batch have run."""
        return not batch.has_callbacks_left and batch not in self._running.copy().values()

    def schedule_callbacks(self, batch: BatchCompletion) -> None:
        """Have the background thread run a callback that was added after its batch completed."""
        self._finished.append(batch)
        self._wake_background()

    def run_callbacks_soon(self) -> None:
        """Have the background thread run the pending callbacks."""
        if self._finished or self.report_due_s <= time.monotonic():
            self._wake_background()

    def run_callbacks(self, *, final: bool = False) -> None:
        """Run the callbacks of completed batches, and log errors; `final`: all of them."""
        finished, me = self._finished, threading.get_ident()
        while finished:
            try:
                batch = finished[0]
            except IndexError:
                break
            try:
                self._running[me] = batch
                batch.run_callbacks()
                # Afterwards, so that KeyboardInterrupt leaves the other callbacks pending.
                with contextlib.suppress(ValueError):  # another thread has removed it
                    finished.remove(batch)
                if batch.has_callbacks_left:
                    finished.append(batch)
            finally:
                self._running.pop(me, None)
                self.open_gates()
        if self._unreported and (final or self.report_due_s <= time.monotonic()):
            self._report()

    def _report(self) -> None:
        """Log the errors that were not requested, in one line."""
        self._reported_s = time.monotonic()
        batches = []
        while self._unreported:
            try:
                batch = self._unreported.popleft()
            except IndexError:
                break
            if not batch.root.outcome_requested:
                batches.append(batch)
        if batches:
            first = batches[0]
            log.error(
                "Records were not delivered, and their outcome was not requested: %s  topic=%s"
                " partition=%d records=%d batches=%d",
                first.error, first.topic_name, first.partition,
                sum(batch.count for batch in batches), len(batches),
            )  # fmt: skip
