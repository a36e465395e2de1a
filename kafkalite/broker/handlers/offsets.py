"""Offsets of a partition: lookup by timestamp or leader epoch, and DeleteRecords.

ListOffsets            v1–v11   v2 isolation level, v4 leader epochs; v7, v8, v9 and v11 each add
                                one special timestamp.  A debugging consumer (`replica_id` -2) gets
                                the offsets of a follower's log, too, up to its end
OffsetForLeaderEpoch   v2–v4    the end offset of a leader epoch (KIP-320)
DeleteRecords          v0–v2

Left out: tiered storage, so the earliest local offset is the earliest one, and the latest tiered
and earliest pending upload offsets are -1; `replica_id` of a node, which reads as a consumer.  A
search by timestamp waits for the thread that decompresses large batches and
for nothing else, so the request's timeout is ignored.  If no record has a timestamp, the offset of
the greatest timestamp is -1; Kafka returns the first record's offset with the timestamp -1, even
after that record was deleted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkalite.broker.client_context import ClientContext
from kafkalite.broker.error_responses import entry_responses, error_fields
from kafkalite.broker.future import Future
from kafkalite.broker.handler_node import HandlerNode
from kafkalite.broker.replica.batch_opener import BatchOpener
from kafkalite.broker.replica.delayed_delete_records import DelayedDeleteRecords
from kafkalite.broker.replica.partition import Partition
from kafkalite.broker.replica.read_replicas import DEBUGGING_CONSUMER, ReadReplicas
from kafkalite.broker.replica.readable_partition import READ_COMMITTED, ReadablePartition
from kafkalite.broker.replica.replica_manager import ReplicaManager
from kafkalite.broker.security import DESCRIBE, TOPIC
from kafkalite.broker.served_apis import Response, ServingNode, serves
from kafkalite.broker.stepping import STEP_MS, STEP_PAUSE_MS, Work, fail_unexpected
from kafkalite.errors import (
    InvalidRequest,
    KafkaError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    UnsupportedVersion,
)
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    LIST_OFFSETS,
    MAX_TIMESTAMP,
    OFFSET_FOR_LEADER_EPOCH,
)
from kafkalite.storage.log.timestamps import TimestampOffset, search_max_timestamp, search_timestamp
from kafkalite.storage.state.leader_epochs import NO_EPOCH

if TYPE_CHECKING:
    from kafkalite.storage.log.log import Log

READ_UNCOMMITTED = 0

OFFSET_NOT_AVAILABLE_SINCE = 5
"""The first version of ListOffsets whose clients know OFFSET_NOT_AVAILABLE."""

SPECIAL_SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The version from which each special timestamp is allowed."""

NOTHING: Response = {"timestamp": -1, "offset": -1, "leader_epoch": NO_EPOCH}


class OffsetsNode(HandlerNode, Protocol):
    """The components that requests about offsets use."""

    opener: BatchOpener
    replicas: ReplicaManager
    read_replicas: ReadReplicas


# -- ListOffsets ---------------------------------------------------------------------------------


@serves(LIST_OFFSETS, versions="1-11", at=ServingNode.LEADER)
def list_offsets(
    node: OffsetsNode, request: Any, client: ClientContext
) -> Response | Future[Response]:
    """Return the first offset at or after a timestamp, or at a special one."""
    listing = OffsetListing(node, request, client)
    future: Future[Response] = Future(listing.abandon)
    listing.proceed(future)
    return listing.response if future.settled else future


