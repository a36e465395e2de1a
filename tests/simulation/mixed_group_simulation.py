"""A group with members of both protocols, over a network that loses, repeats and delays.

Every step is drawn from a seed.  The members of the consumer protocol send one heartbeat at a time,
in order; the request or its response may be lost, the request may be processed twice, and both may
come late, also after their member was killed.  Members of the classic protocol revoke everything
before they join.  After each step these invariants are checked:

    each partition      has one owner in the log, and one user among the members that the group has
    each commit         is accepted or refused as the epochs in the log say (mixed_group_log.py)
    each offset         is the last one committed
    epochs              do not fall, neither those of the group nor those that a member is told
    the log             replays to the same group, and so does its minimal set of records
    the group           becomes stable with all partitions assigned, once nothing fails any more

Left out: late requests that arrive in another order than they were sent, which a connection rules
out; topics that change (tests/coordination/groups/consumer/test_consumer_group_properties.py).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.protocol.schemas import group_records
from tests.coordination.groups.consumers import ConsumerClient, fields_of
from tests.coordination.groups.eager_consumer import PARTITIONS, SESSION_MS, EagerConsumer
from tests.coordination.groups.harness import GroupHarness, GroupRequest
from tests.simulation.mixed_group_log import CLASSIC, CONSUMER, GroupLog

GROUP = "g"
TOPIC = "t"
STATIC = ("a", "b")
NAMES = "abcdef"
SETTLING_ROUNDS = 80
STORAGE_ERROR, GROUP_ID_NOT_FOUND = 56, 69
LOST_SHARE, REPEATED_SHARE, KEEP_ALIVE_SHARE = 0.1, 0.1, 0.2


class Heartbeat:
    """A request on its way, and later its response."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.response: GroupRequest | None = None


class RemoteConsumer(ConsumerClient):
    """A member of the consumer protocol behind a network."""

    def __init__(self, harness: GroupHarness, name: str, instance_id: str | None) -> None:
        super().__init__(harness, name, TOPIC, instance_id=instance_id, rebalance_ms=5_000)
        self.requests: deque[Heartbeat] = deque()
        self.responses: deque[Heartbeat] = deque()
        self.awaited: Heartbeat | None = None

    def send_later(self, *, is_keep_alive: bool) -> None:
        """Send the next heartbeat; a keep-alive comes while partitions are still being revoked."""
        fields: dict[str, Any] = {"member_epoch": self.epoch}
        is_full = self.epoch == 0 or self.has_lost
        if is_full:
            fields |= self.subscription
        if is_full or not is_keep_alive:
            self.revoke()
            fields["topic_partitions"] = fields_of(self.owned)
        self.has_lost = False
        self.awaited = Heartbeat(fields)
        self.requests.append(self.awaited)

    def receive(self) -> None:
        """Take the next response, unless another request was sent since then."""
        arrived = self.responses.popleft()
        if arrived is not self.awaited:
            return
        self.awaited = None
        response = arrived.response
        assert response is not None
        if response.code == STORAGE_ERROR:
            self.has_lost = True
        elif response.code == GROUP_ID_NOT_FOUND:
            self.epoch, self.owned, self.assigned = 0, {}, {}
        elif response.code == 0:
            assert response.member_epoch >= self.epoch, "the epoch of a member fell"
        self.take(response)
        self.acquire_early()

    def give_up(self) -> None:
        """Stop waiting for a response; the next request has all fields."""
        self.awaited = None
        self.has_lost = True

    def disconnect(self) -> None:
        """Lose all that is on its way."""
        self.requests.clear()
        self.responses.clear()
        if self.awaited is not None:
            self.give_up()


