"""Heartbeats, leaving, and static members, which may be absent for a while."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.classic.initial_rebalance import STATIC_GATHER_MS
from tests.coordination.groups.harness import REBALANCE_MS, SESSION_MS, GroupHarness, subscription

NONE, COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE_IN_PROGRESS = 0, 16, 22, 25, 27
FENCED, MAX_SIZE_REACHED = 82, 81


@pytest.fixture
def harness():
    return GroupHarness()


def written(harness):
    """Return generation and member ids of the group's last record."""
    value = [record for record in harness.read_log() if record.kind == "GroupMetadata"][-1].value
    return value["generation"], [each["member_id"] for each in value["members"]]


# -- heartbeats ----------------------------------------------------------------------------------


def test_member_without_heartbeats_expires(harness):
    first, second = harness.client("a", session_ms=1_000_000), harness.client("b")
    harness.stable(first, second)
    harness.after(SESSION_MS - 1)
    assert harness.state() == "Stable"
    harness.after(1)
    assert harness.state() == "PreparingRebalance"
    assert harness.member_ids() == ["a-1"]
    assert second.beat().code == UNKNOWN_MEMBER


def test_heartbeat_extends_the_session(harness):
    client = harness.client()
    harness.stable(client)
    for _ in range(5):
        harness.after(SESSION_MS - 1)
        assert client.beat().code == NONE
    assert harness.state() == "Stable"


def test_commit_extends_the_session(harness):
    client = harness.client()
    harness.stable(client)
    for offset in range(5):
        harness.after(SESSION_MS - 1)
        assert client.commit(offset).code == NONE
    assert harness.state() == "Stable"


def test_refused_heartbeat_does_not_extend_the_session(harness):
    client = harness.client()
    harness.stable(client)
    harness.after(SESSION_MS - 1)
    assert client.beat(generation=7).code == ILLEGAL_GENERATION
    harness.after(1)
    assert harness.state() == "Empty"


def test_heartbeat_between_join_and_sync_extends_the_session(harness):
    client = harness.client()
    harness.joined(client)
    harness.after(SESSION_MS - 1)
    assert client.beat().code == NONE
    harness.after(SESSION_MS - 1)
    assert harness.state() == "CompletingRebalance"


def test_expiry_of_the_last_member_records_an_empty_group(harness):
    client = harness.client()
    harness.stable(client)
    harness.after(SESSION_MS)
    assert harness.state() == "Empty"
    assert written(harness) == (2, [])


def test_member_waiting_in_sync_needs_no_heartbeats(harness):
    first, second = harness.client("a", session_ms=1_000_000), harness.client("b")
    harness.joined(first, second)
    waiting = second.sync()
    harness.after(3 * SESSION_MS)
    assert waiting.waits
    first.sync({second.member_id: b"two"})
    harness.after(SESSION_MS - 1)
    assert second.beat().code == NONE


# -- leaving -------------------------------------------------------------------------------------


