"""Opener: has batches opened within the tick's budget, and beyond it on a thread.

    steps ─▶ run ── budget left ──▶ the result
              └──── budget spent ─▶ thread ┄┄▶ eventfd ─▶ a Later of it, in a later tick

Opening a batch costs what its records come to, which its sender decides: a request of a megabyte
may name a hundred batches of 16 MiB each.  On the loop `BUDGET` bytes a tick are made at most;
what is not done by then goes on in one thread, which lets go of the GIL while it decompresses,
compresses and walks.  Steps are taken there in the order they came.

Left out: fairness between connections that keep the thread busy.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from functools import partial
from typing import Any, TypeVar

from kafkalite.broker.later import Later
from kafkalite.errors import KafkaError, UnknownServerError
from kafkalite.records.opening import Steps
from kafkalite.storage.timestamps import Search, TimestampOffset

log = logging.getLogger("kafkalite.broker")

T = TypeVar("T")

BUDGET = 4 << 20
"""Maximum number of bytes made on the loop in one tick: 3 to 15 ms, with gzip the most."""


class Opener:
    """Takes steps; see the module."""

    def __init__(self) -> None:
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._jobs: queue.SimpleQueue[tuple[Steps[Any], Later[Any]] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Later[Any], Any, KafkaError | None]]
        self._done = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._budget = BUDGET
        self.handed_over = 0
        """Number of jobs given to the thread."""

    def fileno(self) -> int:
        """Readable when something can be collected."""
        return self._event

    def run(self, steps: Steps[T]) -> T | Later[T]:
        """Take these steps; a Later of their result where the tick has no time for all."""
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
        later: Later[T] = Later()
        self._hand_over(steps, later)
        return later

    def search(self, search: Search) -> TimestampOffset | None | Later[TimestampOffset | None]:
        """Go through with a search by time, opening its batches."""
        try:
            opened = self._advance(search, None)
        except StopIteration as end:
            found: TimestampOffset | None = end.value
            return found
        result: Later[TimestampOffset | None] = Later()
        opened.then(partial(self._continue, search, result))
        return result

    def _advance(
        self, search: Search, found: TimestampOffset | None
    ) -> Later[TimestampOffset | None]:
        """Send what was found until opening a batch takes long; StopIteration ends the search."""
        while True:
            opened = self.run(search.send(found))
            if isinstance(opened, Later):
                return opened
            found = opened

    def _continue(
        self,
        search: Search,
        result: Later[TimestampOffset | None],
        found: TimestampOffset | None,
        error: KafkaError | None,
    ) -> None:
        """Continue a search with the result of a batch that took long."""
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

    def settle(self) -> None:
        """The tick ends: the next one has its own budget."""
        self._budget = BUDGET

    def collect(self) -> None:
        """Settle what the thread is done with."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        while not self._done.empty():
            later, result, error = self._done.get()
            if error is None:
                later.resolve(result)
            else:
                later.fail(error)

    def close(self) -> None:
        """Let the step under way end, and the thread with it; the rest is never settled."""
        if self._thread is not None:
            while not self._jobs.empty():
                self._jobs.get()
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def _hand_over(self, steps: Steps[Any], later: Later[Any]) -> None:
        if self._thread is None:
            # Not before it is needed, and not before the launcher has forked.
            self._thread = threading.Thread(target=self._work, name="opener", daemon=True)
            self._thread.start()
        self.handed_over += 1
        self._jobs.put((steps, later))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            steps, later = job
            result, error = _outcome(steps)
            self._done.put((later, result, error))
            del job, steps, later, result, error  # while it waits it holds no batch
            os.eventfd_write(self._event, 1)


def _outcome(steps: Steps[T]) -> tuple[T | None, KafkaError | None]:
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
    """Return the answer to a batch whose codec failed in a way it should not.

    A panic of a codec is no Exception: it would end the process, or the thread with nobody
    answered.
    """
    log.exception("Batch could not be decompressed. error=%r", str(error))
    return UnknownServerError(str(error))
