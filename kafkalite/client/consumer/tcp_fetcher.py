"""Fetches over TCP: one request in flight per node, the next as soon as a response has arrived.

A Fetch names every partition whose next records are wanted, by topic id if the broker has ids, so
that a recreated topic is not mistaken for the former one.  The node responds as soon as one of them
has records, else after `fetch.max.wait.ms`.  While a response is decoded the next one arrives in
the kernel's buffers; so a node has at most two responses of `fetch.max.bytes`.

The first partition rotates, since a node fills a response in the order of the request.

Left out: incremental fetch sessions, which avoid naming thousands of partitions; fetches from the
closest replica (KIP-392); the leader epoch of the last record, by which a broker detects a log that
was truncated and rewritten (KIP-320): an offset out of range is detected, an offset that now holds
another record is not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from kafkalite._ext.record_reader import whole_batches
from kafkalite.client.consumer.fetch_transport import NEVER, FetchOutcome
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import BufferedRange
from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.settings import ClientSettings
from kafkalite.config.client import (
    FETCH_MAX_BYTES,
    FETCH_MAX_WAIT_MS,
    FETCH_MIN_BYTES,
    MAX_PARTITION_FETCH_BYTES,
    REQUEST_TIMEOUT_MS,
)
from kafkalite.errors import InvalidRequest, NetworkException, RequestTimedOut
from kafkalite.ids import NO_ID
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.fetch import FETCH

BY_NAME_MAX = 12
"""Last version that names topics by name."""
REST_OF_RESPONSE_S = 0.02
"""Seconds to wait for the rest of a response that has begun to arrive."""

Key = tuple[str | bytes, int]


class TcpFetcher:
    """Fetch transport over a connection, which it owns."""

    def __init__(
        self,
        node_id: int,
        connection: BrokerConnection,
        settings: ClientSettings,
        isolation_level: int,
    ) -> None:
        self.node_id = node_id
        self.due_s = NEVER
        self.wants_write = False
        self._connection = connection
        self._settings = settings
        self._isolation_level = isolation_level
        self._version = connection.version(FETCH)
        self._first = 0
        self._request_version = self._version
        self._outstanding: dict[Key, tuple[Position, int, int]] = {}
        """The position, its epoch and the requested offset, by topic and partition."""

    @property
    def same_host(self) -> bool:
        return self._connection.same_host

    @property
    def is_busy(self) -> bool:
        """True if a request is in flight."""
        return bool(self._outstanding)

    def fileno(self) -> int:
        return self._connection.fileno()

    def fetch(self, positions: Iterable[Position]) -> None:
        if self._outstanding:
            return
        wanted = list(positions)
        if not wanted:
            return
        self._first = (self._first + 1) % len(wanted)
        wanted = wanted[self._first :] + wanted[: self._first]
        nameless = all(position.topic_id != NO_ID for position in wanted)
        version = self._version if nameless else min(self._version, BY_NAME_MAX)
        topics: dict[str | bytes, Fields] = {}
        for position in wanted:
            name = self._name(position, version)
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = Fields(
                    topic=position.partition.topic, topic_id=position.topic_id, partitions=[]
                )
            partition = position.partition.partition
            topic["partitions"].append(
                {
                    "partition": partition,
                    "current_leader_epoch": position.leader_epoch,
                    "fetch_offset": position.ahead,
                    "partition_max_bytes": self._settings[MAX_PARTITION_FETCH_BYTES],
                }
            )
            self._outstanding[name, partition] = position, position.epoch, position.ahead
        self._request_version = version
        self._connection.send(FETCH, version, self._body(list(topics.values())))
        timeout_ms = self._settings[REQUEST_TIMEOUT_MS] + self._settings[FETCH_MAX_WAIT_MS]
        self.due_s = time.monotonic() + timeout_ms / 1000

    def receive(self) -> list[FetchOutcome]:
        if not self._outstanding:
            raise NetworkException("The node sent a response without a request.")
        try:
            _, body = self._connection.receive(REST_OF_RESPONSE_S)
        except RequestTimedOut:
            return []
        except InvalidRequest as error:
            raise NetworkException(str(error)) from None
        requested, self._outstanding = self._outstanding, {}
        self.due_s = NEVER
        try:
            response = FETCH.response.read(self._request_version, body)
        except InvalidRequest as error:
            raise NetworkException(str(error)) from None
        if response.error_code:
            return [
                FetchOutcome(position, epoch, response.error_code)
                for position, epoch, _ in requested.values()
            ]
        outcomes = []
        for topic in response.responses:
            name = topic.topic_id if self._request_version > BY_NAME_MAX else topic.topic
            for partition in topic.partitions:
                found = requested.pop((name, partition.partition_index), None)
                if found is None:
                    raise NetworkException("The response has a partition that was not requested.")
                outcomes.append(outcome_of(partition, *found))
        return outcomes

    def close(self) -> None:
        self._connection.close()

    def _name(self, position: Position, version: int) -> str | bytes:
        return position.topic_id if version > BY_NAME_MAX else position.partition.topic

    def _body(self, topics: list[Fields]) -> dict[str, object]:
        return {
            "replica_id": -1,
            "max_wait_ms": self._settings[FETCH_MAX_WAIT_MS],
            "min_bytes": self._settings[FETCH_MIN_BYTES],
            "max_bytes": self._settings[FETCH_MAX_BYTES],
            "isolation_level": self._isolation_level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": topics,
            "forgotten_topics_data": [],
            "rack_id": "",
        }


def outcome_of(partition: Fields, position: Position, epoch: int, offset: int) -> FetchOutcome:
    """Return the outcome of a partition in a fetch response."""
    outcome = FetchOutcome(
        position, epoch, partition.error_code,
        log_start_offset=partition.log_start_offset,
    )  # fmt: skip
    if partition.error_code or not partition.records:
        return outcome
    end, next_offset = whole_batches(partition.records)
    aborted = tuple(
        (each.producer_id, each.first_offset) for each in partition.aborted_transactions or ()
    )
    # Without a whole batch keep the bytes as they are: the decoder raises the error.
    records = partition.records[: end or None]
    offsets = offset, max(offset, next_offset)
    return outcome._replace(record_range=BufferedRange(position, epoch, offsets, aborted, records))
