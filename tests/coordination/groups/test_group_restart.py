"""State of groups after a restart, and bounds on the state that a client can cause."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups import decision_draft, group_coordinator, group_table
from kafkalite.protocol.schemas.group_records import group_record
from tests.coordination.groups.harness import (
    CHECK_MS,
    REBALANCE_MS,
    RETENTION_MS,
    SESSION_MS,
    GroupHarness,
    subscription,
)

NONE, INVALID_GROUP_ID, UNKNOWN_MEMBER, INVALID_REQUEST, MAX_SIZE_REACHED = 0, 24, 25, 42, 81
ILLEGAL_GENERATION, FENCED, REBALANCE_IN_PROGRESS, METADATA_TOO_LARGE = 22, 82, 27, 12


@pytest.fixture
def harness():
    return GroupHarness()


# -- after a restart -----------------------------------------------------------------------------


def test_generation_is_kept_for_members_that_return_in_time(harness):
    first, second = harness.client("a"), harness.client("b", instance_id="i")
    harness.stable(first, second)
    first.commit(7)
    before = harness.machine.describe("g", 6)
    harness.after(SESSION_MS - 1)
    harness.restart()
    assert harness.machine.describe("g", 6) == before
    harness.after(SESSION_MS - 1)
    assert (first.beat().code, second.beat().code) == (NONE, NONE)
    assert first.commit(8).code == NONE
    assert second.sync().assignment == b"b"
    assert harness.offsets("g") == {("t", 0): 8}


def test_members_that_do_not_return_in_time_are_removed(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    harness.restart()
    harness.after(SESSION_MS - 1)
    first.beat()
    harness.after(1)
    assert harness.member_ids() == ["a-1"]
    assert first.beat().code == REBALANCE_IN_PROGRESS


def test_generation_without_assignment_is_not_restored(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    second.join()
    assert first.join().generation_id == 2
    harness.restart()
    assert harness.state() == "Stable"
    assert first.beat().code == ILLEGAL_GENERATION
    assert second.sync().code == UNKNOWN_MEMBER
    second.member_id = ""
    second.join()
    assert first.join().generation_id == second.joined.generation_id == 2
    harness.sync(first, second)


def test_replaced_static_member_is_fenced_after_a_restart(harness):
    first, second = harness.client("a"), harness.client("b", instance_id="i")
    harness.stable(first, second)
    again = harness.client("b", instance_id="i")
    again.join()
    harness.restart()
    assert second.beat().code == FENCED
    assert again.beat().code == NONE
    assert again.sync().assignment == b"b"


def test_pending_member_id_is_unknown_after_a_restart(harness):
    client = harness.client()
    client.member_id = client.send_join().member_id
    harness.restart()
    assert client.send_join().code == UNKNOWN_MEMBER


def test_empty_group_keeps_its_generation_count(harness):
    client = harness.client()
    harness.stable(client)
    client.leave()
    harness.restart()
    assert harness.state() == "Empty"
    assert harness.machine.list()[0]["protocol_type"] == "consumer"
    client.member_id = ""
    assert client.join().generation_id == 3


def test_restart_does_not_extend_the_offsets_retention(harness):
    client = harness.client()
    harness.stable(client)
    client.commit(7)
    client.leave()
    harness.after(RETENTION_MS // 2)
    harness.restart()
    harness.after(RETENTION_MS // 2 + CHECK_MS)
    assert harness.offsets("g") == {}
    assert harness.machine.list() == []


def test_deleted_group_stays_deleted(harness):
    harness.commit("g", {("t", 0): 1})
    client = harness.client()
    harness.stable(client)
    client.leave()
    harness.delete_groups("g")
    harness.restart()
    assert harness.machine.list() == []
    assert harness.offsets("g") == {}


def test_lowered_group_size_removes_the_last_members(harness):
    first, second, third = clients = [harness.client(name) for name in "abc"]
    harness.stable(*clients)
    harness.limits = harness.limits._replace(max_size=2)
    harness.restart()
    assert harness.state() == "PreparingRebalance"
    assert [client.join().waits for client in (first, second)] == [True, True]
    assert third.join().code == MAX_SIZE_REACHED
    assert [client.joined.code for client in (first, second)] == [NONE, NONE]


def test_unexpected_record_is_recorded_without_effect(harness):
    client = harness.client()
    harness.stable(client)
    value = harness.machine.groups.classic("g").recorded
    harness.machine.replay(group_record("g", {**value, "generation": 9, "members": []}))
    assert harness.state() == "Stable"
    assert client.beat().code == NONE


@pytest.mark.parametrize(
    "changed",
    [
        {"generation": -5},
        {"leader": "nobody"},
        {"leader": None},
        {"protocol": None},
        {"protocol_type": ""},
        {"current_state_timestamp": -1},
        {"members": "twice"},
        {"members": "timeouts"},
    ],
    ids=str,
)
def test_unexpected_record_values_restore_a_usable_group(harness, changed):
    first, second = harness.client("a"), harness.client("b", instance_id="i")
    harness.stable(first, second)
    value = harness.machine.groups.classic("g").recorded
    if changed.get("members") == "twice":
        changed = {"members": [*value["members"], *value["members"]]}
    elif changed.get("members") == "timeouts":
        odd = {"session_timeout": -1, "rebalance_timeout": -1}
        changed = {"members": [{**each, **odd} for each in value["members"]]}
    result = group_coordinator.DecisionResult([], [group_record("g", {**value, **changed})])
    harness.take(result)
    harness.restart()
    assert len(harness.member_ids()) == 2
    harness.client("c").join()
    harness.after(REBALANCE_MS)
    harness.after(REBALANCE_MS)
    harness.after(REBALANCE_MS)
    assert harness.state() in ("Empty", "CompletingRebalance", "Stable", "Dead")


# -- invalid requests and bounds -----------------------------------------------------------------


def test_member_metadata_of_all_groups_is_bounded(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 10_000_000)
    big = {"range": bytes(1_000_000)}
    clients = [harness.client(f"c{at}", group_id=f"g{at}", protocols=big) for at in range(8)]
    codes = [client.join().code for client in clients]
    assert codes == [NONE] * 4 + [MAX_SIZE_REACHED] * 4
    assert harness.client("small", group_id="small").join().code == NONE
    clients[0].leave()
    assert clients[-1].join().code == NONE


def test_member_of_a_full_coordinator_may_rejoin_unchanged(harness, monkeypatch):
    first = harness.client("a", protocols={"range": bytes(1_000_000)})
    second = harness.client("b", protocols={"range": bytes(10)}, instance_id="i")
    harness.stable(first, second)
    monkeypatch.setattr(group_table, "SIZE_MAX", 0)
    assert first.join().waits
    second.member_id = ""
    assert second.join().code == NONE
    assert first.joined.code == NONE
    harness.sync(first, second)
    assert harness.client("c").send_join().code == MAX_SIZE_REACHED


def test_assignments_count_towards_the_memory_limit(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 10_000_000)
    client = harness.client()
    harness.joined(client)
    assert client.sync({client.member_id: bytes(6_000_000)}).code == MAX_SIZE_REACHED
    assert client.sync({client.member_id: bytes(4_000_000)}).code == NONE
    other = harness.client("b", group_id="b", protocols={"range": bytes(2_000_000)})
    assert other.send_join().code == MAX_SIZE_REACHED


def test_pending_ids_and_groups_count_towards_the_memory_limit(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 100_000)
    codes = [harness.client(group_id=f"g{at}").send_join().code for at in range(100)]
    assert codes[0] == 79
    assert codes[-1] == MAX_SIZE_REACHED
    harness.after(SESSION_MS)
    assert harness.machine.groups.size == 0
    codes = [harness.client().send_join().code for _ in range(300)]
    assert codes[-1] == MAX_SIZE_REACHED
    harness.after(SESSION_MS)
    assert harness.machine.groups.size == 0


def test_group_names_count_towards_the_memory_limit(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 100_000)
    codes = [harness.client(group_id=f"{at}" + "g" * 20_000).send_join().code for at in range(8)]
    assert codes == [79] * 5 + [MAX_SIZE_REACHED] * 3


def test_protocols_count_towards_the_memory_limit(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 500_000)
    many = {f"p{at}": b"" for at in range(750)}
    assert harness.client("a", group_id="a", protocols=many).join().code == NONE
    assert harness.client("b", group_id="b", protocols=many).join().code == MAX_SIZE_REACHED


def test_empty_member_counts_towards_the_memory_limit(harness, monkeypatch):
    monkeypatch.setattr(group_table, "SIZE_MAX", 100_000)
    mute = {"range": b""}
    codes = [harness.client(protocols=mute).send_join().code for _ in range(300)]
    assert codes[-1] == MAX_SIZE_REACHED


def test_deleted_groups_leave_no_state(harness):
    for round_ in range(3):
        clients = [harness.client(name, instance_id=f"i{name}") for name in "abcd"]
        harness.stable(*clients)
        clients[0].join()
        harness.machine.drop_token(clients[0].joined)
        clients[1].send_join()
        harness.leave("g", *((client.member_id, None) for client in clients))
        harness.delete_groups("g")
        harness.after(SESSION_MS + round_)
        machine = harness.machine
        assert (machine.groups.size, machine.groups._sizes, len(machine.groups)) == (0, {}, 0)
        assert machine._waiting == {}
    harness.after(REBALANCE_MS)
    assert [due.kind for due in harness.machine._deadlines._due_ms] == [decision_draft.RETENTION]


LONG = "é" * 20_000
"""Fewer characters, but more bytes, than a record's text may have."""


