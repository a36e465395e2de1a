"""TCP transport: Produce requests to a node, several in flight at a time.

A request has at most one batch per partition.  Responses arrive in the order of the requests; one
that is late, or does not match its request, closes the connection, and the batches in flight on it
are retried.  With acks=0 there are no responses: a batch that was sent is done.

Not thread-safe: only the background thread uses it.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.topology import NO_LEADER, PartitionMetadata
from kafkalite.client.producer.batch_completion import NO_OFFSET, NO_TIMESTAMP
from kafkalite.client.producer.partition_queue import Batch, BatchResponse
from kafkalite.errors import NetworkException
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.produce import PRODUCE

NAMED_VERSION_MAX = 12
"""Last Produce version that has topic names instead of topic ids."""


class RequestInFlight(NamedTuple):
    """A request in flight, and the deadline of its response."""

    version: int
    batches: list[Batch]
    due_s: float


class LeaderChange(NamedTuple):
    """A partition's new leader as named by a response (KIP-951)."""

    batch: Batch
    leader: PartitionMetadata
    endpoints: list[Fields]


class TcpTransport:
    """A connection, and the requests in flight on it."""

    def __init__(
        self,
        node_id: int,
        connection: BrokerConnection,
        acks: int,
        timeout_ms: int,
        requests_max: int,
    ) -> None:
        self.node_id = node_id
        self.connection = connection
        self.leader_changes: list[LeaderChange] = []
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._requests_max = requests_max
        self._in_flight: deque[RequestInFlight] = deque()

    def __repr__(self) -> str:
        return f"<TCP to node {self.node_id}: {len(self._in_flight)} requests>"

    def fileno(self) -> int:
        return self.connection.fileno()

    @property
    def can_send(self) -> bool:
        """True if another request may be sent."""
        return len(self._in_flight) < self._requests_max

    @property
    def due_s(self) -> float:
        """Monotonic deadline of the next response; infinity if none is expected."""
        return self._in_flight[0].due_s if self._in_flight else float("inf")

    def send(
        self,
        written: list[tuple[Batch, bytearray]],
        transactional_id: str | None = None,
        version_max: int | None = None,
    ) -> list[BatchResponse]:
        """Send batches in one request; with acks=0 return their responses immediately."""
        batches = [batch for batch, _ in written]
        by_topic: dict[str, list[dict[str, object]]] = {}
        for batch, records in written:
            entry = {"index": batch.queue.index, "records": records}
            by_topic.setdefault(batch.queue.topic.name, []).append(entry)
        topic_ids = {batch.queue.topic.name: batch.queue.topic.topic_id for batch in batches}
        by_name = NO_ID in topic_ids.values()
        if by_name and version_max is None:
            version_max = NAMED_VERSION_MAX
        version = self.connection.version(PRODUCE, version_max)
        body = {
            "transactional_id": transactional_id,
            "acks": self._acks,
            "timeout_ms": self._timeout_ms,
            "topic_data": [
                {"name": name, "topic_id": topic_ids[name], "partition_data": entries}
                for name, entries in by_topic.items()
            ],
        }
        timeout_s = self._timeout_ms / 1000
        request = RequestInFlight(version, batches, time.monotonic() + timeout_s)
        if self._acks:
            self._in_flight.append(request)
        self.connection.send(
            PRODUCE, version, body, expects_response=self._acks != 0, timeout_s=timeout_s
        )
        if self._acks:
            return []
        return [BatchResponse(batch, 0, NO_OFFSET, NO_TIMESTAMP) for batch in batches]

    def responses(self) -> list[BatchResponse]:
        """Return the responses that have arrived, one per batch."""
        found: list[BatchResponse] = []
        while (arrived := self._next_response()) is not None:
            request = self._in_flight.popleft()
            response = PRODUCE.response.read(request.version, arrived[1])
            by_partition = {
                (batch.queue.topic.topic_id if request.version > NAMED_VERSION_MAX
                 else batch.queue.topic.name, batch.queue.index): batch
                for batch in request.batches
            }  # fmt: skip
            for topic in response.responses:
                name = topic.topic_id if request.version > NAMED_VERSION_MAX else topic.name
                for entry in topic.partition_responses:
                    batch = by_partition.pop((name, entry.index), None)
                    if batch is not None:
                        found.append(self._batch_response(batch, entry, response.node_endpoints))
            if by_partition:
                # The response lacks some batches: retry those with the rest.
                self._in_flight.appendleft(request._replace(batches=list(by_partition.values())))
                self.connection.close()
                break
        if time.monotonic() >= self.due_s:
            self.connection.close()
        if self.connection.closed and not found:
            raise NetworkException(f"The connection to node {self.node_id} was closed.")
        return found

    def _next_response(self) -> tuple[int, memoryview] | None:
        """Return the next response; None also if the connection ended (see `responses`)."""
        try:
            return self.connection.take()
        except NetworkException:
            return None

    def _batch_response(
        self, batch: Batch, entry: Fields, endpoints: list[Fields]
    ) -> BatchResponse:
        leader = entry.current_leader
        if entry.error_code and leader.leader_id != NO_LEADER:
            new_leader = PartitionMetadata(leader.leader_id, leader.leader_epoch)
            self.leader_changes.append(LeaderChange(batch, new_leader, endpoints))
        message = entry.error_message
        if entry.record_errors:
            record_error = entry.record_errors[0]
            message = (
                f"{message or ''} (record {record_error.batch_index}:"
                f" {record_error.batch_index_error_message or 'refused'})".lstrip()
            )
        return BatchResponse(
            batch, entry.error_code, entry.base_offset, entry.log_append_time_ms, message
        )

    def close(self) -> None:
        self.connection.close()