class MixedGroupSimulation:
    """One run: the clients, their events, and the invariants checked after each of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = GroupHarness(
            initial_rebalance_delay_ms=self.random.choice([0, 3_000]),
            migration_policy=self.random.choice(["bidirectional"] * 3 + ["upgrade"]),
        )
        self.harness.settings = ConsumerGroupSettings(session_timeout_ms=SESSION_MS)
        self.topic_id = self.harness.topics.create(TOPIC, PARTITIONS)
        self.classic_share = self.random.choice([0.0, 0.3, 0.6])
        self.serial = 0
        self.clients = [self.new_client(name) for name in NAMES[: self.random.randrange(2, 7)]]
        self.killed: list[RemoteConsumer] = []
        """Members that were killed while requests were on their way."""
        self.identities: list[tuple[str, int]] = [("nobody", 3)]
        """Member ids with an epoch or a generation that they had."""
        self.log = GroupLog()
        self.offsets: dict[tuple[str, int], int] = {}
        self.accepted = self.refused = 0

    def new_client(self, name: str) -> EagerConsumer | RemoteConsumer:
        self.serial += 1
        if name not in STATIC and self.random.random() < self.classic_share:
            return EagerConsumer(self.harness, f"{name}{self.serial}")
        instance = name if name in STATIC else None
        return RemoteConsumer(self.harness, f"{name}{self.serial}", instance)

    # -- events ------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        events = [
            (self.act, 60),
            (self.give_up, 2),
            (self.deliver_of_killed, 2),
            (self.commit_as_member, 10),
            (self.commit_as_former_member, 6),
            (self.commit_as_admin, 1),
            (self.leave, 1),
            (self.kill, 1),
            (self.restart, 0.5),
            (self.toggle_writes, 1),
            (self.delete, 0.3),
            (self.advance_clock, 12),
            (self.advance_clock_far, 0.7),
        ]
        weights = [weight for _, weight in events]
        for _ in range(steps):
            self.random.choices(events, weights)[0][0]()
            self.check()
        self.settle()

    def act(self) -> None:
        """Have a client do the next thing, or the network deliver what it has for or from it."""
        client = self.random.choice(self.clients)
        if isinstance(client, EagerConsumer):
            client.step()
            if client.is_member:
                self.identities.append((client.client.member_id, client.client.generation))
            return
        choices = []
        if client.awaited is None:
            choices.append(self.send)
        if client.requests:
            choices.append(self.deliver)
        if client.responses:
            choices.append(self.receive)
        if choices:
            self.random.choice(choices)(client)

    def send(self, client: RemoteConsumer) -> None:
        client.send_later(is_keep_alive=self.random.random() < KEEP_ALIVE_SHARE)

    def deliver(self, client: RemoteConsumer) -> None:
        """Have the coordinator process the client's next request, perhaps twice, or lose it."""
        heartbeat = client.requests.popleft()
        if self.random.random() < LOST_SHARE:
            return
        heartbeat.response = client.send(**heartbeat.fields)
        if self.random.random() < REPEATED_SHARE:
            client.send(**heartbeat.fields)
        if self.random.random() >= LOST_SHARE:
            client.responses.append(heartbeat)

    def receive(self, client: RemoteConsumer) -> None:
        client.receive()
        self.identities.append((client.name, client.epoch))

    def deliver_of_killed(self) -> None:
        if self.killed:
            self.deliver(self.killed[0])
            if not self.killed[0].requests:
                self.killed.pop(0)

    def give_up(self) -> None:
        client = self.random.choice(self.clients)
        if isinstance(client, RemoteConsumer) and client.awaited is not None:
            client.give_up()

    def leave(self) -> None:
        at = self.random.randrange(len(self.clients))
        client = self.clients[at]
        if isinstance(client, EagerConsumer):
            if client.joining is None and client.syncing is None and client.client.member_id:
                client.leave()
        elif client.epoch and not client.requests:
            client.leave(epoch=self.random.choice([-1, -2]) if client.instance_id else -1)
        self.replace(at)

    def kill(self) -> None:
        """End a process without a leave; what it has sent may still arrive."""
        self.replace(self.random.randrange(len(self.clients)))

    def replace(self, at: int) -> None:
        client = self.clients[at]
        if isinstance(client, RemoteConsumer) and client.requests:
            self.killed.append(client)
        self.clients[at] = self.new_client(NAMES[at])

    def restart(self) -> None:
        """Kill the coordinator; waiting requests fail with their connections."""
        self.check_replay()
        self.harness.restart()
        for client in self.clients:
            if isinstance(client, EagerConsumer):
                if client.joining is not None or client.syncing is not None:
                    client.joining = client.syncing = None
                    client.is_member = False
            else:
                client.disconnect()
        self.killed.clear()

    def toggle_writes(self) -> None:
        self.harness.writable = self.random.random() < 0.7

    def delete(self) -> None:
        if self.harness.writable and self.harness.delete_groups(GROUP)[GROUP] == 0:
            self.offsets = {}

    def advance_clock(self) -> None:
        self.harness.after(self.random.choice([1, 100, 500, 1_000, 2_000]))

    def advance_clock_far(self) -> None:
        self.harness.after(self.random.choice([4_000, 6_000, SESSION_MS, 2 * SESSION_MS]))

    # -- commits -----------------------------------------------------------------------------

    def commit_as_member(self) -> None:
        client = self.random.choice(self.clients)
        if isinstance(client, RemoteConsumer):
            # A commit may have been sent before the last change of the epoch.
            epoch = max(client.epoch - self.random.choice([0, 0, 1, 2]), 0)
            self.commit(client.name, epoch, [index for _, index in self.uses(client)])
        elif client.is_member:
            self.commit(client.client.member_id, client.client.generation)

    def commit_as_former_member(self) -> None:
        self.commit(*self.random.choice(self.identities[-100:]))

    def commit_as_admin(self) -> None:
        self.commit("", -1)

    def commit(self, member_id: str, epoch: int, used: Sequence[int] = ()) -> None:
        """Commit offsets of one or two partitions, and check the outcome."""
        count = self.random.choice([1, 1, 2])
        among = used if len(used) >= count else range(PARTITIONS)
        indexes = self.random.sample(among, count)
        offsets = {(TOPIC, index): self.random.randrange(1_000) for index in indexes}
        code = self.harness.commit(
            GROUP, offsets, generation=epoch, member_id=member_id, topic_id=self.topic_id
        ).code
        if self.log.kind == CONSUMER:
            places = [(self.topic_id, index) for index in indexes]
            expected = self.log.commit(member_id, epoch, places)
            if expected == 0 and not self.harness.writable:
                expected = STORAGE_ERROR
            assert code == expected, f"{member_id} with {epoch} got {code}, not {expected}"
        elif code == 0 and epoch >= 0:
            assert self.log.kind == CLASSIC and epoch == self.log.generation
            assert member_id in self.log.generation_members
        elif code == 0:
            assert self.harness.state(GROUP) in ("Empty", "Dead")
        if code == 0:
            self.offsets.update(offsets)
        self.accepted += code == 0
        self.refused += code != 0

    # -- invariants --------------------------------------------------------------------------

    def check(self) -> None:
        self.log.read(self.harness.log)
        self.check_users()
        assert self.harness.offsets(GROUP) == self.offsets
        machine = self.harness.machine
        assert machine.groups.size == sum(group.size for group in machine.groups)

    def check_users(self) -> None:
        """Check that no two members of the group use one partition.

        A process that the group has removed may not know that yet.
        """
        group = self.harness.machine.groups.get(GROUP)
        if group is None:
            return
        members = self.member_ids(group)
        users: dict[int, str] = {}
        for client in self.clients:
            for member_id, index in self.uses(client):
                if member_id in members:
                    other = users.setdefault(index, member_id)
                    assert other == member_id, f"{other} and {member_id} use {index}"

    def member_ids(self, group: Any) -> set[str]:
        members = group.members
        return {*members} if isinstance(group, ConsumerGroup) else {m.member_id for m in members}

    def uses(self, client: EagerConsumer | RemoteConsumer) -> list[tuple[str, int]]:
        if isinstance(client, EagerConsumer):
            return [(client.client.member_id, index) for index in client.partitions]
        return [(client.name, index) for owned in client.owned.values() for index in owned]

    def check_replay(self) -> None:
        group = self.harness.machine.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup):
            return
        described = self.harness.described(GROUP)
        last = {key: at for at, (key, _) in enumerate(self.harness.log)}
        compacted = [group_records.read(*self.harness.log[at]) for at in sorted(last.values())]
        machine = self.harness.machine
        for records in (self.harness.read_log(), compacted):
            self.harness.machine = self.harness.replayed(records)
            try:
                assert self.harness.described(GROUP) == described
                assert self.harness.offsets(GROUP) == self.offsets
            finally:
                self.harness.machine = machine

    def settle(self) -> None:
        """End all faults: the group becomes stable with every partition in use."""
        self.harness.writable = True
        self.killed.clear()
        for client in self.clients:
            if isinstance(client, RemoteConsumer):
                client.disconnect()
        for _ in range(SETTLING_ROUNDS):
            for client in self.clients:
                self.step(client)
                self.check()
            self.harness.after(2_000)
        used = sorted(index for client in self.clients for _, index in self.uses(client))
        assert used == [*range(PARTITIONS)], f"{used} are in use"
        assert [each["group_state"] for each in self.harness.machine.list()] == ["Stable"]
        self.check_replay()

    def step(self, client: EagerConsumer | RemoteConsumer) -> None:
        if isinstance(client, EagerConsumer):
            client.step()
            return
        client.send_later(is_keep_alive=False)
        heartbeat = client.requests.popleft()
        heartbeat.response = client.send(**heartbeat.fields)
        client.responses.append(heartbeat)
        client.receive()
