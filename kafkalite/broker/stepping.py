"""Stepped requests: some entries are processed in this tick, the rest in later ticks.

    def handle(node, request, client):     a generator that yields after each entry
        results = []
        for entry in request.entries:
            results.append(...)
            yield
        return {"entries": results}        the response, or a Future of it

A request may have tens of thousands of entries that take some microseconds each.  A step of one
request ends after STEP_MS, or when the generator yields PAUSE; between two steps the loop serves
other connections.  State may change between two steps, as it may between two requests.

A handler that is such a generator is run by `in_steps` (served_apis.serves).  The request is
decoded in its first step; if there are more steps, the response is encoded in a tick of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from typing import Any, Generic, TypeAlias, TypeVar

from kafkalite.broker.future import Future
from kafkalite.errors import Fatal, KafkaError, UnknownServerError
from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.broker")

T = TypeVar("T")

STEP_MS, STEP_PAUSE_MS = 10, 1
ENTRIES_AT_ONCE = 500
"""Number of entries processed together if one decision or lookup covers several."""

PAUSE = True
"""Yielded by work that must wait: it continues in a later tick."""

Work: TypeAlias = Generator[Any, None, T]


def in_steps(
    reactor: Reactor, work: Work[T | Future[T]], *, is_cancellable: bool = True
) -> T | Future[T]:
    """Run `work` for STEP_MS a tick; return its result, or a Future of it.

    A KafkaError raised by `work` fails the request.  When the response is abandoned, the remaining
    steps are cancelled if `is_cancellable`.
    """
    steps = SteppedRequest(reactor, work)
    return steps.result if steps.step() else steps.resume_later(is_cancellable)


class SteppedRequest(Generic[T]):
    """The execution of one stepped request; see the module."""

    result: T | Future[T]
    """The response, once the work is done."""

    def __init__(self, reactor: Reactor, work: Work[T | Future[T]]) -> None:
        self._reactor = reactor
        self._work: Work[T | Future[T]] | None = work

    def step(self) -> bool:
        """Run one step; return whether the work is done."""
        assert self._work is not None
        work, now_ns = self._work, self._reactor.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        try:
            while next(work) is not PAUSE and now_ns() < end_ns:
                pass
        except StopIteration as ended:
            self.result = ended.value
            return True
        return False

    def resume_later(self, is_cancellable: bool) -> Future[T]:
        """Run the remaining steps in later ticks; return a Future of the result."""
        future: Future[T] = Future(abandoned=self._cancel if is_cancellable else None)
        self._reactor.call_later(STEP_PAUSE_MS, lambda: self._resume(future))
        return future

    def _resume(self, future: Future[T]) -> None:
        if self._work is None:
            return
        try:
            is_done = self.step()
        except KafkaError as error:
            future.fail(error)
            return
        except Exception as error:
            fail_unexpected(self._reactor, future, error)
            return
        then = self._end if is_done else self._resume
        self._reactor.call_later(STEP_PAUSE_MS, lambda: then(future))

    def _end(self, future: Future[T]) -> None:
        if self._work is not None:
            future.follow(self.result)

    def _cancel(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None


def fail_unexpected(reactor: Reactor, future: Future[Any], error: Exception) -> None:
    """Fail a request whose step in a later tick raised an unexpected error; log the error.

    The loop handles such an error of the first step; a timer's would end the process.
    """
    if isinstance(error, AssertionError | Fatal):
        raise error
    reactor.errors += 1
    log.error("Request failed with an unexpected error.", exc_info=error)
    future.fail(UnknownServerError("The request failed with an unexpected error of the broker."))


class WorkQueues:
    """Queues of stepped work by name: work on the same name runs in the order in which it began.

    Otherwise the steps of two requests that change the same object could interleave, and the older
    of two values might be written last.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[object]] = {}

    def __bool__(self) -> bool:
        """Return whether any work is running or queued."""
        return bool(self._waiting)

    def wait(self, name: str, ticket: object) -> Work[None]:
        """Wait until earlier work on `name` is done.

        `done` must be called afterwards, also if this generator is closed.
        """
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(ticket)
        while waiting[0] is not ticket:
            yield PAUSE

    def done(self, name: str, ticket: object) -> None:
        """Remove finished work, so that the next in the queue can begin."""
        waiting = self._waiting[name]
        waiting.remove(ticket)
        if not waiting:
            del self._waiting[name]
