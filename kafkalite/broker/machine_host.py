"""MachineHost: runs a state machine over its journal.

    decision ─▶ result ─▶ one batch in the journal ─▶ replay ─┄ committed ┄─▶ on_change, response

The records of one decision are one batch, so after a crash either all exist or none.  The machine
continues at once, and the next decision builds on this one; its visible effects, the response and
the changes of the node, wait until the batch is committed.  What that means depends on the journal:
on the disk for the metadata log (controller/metadata_log.py), as the topic's `durability` requires
for a coordinator's (coordinator/partition_journal.py).  A response without records waits in the
same queue, because it may depend on records that are not committed yet.  After a failed flush the
process ends (storage), so nothing that was replayed is ever taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kafkalite.broker.future import Future
from kafkalite.coordination.machine import DecisionResult, StateMachine
from kafkalite.errors import KafkaError

M = TypeVar("M", bound=StateMachine)
T = TypeVar("T")

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


class MachineHost(Generic[M]):
    """One machine and its journal."""

    def __init__(self, machine: M, journal: Journal) -> None:
        self.machine = machine
        self.journal = journal
        journal.on_commit = self._release
        self._responses: deque[PendingResponse] = deque()
        self._listeners: list[Listener] = []

    def on_change(self, listener: Listener) -> None:
        """Call `listener(records, end_offset)` with the records of each committed decision.

        `end_offset` is the journal's offset after them.
        """
        self._listeners.append(listener)

    def decide(self, decision: Callable[[M], DecisionResult[T]]) -> Future[T]:
        """Make a decision; return its response once all that it depends on is committed."""
        future: Future[T] = Future()
        response: Any = None
        records: Sequence[Any] = ()
        refusal: KafkaError | None = None
        try:
            response, records = decision(self.machine)
            if records:
                self.write(records)
        except KafkaError as raised:
            records, refusal = (), raised
        end_offset = self.journal.end_offset
        self._responses.append(PendingResponse(end_offset, records, future, response, refusal))
        self.journal.push()
        self._release()
        return future

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
