"""A process of a thousand raw consumers: long polls over many partitions, in one epoll loop.

A consumer is one connection to one worker with a fetch session, as real consumers have it: the
first Fetch names all of its partitions, a later one only those whose offset has changed.  Most read
a few of the worker's partitions; the wide ones read all of them.

Left out: groups, and metadata.  Leaders do not move here.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.fetch import FETCH
from tests.faults.raw_connection import FETCH_VERSION, Address

RECEIVE_SIZE = 1 << 18
PARTITION_BYTES_MAX = 64 << 10
BYTES_MAX = 1 << 20
RESPONSE_S_MAX = 60.0
FULL = 0
"""The session epoch of a request that begins a session."""
_SESSION = struct.Struct(">iihi")
"""The first fields of a response: correlation id, throttle time, error code, session id."""
_NO_PARTITIONS = _SESSION.size + 4


class ConsumerPlan(NamedTuple):
    """The consumers of one run."""

    topic: str
    partitions: dict[Address, list[int]]
    """By the worker that leads them."""
    count: int
    partitions_each: int
    wide: int
    """Consumers of all partitions of a worker, beside the others."""
    wait_ms: int
    connects_per_s: int
    seed: int


@dataclass(eq=False)
class RawConsumer:
    """One connection, its session, and the next offset of each partition."""

    topic: str
    partitions: list[int]
    wait_ms: int
    socket: socket.socket
    offsets: dict[int, int] = field(default_factory=dict)
    received: bytearray = field(default_factory=bytearray)
    session_id: int = 0
    epoch: int = FULL
    asked_at: float = 0.0

    def fetch(self, changed: list[int]) -> None:
        """Send the next Fetch: all partitions at the start of a session, else the changed ones."""
        named = self.partitions if self.epoch == FULL else changed
        partitions = [
            {
                "partition": index,
                "fetch_offset": self.offsets.get(index, 0),
                "partition_max_bytes": PARTITION_BYTES_MAX,
            }
            for index in named
        ]
        body: dict[str, Any] = {
            "max_wait_ms": self.wait_ms,
            "min_bytes": 1,
            "max_bytes": BYTES_MAX,
            "isolation_level": 0,
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": [{"topic": self.topic, "partitions": partitions}] if named else [],
        }
        frame = write_header(FETCH.key, FETCH_VERSION, 0, "consumer", False)
        frame += FETCH.request.write(FETCH_VERSION, body)
        self.asked_at = time.monotonic()
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, counts: Counter[str]) -> bool:
        """Receive; after a whole response fetch again.  Return False if the node has closed."""
        came = self.socket.recv(RECEIVE_SIZE)
        if not came:
            return False
        received = self.received
        received += came
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            return True
        response = bytes(received[4:])
        received.clear()
        self.fetch(self._take(response, counts))
        return True

    def _take(self, response: bytes, counts: Counter[str]) -> list[int]:
        """Process a response; return the partitions whose offset has changed."""
        _, _, error_code, session_id = _SESSION.unpack_from(response)
        counts["fetches"] += 1
        if error_code:
            counts["session errors"] += 1
            self.session_id, self.epoch = 0, FULL
            return []
        self.session_id = session_id
        self.epoch = self.epoch + 1 if session_id else FULL
        if len(response) == _NO_PARTITIONS:
            return []
        changed = []
        answer = FETCH.response.read(FETCH_VERSION, response, 4)
        for topic in answer.responses:
            for partition in topic.partitions:
                counts["partition errors"] += bool(partition.error_code)
                if partition.records:
                    counts["bytes"] += len(partition.records)
                    self.offsets[partition.partition_index] = next_offset(partition.records)
                    changed.append(partition.partition_index)
        return changed


def next_offset(records: bytes) -> int:
    """Return the offset after the last whole batch of a record set."""
    position, offset = 0, 0
    while position + 27 <= len(records):
        base, length = struct.unpack_from(">qi", records, position)
        if position + 12 + length > len(records):
            break
        (delta,) = struct.unpack_from(">i", records, position + 23)
        offset = base + delta + 1
        position += 12 + length
    return offset


def consume(plan: ConsumerPlan, control: Connection) -> None:
    """Run the consumers until a message comes from `control`; then send it the counts.

    A first message is sent to `control` once all consumers are connected.
    """
    counts: Counter[str] = Counter()
    poll = select.epoll()
    poll.register(control.fileno(), select.EPOLLIN)
    consumers: dict[int, RawConsumer] = {}
    waiting = list(reversed(choose(plan)))
    due = time.monotonic()
    while True:
        while waiting and time.monotonic() >= due:
            address, partitions = waiting.pop()
            made = RawConsumer(
                plan.topic,
                partitions,
                plan.wait_ms,
                socket.create_connection(address, RESPONSE_S_MAX),
            )
            consumers[made.socket.fileno()] = made
            poll.register(made.socket.fileno(), select.EPOLLIN)
            made.fetch([])
            counts["consumers"] += 1
            due += 1 / plan.connects_per_s
            if not waiting:
                control.send("connected")
        for descriptor, _ in poll.poll(0.01 if waiting else 1.0):
            if descriptor == control.fileno():
                now = time.monotonic()
                late = plan.wait_ms / 1000 + RESPONSE_S_MAX
                counts["unanswered"] = sum(now - c.asked_at > late for c in consumers.values())
                control.send(dict(counts))
                return
            consumer = consumers[descriptor]
            try:
                lives = consumer.receive(counts)
            except OSError:
                lives = False
            if not lives:
                counts["disconnected"] += 1
                poll.unregister(descriptor)
                consumers.pop(descriptor).socket.close()


def choose(plan: ConsumerPlan) -> list[tuple[Address, list[int]]]:
    """Return the worker and the partitions of each consumer, the wide ones first."""
    dice = random.Random(plan.seed)
    workers = list(plan.partitions.items())
    chosen = [workers[index % len(workers)] for index in range(plan.wide)]
    for index in range(plan.count):
        address, led = workers[index % len(workers)]
        chosen.append((address, dice.sample(led, min(plan.partitions_each, len(led)))))
    return chosen
