"""Members of the consumer protocol (KIP-848) as plain sockets: heartbeats, and no more.

They share one event loop.  A member reports at once what it was assigned or has to revoke, as
client libraries do when the application has nothing to finish, and otherwise sends heartbeats at
the interval that the coordinator sets.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from benchmarks.wire import frame, header_size
from kafkalite.protocol.schema import Fields
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT

VERSION = 1
LEAVE_EPOCH = -1
REBALANCE_TIMEOUT_MS = 300_000
SELECT_S_MAX = 0.05


class ConsumerMembers:
    """The members of some groups on connections to one coordinator."""

    def __init__(self, address: str) -> None:
        self.members: list[ConsumerMember] = []
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, ConsumerMember]] = []
        self._numbers = 0
        self._is_settled: bool | None = None
        """The outcome of `is_settled`; None after a change."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.socket.close()
        self._selector.close()

    def join(self, group: str, topic: str) -> ConsumerMember:
        """Let a new member join."""
        member = ConsumerMember(self._address, group, topic)
        self.members.append(member)
        self._is_settled = None
        self._selector.register(member.socket, selectors.EVENT_READ, member)
        member.heartbeat()
        return member

    def leave(self, member: ConsumerMember) -> None:
        """Let a member leave; its response is not read."""
        member.epoch = LEAVE_EPOCH
        member.heartbeat()
        self.members.remove(member)
        self._is_settled = None
        self._selector.unregister(member.socket)
        member.socket.close()

    def run(self, until: Callable[[], bool], seconds_max: float) -> float:
        """Run the members until the condition holds; return the seconds."""
        begun = time.monotonic()
        while not until():
            now = time.monotonic()
            if now - begun > seconds_max:
                raise RuntimeError(f"the groups have not come to it in {seconds_max} s")
            wait_s = self._due[0][0] - now if self._due else SELECT_S_MAX
            for key, _ in self._selector.select(min(max(wait_s, 0), SELECT_S_MAX)):
                self._receive(key.data)
            self._beat()
        return time.monotonic() - begun

    def beat_without_pause(self, count: int) -> None:
        """Send heartbeats, each after the response to the last one, and read `count` responses."""
        self._due.clear()
        for member in self.members:
            member.heartbeat()
        answered = 0
        while answered < count:
            for key, _ in self._selector.select():
                if key.data.receive() is not None:
                    answered += 1
                    key.data.heartbeat()

    def _receive(self, member: ConsumerMember) -> None:
        before = member.epoch, member.owned
        interval_s = member.receive()
        if (member.epoch, member.owned) != before:
            self._is_settled = None
        if interval_s is not None:
            self._numbers += 1
            heapq.heappush(self._due, (time.monotonic() + interval_s, self._numbers, member))

    def _beat(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            member = heapq.heappop(self._due)[2]
            if member.epoch > 0:
                member.heartbeat()

    def is_settled(self, partition_count: int) -> bool:
        """Return whether the members of one group divide all partitions evenly in one epoch.

        A member that has just joined can be in the epoch of the others and own nothing.
        """
        if self._is_settled is None:
            epochs = {member.epoch for member in self.members}
            self._is_settled = len(epochs) == 1 and self._divide_evenly(partition_count)
        return self._is_settled

    def _divide_evenly(self, partition_count: int) -> bool:
        owned = [index for member in self.members for index in member.owned]
        sizes = [len(member.owned) for member in self.members]
        is_even = max(sizes) - min(sizes) <= 1
        return is_even and len(owned) == len({*owned}) == partition_count


class ConsumerMember:
    """One member and its connection."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self.epoch = 0
        self.owned: frozenset[int] = frozenset()
        self._group = group
        self._topic = topic
        self._topic_id = bytes(16)
        self._id = str(uuid.uuid4())
        self._buffer = bytearray()
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def heartbeat(self, *, has_changed: bool = False) -> None:
        """Send a heartbeat; the first one subscribes, one after a change says what is owned."""
        body: dict[str, Any] = {
            "group_id": self._group,
            "member_id": self._id,
            "member_epoch": self.epoch,
        }
        if self.epoch == 0:
            body |= {
                "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
                "subscribed_topic_names": [self._topic],
                "topic_partitions": [],
            }
        elif has_changed:
            body["topic_partitions"] = self._partitions()
        request = frame(CONSUMER_GROUP_HEARTBEAT, VERSION, body)
        self.socket.sendall(len(request).to_bytes(4, "big") + request)

    def _partitions(self) -> Sequence[Mapping[str, Any]]:
        if not self.owned:
            return []
        return [{"topic_id": self._topic_id, "partitions": sorted(self.owned)}]

    def receive(self) -> float | None:
        """Read what has come; return the seconds until the next heartbeat after a response.

        None means that the response is not whole, or that the next heartbeat was sent at once.
        """
        some = self.socket.recv(1 << 20)
        if not some:
            raise ConnectionError("the coordinator closed the connection")
        self._buffer += some
        if len(self._buffer) < 4 or len(self._buffer) < 4 + int.from_bytes(self._buffer[:4], "big"):
            return None
        size = header_size(CONSUMER_GROUP_HEARTBEAT, VERSION)
        content = bytes(self._buffer[4:])
        self._buffer.clear()
        response = CONSUMER_GROUP_HEARTBEAT.response.read(VERSION, content, size)
        if response.error_code:
            raise RuntimeError(f"ConsumerGroupHeartbeat: {response.error_message}")
        self.epoch = response.member_epoch
        if self._takes(response):
            self.heartbeat(has_changed=True)
            return None
        return response.heartbeat_interval_ms / 1000

    def _takes(self, response: Fields) -> bool:
        """Take an assignment over; return whether it changes what is owned."""
        if response.assignment is None:
            return False
        topics = response.assignment.topic_partitions
        owned = frozenset(index for topic in topics for index in topic.partitions)
        for topic in topics:
            self._topic_id = topic.topic_id
        has_changed, self.owned = owned != self.owned, owned
        return has_changed
