"""Groups that change between the classic and the consumer protocol, with members of both."""

from __future__ import annotations

from typing import Any

import pytest

from kafkalite.coordination.groups.classic.classic_group import ClassicGroup
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup
from kafkalite.coordination.groups.decision_draft import RETENTION
from kafkalite.protocol.schemas.consumer_protocol import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    read_versioned,
    write_versioned,
)
from tests.coordination.groups.consumer.test_consumer_group_properties import state_of
from tests.coordination.groups.consumers import ConsumerClient, settle
from tests.coordination.groups.harness import (
    REBALANCE_MS,
    SESSION_MS,
    Client,
    GroupHarness,
    GroupRequest,
)

POLICIES = ["bidirectional", "upgrade", "downgrade", "disabled"]


def metadata_of(*topics: str, owned: tuple[int, ...] = (), topic: str = "t") -> bytes:
    fields: dict[str, Any] = {
        "topics": [*topics],
        "owned_partitions": [{"topic": topic, "partitions": [*owned]}] if owned else [],
    }
    return write_versioned(CONSUMER_SUBSCRIPTION, 1, fields)


def assignment_of(*indexes: int, user_data: bytes | None = None) -> bytes:
    fields: dict[str, Any] = {
        "assigned_partitions": [{"topic": "t", "partitions": [*indexes]}],
        "user_data": user_data,
    }
    return write_versioned(CONSUMER_ASSIGNMENT, 1, fields)


class ClassicConsumer(Client):
    """A client of the classic protocol that revokes cooperatively."""

    def __init__(self, harness: GroupHarness, name: str, **options: Any) -> None:
        protocols = {"cooperative-sticky": metadata_of("t")}
        super().__init__(harness, name, protocols=protocols, **options)
        self.partitions: list[int] = []

    def rejoin(self) -> GroupRequest:
        """Join with the partitions that it owns."""
        self.protocols = {"cooperative-sticky": metadata_of("t", owned=tuple(self.partitions))}
        return self.join()

    def take_assignment(self) -> GroupRequest:
        synced = self.sync()
        if not synced.waits and synced.code == 0:
            decoded = read_versioned(CONSUMER_ASSIGNMENT, synced.assignment)
            self.partitions = sorted(
                index for each in decoded.assigned_partitions for index in each.partitions
            )
        return synced

    def step(self) -> int:
        """Send a heartbeat, and do what its response requires; return its error code."""
        code = self.beat().code
        if code == 25:
            self.member_id, self.partitions = "", []
        if code in (22, 25, 27):
            self.rejoin()
            if self.joined is not None and not self.joined.waits and self.joined.code == 0:
                self.take_assignment()
        return code


@pytest.fixture
def harness():
    return with_topic()


def with_topic(**limits: Any) -> GroupHarness:
    harness = GroupHarness(**limits)
    harness.topics.create("t", 4)
    return harness


def classic_pair(harness: GroupHarness, user_data: bytes | None = None) -> list[ClassicConsumer]:
    """Return two members of a stable classic group with two partitions each."""
    clients = [ClassicConsumer(harness, name) for name in "ab"]
    harness.joined(*clients)
    given = {
        clients[0].member_id: assignment_of(0, 1, user_data=user_data),
        clients[1].member_id: assignment_of(2, 3),
    }
    leader = next(client for client in clients if client.leads)
    for client in clients:
        if client is not leader:
            client.sync()
    assert leader.sync(given).code == 0
    clients[0].partitions, clients[1].partitions = [0, 1], [2, 3]
    return clients


def go_on(harness: GroupHarness, classic: list[ClassicConsumer], *new: ConsumerClient) -> None:
    """Have members of both kinds send heartbeats, and check that no partition has two users."""
    for _ in range(12):
        for client in [*classic, *new]:
            client.step()
            users = [index for each in classic for index in each.partitions]
            users += [index for each in new for owned in each.owned.values() for index in owned]
            assert len(users) == len({*users})
        harness.after(1_000)


