"""Group members as plain sockets: the group requests of a client library, and no more.

They share one event loop, so that a benchmark can have thousands.  A member joins, sends or gets
its assignment, sends heartbeats and rejoins on a rebalance.  It counts as stable in the generation
of its last SyncGroup response.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from benchmarks.wire import Wire, frame, header_size
from kafkalite.protocol.schema import Api
from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_FETCH,
    SYNC_GROUP,
)

FIND, JOIN, SYNC, BEAT, FETCH = 2, 5, 3, 3, 5
SESSION_MS = 45_000
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79
COORDINATOR_AWAY = {14, 15, 16}
READY_S_MAX = 60.0


def coordinator(address: str, group: str) -> str:
    """Return the address of a group's coordinator, once it responds for the group."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        with Wire(address) as wire:
            found = wire.ask(FIND_COORDINATOR, FIND, {"key": group, "key_type": 0})
        code = found.error_code
        if code == 0:
            there = f"{found.host}:{found.port}"
            with Wire(there) as wire:
                code = wire.ask(OFFSET_FETCH, FETCH, {"group_id": group, "topics": []}).error_code
            if code == 0:
                return there
        if code not in COORDINATOR_AWAY or time.monotonic() > deadline:
            raise RuntimeError(f"no coordinator at {address}: error {code}")
        time.sleep(0.05)


class Members:
    """A number of members on their connections to one coordinator."""

    def __init__(self, address: str, groups: list[str], beat_s: float, assignment: int) -> None:
        """`groups` names each member's group; an assignment has `assignment` bytes."""
        self.selector = selectors.DefaultSelector()
        self.beat_s = beat_s
        self.assignment = bytes(assignment)
        self.members = [Member(self, address, group) for group in groups]

    def close(self) -> None:
        for member in self.members:
            member.socket.close()
        self.selector.close()

    def join(self) -> None:
        for member in self.members:
            member.join()

    def run(self, until: Callable[[], bool], seconds_max: float) -> float:
        """Run the members until the condition holds; return the seconds."""
        begun = time.monotonic()
        while not until():
            now = time.monotonic()
            if now - begun > seconds_max:
                raise RuntimeError(f"the groups have not come to it in {seconds_max} s")
            for key, _ in self.selector.select(0.005):
                key.data.heard()
            for member in self.members:
                if member.beat_at <= now:
                    member.beat()
        return time.monotonic() - begun

    @property
    def stable(self) -> bool:
        """Return True if every group's members are in one generation and have assignments."""
        generations: dict[str, int] = {}
        return (
            all(
                member.synced == member.generation
                and generations.setdefault(member.group, member.synced) == member.synced
                for member in self.members
            )
            and -1 not in generations.values()
        )


class Member:
    """One member and its connection."""

    def __init__(self, all_of_them: Members, address: str, group: str) -> None:
        self.all = all_of_them
        self.group = group
        self.id = ""
        self.generation = -1
        self.synced = -1
        self.beat_at = float("inf")
        self.buffer = bytearray()
        self.asked: tuple[Api, int] = (JOIN_GROUP, JOIN)
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.all.selector.register(self.socket, selectors.EVENT_READ, self)

    def send(self, api: Api, version: int, **body: Any) -> None:
        request = frame(api, version, {"group_id": self.group, **body})
        self.asked = (api, version)
        self.beat_at = float("inf")
        self.socket.sendall(len(request).to_bytes(4, "big") + request)

    def join(self) -> None:
        self.send(
            JOIN_GROUP, JOIN, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS,
            member_id=self.id, protocol_type="consumer",
            protocols=[{"name": "range", "metadata": bytes(100)}],
        )  # fmt: skip

    def beat(self) -> None:
        self.send(HEARTBEAT, BEAT, generation_id=self.generation, member_id=self.id)

    def heard(self) -> None:
        some = self.socket.recv(1 << 20)
        if not some:
            raise ConnectionError("the coordinator hung up")
        self.buffer += some
        if len(self.buffer) < 4:
            return
        size = int.from_bytes(self.buffer[:4], "big")
        if len(self.buffer) < 4 + size:
            return
        api, version = self.asked
        answer = api.response.read(version, bytes(self.buffer[4:]), header_size(api, version))
        self.buffer.clear()
        {JOIN_GROUP: self.joined, SYNC_GROUP: self.got, HEARTBEAT: self.beaten}[api](answer)

    def joined(self, answer: Any) -> None:
        if answer.error_code:
            if answer.error_code != MEMBER_ID_REQUIRED:
                raise RuntimeError(f"JoinGroup: error {answer.error_code}")
            self.id = answer.member_id
            self.join()
            return
        self.id, self.generation = answer.member_id, answer.generation_id
        assignments = [
            {"member_id": each.member_id, "assignment": self.all.assignment}
            for each in answer.members
        ]
        self.send(SYNC_GROUP, SYNC, generation_id=self.generation, member_id=self.id,
                  assignments=assignments)  # fmt: skip

    def got(self, answer: Any) -> None:
        if answer.error_code == REBALANCE_IN_PROGRESS:
            self.join()
            return
        if answer.error_code:
            raise RuntimeError(f"SyncGroup: error {answer.error_code}")
        self.synced = self.generation
        self.beat_at = time.monotonic() + self.all.beat_s

    def beaten(self, answer: Any) -> None:
        if answer.error_code == REBALANCE_IN_PROGRESS:
            self.join()
        elif answer.error_code:
            raise RuntimeError(f"Heartbeat: error {answer.error_code}")
        else:
            self.beat_at = time.monotonic() + self.all.beat_s
