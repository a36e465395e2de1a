"""Heartbeats, leaving, and static members, which may be absent for a while."""

from __future__ import annotations

import pytest

from kafkalite.coordination.initial_rebalance import STATIC_GATHER_MS
from tests.coordination.groups import REBALANCE_MS, SESSION_MS, GroupHarness, subscription

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


def test_a_heartbeat_prolongs_the_session(harness):
    client = harness.client()
    harness.stable(client)
    for _ in range(5):
        harness.after(SESSION_MS - 1)
        assert client.beat().code == NONE
    assert harness.state() == "Stable"


def test_a_commit_prolongs_the_session_as_well(harness):
    client = harness.client()
    harness.stable(client)
    for offset in range(5):
        harness.after(SESSION_MS - 1)
        assert client.commit(offset).code == NONE
    assert harness.state() == "Stable"


def test_a_heartbeat_that_is_refused_does_not(harness):
    client = harness.client()
    harness.stable(client)
    harness.after(SESSION_MS - 1)
    assert client.beat(generation=7).code == ILLEGAL_GENERATION
    harness.after(1)
    assert harness.state() == "Empty"


def test_a_heartbeat_between_join_and_sync_is_heard(harness):
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


def test_a_member_that_waits_for_its_assignment_need_not_be_heard(harness):
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


def test_when_the_leader_leaves_another_one_leads(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    first.leave()
    again = second.join()
    assert again.leader == "b-2"
    assert len(again.members) == 1


def test_when_the_last_one_leaves_the_group_is_empty_in_the_next_generation(harness):
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


def test_leaving_a_group_that_is_not_there_is_answered_member_by_member(harness):
    asked = harness.leave("nowhere", ("a", None))
    assert asked.code == NONE
    assert [each["error_code"] for each in asked.members] == [UNKNOWN_MEMBER]
    assert harness.machine.list() == []


def test_leave_of_an_unknown_member_has_no_effect(harness):
    client = harness.client("a")
    harness.stable(client)
    other = harness.client("b").ask_to_join()
    harness.leave("g", (other.member_id, None), ("nobody", None))
    assert harness.state() == "Stable"


def test_an_id_that_was_given_out_can_be_given_back(harness):
    first = harness.client("a")
    harness.stable(first)
    given = harness.client("b").ask_to_join().member_id
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


def test_a_static_member_needs_no_second_join(harness):
    asked = static(harness).ask_to_join()
    harness.after(STATIC_GATHER_MS)
    assert (asked.code, asked.member_id) == (NONE, "i-a-1")


def test_a_static_member_comes_back_to_its_assignment_and_nobody_else_notices(harness):
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


def test_the_one_it_replaced_is_fenced_whatever_it_asks(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    static(harness, "b").join()
    assert second.beat().code == FENCED
    assert second.commit(1).code == FENCED
    assert second.sync().code == FENCED
    assert second.ask_to_join().code == FENCED
    assert second.leave().members[0]["error_code"] == FENCED
    assert harness.offsets("g") == {}


def test_the_one_it_replaced_is_fenced_while_it_waits(harness):
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


def test_a_leader_that_comes_back_leads_on_and_has_nothing_to_assign(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = static(harness, "a").join()
    assert asked.skip_assignment
    assert asked.leader == asked.member_id
    assert len(asked.members) == 2


def test_a_leader_of_old_that_comes_back_must_not_take_itself_for_it(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = static(harness, "a", version=8).join()
    assert not asked.skip_assignment
    assert asked.leader == first.member_id != asked.member_id
    assert asked.members == []


def test_a_static_member_that_says_something_else_is_given_its_assignment_all_the_same(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    second = static(harness, "b", protocols={"range": subscription("else")})
    assert second.join().generation_id == 1
    assert harness.state() == "Stable"


def test_unless_another_protocol_follows_from_it(harness):
    both = {"range": b"", "sticky": b""}
    first, second = static(harness, "a", protocols=both), static(harness, "b", protocols=both)
    harness.stable(first, second)
    again = static(harness, "b", protocols={"sticky": b""})
    assert again.join().waits
    assert first.join().protocol_name == "sticky"


def test_a_static_member_that_comes_back_before_all_have_synced_begins_another_generation(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.joined(first, second)
    waiting = second.sync()
    again = static(harness, "b")
    assert again.join().waits
    assert waiting.code == FENCED
    assert first.beat().code == REBALANCE_IN_PROGRESS


def test_a_static_member_may_miss_a_generation(harness):
    first, second = static(harness, "a", session_ms=1_000_000), harness.client("b")
    harness.stable(first, second)
    second.leave()
    third = harness.client("c")
    third.join()
    harness.after(REBALANCE_MS)
    assert third.joined.code == NONE
    assert third.joined.leader == third.member_id
    assert harness.member_ids() == ["i-a-1", "c-3"]


def test_but_not_its_session(harness):
    first = static(harness, "a")
    harness.stable(first)
    harness.after(SESSION_MS)
    assert harness.state() == "Empty"


def test_when_only_static_members_are_left_their_sessions_have_to_end(harness):
    first, second = static(harness, "a", session_ms=200_000), harness.client("b")
    harness.stable(first, second)
    second.leave()
    harness.after(REBALANCE_MS)
    assert harness.state() == "PreparingRebalance"
    harness.after(200_000)
    assert harness.state() == "Empty"


def test_waiting_for_them_is_little_work_whatever_they_ask_for(harness):
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


def test_an_admin_removes_a_static_member_by_its_instance_id(harness):
    first, second = static(harness, "a"), static(harness, "b")
    harness.stable(first, second)
    asked = harness.leave("g", ("", "i-a"), ("", "i-x"))
    assert [each["error_code"] for each in asked.members] == [NONE, UNKNOWN_MEMBER]
    assert harness.member_ids() == [second.member_id]


def test_an_instance_that_is_not_there_is_unknown(harness):
    first = static(harness, "a")
    harness.stable(first)
    first.instance_id = "another"
    assert first.beat().code == UNKNOWN_MEMBER


def test_a_static_member_whose_return_cannot_be_written_may_try_again(harness):
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


def test_a_group_has_no_more_members_than_it_may():
    harness = GroupHarness(max_size=2)
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    refused = harness.client("c").ask_to_join()
    assert (refused.code, refused.member_id) == (MAX_SIZE_REACHED, "")
    assert harness.state() == "Stable"
    assert first.join().waits


def test_who_comes_last_into_a_group_that_must_become_smaller_is_put_out():
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


def test_nobody_waits_for_one_who_is_put_out():
    harness = GroupHarness(max_size=1)
    late = harness.client("b")
    late.member_id = late.ask_to_join().member_id
    first = harness.client("a")
    assert first.join().waits
    assert late.ask_to_join().code == MAX_SIZE_REACHED
    assert first.joined.code == NONE
