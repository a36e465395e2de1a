"""Clients of the consumer protocol: they apply assignments, and revoke when required."""

from __future__ import annotations

from typing import Any

from kafkalite.coordination.groups.group_coordinator import GroupClient
from kafkalite.protocol.schemas.groups import CONSUMER_GROUP_HEARTBEAT
from tests.coordination.groups.harness import REBALANCE_MS, GroupHarness, GroupRequest, read_as

Owned = dict[bytes, set[int]]


def fields_of(owned: Owned) -> list[dict[str, Any]]:
    return [{"topic_id": key, "partitions": sorted(each)} for key, each in owned.items() if each]


class ConsumerClient:
    """A client of the consumer protocol; `name` is its member id."""

    def __init__(
        self,
        harness: GroupHarness,
        name: str,
        *topics: str,
        group_id: str = "g",
        instance_id: str | None = None,
        rebalance_ms: int = REBALANCE_MS,
        assignor: str | None = None,
    ) -> None:
        self.harness = harness
        self.name = name
        self.topics = [*topics]
        self.group_id = group_id
        self.instance_id = instance_id
        self.rebalance_ms = rebalance_ms
        self.assignor = assignor
        self.epoch = 0
        self.owned: Owned = {}
        """The partitions that it consumes, and reports as owned."""
        self.assigned: Owned = {}
        """The last assignment from the coordinator."""
        self.interval_ms = 0
        self.has_lost = False
        """True if the last response was lost: the next request has all fields, as Java's does."""

    def send(self, **fields: Any) -> GroupRequest:
        """Send a heartbeat with these fields, the others null."""
        request = read_as(
            CONSUMER_GROUP_HEARTBEAT,
            1,
            **{
                "group_id": self.group_id,
                "member_id": self.name,
                "member_epoch": self.epoch,
                "instance_id": self.instance_id,
                **fields,
            },
        )
        harness = self.harness
        return harness.decide(
            f"ConsumerGroupHeartbeat {self.name}",
            lambda token: harness.machine.consumer_heartbeat(
                request, GroupClient(self.name, "/h"), token, harness.now_ms, harness.wall_ms
            ),
        )

    def take(self, response: GroupRequest) -> GroupRequest:
        """Apply a response as clients do; a fenced member owns nothing."""
        if response.code in (25, 110):
            self.epoch, self.owned, self.assigned = 0, {}, {}
        elif response.code == 0 and response.member_epoch >= 0:
            self.epoch = response.member_epoch
            self.interval_ms = response.heartbeat_interval_ms
            if response.assignment is not None:
                self.assigned = {
                    each["topic_id"]: {*each["partitions"]}
                    for each in response.assignment["topic_partitions"]
                }
        return response

    def join(self) -> GroupRequest:
        """Join with epoch 0, owning nothing."""
        self.epoch, self.owned, self.assigned = 0, {}, {}
        self.has_lost = False
        response = self.send(
            **self.subscription,
            server_assignor=self.assignor,
            topic_partitions=[],
        )
        return self.take(response)

    def beat(self, **fields: Any) -> GroupRequest:
        """Send a heartbeat with the owned partitions."""
        if self.has_lost:
            fields = {**self.subscription, **fields}
            self.has_lost = False
        return self.take(self.send(topic_partitions=fields_of(self.owned), **fields))

    @property
    def subscription(self) -> dict[str, Any]:
        """The fields of a full request besides the owned partitions."""
        return {"rebalance_timeout_ms": self.rebalance_ms, "subscribed_topic_names": self.topics}

    def lose_response(self, *, has_owned: bool = True) -> GroupRequest:
        """Send a heartbeat whose response the client does not get."""
        self.has_lost = True
        return self.send(topic_partitions=fields_of(self.owned) if has_owned else None)

    def revoke(self) -> None:
        """Revoke the partitions that are not assigned any more."""
        self.owned = {key: each & self.assigned.get(key, set()) for key, each in self.owned.items()}

    def acquire(self) -> None:
        """Begin to consume the assigned partitions."""
        self.owned = {key: {*each} for key, each in self.assigned.items()}

    def acquire_early(self) -> None:
        """Begin to consume new partitions before the others are revoked."""
        for key, indexes in self.assigned.items():
            self.owned.setdefault(key, set()).update(indexes)

    def step(self) -> GroupRequest:
        """Apply the assignment and send a heartbeat; join if it is fenced."""
        if self.epoch == 0:
            return self.join()
        self.revoke()
        self.acquire()
        return self.beat()

    def leave(self, *, epoch: int = -1) -> GroupRequest:
        """Leave the group; with -2 temporarily, as a static member."""
        response = self.send(member_epoch=epoch)
        self.epoch, self.owned, self.assigned = 0, {}, {}
        return response

    @property
    def partitions(self) -> list[int]:
        """The assigned partitions of its only topic."""
        return sorted(index for each in self.assigned.values() for index in each)


def settle(*clients: ConsumerClient, rounds: int = 20) -> None:
    """Have the clients send heartbeats until nothing changes."""
    log = clients[0].harness.log
    for _ in range(rounds):
        before = [(client.epoch, client.assigned, client.owned) for client in clients]
        end_offset = len(log)
        for client in clients:
            response = client.step()
            assert response.code == 0 or client.epoch == 0, response
        clients[0].harness.after(1_000)
        after = [(client.epoch, client.assigned, client.owned) for client in clients]
        if before == after and len(log) == end_offset:
            return
    raise AssertionError("the group does not settle")
