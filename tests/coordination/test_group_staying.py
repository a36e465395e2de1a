"""Heartbeats, leaving, and static members, which may be absent for a while."""

from __future__ import annotations

import pytest

from kafkalite.coordination.classic_group import STATIC_GATHER_MS
from tests.coordination.groups import REBALANCE_MS, SESSION_MS, Stage, subscription

NONE, COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE_IN_PROGRESS = 0, 16, 22, 25, 27
FENCED, MAX_SIZE_REACHED = 82, 81


@pytest.fixture
def stage():
    return Stage()


def written(stage):
    """Return generation and member ids of the group's last record."""
    value = [record for record in stage.read_log() if record.kind == "GroupMetadata"][-1].value
    return value["generation"], [each["member_id"] for each in value["members"]]


# -- heartbeats ----------------------------------------------------------------------------------


def test_who_is_not_heard_for_a_session_is_out(stage):
    first, second = stage.client("a", session_ms=1_000_000), stage.client("b")
    stage.stable(first, second)
    stage.after(SESSION_MS - 1)
    assert stage.state() == "Stable"
    stage.after(1)
    assert stage.state() == "PreparingRebalance"
    assert stage.member_ids() == ["a-1"]
    assert second.beat().code == UNKNOWN_MEMBER


def test_a_heartbeat_prolongs_the_session(stage):
    client = stage.client()
    stage.stable(client)
    for _ in range(5):
        stage.after(SESSION_MS - 1)
        assert client.beat().code == NONE
    assert stage.state() == "Stable"


def test_a_commit_prolongs_the_session_as_well(stage):
    client = stage.client()
    stage.stable(client)
    for offset in range(5):
        stage.after(SESSION_MS - 1)
        assert client.commit(offset).code == NONE
    assert stage.state() == "Stable"


def test_a_heartbeat_that_is_refused_does_not(stage):
    client = stage.client()
    stage.stable(client)
    stage.after(SESSION_MS - 1)
    assert client.beat(generation=7).code == ILLEGAL_GENERATION
    stage.after(1)
    assert stage.state() == "Empty"


def test_a_heartbeat_between_join_and_sync_is_heard(stage):
    client = stage.client()
    stage.joined(client)
    stage.after(SESSION_MS - 1)
    assert client.beat().code == NONE
    stage.after(SESSION_MS - 1)
    assert stage.state() == "CompletingRebalance"


def test_a_group_whose_last_member_is_not_heard_is_empty_and_says_so_in_its_log(stage):
    client = stage.client()
    stage.stable(client)
    stage.after(SESSION_MS)
    assert stage.state() == "Empty"
    assert written(stage) == (2, [])


def test_a_member_that_waits_for_its_assignment_need_not_be_heard(stage):
    first, second = stage.client("a", session_ms=1_000_000), stage.client("b")
    stage.joined(first, second)
    waiting = second.sync()
    stage.after(3 * SESSION_MS)
    assert waiting.waits
    first.sync({second.member_id: b"two"})
    stage.after(SESSION_MS - 1)
    assert second.beat().code == NONE


# -- leaving -------------------------------------------------------------------------------------


def test_who_leaves_is_out_at_once(stage):
    first, second = stage.client("a"), stage.client("b")
    stage.stable(first, second)
    assert second.leave().members == [
        {"member_id": "b-2", "group_instance_id": None, "error_code": NONE}
    ]
    assert first.beat().code == REBALANCE_IN_PROGRESS
    again = first.join()
    assert [each["member_id"] for each in again.members] == ["a-1"]


def test_when_the_leader_leaves_another_one_leads(stage):
    first, second = stage.client("a"), stage.client("b")
    stage.stable(first, second)
    first.leave()
    again = second.join()
    assert again.leader == "b-2"
    assert len(again.members) == 1


def test_when_the_last_one_leaves_the_group_is_empty_in_the_next_generation(stage):
    client = stage.client()
    stage.stable(client)
    client.leave()
    assert stage.state() == "Empty"
    assert written(stage) == (2, [])
    client.member_id = ""
    assert client.join().generation_id == 3


