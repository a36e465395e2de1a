"""Single requests over one connection to one node, without the retries of a client library.

A client library waits, retries and finds another leader; these tests must see each response, its
node and its time.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from typing import Any, NamedTuple

from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.topics import CREATE_TOPICS, DELETE_TOPICS
from kafkalite.records.batch import Record, batches, build

METADATA_VERSION = 9
PRODUCE_VERSION = 9
FETCH_VERSION = 11
CREATE_TOPICS_VERSION = 4
DELETE_TOPICS_VERSION = 3
FIND_COORDINATOR_VERSION = 2
FETCH_BYTES_MAX = 4096

Address = tuple[str, int]


class Leader(NamedTuple):
    """The leader of a partition, as in a Metadata response."""

    partition: int
    node: int
    leader_epoch: int
    isr_size: int = 1


class Cluster(NamedTuple):
    """The content of one Metadata response."""

    addresses: dict[int, Address]
    leaders: list[Leader]


class RawConnection:
    """A connection with one request at a time; it is closed at the first failure.

    Every error of the connection, timeouts too, is an OSError.
    """

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.responses = self.socket.makefile("rb")
        self.correlation_ids = itertools.count()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.responses.close()
        self.socket.close()

    def request(self, api: Api, version: int, body: dict[str, Any]) -> Fields:
        """Send one request and return its response."""
        flexible = api.request_header_flexible(version)
        correlation_id = next(self.correlation_ids)
        header = write_header(api.key, version, correlation_id, "prober", flexible)
        frame = header + api.request.write(version, body)
        try:
            self.socket.sendall(struct.pack(">i", len(frame)) + frame)
            # A node that is killed may have sent a part of its response.
            response = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        except OSError:
            self.close()
            raise
        assert int.from_bytes(response[:4], "big") == correlation_id, "another's answer"
        begin = 5 if api.response_header_flexible(version) else 4
        return api.response.read(version, response, begin)

    def _exactly(self, size: int) -> bytes:
        found = self.responses.read(size)
        if len(found) < size:
            raise ConnectionResetError("the node hung up")
        return found

    # Requests.

    def cluster(self, topic: str) -> Cluster:
        """Return the nodes' addresses and the topic's leaders."""
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        response = self.request(METADATA, METADATA_VERSION, body)
        return Cluster(
            {node.node_id: (node.host, node.port) for node in response.brokers},
            [
                Leader(each.partition_index, each.leader_id, each.leader_epoch, len(each.isr_nodes))
                for found in response.topics
                for each in found.partitions
            ],
        )

    def produce(self, topic: str, partition: int, value: str, acks: int = -1) -> tuple[int, int]:
        """Send one record; return (error code, offset)."""
        # An old timestamp would make the log roll a segment.
        batch = build([Record(timestamp=round(time.time() * 1000), value=value.encode())])
        data = [{"index": partition, "records": batch}]
        body = {
            "acks": acks,
            "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": data}],
        }
        response = self.request(PRODUCE, PRODUCE_VERSION, body)
        (result,) = response.responses[0].partition_responses
        return result.error_code, result.base_offset

    def value_at(
        self, topic: str, partition: int, offset: int, leader_epoch: int = -1
    ) -> tuple[int, str]:
        """Return (error code, value of the record at this offset or an empty string)."""
        wanted = {
            "partition": partition,
            "current_leader_epoch": leader_epoch,
            "fetch_offset": offset,
            "partition_max_bytes": FETCH_BYTES_MAX,
        }
        body = {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "max_bytes": FETCH_BYTES_MAX,
            "isolation_level": 0,
            "topics": [{"topic": topic, "partitions": [wanted]}],
        }
        response = self.request(FETCH, FETCH_VERSION, body)
        (result,) = response.responses[0].partitions
        for batch in batches(result.records or b""):
            for record in batch:
                if record.offset == offset:
                    return result.error_code, (record.value or b"").decode()
        return result.error_code, ""

    def create_topic(self, name: str) -> int:
        """Create a topic of one partition; return the error code."""
        topic = {
            "name": name,
            "num_partitions": 1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        body = {"topics": [topic], "timeout_ms": 10_000, "validate_only": False}
        return int(self.request(CREATE_TOPICS, CREATE_TOPICS_VERSION, body).topics[0].error_code)

    def coordinator(self, group: str) -> int:
        """Find a group's coordinator, which creates the offsets topic; return the error code."""
        body = {"key": group, "key_type": 0}
        return int(self.request(FIND_COORDINATOR, FIND_COORDINATOR_VERSION, body).error_code)

    def delete_topic(self, name: str) -> int:
        """Delete a topic; return the error code."""
        body = {"topic_names": [name], "timeout_ms": 10_000}
        response = self.request(DELETE_TOPICS, DELETE_TOPICS_VERSION, body)
        return int(response.responses[0].error_code)
