"""Consumer groups under any sequence of events, against what clients see.

P1    no partition is used by two members at any time
P2    a settled group has assigned every partition of the subscribed topics
P6    epochs do not fall; a target is for a group epoch that was
P7    replay gives the same state, also of the last record of each key alone
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kafkalite.coordination.groups.consumer import group_change, target_updates
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.protocol.schemas import group_records
from tests.coordination.groups.consumers import ConsumerClient, settle
from tests.coordination.groups.harness import GroupHarness

NAMES = ["a", "b", "c", "d"]
TOPICS = ["t", "u"]
CLIENTS = st.sampled_from(range(len(NAMES)))


def state_of(group: ConsumerGroup) -> dict[str, Any]:
    """Return all of a group's kept state and its indexes."""
    state = dict(vars(group))
    del state["is_metadata_current"], state["_members_size"]
    return {**state, "state": group.state, "size": group.size}


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Clients that obey the protocol, with losses; some requests and writes fail."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = GroupHarness()
        self.harness.settings = ConsumerGroupSettings(session_timeout_ms=10_000)
        self.harness.topics.create("t", 3)
        self.serial = 0
        self.clients = [self.client(name) for name in NAMES]
        self.epochs = (0, 0)
        self.group_epochs = {1}
        self.checked = 0

    def client(self, name: str, *topics: str) -> ConsumerClient:
        self.serial += 1
        static = {"instance_id": name} if name in "ab" else {}
        return ConsumerClient(
            self.harness, f"{name}{self.serial}", *(topics or "t"), rebalance_ms=5_000, **static
        )

    @rule(at=CLIENTS)
    def step(self, at: int) -> None:
        self.clients[at].step()
        self.clients[at].acquire_early()

    @rule(at=CLIENTS)
    def beat_before_revoking(self, at: int) -> None:
        if self.clients[at].epoch:
            self.clients[at].beat()
            self.clients[at].acquire_early()

    @rule(at=CLIENTS, has_owned=st.booleans())
    def lose_response(self, at: int, has_owned: bool) -> None:
        client = self.clients[at]
        if client.epoch:
            client.lose_response(has_owned=has_owned)

    @rule(at=CLIENTS, topics=st.lists(st.sampled_from(TOPICS), unique=True))
    def subscribe(self, at: int, topics: list[str]) -> None:
        client = self.clients[at]
        client.topics = topics
        if client.epoch:
            client.beat(subscribed_topic_names=topics)

    @rule(at=CLIENTS, epoch=st.sampled_from([-1, -2]))
    def leave(self, at: int, epoch: int) -> None:
        client = self.clients[at]
        if client.epoch:
            client.leave(epoch=-1 if client.instance_id is None else epoch)
            self.clients[at] = self.client(NAMES[at], *client.topics)

    @rule(at=CLIENTS)
    def crash(self, at: int) -> None:
        """End a client without a leave: it uses nothing, the coordinator learns it later."""
        self.clients[at] = self.client(NAMES[at], *self.clients[at].topics)

    @rule(name=st.sampled_from(TOPICS), partition_count=st.integers(1, 6))
    def create_topic(self, name: str, partition_count: int) -> None:
        self.harness.topics.create(name, partition_count)
        self.harness.machine.topics_changed([name])

    @precondition(lambda self: self.harness.topics.topic("t"))
    @rule(more=st.integers(1, 3))
    def grow_topic(self, more: int) -> None:
        topic = self.harness.topics.topic("t")
        self.harness.topics.grow("t", topic.partition_count + more)
        self.harness.machine.topics_changed(["t"])

    @rule(name=st.sampled_from(TOPICS))
    def delete_topic(self, name: str) -> None:
        if self.harness.topics.topic(name):
            self.harness.topics.delete(name)
            self.harness.machine.topics_changed([name])

    @rule(wait_ms=st.sampled_from([10, 1_000, 5_000]))
    def wait(self, wait_ms: int) -> None:
        self.harness.after(wait_ms)
        self.fence_expired()

    def fence_expired(self) -> None:
        """Have clients stop that have not heard from the coordinator for a session timeout."""
        group = self.group
        for client in self.clients:
            if group is None or client.name not in group.members:
                client.owned, client.assigned, client.epoch = {}, {}, 0

    @rule()
    def restart(self) -> None:
        self.harness.restart()

    @rule(at=CLIENTS)
    def fail_to_write(self, at: int) -> None:
        self.harness.writable = False
        client = self.clients[at]
        if client.epoch:
            client.lose_response()
        self.harness.writable = True

    @rule()
    def settle(self) -> None:
        """P2."""
        self.harness.after(0)
        for _ in range(3):  # clients that crashed expire meanwhile
            self.harness.after(4_000)
            for client in self.clients:
                client.step()
        self.fence_expired()
        settle(*self.clients, rounds=60)
        topics = {name: self.harness.topics.topic(name) for name in TOPICS}
        subscribed = {name for client in self.clients for name in client.topics}
        expected = {
            (topic.topic_id, index)
            for name, topic in topics.items()
            if topic is not None and name in subscribed
            for index in range(topic.partition_count)
        }
        used = [
            (topic_id, index)
            for client in self.clients
            for topic_id, indexes in client.owned.items()
            for index in indexes
        ]
        assert sorted(used) == sorted(expected)
        assert self.group is not None
        assert self.group.state == "Stable"
        for member_id, member in self.group.members.items():
            assigned = {key: {*each} for key, each in member.current.assigned.items()}
            target = {key: {*each} for key, each in self.group.target[member_id].items()}
            assert assigned == target

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.harness.machine.groups.get("g")
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    @invariant()
    def partition_has_one_user(self) -> None:
        """P1: a client uses what it owns."""
        users: dict[tuple[bytes, int], str] = {}
        for client in self.clients:
            for topic_id, indexes in client.owned.items():
                for index in indexes:
                    other = users.setdefault((topic_id, index), client.name)
                    assert other == client.name, f"{client.name} and {other} use {index}"

    @invariant()
    def epochs_do_not_fall(self) -> None:
        """P6."""
        for entry in self.harness.log[self.checked :]:
            record = group_records.read(*entry)
            assert record is not None
            if record.kind == group_records.CONSUMER_FORMATS[0].kind and record.value is not None:
                assert record.value["epoch"] > max(self.group_epochs)
                self.group_epochs.add(record.value["epoch"])
        self.checked = len(self.harness.log)
        if self.group is not None:
            epochs = self.group.epoch, self.group.assignment_epoch
            assert epochs >= self.epochs
            assert epochs[1] in self.group_epochs
            self.epochs = epochs

    @invariant()
    def replay_gives_the_state(self) -> None:
        """P7."""
        if self.group is None:
            return
        last = {key: at for at, (key, _) in enumerate(self.harness.log)}
        compacted = [
            group_records.read(*self.harness.log[at])
            for at in sorted(last.values())
            if self.harness.log[at][1] is not None
        ]
        for records in (self.harness.read_log(), compacted):
            replayed = self.harness.replayed(records).groups.get("g")
            assert isinstance(replayed, ConsumerGroup)
            assert state_of(replayed) == state_of(self.group)


class LargeGroupMachine(ConsumerGroupMachine):
    """Each target is computed and written in ticks of one member or partition."""

    def __init__(self) -> None:
        self.patches = [
            mock.patch.object(group_change, "INLINE_SIZE_MAX", 0),
            mock.patch.object(target_updates, "STEP_COST", 1),
        ]
        for patch in self.patches:
            patch.start()
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for patch in self.patches:
                patch.stop()

    @rule()
    def tick(self) -> None:
        self.harness.after(1)


LargeGroupMachine.TestCase.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
test_large_groups_keep_their_properties = LargeGroupMachine.TestCase

ConsumerGroupMachine.TestCase.settings = hypothesis_settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
test_consumer_groups_keep_their_properties = ConsumerGroupMachine.TestCase
