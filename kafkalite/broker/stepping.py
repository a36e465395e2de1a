"""Requests answered in steps: some of the entries in this tick, the rest in later ones.

    def answer(node, request, caller):     a generator that yields behind each entry
        answers = []
        for entry in request.entries:
            answers.append(...)
            yield
        return {"entries": answers}        the response, or a Later of it

A request may name tens of thousands of entries of some microseconds each.  Steps of one request
end after STEP_MS, or where it yields PAUSE; between two of them the loop serves others.  What the
entries are answered from may change meanwhile, as it may between two requests.

A handler that is such a generator is run by `in_steps` (handlers.serves).  The request is decoded
with its first step; where that is not the last, the response is encoded in a tick of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from kafkalite.broker.later import Later
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.broker.node import Node

T = TypeVar("T")

STEP_MS, STEP_PAUSE_MS = 10, 1
ENTRIES_AT_ONCE = 500
"""Number of entries that are answered together where one decision or one look is about several."""

PAUSE = True
"""Yielded by work that has to wait: it goes on in a later tick."""

Work: TypeAlias = Generator[Any, None, T]


def in_steps(node: Node, work: Work[T | Later[T]], *, to_the_end: bool = False) -> T | Later[T]:
    """Go through with `work` for STEP_MS a tick; return its result, or a Later of it.

    A KafkaError that `work` raises is the request's.  When nobody waits any more the rest is left,
    unless it is to be done `to_the_end`.
    """
    steps = Steps(node, work)
    return steps.result if steps.step() else steps.later(to_the_end)


class Steps(Generic[T]):
    """The steps of one request; see the module."""

    result: T | Later[T]
    """The response, once the work is done."""

    def __init__(self, node: Node, work: Work[T | Later[T]]) -> None:
        self._node = node
        self._work: Work[T | Later[T]] | None = work

    def step(self) -> bool:
        """Do some of the work; return whether it is done."""
        assert self._work is not None
        work, now_ns = self._work, self._node.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        try:
            while next(work) is not PAUSE and now_ns() < end_ns:
                pass
        except StopIteration as ended:
            self.result = ended.value
            return True
        return False

    def later(self, to_the_end: bool) -> Later[T]:
        """Do the rest in later ticks."""
        later: Later[T] = Later(abandoned=None if to_the_end else self._leave)
        self._node.reactor.call_later(STEP_PAUSE_MS, lambda: self._go_on(later))
        return later

    def _go_on(self, later: Later[T]) -> None:
        if self._work is None:
            return
        try:
            is_done = self.step()
        except KafkaError as fault:
            later.fail(fault)
            return
        then = self._end if is_done else self._go_on
        self._node.reactor.call_later(STEP_PAUSE_MS, lambda: then(later))

    def _end(self, later: Later[T]) -> None:
        if self._work is not None:
            later.follow(self.result)

    def _leave(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None


class Turns:
    """Work on one thing after the other, in the order in which it began: the steps of two requests
    that change the same thing must not mix, or the older of two values might be the last."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[object]] = {}

    def __bool__(self) -> bool:
        """Whether any work is not done yet."""
        return bool(self._waiting)

    def wait(self, name: str, turn: object) -> Work[None]:
        """Wait until what began before is done; `done` must follow, also where this is closed."""
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(turn)
        while waiting[0] is not turn:
            yield PAUSE

    def done(self, name: str, turn: object) -> None:
        """Let the next begin."""
        waiting = self._waiting[name]
        waiting.remove(turn)
        if not waiting:
            del self._waiting[name]
