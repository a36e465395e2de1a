"""Outcomes: batches that were decided, the callbacks they still owe, and the failures nobody saw.

Callbacks are user code.  They never run inside send(), send_batch() or send_arrow(), where the
program may hold a lock that a callback takes: `tell_soon` leaves them to the background thread.
Threads inside result(), flush() and close() run them themselves with `tell`.

A failure is seen when somebody asked for the outcome of its batch, before or after: by result(),
exception(), a callback, or by awaiting it.  What nobody has asked for is logged as an error, one
line each REPORT_EVERY_S, and counted in `unseen_records`; a `with` block that ends with such a
count raises.  The unit is the batch: who asks about one record of it has seen them all.

Everything is called with the sender's lock but `tell`, `tell_soon` and `check`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from kafkalite.client.batch import NO_OFFSET, NO_TIMESTAMP, Batch
from kafkalite.errors import KafkaError

REPORT_EVERY_S = 10.0
"""Minimum time between two log lines about failures."""

log = logging.getLogger(__name__)


class Gate(Protocol):
    """A locked lock that a thread sleeps on, or its like of an event loop."""

    def release(self) -> None: ...


class Outcomes:
    """The outcomes of a producer's batches; see the module."""

    def __init__(self, kick: Callable[[], None]) -> None:
        self.gates: list[Gate] = []
        """Gates of threads that wait for the work of another.  A Condition does not survive a
        KeyboardInterrupt."""
        self.unseen_records = 0
        self._first_unseen: KafkaError | None = None
        self._kick = kick
        self._finished: deque[Batch] = deque()
        self._unreported: deque[Batch] = deque()
        self._reported_s = -math.inf

    def decided(self, batch: Batch) -> None:
        """Take in that a batch was decided; and what it was a part of, with its last part."""
        if batch.heard:
            self._finished.append(batch)
        if batch.fault is not None and batch.count and not batch.root.looked_at:
            self.unseen_records += batch.count
            self._first_unseen = self._first_unseen or batch.fault
            self._unreported.append(batch)
        parent = batch.parent
        if parent is not None and parent.ended and not parent.done:
            parent.decide(None, NO_OFFSET, NO_TIMESTAMP)
            self.decided(parent)
        if self.gates:
            self.open_gates()

    def open_gates(self) -> None:
        """Wake who waits for another's work."""
        gates, self.gates = self.gates, []
        for gate in gates:
            gate.release()

    def look_at(self, batch: Batch) -> None:
        """Take in that somebody asks for a batch's outcome."""
        if not batch.looked_at:
            batch.looked_at = True
            failed = [leaf for leaf in batch.leaves() if leaf.fault is not None]
            self.unseen_records -= sum(leaf.count for leaf in failed)

    # Without the lock.

    def owe(self, batch: Batch) -> None:
        """Have the background thread run a callback that came after its batch was decided."""
        self._finished.append(batch)
        self._kick()

    def tell_soon(self) -> None:
        """Have the background thread run the callbacks there are."""
        if self._finished or self._is_report_due(final=False):
            self._kick()

    def tell(self, *, final: bool = False) -> None:
        """Run the callbacks of what was decided, and report failures; `final`: all of them."""
        finished = self._finished
        while finished:
            try:
                batch = finished.popleft()
            except IndexError:
                break
            try:
                batch.tell()
            except BaseException:  # Ctrl-C: the batch's other callbacks are still owed
                finished.appendleft(batch)
                raise
        if self._is_report_due(final):
            self._report()

    def check(self) -> None:
        """Raise the first error of failed records that nobody has asked about, if there are any."""
        fault = self._first_unseen
        if self.unseen_records > 0 and fault is not None:
            raise type(fault)(
                f"{self.unseen_records} records were not delivered, and nobody asked for their"
                f" outcome (result(), on_delivery).  The first error was: {fault}"
            )

    def _is_report_due(self, final: bool) -> bool:
        if not self._unreported:
            return False
        return final or time.monotonic() - self._reported_s >= REPORT_EVERY_S

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        batches = []
        while self._unreported:
            try:
                batch = self._unreported.popleft()
            except IndexError:
                break
            if not batch.root.looked_at:
                batches.append(batch)
        if batches:
            first = batches[0]
            log.error(
                "Records were not delivered, and nobody has asked for their outcome: %s  topic=%s"
                " partition=%d records=%d batches=%d",
                first.fault, first.line.topic.name, first.line.index,
                sum(batch.count for batch in batches), len(batches),
            )  # fmt: skip
