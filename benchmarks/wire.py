"""A connection to one node, one request at a time, without a client library.

It gives a benchmark what it must know of a cluster of several nodes: the address of each
partition's leader, and whether it responds for the partition.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Self

from benchmarks.subjects import Subject
from kafkalite.protocol.frame import response_header, write_header
from kafkalite.protocol.schema import Api, Fields
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS

METADATA_VERSION, LIST_OFFSETS_VERSION = 12, 4
END = -1
SILENCE_S_MAX = 30.0
SERVED_S_MAX = 60.0
LOOK_S = 0.005


class Wire:
    """A plain socket that sends one request and reads its whole response."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), SILENCE_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, api: Api, version: int, body: dict[str, object]) -> Fields:
        return self.send(api, version, frame(api, version, body))

    def send(self, api: Api, version: int, request: bytes) -> Fields:
        """Send an encoded request and return the response; raise ConnectionError without one."""
        self.socket.sendall(len(request).to_bytes(4, "big") + request)
        answer = self.take(int.from_bytes(self.take(4), "big"))
        return api.response.read(version, answer, header_size(api, version))

    def take(self, size: int) -> bytes:
        # MSG_WAITALL does not hold where the socket has a timeout.
        taken = bytearray(size)
        left = memoryview(taken)
        while left:
            got = self.socket.recv_into(left)
            if not got:
                raise ConnectionError("the node closed the connection")
            left = left[got:]
        return bytes(taken)


def metadata(address: str, *topics: str) -> Fields:
    """Return a node's Metadata response for these topics."""
    body: dict[str, object] = {
        "topics": [{"name": topic} for topic in topics],
        "allow_auto_topic_creation": False,
    }
    with Wire(address) as wire:
        return wire.ask(METADATA, METADATA_VERSION, body)


def leaders(subject: Subject, topic: str) -> list[str]:
    """Return the address of each partition's leader."""
    known = metadata(subject.bootstrap, topic)
    address = {each.node_id: f"{each.host}:{each.port}" for each in known.brokers}
    partitions = sorted(known.topics[0].partitions, key=lambda each: each.partition_index)
    return [address[each.leader_id] for each in partitions]


def await_served(subject: Subject, topic: str, partitions: int) -> None:
    """Wait until every partition's leader responds for it."""
    deadline = time.monotonic() + SERVED_S_MAX
    while not is_served(subject, topic, partitions):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{subject.name}: topic {topic} is not served everywhere")
        time.sleep(LOOK_S)


def is_served(subject: Subject, topic: str, partitions: int) -> bool:
    try:
        led: defaultdict[str, list[int]] = defaultdict(list)
        for partition, address in enumerate(leaders(subject, topic)):
            led[address].append(partition)
        served = sum(served_at(address, topic, indexes) for address, indexes in led.items())
        return served == partitions
    except (OSError, KeyError):  # a node that is not up yet, or not known yet
        return False


def served_at(address: str, topic: str, partitions: list[int]) -> int:
    """Return how many of the partitions this node serves as their leader."""
    asked = [{"partition_index": index, "timestamp": END} for index in partitions]
    body: dict[str, object] = {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": asked}],
    }
    with Wire(address) as wire:
        (answered,) = wire.ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, body).topics
    return sum(each.error_code == 0 for each in answered.partitions)


def frame(api: Api, version: int, body: Mapping[str, object]) -> bytes:
    header = write_header(api.key, version, 1, "bench", api.request_header_flexible(version))
    return header + api.request.write(version, dict(body))


def header_size(api: Api, version: int) -> int:
    """Return the number of bytes of a response before its body."""
    return len(response_header(1, api.response_header_flexible(version)))