def test_names_longer_than_a_record_allows_are_refused(harness):
    assert harness.client(group_id=LONG).send_join().code == INVALID_REQUEST
    assert harness.client(instance_id=LONG).send_join().code == INVALID_REQUEST
    assert harness.client(protocol_type=LONG).send_join().code == INVALID_REQUEST
    assert harness.client(protocols={LONG: b""}).send_join().code == INVALID_REQUEST
    assert harness.commit(LONG, {("t", 0): 1}).code == INVALID_REQUEST
    harness.machine.limits = harness.limits._replace(metadata_size_max=1 << 30)
    assert harness.commit("g", {("t", 0): 1}, metadata=LONG).code == METADATA_TOO_LARGE
    assert harness.machine.list() == []


def test_long_client_id_makes_a_bounded_member_id(harness):
    client = harness.client("é" * 16_000)
    harness.stable(client)
    assert len(client.member_id) < 300
    harness.restart()
    assert client.beat().code == NONE


def test_member_metadata_of_one_mebibyte_is_accepted(harness):
    clients = [
        harness.client(name, protocols={"range": subscription("t", rest=bytes(1 << 20))})
        for name in "ab"
    ]
    harness.stable(*clients)
    assert len(clients[0].joined.members[1]["metadata"]) > 1 << 20
    harness.restart()
    assert clients[1].beat().code == NONE