def test_several_leave_together_and_each_is_told_for_itself(stage):
    first, second, third = (stage.client(name) for name in "abc")
    stage.stable(first, second, third)
    asked = stage.leave("g", ("a-1", None), ("nobody", None), ("c-3", "no-instance"), ("", None))
    assert [each["error_code"] for each in asked.members] == [NONE] + [UNKNOWN_MEMBER] * 3
    assert stage.member_ids() == ["b-2", "c-3"]


def test_leaving_a_group_that_is_not_there_is_answered_member_by_member(stage):
    asked = stage.leave("nowhere", ("a", None))
    assert asked.code == NONE
    assert [each["error_code"] for each in asked.members] == [UNKNOWN_MEMBER]
    assert stage.machine.list() == []


def test_whose_leaving_changes_nothing_disturbs_nobody(stage):
    client = stage.client("a")
    stage.stable(client)
    other = stage.client("b").ask_to_join()
    stage.leave("g", (other.member_id, None), ("nobody", None))
    assert stage.state() == "Stable"


def test_an_id_that_was_given_out_can_be_given_back(stage):
    first = stage.client("a")
    stage.stable(first)
    given = stage.client("b").ask_to_join().member_id
    waiting = stage.client("c").join()
    assert first.join().waits and waiting.waits
    stage.leave("g", (given, None))
    assert waiting.code == NONE


def test_a_member_that_leaves_while_it_waits_is_told_so(stage):
    first, second = stage.client("a"), stage.client("b")
    stage.stable(first, second)
    waiting = first.join()
    first.leave()
    assert waiting.code == UNKNOWN_MEMBER
    stage.joined(second)
    syncing = stage.client("c")
    stage.joined(second, syncing)
    waiting = syncing.sync()
    syncing.leave()
    assert waiting.code == UNKNOWN_MEMBER


def test_who_waits_for_an_assignment_is_told_to_join_when_another_leaves(stage):
    first, second = stage.client("a"), stage.client("b")
    stage.joined(first, second)
    waiting = second.sync()
    first.leave()
    assert waiting.code == REBALANCE_IN_PROGRESS


# -- static members ------------------------------------------------------------------------------


def static(stage, name="a", **options):
    return stage.client(name, instance_id=f"i-{name}", **options)


def test_a_static_member_needs_no_second_join(stage):
    asked = static(stage).ask_to_join()
    stage.after(STATIC_GATHER_MS)
    assert (asked.code, asked.member_id) == (NONE, "i-a-1")


