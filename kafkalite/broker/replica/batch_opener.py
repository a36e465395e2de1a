"""BatchOpener: opens batches on the event loop within a budget per tick, and beyond it on a thread.

    steps ─▶ run ── budget left ──▶ the result
              └──── budget spent ─▶ thread ┄┄▶ eventfd ─▶ a Future of it, in a later tick

The cost of opening a batch depends on the decompressed size of its records, which the client
controls: a request of one megabyte may hold a hundred batches of 16 MiB each.  The loop produces at
most `BUDGET` bytes a tick; the remaining steps run on one thread, in the order of arrival.  The
thread releases the GIL while it decompresses, compresses and parses records.

Left out: fairness between connections that keep the thread busy.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kafkalite.broker.future import Future
from kafkalite.errors import KafkaError, UnknownServerError
from kafkalite.records.decode_steps import DecodeSteps
from kafkalite.storage.log.timestamps import Search, TimestampOffset

log = logging.getLogger("kafkalite.broker")

T = TypeVar("T")

BUDGET = 4 << 20
"""Maximum number of bytes produced on the loop in one tick: 3 to 15 ms, gzip being slowest."""


class BatchOpener:
    """Runs the steps that open batches; see the module.

    `tick_number` returns the number of the loop's current tick; each tick has its own budget.
    """

    def __init__(self, tick_number: Callable[[], int] = int) -> None:
        self._tick_number = tick_number
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._jobs: queue.SimpleQueue[tuple[DecodeSteps[Any], Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Future[Any], Any, KafkaError | None]]
        self._done = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._budget = 0
        self._budget_tick = -1
        """The tick that `_budget` is for."""
        self.submitted_count = 0
        """Number of jobs queued for the thread."""

    def fileno(self) -> int:
        """Return the eventfd that is readable when `collect` has results."""
        return self._event

    def run(self, steps: DecodeSteps[T]) -> T | Future[T]:
        """Run these steps; return their result, or a Future of it if the tick's budget is spent."""
        tick = self._tick_number()
        if tick != self._budget_tick:
            self._budget, self._budget_tick = BUDGET, tick
        try:
            while self._budget > 0:
                self._budget -= next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        except KafkaError:
            raise
        except BaseException as error:
            raise _unknown(error) from None
        future: Future[T] = Future()
        self._submit(steps, future)
        return future

    def search(self, search: Search) -> TimestampOffset | None | Future[TimestampOffset | None]:
        """Run a search by timestamp, opening the batches that it needs."""
        try:
            opened = self._advance(search, None)
        except StopIteration as end:
            found: TimestampOffset | None = end.value
            return found
        result: Future[TimestampOffset | None] = Future()
        opened.then(partial(self._continue, search, result))
        return result

    def _advance(
        self, search: Search, found: TimestampOffset | None
    ) -> Future[TimestampOffset | None]:
        """Advance a search until a batch is opened on the thread; StopIteration ends the search."""
        while True:
            opened = self.run(search.send(found))
            if isinstance(opened, Future):
                return opened
            found = opened

    def _continue(
        self,
        search: Search,
        result: Future[TimestampOffset | None],
        found: TimestampOffset | None,
        error: KafkaError | None,
    ) -> None:
        """Continue a search with the result of a batch that was opened on the thread."""
        if error is not None:
            result.fail(error)
            return
        try:
            opened = self._advance(search, found)
        except StopIteration as end:
            result.resolve(end.value)
        except KafkaError as raised:
            result.fail(raised)
        else:
            opened.then(partial(self._continue, search, result))

    def collect(self) -> None:
        """Resolve or fail the Laters of the jobs that the thread has completed."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        while not self._done.empty():
            future, result, error = self._done.get()
            if error is None:
                future.resolve(result)
            else:
                future.fail(error)

    def close(self) -> None:
        """Stop the thread after its current job; the Laters of queued jobs are never settled."""
        if self._thread is not None:
            while not self._jobs.empty():
                self._jobs.get()
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def _submit(self, steps: DecodeSteps[Any], future: Future[Any]) -> None:
        if self._thread is None:
            # Started on first use, so never before the launcher has forked.
            self._thread = threading.Thread(target=self._work, name="opener", daemon=True)
            self._thread.start()
        self.submitted_count += 1
        self._jobs.put((steps, future))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            steps, future = job
            result, error = _outcome(steps)
            self._done.put((future, result, error))
            del job, steps, future, result, error  # keep no batch alive while waiting for a job
            os.eventfd_write(self._event, 1)


def _outcome(steps: DecodeSteps[T]) -> tuple[T | None, KafkaError | None]:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value, None
    except KafkaError as error:
        return None, error
    except BaseException as error:
        return None, _unknown(error)


def _unknown(error: BaseException) -> UnknownServerError:
    """Log an unexpected codec failure and return the error to respond with.

    A panic of a codec is not an Exception: uncaught, it would end the process, or the thread
    without a response.
    """
    log.exception("Batch could not be decompressed. error=%r", str(error))
    return UnknownServerError(str(error))
