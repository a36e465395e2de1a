"""EagerConsumer: a client of the classic protocol that revokes all partitions before it joins."""

from __future__ import annotations

from typing import Any

from kafkalite.protocol.schemas.consumer_protocol import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    read_versioned,
    write_versioned,
)
from tests.coordination.groups.harness import Client, GroupHarness, GroupRequest

SESSION_MS = 10_000
PARTITIONS = 5
SUBSCRIPTION = write_versioned(CONSUMER_SUBSCRIPTION, 1, {"topics": ["t"], "owned_partitions": []})


class EagerConsumer:
    """A classic client that revokes everything before it joins; the leader assigns in turn."""

    def __init__(self, harness: GroupHarness, name: str) -> None:
        self.harness = harness
        self.name = name
        self.client = Client(
            harness, name, protocols={"range": SUBSCRIPTION}, session_ms=SESSION_MS
        )
        self.partitions: list[int] = []
        self.joining: GroupRequest | None = None
        self.syncing: GroupRequest | None = None
        self.is_member = False

    def step(self) -> None:
        """Take over what has been answered, and send the next request."""
        if self.joining is not None:
            self.take_join(self.joining)
        elif self.syncing is not None:
            self.take_sync(self.syncing)
        elif not self.is_member:
            self.join()
        else:
            self.take_error(self.client.beat().code)

    def join(self) -> None:
        self.partitions = []
        self.joining = self.client.join()

    def take_join(self, joining: GroupRequest) -> None:
        if joining.waits:
            return
        self.joining = None
        if joining.code:
            self.take_error(joining.code)
            return
        given = {}
        members = [each["member_id"] for each in joining.members]
        for number, member_id in enumerate(members):
            indexes = [*range(number, PARTITIONS, len(members))]
            fields: dict[str, Any] = {
                "assigned_partitions": [{"topic": "t", "partitions": indexes}]
            }
            given[member_id] = write_versioned(CONSUMER_ASSIGNMENT, 0, fields)
        self.syncing = self.client.sync(given)

    def take_sync(self, syncing: GroupRequest) -> None:
        if syncing.waits:
            return
        self.syncing = None
        if syncing.code:
            self.take_error(syncing.code)
            return
        decoded = read_versioned(CONSUMER_ASSIGNMENT, syncing.assignment)
        self.partitions = [i for each in decoded.assigned_partitions for i in each.partitions]
        self.is_member = True

    def take_error(self, code: int) -> None:
        if code:
            self.is_member = False
            self.partitions = []
        if code in (25, 69):
            self.client.member_id, self.client.joined = "", None

    def leave(self) -> None:
        self.harness.leave("g", (self.client.member_id, None))