def test_leaving_member_is_removed_at_once(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    assert second.leave().members == [
        {"member_id": "b-2", "group_instance_id": None, "error_code": NONE}
    ]
    assert first.beat().code == REBALANCE_IN_PROGRESS
    again = first.join()
    assert [each["member_id"] for each in again.members] == ["a-1"]


def test_leave_of_the_leader_elects_another(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    first.leave()
    again = second.join()
    assert again.leader == "b-2"
    assert len(again.members) == 1


def test_leave_of_the_last_member_empties_the_group(harness):
    client = harness.client()
    harness.stable(client)
    client.leave()
    assert harness.state() == "Empty"
    assert written(harness) == (2, [])
    client.member_id = ""
    assert client.join().generation_id == 3


def test_leave_of_several_members_has_a_result_for_each(harness):
    first, second, third = (harness.client(name) for name in "abc")
    harness.stable(first, second, third)
    asked = harness.leave("g", ("a-1", None), ("nobody", None), ("c-3", "no-instance"), ("", None))
    assert [each["error_code"] for each in asked.members] == [NONE] + [UNKNOWN_MEMBER] * 3
    assert harness.member_ids() == ["b-2", "c-3"]


def test_leave_of_an_unknown_group_has_a_result_for_each_member(harness):
    asked = harness.leave("nowhere", ("a", None))
    assert asked.code == NONE
    assert [each["error_code"] for each in asked.members] == [UNKNOWN_MEMBER]
    assert harness.machine.list() == []


def test_leave_of_an_unknown_member_has_no_effect(harness):
    client = harness.client("a")
    harness.stable(client)
    other = harness.client("b").send_join()
    harness.leave("g", (other.member_id, None), ("nobody", None))
    assert harness.state() == "Stable"


def test_leave_of_a_pending_member_completes_the_rebalance(harness):
    first = harness.client("a")
    harness.stable(first)
    given = harness.client("b").send_join().member_id
    waiting = harness.client("c").join()
    assert first.join().waits and waiting.waits
    harness.leave("g", (given, None))
    assert waiting.code == NONE


def test_member_that_leaves_while_waiting_gets_an_error(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    waiting = first.join()
    first.leave()
    assert waiting.code == UNKNOWN_MEMBER
    harness.joined(second)
    syncing = harness.client("c")
    harness.joined(second, syncing)
    waiting = syncing.sync()
    syncing.leave()
    assert waiting.code == UNKNOWN_MEMBER


def test_member_waiting_for_sync_must_rejoin_when_another_leaves(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    waiting = second.sync()
    first.leave()
    assert waiting.code == REBALANCE_IN_PROGRESS


# -- static members ------------------------------------------------------------------------------


def static(harness, name="a", **options):
    return harness.client(name, instance_id=f"i-{name}", **options)


def test_static_member_joins_without_member_id(harness):
    asked = static(harness).send_join()
    harness.after(STATIC_GATHER_MS)
    assert (asked.code, asked.member_id) == (NONE, "i-a-1")


def test_returning_static_member_keeps_its_assignment_without_rebalance(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    again = static(harness, "b")
    asked = again.join()
    assert (asked.code, asked.generation_id, asked.leader) == (NONE, 1, first.member_id)
    assert asked.member_id != second.member_id
    assert again.sync().assignment == b"b"
    assert first.beat().code == NONE
    assert harness.state() == "Stable"
    assert written(harness) == (1, [first.member_id, asked.member_id])


def test_replaced_static_member_is_fenced(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    static(harness, "b").join()
    assert second.beat().code == FENCED
    assert second.commit(1).code == FENCED
    assert second.sync().code == FENCED
    assert second.send_join().code == FENCED
    assert second.leave().members[0]["error_code"] == FENCED
    assert harness.offsets("g") == {}


def test_waiting_join_of_a_replaced_static_member_is_fenced(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    waiting = first.join()
    old_id = first.member_id
    again = static(harness, "a")
    assert again.join().waits
    assert (waiting.code, waiting.member_id) == (FENCED, old_id)
    second.join()
    assert again.joined.code == NONE
    assert harness.machine.describe("g", 5)["members"][1]["group_instance_id"] == "i-a"


def test_returning_static_leader_skips_the_assignment(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = static(harness, "a").join()
    assert asked.skip_assignment
    assert asked.leader == asked.member_id
    assert len(asked.members) == 2


def test_returning_static_leader_of_old_version_is_a_follower(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = static(harness, "a", version=8).join()
    assert not asked.skip_assignment
    assert asked.leader == first.member_id != asked.member_id
    assert asked.members == []


def test_returning_static_member_may_change_its_subscription(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    second = static(harness, "b", protocols={"range": subscription("else")})
    assert second.join().generation_id == 1
    assert harness.state() == "Stable"


def test_returning_static_member_with_another_protocol_rebalances(harness):
    both = {"range": b"", "sticky": b""}
    first, second = static(harness, "a", protocols=both), static(harness, "b", protocols=both)
    harness.stable(first, second)
    again = static(harness, "b", protocols={"sticky": b""})
    assert again.join().waits
    assert first.join().protocol_name == "sticky"


def test_static_member_that_returns_before_sync_rebalances(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.joined(first, second)
    waiting = second.sync()
    again = static(harness, "b")
    assert again.join().waits
    assert waiting.code == FENCED
    assert first.beat().code == REBALANCE_IN_PROGRESS


def test_static_member_may_miss_a_generation(harness):
    first, second = static(harness, "a", session_ms=1_000_000), harness.client("b")
    harness.stable(first, second)
    second.leave()
    third = harness.client("c")
    third.join()
    harness.after(REBALANCE_MS)
    assert third.joined.code == NONE
    assert third.joined.leader == third.member_id
    assert harness.member_ids() == ["i-a-1", "c-3"]


def test_static_member_expires_at_its_session_timeout(harness):
    first = static(harness, "a")
    harness.stable(first)
    harness.after(SESSION_MS)
    assert harness.state() == "Empty"


def test_rebalance_waits_for_sessions_of_absent_static_members(harness):
    first, second = static(harness, "a", session_ms=200_000), harness.client("b")
    harness.stable(first, second)
    second.leave()
    harness.after(REBALANCE_MS)
    assert harness.state() == "PreparingRebalance"
    harness.after(200_000)
    assert harness.state() == "Empty"


def test_rebalance_of_absent_static_members_takes_few_ticks(harness):
    first = static(harness, "a", session_ms=200_000, rebalance_ms=-1)
    second = harness.client("b", rebalance_ms=0)
    harness.stable(second, first)
    second.leave()
    ticks = 0
    while harness.state() == "PreparingRebalance":
        ticks += 1
        harness.at(harness.machine.next_due_ms)
    assert harness.state() == "Empty"
    assert ticks < 300


def test_leave_by_instance_id_removes_a_static_member(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = harness.leave("g", ("", "i-a"), ("", "i-x"))
    assert [each["error_code"] for each in asked.members] == [NONE, UNKNOWN_MEMBER]
    assert harness.member_ids() == [second.member_id]


def test_heartbeat_of_an_unknown_instance_is_refused(harness):
    first = static(harness, "a")
    harness.stable(first)
    first.instance_id = "another"
    assert first.beat().code == UNKNOWN_MEMBER


def test_static_member_may_retry_a_return_that_was_not_written(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    harness.writable = False
    assert static(harness, "b").join().fault is not None
    harness.writable = True
    harness.after(0)
    again = static(harness, "b")
    assert again.join().code == NONE
    assert again.sync().assignment == b"b"
    assert harness.state() == "Stable"


# -- group size ----------------------------------------------------------------------------------


def test_group_size_is_bounded():
    harness = GroupHarness(max_size=2)
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    refused = harness.client("c").send_join()
    assert (refused.code, refused.member_id) == (MAX_SIZE_REACHED, "")
    assert harness.state() == "Stable"
    assert first.join().waits


def test_lowered_group_size_refuses_the_last_to_rejoin():
    harness = GroupHarness()
    clients = [harness.client(name) for name in "abc"]
    harness.stable(*clients)
    harness.machine.limits = harness.limits._replace(max_size=2)
    first, second, third = clients
    assert first.join().waits
    assert second.join().waits
    assert third.join().code == MAX_SIZE_REACHED
    assert [client.joined.code for client in (first, second)] == [NONE, NONE]
    assert harness.member_ids() == [first.member_id, second.member_id]


def test_refused_pending_member_completes_the_rebalance():
    harness = GroupHarness(max_size=1)
    late = harness.client("b")
    late.member_id = late.send_join().member_id
    first = harness.client("a")
    assert first.join().waits
    assert late.send_join().code == MAX_SIZE_REACHED
    assert first.joined.code == NONE
