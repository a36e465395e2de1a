"""Requests answered in steps: some of the entries in this tick, the rest in later ones.

    work = _answers(request)           a generator that yields behind each entry
    return in_steps(node, work, response)

A request may name tens of thousands of entries of some microseconds each.  Steps of one request
end after STEP_MS; between two of them the loop serves others.  What the entries are answered from
may change meanwhile, as it may between two requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from kafkalite.broker.later import Later
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.broker.node import Node

T = TypeVar("T")

STEP_MS, STEP_PAUSE_MS = 10, 1


def in_steps(
    node: Node, work: Iterator[object], result: Callable[[], T | Later[T]]
) -> T | Later[T]:
    """Go through with `work` for STEP_MS a tick; return `result()`, or a Later of it.

    A KafkaError that `work` raises is the request's; when nobody waits any more the rest is left.
    """
    steps = Steps(node, work, result)
    return result() if steps.step() else steps.later()


class Steps(Generic[T]):
    """The steps of one request; see the module."""

    def __init__(
        self, node: Node, work: Iterator[object], result: Callable[[], T | Later[T]]
    ) -> None:
        self._node = node
        self._work: Iterator[object] | None = work
        self._result = result

    def step(self) -> bool:
        """Do some of the work; return whether it is done."""
        assert self._work is not None
        now_ns = self._node.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        for _ in self._work:
            if now_ns() >= end_ns:
                return False
        return True

    def later(self) -> Later[T]:
        """Do the rest in later ticks."""
        later: Later[T] = Later(abandoned=self._leave)
        self._node.reactor.call_later(STEP_PAUSE_MS, partial(self._go_on, later))
        return later

    def _go_on(self, later: Later[T]) -> None:
        if self._work is None:
            return
        try:
            is_done = self.step()
        except KafkaError as fault:
            later.fail(fault)
            return
        if is_done:
            later.follow(self._result())
        else:
            self._node.reactor.call_later(STEP_PAUSE_MS, partial(self._go_on, later))

    def _leave(self) -> None:
        self._work = None
