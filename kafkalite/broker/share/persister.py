"""SharePersister: reads and writes the state of share partitions, at the share coordinators.

    read, write ─▶ queue ─▶ one message ─▶ coordinators ─▶ outcomes ─▶ Futures

One message is in flight at a time; the next one has all requests that came in between, with the
changes of a share partition merged.  On the coordinators' own node the message is a function call.
A message that fails is not repeated: the client of an acknowledgement does that.  If it has timed
out, what is queued behind it fails as well, so that no request waits for several timeouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.broker.future import Future
from kafkalite.coordination.share.delivery_states import merge_into
from kafkalite.coordination.share.state_requests import (
    Outcome,
    StateChange,
    StateRead,
    StateRequest,
)
from kafkalite.errors import CoordinatorNotAvailable, KafkaError, RequestTimedOut
from kafkalite.protocol.schemas.share_records import NO_OFFSET, SharePartitionKey

if TYPE_CHECKING:
    from kafkalite.broker.scheduler import Scheduler

REQUESTS_MAX = 500
"""Maximum number of share partitions in a message."""
BATCHES_MAX, READ_BATCHES = 2_000, 10
"""Number of batches with which a message ends, and the number that a read counts for: a change may
have thousands.  Encoding and merging a batch takes some microseconds at each end."""

SendStates: TypeAlias = Callable[[Sequence[StateRequest]], Future[list[Outcome]]]


class QueuedRequest(NamedTuple):
    """A request with the Futures of its outcome."""

    request: StateRead | StateChange
    futures: list[Future[Outcome]]


class SharePersister:
    """The states of a node's share partitions, at their coordinators; see the module."""

    def __init__(self, send: SendStates, scheduler: Scheduler) -> None:
        self._send = send
        self._scheduler = scheduler
        self._queue: dict[SharePartitionKey, list[QueuedRequest]] = {}
        """The requests of each share partition, in their order."""
        self._is_sending = False

    def submit(self, request: StateRead | StateChange) -> Future[Outcome]:
        """Queue a request; return its outcome."""
        future: Future[Outcome] = Future()
        queued = self._queue.setdefault(request.key, [])
        if queued and (merged := _merged(queued[-1].request, request)) is not None:
            queued[-1] = QueuedRequest(merged, [*queued[-1].futures, future])
        else:
            queued.append(QueuedRequest(request, [future]))
        if not self._is_sending:
            self._is_sending = True
            self._scheduler.call_later(0, self._send_next)
        return future

    def _send_next(self) -> None:
        self._is_sending = bool(self._queue)
        if not self._queue:
            return
        sent = self._next()
        response = self._send([each.request for each in sent])
        is_immediate = response.settled

        def received(outcomes: Sequence[Outcome] | None, error: KafkaError | None) -> None:
            ended = sent
            if isinstance(error, RequestTimedOut):
                ended = [*sent, *(each for queued in self._queue.values() for each in queued)]
                self._queue = {}
            if outcomes is None:
                outcomes = [CoordinatorNotAvailable(str(error))] * len(ended)
            for each, outcome in zip(ended, outcomes, strict=True):
                for future in each.futures:
                    future.resolve(outcome)
            if is_immediate and self._queue:
                # A timer that is set in a later millisecond runs in the next tick.
                self._scheduler.call_later(0, self._send_next)
            else:
                self._send_next()

        response.then(received)

    def _next(self) -> list[QueuedRequest]:
        """Take the next requests: reads, then changes; each share partition has one."""
        taken: list[QueuedRequest] = []
        count = 0
        for key in [*islice(self._queue, REQUESTS_MAX)]:
            queued = self._queue.pop(key)
            taken.append(queued.pop(0))
            if queued:
                self._queue[key] = queued
            request = taken[-1].request
            count += len(request.batches) if isinstance(request, StateChange) else READ_BATCHES
            if count >= BATCHES_MAX:
                break
        return sorted(taken, key=lambda each: isinstance(each.request, StateChange))


def _merged(
    queued: StateRead | StateChange, request: StateRead | StateChange
) -> StateChange | None:
    """Return the change that has the effect of both, or None if they have to stay apart."""
    if not (isinstance(queued, StateChange) and isinstance(request, StateChange)):
        return None
    if (queued.state_epoch, queued.leader_epoch) != (request.state_epoch, request.leader_epoch):
        return None
    return request._replace(
        start_offset=max(queued.start_offset, request.start_offset),
        batches=merge_into(queued.batches, request.batches, NO_OFFSET),
    )
