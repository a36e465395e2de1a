"""DecisionSequence: splits a request about many topics or configs into controller decisions.

    request ─▶ some of its topics ─▶ one decision, one batch ─▶ results ─┄ a later tick ┄─▶ …

Each topic or resource succeeds or fails on its own, so a request need not be one decision.  A
decision costs the controller and every worker some 40 µs per topic: WEIGHT_MAX topics per decision
keep their ticks short.  A decision applies to a topic completely or not at all: a topic has all of
its partitions, or does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Generic, Protocol, TypeVar

from kafkalite.broker.future import Future
from kafkalite.coordination.controller import Controller
from kafkalite.coordination.machine import DecisionResult
from kafkalite.errors import KafkaError

K = TypeVar("K")
T = TypeVar("T")
W = TypeVar("W")
A = TypeVar("A")

WEIGHT_MAX = 250
"""Maximum number of records of one decision, unless it is about one topic."""

STEP_PAUSE_MS = 1
"""Pause between two decisions, in which the event loop serves clients."""


class DecisionMaker(Protocol):
    """The methods of LocalController that a sequence of decisions needs."""

    @property
    def call_later(self) -> Callable[[int, Callable[[], object]], object]:
        """The timer function of the event loop."""

    def execute(self, decision: Callable[[Controller], DecisionResult[T]]) -> Future[T]:
        """Make a decision; complete when every running node has applied it."""


class DecisionSequence(Generic[W, K, A]):
    """The decisions for one request."""

    def __init__(
        self,
        controller: DecisionMaker,
        wanted: Sequence[W],
        decide: Callable[[Controller, Sequence[W]], DecisionResult[dict[K, A | KafkaError]]],
        *,
        name_of: Callable[[W], K],
        weigh: Callable[[W], int] = lambda _: 1,
        on_decided: Callable[[Mapping[K, A | KafkaError]], object] = lambda _: None,
    ) -> None:
        self.results: dict[K, A | KafkaError] = {}
        """The results of the decisions so far, by the name of the topic or resource."""
        self._controller = controller
        self._wanted = wanted
        self._decide = decide
        self._name_of = name_of
        self._weigh = weigh
        self._on_decided = on_decided
        self._next = 0
        self._all_decided: Future[dict[K, A | KafkaError]] = Future()

    def begin(self) -> Future[dict[K, A | KafkaError]]:
        """Begin; the Future completes when all nodes have applied the last decision."""
        self._decide_next()
        return self._all_decided

    def _decide_next(self) -> None:
        some = self._some()
        self._next += len(some)

        def on_decided(decided: dict[K, A | KafkaError] | None, error: KafkaError | None) -> None:
            if decided is None:
                # An error of the whole decision (a full disk) is the error of every topic in it.
                assert error is not None
                decided = dict.fromkeys(map(self._name_of, some), error)
            self._decided(decided)

        self._controller.execute(lambda machine: self._decide(machine, some)).then(on_decided)

    def _some(self) -> Sequence[W]:
        """Return the topics of the next decision: at least one, if any is left."""
        left = self._wanted[self._next : self._next + WEIGHT_MAX]
        sums = accumulate(map(self._weigh, left))
        return left[: max(1, sum(1 for _ in takewhile(lambda weight: weight <= WEIGHT_MAX, sums)))]

    def _decided(self, decided: Mapping[K, A | KafkaError]) -> None:
        self._on_decided(decided)
        self.results.update(decided)
        if self._next < len(self._wanted):
            self._controller.call_later(STEP_PAUSE_MS, self._decide_next)
        else:
            self._all_decided.resolve(self.results)
