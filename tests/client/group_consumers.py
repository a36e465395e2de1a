"""Members of a group against a real broker, and a scripted coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.net.topology import TopicPartition
from kafkalite.coordination.features import GROUP_VERSION, SUPPORTED_LEVELS
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
)
from tests.client.consuming import until
from tests.client.scripted_broker import ScriptedBroker, metadata

SHORT_TIMES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.session.timeout.ms": "6000",
}
"""Configuration of a broker whose groups settle quickly."""

PROTOCOLS = ["classic", "consumer"] if SUPPORTED_LEVELS.get(GROUP_VERSION) else ["classic"]


class GroupBroker:
    """A broker, and the settings of members that use a group protocol."""

    def __init__(self, bootstrap: str, topic: Callable[..., str], protocol: str) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.protocol = protocol
        self.fast: dict[str, Any] = {
            "heartbeat_interval_ms": 100, "session_timeout_ms": 6_000, "group_protocol": protocol,
        }  # fmt: skip


class MemberLog:
    """A member with short heartbeats, and the callbacks that were called."""

    def __init__(self, broker: GroupBroker, topic: Any, group: str, **options: Any) -> None:
        self.calls: list[tuple[str, list[TopicPartition]]] = []
        self.consumer = Consumer(
            broker.bootstrap, topics=topic, group=group,
            on_assign=lambda found: self.calls.append(("assign", found)),
            on_revoke=lambda found: self.calls.append(("revoke", found)),
            on_lost=lambda found: self.calls.append(("lost", found)),
            **{**broker.fast, **options},
        )  # fmt: skip

    @property
    def partitions(self) -> list[int]:
        return sorted(each.partition for each in self.consumer.assignment)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.calls]


def poll_until(members: list[MemberLog], sizes: list[int]) -> list[Any]:
    """Poll all members until their assignments have these sizes; return the messages."""
    messages = []

    def settled() -> bool:
        for member in members:
            message = member.consumer.poll(0)
            if message is not None:
                messages.append(message)
        return [len(member.partitions) for member in members] == sizes

    until(settled, f"an assignment of {sizes}")
    return messages


class HostileGroup:
    """A scripted coordinator that returns a table of responses."""

    def __init__(self, **responses: Any) -> None:
        joined = {
            "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range",
            "leader": "other", "member_id": "m", "members": [],
        }  # fmt: skip
        self.broker = ScriptedBroker({
            METADATA: lambda request: metadata({0: self.broker.port}, {"t": {0: (0, 0)}}),
            FIND_COORDINATOR: lambda request: responses.get("find", {"coordinators": [{
                "key": "g", "node_id": 0, "host": "127.0.0.1", "port": self.broker.port,
            }]}),
            JOIN_GROUP: lambda request: responses.get("join", joined),
            SYNC_GROUP: lambda request: responses.get("sync", {"assignment": b""}),
            HEARTBEAT: lambda request: responses.get("heartbeat", {}),
            LEAVE_GROUP: lambda request: {"members": []},
        })  # fmt: skip