class OffsetListing:
    """One ListOffsets request.

    Its partitions are processed in sequence, so that at most one batch decompressed for it is in
    memory.  It continues in a later tick after STEP_MS, or when a large batch has been
    decompressed.
    """

    def __init__(self, node: OffsetsNode, request: Any, client: ClientContext) -> None:
        self._node = node
        self._request = request
        self._client = client
        self._is_debugging = request.replica_id == DEBUGGING_CONSUMER
        self._times = Counter(
            (topic.name, entry.partition_index)
            for topic in request.topics
            for entry in topic.partitions
        )
        topics: list[Response] = [
            {"name": topic.name, "partitions": []} for topic in request.topics
        ]
        self.response: Response = {"topics": topics}
        self._remaining = (
            (topic.name, entry, topic_response["partitions"])
            for topic, topic_response in zip(request.topics, topics, strict=True)
            for entry in topic.partitions
        )
        self._abandoned = False

    def abandon(self) -> None:
        """Stop: the client has disconnected."""
        self._abandoned = True

    def proceed(self, future: Future[Response]) -> None:
        """Process the remaining partitions until one has to wait or STEP_MS have passed."""
        now_ns = self._node.clock.monotonic_ns
        end_ns = now_ns() + STEP_MS * 1_000_000
        for name, entry, responses in self._remaining:
            if self._abandoned:
                return
            if not self._process(future, name, entry, responses):
                return
            if now_ns() >= end_ns:
                self._node.reactor.call_later(STEP_PAUSE_MS, lambda: self._resume(future))
                return
        future.resolve(self.response)

    def _resume(self, future: Future[Response]) -> None:
        """Proceed in a later tick."""
        try:
            self.proceed(future)
        except Exception as error:
            fail_unexpected(self._node.reactor, future, error)

    def _process(
        self, future: Future[Response], name: str, entry: Any, responses: list[Response]
    ) -> bool:
        """Process one partition; return whether that was possible without waiting."""
        identity = {"partition_index": entry.partition_index}
        try:
            partition = self._partition(name, entry)
            found = self._find(partition, entry.timestamp)
        except KafkaError as error:
            responses.append({**identity, **error_fields(error, messages=False)})
            return True
        if isinstance(found, Future):
            found.then(partial(self._search_done, future, identity, partition, responses))
            return False
        responses.append({**identity, "error_code": 0, **found})
        return True

    def _partition(self, name: str, entry: Any) -> ReadablePartition:
        client = self._client
        client.must(DESCRIBE, TOPIC, name)
        if self._times[name, entry.partition_index] > 1:
            raise InvalidRequest()
        if self._request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise InvalidRequest()
        since = SPECIAL_SINCE.get(entry.timestamp)
        if entry.timestamp < 0 and (since is None or client.version < since):
            raise UnsupportedVersion()
        partition: ReadablePartition
        if self._is_debugging:
            partition = self._node.read_replicas.any(name, entry.partition_index)
        else:
            partition = self._node.replicas.leader(name, entry.partition_index)
        partition.check_epoch(entry.current_leader_epoch)
        return partition

    def _upper_offset(self, partition: ReadablePartition) -> int:
        """Return the offset at which the client's view of the log ends."""
        if self._is_debugging:
            return partition.log.end_offset
        return partition.upper_offset(self._request.isolation_level)

    def _find(
        self, partition: ReadablePartition, timestamp: int
    ) -> Response | Future[TimestampOffset | None]:
        log = partition.log
        if timestamp == LATEST:
            self._check_high_watermark(partition)
            upper = self._upper_offset(partition)
            return {"timestamp": -1, "offset": upper, "leader_epoch": partition.leader_epoch}
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = log.log_start_offset
            return {"timestamp": -1, "offset": start, "leader_epoch": _first_epoch(log)}
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return NOTHING
        by_max = timestamp == MAX_TIMESTAMP
        search = search_max_timestamp(log) if by_max else search_timestamp(log, timestamp)
        found = self._node.opener.search(search)
        return found if isinstance(found, Future) else self._readable(partition, found)

    def _check_high_watermark(self, partition: ReadablePartition) -> None:
        """Raise while a leader does not know yet which records of earlier epochs are committed:
        the offset would be lower than one that a client has seen (KIP-207)."""
        if self._is_debugging or not isinstance(partition, Partition):
            return
        replication = partition.replication
        if replication is not None and partition.high_watermark < replication.isr.epoch_start:
            is_known = self._client.version >= OFFSET_NOT_AVAILABLE_SINCE
            raise OffsetNotAvailable() if is_known else LeaderNotAvailable()

    def _readable(self, partition: ReadablePartition, found: TimestampOffset | None) -> Response:
        upper = self._upper_offset(partition)
        return NOTHING if found is None or found.offset >= upper else found._asdict()

    def _search_done(
        self,
        future: Future[Response],
        identity: Response,
        partition: ReadablePartition,
        responses: list[Response],
        found: TimestampOffset | None,
        error: KafkaError | None,
    ) -> None:
        """Add the entry of a partition whose search has finished, and continue with the others."""
        if error is None:
            responses.append({**identity, "error_code": 0, **self._readable(partition, found)})
        else:
            responses.append({**identity, **error_fields(error, messages=False)})
        self._resume(future)


