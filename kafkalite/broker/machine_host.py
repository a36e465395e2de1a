"""MachineHost: runs a state machine over its journal.

    decision ─▶ result ─▶ one batch in the journal ─▶ replay ─┄ committed ┄─▶ on_change, response

The records of one decision are in one batch, so after a crash either all exist or none.  Decisions
that do not depend on each other may share a batch (`decide_all`).  The machine continues at once,
and the next decision builds on this one; its visible effects, the response and the changes of the
node, wait until the batch is committed.  What that means depends on the journal: on the disk for
the metadata log (controller/metadata_log.py), as the topic's `durability` requires for a
coordinator's (coordinator/partition_journal.py).  A response without records waits in the same
queue, because it may depend on records that are not committed yet.  After a failed flush the
process ends (storage), so nothing that was replayed is ever taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kafkalite.broker.future import Future
from kafkalite.coordination.machine import DecisionResult, StateMachine
from kafkalite.errors import KafkaError

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")

BATCH_UNITS_MAX = 5_000
"""Number of units (`MachineHost.units_of`) from which a batch takes no further decision."""

Listener = Callable[[Sequence[Any], int], None]


class Journal(Protocol):
    """Stores a machine's records."""

    on_commit: Callable[[], object]
    """Set by the host: called when more is committed."""

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""

    @property
    def committed_offset(self) -> int:
        """The offset after the last committed record."""

    def append(self, records: Sequence[Any]) -> None:
        """Append these records as one batch; a KafkaError means that nothing was appended."""

    def push(self) -> None:
        """Begin to commit what was appended."""


class PendingResponse(NamedTuple):
    """A response that waits until the journal is committed up to `end_offset`."""

    end_offset: int
    records: Sequence[Any]
    future: Future[Any]
    response: Any
    refusal: KafkaError | None
    """The error in place of the response, if the request was refused."""


class MadeDecision(NamedTuple):
    """A decision of the machine, whose records are not written yet."""

    records: Sequence[Any]
    response: Any
    refusal: KafkaError | None


class MachineHost(Generic[M]):
    """One machine and its journal."""

    def __init__(self, machine: M, journal: Journal) -> None:
        self.machine = machine
        self.journal = journal
        journal.on_commit = self._release
        self._responses: deque[PendingResponse] = deque()
        self._listeners: list[Listener] = []
        self.units_of: Callable[[Any], int] = lambda record: 1
        """The share that a record has in BATCH_UNITS_MAX."""

    def on_change(self, listener: Listener) -> None:
        """Call `listener(records, end_offset)` with the records of each committed decision.

        `end_offset` is the journal's offset after them.
        """
        self._listeners.append(listener)

    def decide(self, decision: Callable[[M], DecisionResult[T]]) -> Future[T]:
        """Make a decision; return its response once all that it depends on is committed."""
        (future,) = self.decide_all([decision])
        return future

    def decide_all(
        self, decisions: Sequence[Callable[[M], DecisionResult[Any]]]
    ) -> list[Future[Any]]:
        """Make decisions of which none reads what another one writes; return their responses.

        Their records share a batch, up to BATCH_UNITS_MAX.  If it cannot be appended, all decisions
        with records in it fail.  Not for records of producers' transactions.
        """
        futures: list[Future[Any]] = []
        batch: list[MadeDecision] = []
        units = 0
        for decision in decisions:
            made = self._make(decision)
            if units >= BATCH_UNITS_MAX:
                futures += self._write_batch(batch)
                batch, units = [], 0
            batch.append(made)
            if len(decisions) > 1:
                units += sum(map(self.units_of, made.records))
        futures += self._write_batch(batch)
        self.journal.push()
        self._release()
        return futures

    def _make(self, decision: Callable[[M], DecisionResult[Any]]) -> MadeDecision:
        try:
            response, records = decision(self.machine)
        except KafkaError as raised:
            return MadeDecision((), None, raised)
        return MadeDecision(records, response, None)

    def _write_batch(self, batch: Sequence[MadeDecision]) -> Iterator[Future[Any]]:
        """Write the records of decisions, and queue the responses."""
        error: KafkaError | None = None
        together = [record for made in batch for record in made.records]
        try:
            if together:
                self.write(together)
        except KafkaError as raised:
            error = raised
        end_offset = self.journal.end_offset
        for records, response, refusal in batch:
            future: Future[Any] = Future()
            if error is not None and records:
                records, refusal = (), error.copy()
            self._responses.append(PendingResponse(end_offset, records, future, response, refusal))
            yield future

    def write(self, records: Sequence[Any]) -> None:
        """Append records to the journal and replay them."""
        self.journal.append(records)
        for record in records:
            self.machine.replay(record)

    def _release(self) -> None:
        while self._responses and self._responses[0].end_offset <= self.journal.committed_offset:
            pending = self._responses.popleft()
            if pending.records:
                for listener in self._listeners:
                    listener(pending.records, pending.end_offset)
            if pending.refusal is None:
                pending.future.resolve(pending.response)
            else:
                pending.future.fail(pending.refusal)

    def _fail_responses(self, error: KafkaError) -> None:
        """Fail all responses: the journal commits nothing more."""
        responses, self._responses = self._responses, deque()
        for pending in responses:
            pending.future.fail(pending.refusal or error.copy())
