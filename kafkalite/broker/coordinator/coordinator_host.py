"""Runs a machine over its journal: ask, write, replay, answer.

    ask(decide) ─▶ Result ─▶ one batch in the journal ─▶ replay ─┄ committed ┄─▶ on_change ─▶ answer

The records of one decision are one batch, so they are all there after a crash or none is.  The
machine goes on at once, and the next decision builds on this one; but what others see of it, the
answer and the change of the node, waits until the batch is committed, which means what the journal
says: on the disk itself for the metadata log (metadata_log.py), what the topic's `durability`
promises for a coordinator's (partition_journal.py).  An answer without records waits in the same
queue, because it may rest on records that are not safe yet.  After a failed flush the process ends
(storage), so nothing that was replayed and not answered is ever taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kafkalite.broker.later import Later
from kafkalite.coordination.machine import Machine, Result
from kafkalite.errors import KafkaError

M = TypeVar("M", bound=Machine)
T = TypeVar("T")

Changed = Callable[[Sequence[Any], int], None]


class Journal(Protocol):
    """Where a machine's records are kept."""

    moved: Callable[[], object]
    """The host's: called when more is committed."""

    @property
    def end_offset(self) -> int:
        """Behind the last record."""

    @property
    def committed_offset(self) -> int:
        """Behind the last record that will not be lost."""

    def append(self, records: Sequence[Any]) -> None:
        """Put these at the end as one batch; a KafkaError says that nothing was."""

    def push(self) -> None:
        """See to it that what is there becomes committed."""


class Waiting(NamedTuple):
    """An answer that may go once the journal is committed up to `end_offset`."""

    end_offset: int
    records: Sequence[Any]
    settle: Callable[[], None]


class MachineHost(Generic[M]):
    """One machine and its journal; see the module."""

    def __init__(self, machine: M, journal: Journal) -> None:
        self.machine = machine
        self.journal = journal
        journal.moved = self._release
        self._waiting: deque[Waiting] = deque()
        self._changed: list[Changed] = []

    def on_change(self, changed: Changed) -> None:
        """Call `changed(records, end_offset)` with each decision's records, once they are
        committed; `end_offset` is that of the journal behind them."""
        self._changed.append(changed)

    def ask(self, decide: Callable[[M], Result[T]]) -> Later[T]:
        """Let the machine decide; the answer comes when what it rests on is committed."""
        later: Later[T] = Later()
        records: Sequence[Any] = ()
        try:
            result = decide(self.machine)
            records = result.records
            if records:
                self.write(records)
        except KafkaError as raised:
            fault = raised
            self._wait((), lambda: later.fail(fault))
        else:
            self._wait(records, lambda: later.resolve(result.response))
        self.journal.push()
        self._release()
        return later

    def _wait(self, records: Sequence[Any], settle: Callable[[], None]) -> None:
        self._waiting.append(Waiting(self.journal.end_offset, records, settle))

    def write(self, records: Sequence[Any]) -> None:
        """Put records into the journal and into the machine."""
        self.journal.append(records)
        for record in records:
            self.machine.replay(record)

    def _release(self) -> None:
        while self._waiting and self._waiting[0].end_offset <= self.journal.committed_offset:
            answer = self._waiting.popleft()
            if answer.records:
                for changed in self._changed:
                    changed(answer.records, answer.end_offset)
            answer.settle()
