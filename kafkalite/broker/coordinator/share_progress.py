"""ShareProgressFinder: what the leaders of share partitions know, whichever nodes they are on.

    partitions led here     ─▶ ReplicaManager, and the records in flight at this node
    partitions of a worker  ─▶ FindShareProgress over the bus ─▶ ShareProgress

A worker gets one message for a request.  What a worker has not sent within TIMEOUT_MS is unknown.

Left out: more than PARTITIONS_MAX share partitions of a worker in a request, and the delivery
counts after the share partitions that together have RANGES_MAX ranges; they are unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kafkalite.broker.future import Future, all_of
from kafkalite.coordination.partition_image import NO_LEADER
from kafkalite.coordination.share.share_partition import UNKNOWN_PROGRESS, ShareProgress
from kafkalite.errors import KafkaError
from kafkalite.protocol.schemas.share_records import SharePartitionKey

if TYPE_CHECKING:
    from kafkalite.broker.metadata_cache import MetadataCache
    from kafkalite.broker.replica.replica_manager import ReplicaManager
    from kafkalite.coordination.share.share_partition import SharePartition
    from kafkalite.transport.reactor import Reactor, Timer

TIMEOUT_MS = 1_000
PARTITIONS_MAX = 2_000
RANGES_MAX = 20_000
"""Number of ranges after which a node counts no more deliveries for a request: about 5 ms."""

QUERIES_MAX = 100
"""Maximum number of messages to workers without a response."""

UNKNOWN = ShareProgress(UNKNOWN_PROGRESS, UNKNOWN_PROGRESS, UNKNOWN_PROGRESS)

Found: TypeAlias = Mapping[SharePartitionKey, ShareProgress]
SendQuery: TypeAlias = Callable[[int, int, Sequence[SharePartitionKey]], bool]
"""`send(node_id, request_id, keys)`: returns False if the worker cannot receive it now."""


class ProgressQuery(NamedTuple):
    """A message to a worker without a response."""

    node_id: int
    keys: Sequence[SharePartitionKey]
    future: Future[Found]
    timer: Timer


class ShareProgressFinder:
    """The progress of share partitions of all nodes; see the module."""

    def __init__(
        self,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        records_of: Callable[[SharePartitionKey], SharePartition | None],
        reactor: Reactor,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._records_of = records_of
        self._reactor = reactor
        self._send: SendQuery | None = None
        self._request_ids = itertools.count(1)
        self._queries: dict[int, ProgressQuery] = {}

    def connect(self, send: SendQuery) -> None:
        """Send messages to workers by `send` from now on."""
        self._send = send

    def here(self, keys: Sequence[SharePartitionKey]) -> list[ShareProgress]:
        """Return the progress of share partitions of this node, in order; UNKNOWN of others."""
        found: list[ShareProgress] = []
        range_count = 0
        for key in keys:
            try:
                end_offset = self._replicas.leader(key.topic_id, key.partition).high_watermark
            except KafkaError:
                found.append(UNKNOWN)
                continue
            records = self._records_of(key)
            if records is None or range_count >= RANGES_MAX:
                found.append(UNKNOWN._replace(end_offset=end_offset))
                continue
            range_count += records.range_count
            found.append(ShareProgress(end_offset, *records.delivery_counts()))
        return found

    def find(self, keys: Sequence[SharePartitionKey]) -> Future[Found]:
        """Return the progress of share partitions, without those that are unknown.

        Args:
            keys: Those of a group are beside each other.
        """
        here: list[SharePartitionKey] = []
        by_worker: dict[int, list[SharePartitionKey]] = {}
        for key in dict.fromkeys(keys):
            leader = self._metadata.leader_of(key.topic_id, key.partition)
            if leader is None or leader[0] == NO_LEADER:
                continue
            is_here = leader[0] == self._metadata.node_id
            (here if is_here else by_worker.setdefault(leader[0], [])).append(key)
        found = dict(zip(here, self.here(here), strict=True))
        queries = [self._query(*each) for each in by_worker.items()]

        def collect(of_workers: list[Found]) -> Found:
            for each in of_workers:
                found.update(each)
            return {key: each for key, each in found.items() if each.end_offset >= 0}

        return all_of(queries).map(collect)

    def _query(self, node_id: int, keys: Sequence[SharePartitionKey]) -> Future[Found]:
        request_id, wanted = next(self._request_ids), keys[:PARTITIONS_MAX]
        if (
            self._send is None
            or len(self._queries) >= QUERIES_MAX
            or not self._send(node_id, request_id, wanted)
        ):
            return Future.of({})
        future: Future[Found] = Future()
        timer = self._reactor.call_later(TIMEOUT_MS, lambda: self._complete(request_id, {}))
        self._queries[request_id] = ProgressQuery(node_id, wanted, future, timer)
        return future

    def received(self, node_id: int, request_id: int, progress: Sequence[ShareProgress]) -> None:
        """Handle the response of a worker; a late or invalid one is dropped."""
        query = self._queries.get(request_id)
        if query is not None and (query.node_id, len(query.keys)) == (node_id, len(progress)):
            self._complete(request_id, dict(zip(query.keys, progress, strict=True)))

    def _complete(self, request_id: int, found: Found) -> None:
        query = self._queries.pop(request_id)
        query.timer.cancel()
        query.future.resolve(found)
