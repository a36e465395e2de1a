"""Groups with members of both protocols under any sequence of events.

No partition is used by two members at any time, also while the group changes its kind; and a group
that is left alone becomes stable, with every partition assigned.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from tests.coordination.groups.consumers import ConsumerClient
from tests.coordination.groups.eager_consumer import PARTITIONS, SESSION_MS, EagerConsumer
from tests.coordination.groups.harness import GroupHarness

CLIENTS = st.sampled_from(range(4))


class MixedGroupMachine(RuleBasedStateMachine):
    """Clients of both protocols; each one may be replaced by one of the other protocol."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = GroupHarness()
        self.harness.settings = ConsumerGroupSettings(session_timeout_ms=SESSION_MS)
        self.harness.topics.create("t", PARTITIONS)
        self.serial = 0
        self.clients: list[EagerConsumer | ConsumerClient] = []

    @initialize(classic=st.lists(st.booleans(), min_size=4, max_size=4))
    def begin(self, classic: list[bool]) -> None:
        self.clients = [self.client(each) for each in classic]

    def client(self, is_classic: bool) -> EagerConsumer | ConsumerClient:
        self.serial += 1
        name = f"c{self.serial}"
        if is_classic:
            return EagerConsumer(self.harness, name)
        return ConsumerClient(self.harness, name, "t", rebalance_ms=5_000)

    @rule(at=CLIENTS)
    def step(self, at: int) -> None:
        self.step_of(self.clients[at])

    def step_of(self, client: EagerConsumer | ConsumerClient) -> None:
        client.step()
        if isinstance(client, ConsumerClient):
            client.acquire_early()
        self.partition_has_one_user()

    @rule(at=CLIENTS, is_classic=st.booleans())
    def leave(self, at: int, is_classic: bool) -> None:
        client = self.clients[at]
        if isinstance(client, EagerConsumer):
            if client.joining is None and client.syncing is None and client.client.member_id:
                client.leave()
        elif client.epoch:
            client.leave()
        self.clients[at] = self.client(is_classic)

    @rule(at=CLIENTS, is_classic=st.booleans())
    def crash(self, at: int, is_classic: bool) -> None:
        self.clients[at] = self.client(is_classic)

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        """Have all send their heartbeats for some seconds."""
        for _ in range(rounds):
            for client in self.clients:
                self.step_of(client)
            self.harness.after(2_000)
            self.fence_expired()

    @rule()
    def restart(self) -> None:
        """Replace the coordinator; waiting requests fail with the connection."""
        self.harness.restart()
        for client in self.clients:
            if isinstance(client, EagerConsumer) and (client.joining or client.syncing):
                client.joining = client.syncing = None
                client.is_member = False

    @rule()
    def settle(self) -> None:
        """The group becomes stable when nothing else happens."""
        for _ in range(60):
            self.go_on(1)
        used = sorted(index for indexes in self.uses() for index in indexes)
        assert used == [*range(PARTITIONS)]
        assert [each["group_state"] for each in self.harness.machine.list()] == ["Stable"]

    def fence_expired(self) -> None:
        """Have consumer members stop that the coordinator has removed: their sessions are over."""
        group = self.harness.machine.groups.get("g")
        known = {} if group is None or isinstance(group, ClassicGroup) else group.members
        for client in self.clients:
            if isinstance(client, ConsumerClient) and client.name not in known:
                client.epoch, client.owned, client.assigned = 0, {}, {}

    def uses(self) -> Iterator[list[int]]:
        for client in self.clients:
            if isinstance(client, EagerConsumer):
                yield client.partitions
            else:
                yield [index for owned in client.owned.values() for index in owned]

    @invariant()
    def partition_has_one_user(self) -> None:
        used = [index for indexes in self.uses() for index in indexes]
        assert len(used) == len({*used}), [*self.uses()]


MixedGroupMachine.TestCase.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=20, deadline=None
)
test_mixed_groups_keep_their_properties = MixedGroupMachine.TestCase