def kind_of(harness: GroupHarness) -> type:
    return type(harness.machine.groups.get("g"))


def test_classic_group_is_upgraded_with_its_assignments(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    joined = new.join()
    assert (joined.code, new.epoch, new.partitions) == (0, classic[0].generation + 1, [])
    described = harness.described()
    assert [each["member_type"] for each in described["members"]] == [0, 0, 1]
    assert sorted(
        index
        for each in described["members"]
        for topic in each["assignment"]["topic_partitions"]
        for index in topic["partitions"]
    ) == [0, 1, 2, 3]
    go_on(harness, classic, new)
    sizes = sorted(len(each.partitions) for each in [*classic, new])
    assert sizes == [1, 1, 2]
    assert harness.machine.list()[0]["group_state"] == "Stable"
    assert classic[0].beat().code == 0


def test_protocols_of_classic_members_count_as_memory(harness):
    classic = ClassicConsumer(harness, "a")
    classic.protocols = {"cooperative-sticky": metadata_of("t"), "other": bytes(100_000)}
    harness.joined(classic)
    classic.sync({classic.member_id: assignment_of(0)})
    before = harness.machine.groups.size
    assert ConsumerClient(harness, "n", "t").join().code == 0
    assert harness.machine.groups.size > before


def test_upgrade_ignores_partitions_that_do_not_exist(harness):
    clients = [ClassicConsumer(harness, name) for name in "ab"]
    harness.joined(*clients)
    leader = next(client for client in clients if client.leads)
    given = {each.member_id: assignment_of(at, 9 + at, -9 - at) for at, each in enumerate(clients)}
    for client in clients:
        if client is not leader:
            client.sync()
    leader.sync(given)
    assert ConsumerClient(harness, "n", "t").join().code == 0
    members = harness.machine.groups.get("g").members
    assigned = [[*members[each.member_id].current.assigned.values()] for each in clients]
    assert [[[*indexes] for indexes in each] for each in assigned] == [[[0]], [[1]]]


def test_upgraded_group_survives_a_restart(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    before = harness.described()
    harness.restart()
    assert harness.described() == before
    go_on(harness, classic, new)
    assert harness.machine.list()[0]["group_state"] == "Stable"


@pytest.mark.parametrize("instance_id", [None, "i"])
def test_upgraded_group_is_as_its_records_restore_it(harness, instance_id):
    """The decision has made the group, so replaying its records does not apply them again."""
    classic = [ClassicConsumer(harness, "a", instance_id=instance_id)]
    classic.append(ClassicConsumer(harness, "b"))
    harness.joined(*classic)
    leader = next(client for client in classic if client.leads)
    for client in classic:
        if client is not leader:
            client.sync()
    leader.sync({each.member_id: assignment_of(2 * at) for at, each in enumerate(classic)})
    count = harness.machine.rebalance_count
    ConsumerClient(harness, "n", "t", instance_id=instance_id).join()
    group = harness.machine.groups.get("g")
    replayed = harness.replayed(harness.read_log())
    assert state_of(group) == state_of(replayed.groups.get("g"))
    assert harness.machine.groups.size == replayed.groups.size
    assert harness.machine.rebalance_count > count


def test_downgraded_group_is_as_its_record_restores_it(harness):
    """The decision has made the group, so replaying its records does not apply them one by one."""
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    new.leave()
    group = harness.machine.groups.get("g")
    replayed = harness.replayed(harness.read_log())
    replayed.loaded(0)
    again = replayed.groups.get("g")
    assert (group.recorded, group.since_ms) == (again.recorded, again.since_ms)
    assert group.describe() == again.describe()
    assert group.generation.generation_id == again.generation.generation_id
    assert [each.member_id for each in group.members] == [each.member_id for each in again.members]


def test_downgrade_that_cannot_be_written_leaves_the_group(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    before = harness.described()
    harness.writable = False
    assert new.leave().code == 56
    harness.writable = True
    assert kind_of(harness) is ConsumerGroup
    assert harness.described() == before
    assert classic[0].beat().code == 0
    new.leave()
    assert kind_of(harness) is ClassicGroup


def test_leaving_member_may_be_the_first_of_a_downgraded_group(harness):
    """Its own tombstones, before those of the group, are not the group's."""
    new = ConsumerClient(harness, "n", "t")
    new.join()
    classic = ClassicConsumer(harness, "a")
    classic.join()
    classic.take_assignment()
    go_on(harness, [classic], new)
    assert next(iter(harness.machine.groups.get("g").members)) == "n"
    new.leave()
    assert kind_of(harness) is ClassicGroup
    assert harness.member_ids() == [classic.member_id]


def test_waiting_members_of_an_upgraded_group_get_rebalance_in_progress(harness):
    classic = classic_pair(harness)
    late = ClassicConsumer(harness, "late")
    waiting = late.join()
    assert waiting.waits
    assert ConsumerClient(harness, "n", "t").join().code == 0
    assert waiting.code == 27
    assert classic[0].beat().code == 27


def test_classic_group_is_upgraded_in_its_first_rebalance():
    """Before its first generation, a group has generation 0 and no assignments."""
    harness = with_topic(initial_rebalance_delay_ms=3_000)
    classic = [ClassicConsumer(harness, name) for name in "ab"]
    waiting = [client.join() for client in classic]
    assert all(each.waits for each in waiting)
    assert harness.machine.groups.get("g").generation.generation_id == 0
    new = ConsumerClient(harness, "n", "t")
    assert new.join().code == 0
    assert [each.code for each in waiting] == [27, 27]
    assert kind_of(harness) is ConsumerGroup
    assert (new.epoch, len(new.partitions)) == (1, 1)
    before = harness.described()
    assert [each["member_epoch"] for each in before["members"]] == [0, 0, 1]
    harness.restart()
    assert harness.described() == before
    for client in classic:
        client.rejoin()
        client.take_assignment()
    go_on(harness, classic, new)
    assert harness.machine.list()[0]["group_state"] == "Stable"
    assert sorted([*classic[0].partitions, *classic[1].partitions, *new.partitions]) == [0, 1, 2, 3]


def test_refused_upgrade_leaves_waiting_members_waiting(harness):
    classic_pair(harness, user_data=b"state")
    waiting = ClassicConsumer(harness, "late").join()
    assert ConsumerClient(harness, "n", "t").join().code == 69
    assert waiting.waits
    assert kind_of(harness) is ClassicGroup


def test_group_that_does_not_decode_is_not_upgraded(harness):
    harness.stable(harness.client(group_id="g", protocols={"range": b"\xff"}))
    assert ConsumerClient(harness, "n", "t").join().code == 69
    harness.stable(harness.client(group_id="h", protocol_type="connect"))
    assert ConsumerClient(harness, "n", "t", group_id="h").join().code == 69


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_decides_on_upgrade(policy):
    harness = with_topic(migration_policy=policy)
    classic_pair(harness)
    code = ConsumerClient(harness, "n", "t").join().code
    assert code == (0 if policy in ("bidirectional", "upgrade") else 69)


@pytest.mark.parametrize("policy", POLICIES)
def test_policy_decides_on_downgrade(harness, policy):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    harness.machine.limits = harness.machine.limits._replace(migration_policy=policy)
    new.leave()
    is_classic = policy in ("bidirectional", "downgrade")
    assert kind_of(harness) is (ClassicGroup if is_classic else ConsumerGroup)
    joined = ClassicConsumer(harness, "c").send_join()
    assert joined.code == (23 if policy == "disabled" else 79)


def test_downgraded_group_rebalances_with_its_members(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    epoch = harness.described()["group_epoch"]
    new.leave()
    harness.after(0)
    assert harness.state("g") == "PreparingRebalance"
    for client in classic:
        client.rejoin()
    assert classic[0].generation == epoch + 1
    harness.sync(*classic)
    assert harness.state("g") == "Stable"
    harness.restart()
    assert harness.state("g") == "Stable"
    assert [each["group_type"] for each in harness.machine.list()] == ["classic"]


def test_last_consumer_member_that_expires_downgrades(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    for _ in range(12):
        harness.after(SESSION_MS // 2)
        for client in classic:
            client.step()
    assert kind_of(harness) is ClassicGroup


def test_static_classic_member_replaces_the_last_consumer_member(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t", instance_id="i")
    new.join()
    go_on(harness, classic, new)
    again = ClassicConsumer(harness, "c", instance_id="i")
    assert again.send_join().code == 27
    harness.after(0)
    assert kind_of(harness) is ClassicGroup
    assert harness.state("g") == "PreparingRebalance"
    assert again.send_join().waits
    assert harness.replayed(harness.read_log()).groups.get("g").recorded is not None


def test_static_consumer_member_replaces_a_classic_one(harness):
    classic = [ClassicConsumer(harness, "a", instance_id="i"), ClassicConsumer(harness, "b")]
    harness.joined(*classic)
    leader = next(client for client in classic if client.leads)
    for client in classic:
        if client is not leader:
            client.sync()
    leader.sync({
        classic[0].member_id: assignment_of(0, 1),
        classic[1].member_id: assignment_of(2, 3),
    })  # fmt: skip
    classic[1].partitions = [2, 3]
    new = ConsumerClient(harness, "n", "t", instance_id="i")
    assert new.join().code == 0
    assert new.partitions == [0, 1]
    go_on(harness, classic[1:], new)
    assert (new.partitions, classic[1].partitions) == ([0, 1], [2, 3])


def test_classic_member_leaves_a_consumer_group(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    left = harness.leave("g", (classic[0].member_id, None), ("unknown", None), ("n", None))
    assert [each["error_code"] for each in left.members] == [0, 25, 25]
    go_on(harness, classic[1:], new)
    assert sorted(classic[1].partitions + new.partitions) == [0, 1, 2, 3]


def test_classic_member_that_does_not_rejoin_is_fenced(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    for _ in range(30):
        harness.after(3_000)
        classic[0].beat()
        classic[1].step()
        new.step()
    assert classic[0].beat().code == 25
    assert sorted(classic[1].partitions + new.partitions) == [0, 1, 2, 3]


def test_classic_member_that_uses_the_other_protocol_need_not_rejoin(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    assert classic[0].beat().code == 27
    other = ConsumerClient(harness, classic[0].member_id, "t")
    other.join()
    for _ in range(REBALANCE_MS // 5_000 + 2):
        classic[1].step()
        new.step()
        assert other.step().code == 0
        harness.after(5_000)


def test_classic_requests_of_a_consumer_group_are_checked(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    a = classic[0]
    assert a.beat(generation=a.generation - 1).code == 22
    assert a.sync(generation=a.generation + 1).code == 22
    assert a.sync(protocol_name="range").code == 23
    a.joined.response["member_id"] = "n"
    assert a.beat().code == 25
    other = ClassicConsumer(harness, "o")
    other.protocols = {"range": metadata_of("t")}
    assert other.send_join().code == 23
    other.protocols = {"cooperative-sticky": b"\xff"}
    other.member_id = "o"
    other.protocols = {"cooperative-sticky": metadata_of(*map(str, range(10_001)))}
    assert other.send_join().code == 23
    assert other.send_join().code == 23
    other.member_id = "o" * 32_768
    assert other.send_join().code == 42
    other.protocol_type, other.member_id = "connect", "o"
    assert other.send_join().code == 23


class UnlistedMembers(dict[str, Any]):
    """Members that are found by their id only."""

    def values(self) -> Any:
        raise AssertionError("the work of this request grows with the group")


def test_topic_grows_in_a_group_that_only_classic_members_are_left_in():
    harness = with_topic(migration_policy="upgrade")
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    new.leave()
    go_on(harness, classic)
    harness.topics.grow("t", 6)
    harness.machine.topics_changed(["t"])
    go_on(harness, classic)
    assert kind_of(harness) is ConsumerGroup
    assert sorted(classic[0].partitions + classic[1].partitions) == [*range(6)]


def test_classic_member_joins_without_a_look_at_all_others(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    group = harness.machine.groups.get("g")
    group.members = UnlistedMembers(group.members)
    assert classic[0].rejoin().code == 0
    classic[0].protocols = {"range": metadata_of("t")}
    assert classic[0].send_join().code == 23


def test_empty_groups_change_their_type(harness):
    new = ConsumerClient(harness, "n", "t")
    new.join()
    new.leave()
    classic = ClassicConsumer(harness, "a")
    harness.stable(classic)
    assert [each["group_type"] for each in harness.machine.list()] == ["classic"]
    classic.leave()
    harness.restart()
    assert kind_of(harness) is ClassicGroup
    settle(new)
    assert new.partitions == [0, 1, 2, 3]
    harness.restart()
    assert kind_of(harness) is ConsumerGroup
    assert [each["group_type"] for each in harness.machine.list()] == ["consumer"]


def test_upgrade_that_cannot_be_written_leaves_the_classic_group_as_it_was():
    harness = with_topic(initial_rebalance_delay_ms=3_000)
    classic = ClassicConsumer(harness, "a")
    waiting = classic.join()
    harness.writable = False
    assert ConsumerClient(harness, "n", "t").join().code == 56
    harness.writable = True
    harness.after(0)
    assert waiting.code == 16
    again = classic.join()
    harness.after(SESSION_MS)
    assert again.code == 0


def test_downgrade_ends_the_deadlines_of_classic_members(harness):
    classic = classic_pair(harness)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    go_on(harness, classic, new)
    harness.topics.grow("t", 5)
    harness.machine.topics_changed(["t"])
    new.step()
    late, other = classic
    assert late.beat().code == 27
    for _ in range(10):
        harness.after(SESSION_MS // 2)
        late.beat()
        other.step()
        new.step()
    new.leave()
    harness.after(0)
    waiting = late.rejoin()
    for _ in range(4):
        harness.after(SESSION_MS // 2)
        assert other.beat().code == 27
    assert waiting.waits


def test_classic_join_that_cannot_be_written_leaves_the_empty_consumer_group(harness):
    new = ConsumerClient(harness, "n", "t")
    new.join()
    new.leave()
    before = harness.described()
    classic = ClassicConsumer(harness, "c")
    harness.writable = False
    classic.send_join()
    harness.after(1)
    assert harness.described() == before
    assert harness.machine.groups.size == harness.machine.groups.get("g").size
    harness.writable = True
    assert new.join().code == 0
    assert harness.described()["group_epoch"] == before["group_epoch"] + 1


@pytest.mark.parametrize("instance_id", [None, "i"])
def test_waiting_join_that_cannot_be_written_leaves_no_state(instance_id):
    harness = with_topic(initial_rebalance_delay_ms=3_000)
    new = ConsumerClient(harness, "n", "t")
    new.join()
    new.leave()
    harness.after(REBALANCE_MS)
    # The oldest version joins without a member id, and waits for the initial delay.
    classic = ClassicConsumer(
        harness, "c", instance_id=instance_id, version=0 if instance_id is None else 9
    )
    harness.writable = False
    for _ in range(3):
        assert not classic.send_join().waits
    harness.after(1)
    machine = harness.machine
    assert machine._waiting == {}
    assert {due.kind for due in machine._deadlines._due_ms} == {RETENTION}
    harness.writable = True
    classic.send_join()
    harness.after(3_000)
    assert classic.joined.code == 0