def test_a_static_member_comes_back_to_its_assignment_and_nobody_else_notices(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    again = static(stage, "b")
    asked = again.join()
    assert (asked.code, asked.generation_id, asked.leader) == (NONE, 1, first.member_id)
    assert asked.member_id != second.member_id
    assert again.sync().assignment == b"b"
    assert first.beat().code == NONE
    assert stage.state() == "Stable"
    assert written(stage) == (1, [first.member_id, asked.member_id])


def test_the_one_it_replaced_is_fenced_whatever_it_asks(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    static(stage, "b").join()
    assert second.beat().code == FENCED
    assert second.commit(1).code == FENCED
    assert second.sync().code == FENCED
    assert second.ask_to_join().code == FENCED
    assert second.leave().members[0]["error_code"] == FENCED
    assert stage.offsets("g") == {}


def test_the_one_it_replaced_is_fenced_while_it_waits(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    waiting = first.join()
    old_id = first.member_id
    again = static(stage, "a")
    assert again.join().waits
    assert (waiting.code, waiting.member_id) == (FENCED, old_id)
    second.join()
    assert again.joined.code == NONE
    assert stage.machine.describe("g", 5)["members"][1]["group_instance_id"] == "i-a"


def test_a_leader_that_comes_back_leads_on_and_has_nothing_to_assign(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    asked = static(stage, "a").join()
    assert asked.skip_assignment
    assert asked.leader == asked.member_id
    assert len(asked.members) == 2


def test_a_leader_of_old_that_comes_back_must_not_take_itself_for_it(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    asked = static(stage, "a", version=8).join()
    assert not asked.skip_assignment
    assert asked.leader == first.member_id != asked.member_id
    assert asked.members == []


def test_a_static_member_that_says_something_else_is_given_its_assignment_all_the_same(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    second = static(stage, "b", protocols={"range": subscription("else")})
    assert second.join().generation_id == 1
    assert stage.state() == "Stable"


def test_unless_another_protocol_follows_from_it(stage):
    both = {"range": b"", "sticky": b""}
    first, second = static(stage, "a", protocols=both), static(stage, "b", protocols=both)
    stage.stable(first, second)
    again = static(stage, "b", protocols={"sticky": b""})
    assert again.join().waits
    assert first.join().protocol_name == "sticky"


def test_a_static_member_that_comes_back_before_all_have_synced_begins_another_generation(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.joined(first, second)
    waiting = second.sync()
    again = static(stage, "b")
    assert again.join().waits
    assert waiting.code == FENCED
    assert first.beat().code == REBALANCE_IN_PROGRESS


def test_a_static_member_may_miss_a_generation(stage):
    first, second = static(stage, "a", session_ms=1_000_000), stage.client("b")
    stage.stable(first, second)
    second.leave()
    third = stage.client("c")
    third.join()
    stage.after(REBALANCE_MS)
    assert third.joined.code == NONE
    assert third.joined.leader == third.member_id
    assert stage.member_ids() == ["i-a-1", "c-3"]


def test_but_not_its_session(stage):
    first = static(stage, "a")
    stage.stable(first)
    stage.after(SESSION_MS)
    assert stage.state() == "Empty"


def test_when_only_static_members_are_left_their_sessions_have_to_end(stage):
    first, second = static(stage, "a", session_ms=200_000), stage.client("b")
    stage.stable(first, second)
    second.leave()
    stage.after(REBALANCE_MS)
    assert stage.state() == "PreparingRebalance"
    stage.after(200_000)
    assert stage.state() == "Empty"


def test_waiting_for_them_is_little_work_whatever_they_ask_for(stage):
    first = static(stage, "a", session_ms=200_000, rebalance_ms=-1)
    second = stage.client("b", rebalance_ms=0)
    stage.stable(second, first)
    second.leave()
    ticks = 0
    while stage.state() == "PreparingRebalance":
        ticks += 1
        stage.at(stage.machine.next_due_ms)
    assert stage.state() == "Empty"
    assert ticks < 300


def test_an_admin_removes_a_static_member_by_its_instance_id(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    asked = stage.leave("g", ("", "i-a"), ("", "i-x"))
    assert [each["error_code"] for each in asked.members] == [NONE, UNKNOWN_MEMBER]
    assert stage.member_ids() == [second.member_id]


def test_an_instance_that_is_not_there_is_unknown(stage):
    first = static(stage, "a")
    stage.stable(first)
    first.instance_id = "another"
    assert first.beat().code == UNKNOWN_MEMBER


def test_a_static_member_whose_return_cannot_be_written_may_try_again(stage):
    first, second = static(stage, "a"), static(stage, "b")
    stage.stable(first, second)
    stage.writable = False
    assert static(stage, "b").join().fault is not None
    stage.writable = True
    stage.after(0)
    again = static(stage, "b")
    assert again.join().code == NONE
    assert again.sync().assignment == b"b"
    assert stage.state() == "Stable"


# -- group size ----------------------------------------------------------------------------------


def test_a_group_has_no_more_members_than_it_may():
    stage = Stage(max_size=2)
    first, second = stage.client("a"), stage.client("b")
    stage.stable(first, second)
    refused = stage.client("c").ask_to_join()
    assert (refused.code, refused.member_id) == (MAX_SIZE_REACHED, "")
    assert stage.state() == "Stable"
    assert first.join().waits


def test_who_comes_last_into_a_group_that_must_become_smaller_is_put_out():
    stage = Stage()
    clients = [stage.client(name) for name in "abc"]
    stage.stable(*clients)
    stage.machine.limits = stage.limits._replace(max_size=2)
    first, second, third = clients
    assert first.join().waits
    assert second.join().waits
    assert third.join().code == MAX_SIZE_REACHED
    assert [client.joined.code for client in (first, second)] == [NONE, NONE]
    assert stage.member_ids() == [first.member_id, second.member_id]


def test_nobody_waits_for_one_who_is_put_out():
    stage = Stage(max_size=1)
    late = stage.client("b")
    late.member_id = late.ask_to_join().member_id
    first = stage.client("a")
    assert first.join().waits
    assert late.ask_to_join().code == MAX_SIZE_REACHED
    assert first.joined.code == NONE
