"""EndOffsets: the high watermarks of partitions, whichever nodes lead them, for the lag of groups.

    partitions led here     ─▶ ReplicaManager
    partitions of a worker  ─▶ FindOffsets over the bus ─▶ OffsetsFound

A worker gets one message for a request.  What a worker has not sent within TIMEOUT_MS is unknown.

Left out: more than PARTITIONS_MAX partitions of a worker in a request; the others are unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.broker.future import Future, all_of
from kafkalite.errors import KafkaError

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.transport.reactor import Reactor, Timer

UNKNOWN = -1
TIMEOUT_MS = 1_000
PARTITIONS_MAX = 2_000
QUERIES_MAX = 100
"""Maximum number of messages to workers without a response."""

PartitionId: TypeAlias = tuple[bytes, int]
"""Topic id and index."""

SendQuery: TypeAlias = Callable[[int, int, Sequence[PartitionId]], bool]
"""`send(node_id, request_id, partitions)`: returns False if the worker cannot receive it now."""


class OffsetQuery(NamedTuple):
    """A message to a worker without a response."""

    node_id: int
    partitions: Sequence[PartitionId]
    future: Future[Mapping[PartitionId, int]]
    timer: Timer


class EndOffsets:
    """The high watermarks of partitions of all nodes; see the module."""

    def __init__(
        self, metadata: MetadataCache, replicas: ReplicaManager, reactor: Reactor
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._reactor = reactor
        self._send: SendQuery | None = None
        self._request_ids = itertools.count(1)
        self._queries: dict[int, OffsetQuery] = {}

    def connect(self, send: SendQuery) -> None:
        """Send messages to workers by `send` from now on."""
        self._send = send

    def here(self, topic_id: bytes, index: int) -> int:
        """Return the high watermark of a partition that this node leads, otherwise UNKNOWN."""
        try:
            return self._replicas.leader(topic_id, index).high_watermark
        except KafkaError:
            return UNKNOWN

    def find(self, partitions: Sequence[PartitionId]) -> Future[Mapping[PartitionId, int]]:
        """Return the high watermarks of partitions, without those that are unknown."""
        found: dict[PartitionId, int] = {}
        by_worker: dict[int, list[PartitionId]] = {}
        for partition in dict.fromkeys(partitions):
            leader = self._metadata.leader_of(*partition)
            if leader is None:
                continue
            if leader[0] != self._metadata.node_id:
                by_worker.setdefault(leader[0], []).append(partition)
            else:
                found[partition] = self.here(*partition)
        queries = [self._query(*each) for each in by_worker.items()]

        def collect(of_workers: list[Mapping[PartitionId, int]]) -> Mapping[PartitionId, int]:
            for offsets in of_workers:
                found.update(offsets)
            return {each: offset for each, offset in found.items() if offset >= 0}

        return all_of(queries).map(collect)

    def _query(
        self, node_id: int, partitions: Sequence[PartitionId]
    ) -> Future[Mapping[PartitionId, int]]:
        request_id, wanted = next(self._request_ids), partitions[:PARTITIONS_MAX]
        if (
            self._send is None
            or len(self._queries) >= QUERIES_MAX
            or not self._send(node_id, request_id, wanted)
        ):
            return Future.of({})
        future: Future[Mapping[PartitionId, int]] = Future()
        timer = self._reactor.call_later(TIMEOUT_MS, lambda: self._complete(request_id, {}))
        self._queries[request_id] = OffsetQuery(node_id, wanted, future, timer)
        return future

    def received(self, node_id: int, request_id: int, offsets: Sequence[int]) -> None:
        """Handle the response of a worker; a late or invalid one is dropped."""
        query = self._queries.get(request_id)
        if query is not None and (query.node_id, len(query.partitions)) == (node_id, len(offsets)):
            self._complete(request_id, dict(zip(query.partitions, offsets, strict=True)))

    def _complete(self, request_id: int, offsets: Mapping[PartitionId, int]) -> None:
        query = self._queries.pop(request_id)
        query.timer.cancel()
        query.future.resolve(offsets)