def _first_epoch(log: Log) -> int:
    epochs = log.leader_epochs
    begun = bool(epochs.starts) and epochs.starts[0] <= log.log_start_offset
    return epochs.epochs[0] if begun else NO_EPOCH


# -- OffsetForLeaderEpoch ------------------------------------------------------------------------


@serves(OFFSET_FOR_LEADER_EPOCH, versions="2-4", at=ServingNode.LEADER)
def offset_for_leader_epoch(
    node: OffsetsNode, request: Any, client: ClientContext
) -> Work[Response]:
    """Return the end offset of a leader epoch; a consumer beyond it has to go back (KIP-320)."""

    def respond(name: str, entry: Any) -> Response:
        client.must(DESCRIBE, TOPIC, name)
        partition = node.replicas.leader(name, entry.partition)
        partition.check_epoch(entry.current_leader_epoch)
        leader_epoch, end_offset = partition.log.end_of_epoch(entry.leader_epoch)
        return {"leader_epoch": leader_epoch, "end_offset": end_offset}

    return (
        yield from _respond_by_partition(request.topics, respond, topic="topic", index="partition")
    )


# -- DeleteRecords -------------------------------------------------------------------------------


@serves(DELETE_RECORDS, versions="0-2", at=ServingNode.LEADER)
def delete_records(
    node: OffsetsNode, request: Any, client: ClientContext
) -> Work[Response | Future[Response]]:
    """Advance log start offsets; earlier records become invisible to readers at once.

    The response waits until the in-sync followers have deleted them as well.
    """
    replicated: dict[tuple[str, int], Partition] = {}

    def respond(name: str, entry: Any) -> Response:
        index, offset = entry.partition_index, entry.offset
        partition = node.replicas.delete_records(client, name, index, offset)
        if partition.replication is not None:
            replicated[name, index] = partition
        return {"low_watermark": partition.log.log_start_offset}

    response = yield from _respond_by_partition(
        request.topics, respond, error_values={"low_watermark": -1}
    )
    entries = (
        (replicated.get((topic["name"], entry["partition_index"])), entry)
        for topic in response["topics"]
        for entry in topic["partitions"]
        if entry["error_code"] == 0
    )
    delayed = DelayedDeleteRecords(
        [(partition, entry) for partition, entry in entries if partition is not None], response
    )
    if delayed.check_all():
        return response
    return node.replicas.purgatory.watch(delayed, request.timeout_ms)


def _respond_by_partition(
    topics: Iterable[Any],
    respond: Callable[[str, Any], Response],
    *,
    topic: str = "name",
    index: str = "partition_index",
    error_values: Mapping[str, int] = {},
) -> Work[Response]:
    """Build the response topic by topic and partition by partition, in steps.

    `topic` and `index` are the schema's field names of the topic name and the partition index;
    `error_values` has the fields of a partition that has an error.
    """
    responses: list[Response] = []

    for topic_request in topics:
        name = getattr(topic_request, topic)
        partitions: list[Response] = []
        responses.append({topic: name, "partitions": partitions})
        for entry in topic_request.partitions:
            (response,) = entry_responses([entry], index, partial(respond, name), messages=False)
            partitions.append({**error_values, **response})
            yield
        yield
    return {"topics": responses}
