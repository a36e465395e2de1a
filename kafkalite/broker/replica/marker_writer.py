"""MarkerWriter: appends transaction markers to partitions of this node, and waits for their commit.

    WriteTxnMarkers of a client             ─╮
    WriteMarkers of the supervisor (bus)    ─┼▶ append ─▶ committed, or failed ─▶ an error code each
    the coordinator's own node, directly    ─╯

The coordinator repeats what it has no response to, and takes only the response to its last request
for a partition.  Requests of coordinators are therefore handled in the order in which they arrive:
once a request has its response, no marker of an earlier one can follow, which might end the
producer's next transaction (before transaction version 2 both have the same epoch).

The first request of a tick is handled at once, so that a transaction is complete soon, if possible
before its producer has the response to EndTxn; further ones share the time of one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.replica_manager import append_result
from kafkalite.broker.stepping import Work, fail_unexpected, in_steps
from kafkalite.errors import KafkaError
from kafkalite.protocol.results import PartitionAppendResult, Topic

if TYPE_CHECKING:
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.records.control import TransactionMarker
    from kafkalite.transport.reactor import Reactor

COORDINATOR_WAIT_MS, CLIENT_WAIT_MS = 1_000, 30_000
"""Time after which a coordinator of this broker, or a client, gets REQUEST_TIMED_OUT for a marker
that is not committed.  Only a coordinator repeats its request by itself."""


class MarkerTargets(NamedTuple):
    """A marker, and the partitions to which it is to be written."""

    marker: TransactionMarker
    partitions: Sequence[tuple[Topic, int]]


class MarkerAppends:
    """The markers that one request appends, and the wait for their commit."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._uncommitted: list[UncommittedAppend] = []

    def append(
        self,
        marker: TransactionMarker,
        topic: Topic,
        index: int,
        results: list[PartitionAppendResult],
    ) -> None:
        """Append a marker to a partition, and its result to `results`."""
        try:
            partition = self._replicas.leader(topic, index)
            appended = self._replicas.append_marker(partition, marker)
        except KafkaError as error:
            results.append(PartitionAppendResult.failed(index, error))
            return
        if partition.high_watermark <= appended.last_offset:
            self._uncommitted.append(
                UncommittedAppend(partition, appended.last_offset, results, len(results))
            )
        results.append(append_result(partition, appended))

    def committed(self, wait_ms: int) -> Future[Any]:
        """Complete once all are committed; after `wait_ms`, the others have REQUEST_TIMED_OUT."""
        delayed = DelayedProduce(self._uncommitted)
        if delayed.check_all():
            return Future.of(None)
        return self._replicas.purgatory.watch(delayed, wait_ms)


class PendingMarkerRequest(NamedTuple):
    """A request of a coordinator that is not handled yet."""

    targets: Sequence[MarkerTargets]
    codes: Future[list[int]]


class MarkerWriter:
    """Writes the markers of this broker's transaction coordinators; see the module."""

    def __init__(self, replicas: ReplicaManager, reactor: Reactor) -> None:
        self._replicas = replicas
        self._reactor = reactor
        self._requests: deque[PendingMarkerRequest] = deque()
        self._is_running = False
        self._tick_number = -1

    def write(self, targets: Sequence[MarkerTargets]) -> Future[list[int]]:
        """Write markers; return the error code of each partition, in order."""
        codes: Future[list[int]] = Future()
        self._requests.append(PendingMarkerRequest(targets, codes))
        if not self._is_running:
            self._is_running = True
            if self._tick_number != self._reactor.tick_number:
                self._tick_number = self._reactor.tick_number
                self._run()
            else:
                self._reactor.call_later(0, self._run)
        return codes

    def _run(self) -> None:
        in_steps(self._reactor, self._append_all())

    def _append_all(self) -> Work[None]:
        while self._requests:
            request = self._requests.popleft()
            try:
                yield from self._append(request)
            except Exception as error:
                fail_unexpected(self._reactor, request.codes, error)
        self._is_running = False

    def _append(self, request: PendingMarkerRequest) -> Work[None]:
        appends = MarkerAppends(self._replicas)
        results: list[PartitionAppendResult] = []
        for marker, partitions in request.targets:
            for topic, index in partitions:
                appends.append(marker, topic, index, results)
                yield
        appends.committed(COORDINATOR_WAIT_MS).then(
            lambda _, __: request.codes.resolve([result.error_code for result in results])
        )
