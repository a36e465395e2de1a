"""BatchAppends: appends batches that this broker built to partitions, whichever nodes lead them.

    partitions led here                       ─▶ ReplicaManager, as a Produce with acks=all
    of a worker, on the controller's node     ─▶ AppendBatch over the bus ─▶ BatchAppended
    of another node, on a worker              ─▶ AppendBatch to the supervisor, which does the rest

A batch is checked like that of a client, without an authorization.  One that has no response may
have been appended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.broker.error_responses import error_of
from kafkalite.broker.future import Future
from kafkalite.broker.replica.delayed_produce import DelayedProduce, UncommittedAppend
from kafkalite.broker.replica.replica_manager import append_result
from kafkalite.errors import (
    KafkaError,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicId,
)

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.partition import Partition
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.broker.scheduler import ScheduledCall, Scheduler
    from kafkalite.storage.log.log import LogAppendResult

COMMIT_TIMEOUT_MS = 10_000
WORKER_TIMEOUT_MS = COMMIT_TIMEOUT_MS + 1_000
"""Maximum wait for a worker's response."""

AppendBatch: TypeAlias = Callable[[bytes, int, bytes], Future[None]]
"""`append(topic_id, partition, batch)`: completes once the batch is committed."""

SendBatch: TypeAlias = Callable[[int, int, bytes, int, bytes], bool]
"""`send(node_id, request_id, topic_id, partition, batch)`: returns False if the worker cannot
receive it now."""


class PendingAppend(NamedTuple):
    """A batch that was sent to a worker."""

    node_id: int
    future: Future[None]
    timer: ScheduledCall


class BatchAppends:
    """Appends batches to partitions; see the module.

    `append_elsewhere` has the supervisor append a batch; it is None on the supervisor's node.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        append_elsewhere: AppendBatch | None,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._scheduler = scheduler
        self._append_elsewhere = append_elsewhere
        self._send: SendBatch | None = None
        self._request_ids = itertools.count(1)
        self._pending: dict[int, PendingAppend] = {}

    def connect(self, send: SendBatch) -> None:
        """Send batches to workers by `send` from now on."""
        self._send = send

    def append(self, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        """Append a batch to a partition of any node."""
        leader = self._metadata.leader_of(topic_id, index)
        if leader is None:
            return _failed(UnknownTopicId())
        if leader[0] == self._metadata.node_id:
            return self.append_here(topic_id, index, batch)
        if self._append_elsewhere is not None:
            return self._append_elsewhere(topic_id, index, batch)
        return self._append_at(leader[0], topic_id, index, batch)

    # -- partitions of this node -------------------------------------------------------------

    def append_here(self, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        """Append a batch to a partition that this node leads."""
        try:
            led = self._replicas.leader(topic_id, index)
            appended = self._replicas.append_queue.append(led, batch)
        except KafkaError as error:
            return _failed(error)
        if not isinstance(appended, Future):
            return self._committed(led, appended)
        done: Future[None] = Future()

        def opened(result: LogAppendResult | None, error: KafkaError | None) -> None:
            if result is None:
                done.fail(error if error is not None else UnknownServerError())
            else:
                done.follow(self._committed(led, result))

        appended.then(opened)
        return done

    def _committed(self, led: Partition, appended: LogAppendResult) -> Future[None]:
        results = [append_result(led, appended)]
        delayed = DelayedProduce([UncommittedAppend(led, appended.last_offset, results, 0)])
        if delayed.check_all():
            committed = Future.of(None)
        else:
            committed = self._replicas.purgatory.watch(delayed, COMMIT_TIMEOUT_MS)

        def check(_: object) -> None:
            error = error_of(results[0].error_code)
            if error is not None:
                raise error

        return committed.map(check)

    # -- partitions of workers ---------------------------------------------------------------

    def _append_at(self, node_id: int, topic_id: bytes, index: int, batch: bytes) -> Future[None]:
        request_id = next(self._request_ids)
        if self._send is None or not self._send(node_id, request_id, topic_id, index, batch):
            return _failed(NotLeaderOrFollower(f"Node {node_id} is not connected."))
        future: Future[None] = Future()
        timer = self._scheduler.call_later(
            WORKER_TIMEOUT_MS, partial(self._complete, request_id, RequestTimedOut())
        )
        self._pending[request_id] = PendingAppend(node_id, future, timer)
        return future

    def received(self, node_id: int, request_id: int, error: KafkaError | None) -> None:
        """Handle the response of a worker; a late one is dropped."""
        pending = self._pending.get(request_id)
        if pending is not None and pending.node_id == node_id:
            self._complete(request_id, error)

    def _complete(self, request_id: int, error: KafkaError | None) -> None:
        pending = self._pending.pop(request_id)
        pending.timer.cancel()
        if error is not None:
            pending.future.fail(error)
        else:
            pending.future.resolve(None)


def _failed(error: KafkaError) -> Future[None]:
    future: Future[None] = Future()
    future.fail(error)
    return future
