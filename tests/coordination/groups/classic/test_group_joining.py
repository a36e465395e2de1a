"""JoinGroup and SyncGroup: the steps to a new generation."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups import classic_membership
from kafkalite.coordination.groups.classic.classic_group import NEW_MEMBER_WAIT_MS
from kafkalite.coordination.groups.classic.initial_rebalance import GATHER_MS, STATIC_GATHER_MS
from tests.coordination.groups.harness import (
    REBALANCE_MS,
    SESSION_MS,
    GroupHarness,
    forget_topics,
    subscription,
)

NONE, ILLEGAL_GENERATION, INCONSISTENT, UNKNOWN_MEMBER = 0, 22, 23, 25
INVALID_GROUP_ID, INVALID_SESSION, REBALANCE_IN_PROGRESS = 24, 26, 27
MEMBER_ID_REQUIRED, MAX_SIZE_REACHED = 79, 81
INVALID_REQUEST = 42


@pytest.fixture
def harness():
    return GroupHarness()


# -- the first join ------------------------------------------------------------------------------


def test_new_member_gets_an_id_and_member_id_required(harness):
    asked = harness.client("c").send_join()
    assert asked.code == MEMBER_ID_REQUIRED
    assert asked.member_id == "c-1"
    assert harness.state() == "Empty"


def test_old_client_joins_without_member_id(harness):
    asked = harness.client("c", version=3).send_join()
    assert asked.code == NONE
    assert asked.member_id == "c-1"


def test_number_of_protocols_of_a_member_is_bounded(harness, monkeypatch):
    monkeypatch.setattr(classic_membership, "PROTOCOLS_MAX", 2)
    offered = {"range": b"", "roundrobin": b"", "sticky": b""}
    assert harness.client("a", protocols=offered).send_join().code == INVALID_REQUEST
    assert harness.client("b").send_join().code == MEMBER_ID_REQUIRED


def test_member_that_rejoins_with_its_id_leads_the_first_generation(harness):
    client = harness.client("c")
    asked = client.join()
    assert asked.response == {
        "error_code": 0,
        "generation_id": 1,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": "c-1",
        "skip_assignment": False,
        "member_id": "c-1",
        "members": [{"member_id": "c-1", "group_instance_id": None, "metadata": subscription("t")}],
    }
    assert harness.state() == "CompletingRebalance"


def test_join_with_an_unassigned_id_returns_unknown_member_id(harness):
    client = harness.client()
    client.member_id = "made-up"
    assert client.send_join().code == UNKNOWN_MEMBER
    harness.client("other").join()
    assert client.send_join().code == UNKNOWN_MEMBER
    assert harness.member_ids() == ["other-1"]


def test_unused_member_id_expires_after_a_session_timeout(harness):
    client = harness.client()
    client.member_id = client.send_join().member_id
    harness.after(SESSION_MS)
    assert client.send_join().code == UNKNOWN_MEMBER


def test_group_with_only_a_pending_member_is_removed(harness):
    harness.client().send_join()
    assert len(harness.machine.list()) == 1
    harness.after(SESSION_MS)
    assert harness.machine.list() == []
    assert harness.log == []


def test_join_with_empty_group_id_returns_invalid_group_id(harness):
    assert harness.client(group_id="").send_join().code == INVALID_GROUP_ID


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, -1, 0])
def test_join_with_session_timeout_out_of_range_is_refused(harness, session_ms):
    assert harness.client(session_ms=session_ms).send_join().code == INVALID_SESSION


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_join_with_session_timeout_at_either_limit_is_accepted(harness, session_ms):
    assert harness.client(session_ms=session_ms).join().code == NONE


def test_first_member_must_offer_protocols(harness):
    assert harness.client(protocol_type="").send_join().code == INCONSISTENT
    silent = harness.client()
    silent.protocols = {}
    assert silent.send_join().code == INCONSISTENT
    assert harness.machine.list() == []


# -- more members --------------------------------------------------------------------------------


def test_join_waits_until_existing_members_rejoin(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    joining = second.join()
    assert joining.waits
    assert harness.state() == "PreparingRebalance"
    assert first.beat().code == REBALANCE_IN_PROGRESS
    again = first.join()
    assert (again.code, joining.code) == (NONE, NONE)
    assert again.generation_id == joining.generation_id == 2
    assert [each["member_id"] for each in again.members] == ["a-1", "b-2"]
    assert joining.members == []
    assert again.leader == joining.leader == "a-1"


def test_member_that_does_not_rejoin_in_time_is_removed(harness):
    first, second = harness.client("a", session_ms=1_000_000), harness.client("b")
    harness.stable(first)
    joining = second.join()
    harness.after(REBALANCE_MS - 1)
    assert joining.waits
    harness.after(1)
    assert joining.code == NONE
    assert joining.leader == joining.member_id
    assert harness.member_ids() == ["b-2"]
    assert first.beat().code == UNKNOWN_MEMBER


def test_rebalance_waits_for_the_longest_rebalance_timeout(harness):
    slow = harness.client("a", session_ms=1_000_000, rebalance_ms=3 * REBALANCE_MS)
    harness.stable(slow)
    joining = harness.client("b").join()
    harness.after(3 * REBALANCE_MS - 1)
    assert joining.waits
    harness.after(1)
    assert joining.code == NONE


def test_version_0_member_has_its_session_timeout_to_rejoin(harness):
    slow = harness.client("a", version=0, session_ms=20_000, rebalance_ms=-1)
    harness.stable(slow)
    joining = harness.client("b", rebalance_ms=1_000).join()
    harness.after(15_000)
    assert slow.beat().code == REBALANCE_IN_PROGRESS
    harness.after(5_000)
    assert joining.code == NONE
    assert harness.member_ids() == ["b-2"]


def test_rebalance_waits_for_members_with_a_new_id(harness):
    first, second, third = (harness.client(name) for name in "abc")
    harness.stable(first)
    assert third.send_join().code == MEMBER_ID_REQUIRED
    joining = second.join()
    again = first.join()
    assert joining.waits and again.waits
    third.member_id = third.joined.member_id
    last = third.send_join()
    assert [each.code for each in (joining, again, last)] == [NONE] * 3
    assert len(again.members) == 3


def test_rebalance_completes_when_a_pending_member_expires(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    harness.client("c").send_join()
    joining = second.join()
    again = first.join()
    harness.after(SESSION_MS)
    assert (joining.code, again.code) == (NONE, NONE)


def test_member_waiting_in_join_needs_no_heartbeats(harness):
    first, second = harness.client("a"), harness.client("b", session_ms=1_000_000)
    harness.stable(first, second)
    joining = first.join()  # the leader wants another assignment
    assert joining.waits
    harness.after(3 * SESSION_MS)
    assert joining.waits
    assert second.join().code == NONE
    assert joining.code == NONE


def test_pending_member_expires(harness):
    first = harness.client("a", session_ms=1_000_000, rebalance_ms=10_000_000)
    harness.stable(first)
    joining = harness.client("b").join()
    harness.after(NEW_MEMBER_WAIT_MS - 1)
    assert joining.waits
    harness.after(1)
    assert joining.code == UNKNOWN_MEMBER
    assert harness.member_ids() == ["a-1"]


def test_second_join_of_a_member_completes_the_first(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    joining = second.join()
    again = second.send_join()
    assert joining.code == REBALANCE_IN_PROGRESS
    assert again.waits
    first.join()
    assert again.code == NONE


def test_closed_connection_gets_no_response_and_counts_as_joined(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    joining = second.join()
    harness.machine.drop_token(joining)
    assert first.join().code == NONE
    assert joining.waits
    assert harness.member_ids() == ["a-1", "b-2"]


def test_rejoin_of_the_leader_triggers_a_rebalance(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    assert first.join().waits
    assert harness.state() == "PreparingRebalance"


def test_unchanged_rejoin_of_a_follower_returns_the_current_generation(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    again = second.join()
    assert (again.code, again.generation_id, again.members) == (NONE, 2, [])
    assert harness.state() == "Stable"
    assert second.sync().assignment == b"b"


def test_changed_subscription_triggers_a_rebalance(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    second.protocols = {"range": subscription("t", "u")}
    assert second.join().waits
    assert harness.state() == "PreparingRebalance"


def test_changed_order_of_protocols_triggers_a_rebalance(harness):
    both = {"range": b"", "sticky": b""}
    first, second = harness.client("a", protocols=both), harness.client("b", protocols=both)
    harness.stable(first, second)
    second.protocols = {"sticky": b"", "range": b""}
    assert second.join().waits


def test_retried_join_returns_the_same_generation_before_sync(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    again = first.join()
    assert (again.code, again.generation_id) == (NONE, 2)
    assert len(again.members) == 2
    assert harness.state() == "CompletingRebalance"


def test_changed_subscription_before_sync_triggers_a_rebalance(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    waiting = first.sync({})
    assert waiting.code == NONE
    harness.joined(first, second)
    syncing = second.sync()
    first.protocols = {"range": subscription("else")}
    assert first.join().waits
    assert syncing.code == REBALANCE_IN_PROGRESS


# -- the first generation of an empty group ------------------------------------------------------


def test_first_join_waits_for_pending_members(harness):
    first, second = harness.client("a"), harness.client("b")
    second.send_join()
    joining = first.join()
    assert joining.waits
    second.member_id = second.joined.member_id
    other = second.send_join()
    assert joining.generation_id == other.generation_id == 1


def test_first_join_waits_for_pending_members_up_to_a_limit(harness):
    harness.client("b").send_join()
    joining = harness.client("a").join()
    harness.after(GATHER_MS)
    assert joining.code == NONE


def test_static_members_joining_in_sequence_share_the_first_generation(harness):
    clients = [harness.client(name, instance_id=f"i-{name}") for name in "abc"]
    for client in clients:
        client.join()
        harness.after(STATIC_GATHER_MS - 1)
    assert all(client.joined.waits for client in clients)
    harness.after(STATIC_GATHER_MS)
    assert [client.joined.generation_id for client in clients] == [1, 1, 1]
    assert len(clients[0].joined.members) == 3


def test_first_static_member_waits_for_a_pause_in_joins(harness):
    joining = harness.client("a", instance_id="i-a").join()
    harness.after(STATIC_GATHER_MS - 1)
    assert joining.waits
    harness.after(1)
    assert joining.generation_id == 1


def test_joins_of_static_members_delay_the_first_generation_up_to_a_limit(harness):
    first = harness.client("first", instance_id="i-first").join()
    step_ms = STATIC_GATHER_MS // 2
    for number in range(GATHER_MS // step_ms - 1):
        harness.after(step_ms)
        harness.client(f"c{number}", instance_id=f"i-{number}").join()
        assert first.waits
    harness.after(step_ms)
    assert first.generation_id == 1


def test_new_static_member_waits_until_existing_members_rejoin(harness):
    first = harness.client("a", instance_id="i-a")
    harness.stable(first)
    second = harness.client("b", instance_id="i-b")
    assert second.join().waits
    assert first.join().generation_id == second.joined.generation_id == 2


def test_empty_group_waits_for_the_initial_delay():
    harness = GroupHarness(initial_rebalance_delay_ms=3_000)
    joining = harness.client("a").join()
    harness.after(2_999)
    assert joining.waits
    harness.after(1)
    assert joining.code == NONE


def test_join_within_the_initial_delay_extends_it():
    harness = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = harness.client("a").join()
    harness.after(2_000)
    second = harness.client("b").join()
    harness.after(1_000)
    assert first.waits and second.waits
    harness.after(2_999)
    assert first.waits
    harness.after(1)
    assert first.generation_id == second.generation_id == 1


def test_initial_delay_ends_at_the_rebalance_timeout():
    harness = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = harness.client("a", rebalance_ms=10_000).join()
    while first.waits:
        harness.after(1_000)
        harness.client("b", rebalance_ms=10_000).join()
        assert harness.now_ms <= 10_000
    assert harness.now_ms == 10_000


def test_group_with_members_does_not_wait_for_the_initial_delay():
    harness = GroupHarness(initial_rebalance_delay_ms=3_000)
    client = harness.client()
    client.join()
    harness.after(3_000)
    harness.sync(client)
    assert client.join().code == NONE


# -- protocols common to all members -------------------------------------------------------------


def test_protocol_is_elected_among_those_all_members_support(harness):
    likes = [
        {"x": b"", "range": b"1", "sticky": b""},
        {"sticky": b"", "range": b"2"},
        {"range": b"3", "y": b"", "sticky": b""},
    ]
    clients = [
        harness.client(name, protocols=each) for name, each in zip("abc", likes, strict=True)
    ]
    harness.joined(*clients)
    assert {client.joined.protocol_name for client in clients} == {"range"}
    assert [each["metadata"] for each in clients[0].joined.members] == [b"1", b"2", b"3"]


def test_member_without_a_common_protocol_is_refused(harness):
    harness.stable(harness.client("a"))
    assert harness.client("b", protocols={"other": b""}).send_join().code == INCONSISTENT
    assert harness.client("b", protocol_type="connect").send_join().code == INCONSISTENT


def test_rejoin_without_the_only_common_protocol_is_refused(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first, second)
    second.protocols = {"other": b""}
    assert second.join().code == INCONSISTENT
    assert harness.state() == "Stable"


def test_empty_group_may_change_its_protocol(harness):
    client = harness.client("a")
    harness.stable(client)
    client.leave()
    other = harness.client("b", protocol_type="connect", protocols={"default": b"\x00"})
    assert other.join().protocol_type == "connect"


# -- syncing -------------------------------------------------------------------------------------


def test_sync_waits_for_the_assignment_of_the_leader(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    waiting = second.sync()
    assert waiting.waits
    leading = first.sync({first.member_id: b"one", second.member_id: b"two", "foreign": b"x"})
    assert (leading.assignment, waiting.assignment) == (b"one", b"two")
    assert waiting.protocol_name == "range"
    assert harness.state() == "Stable"


def test_late_sync_returns_the_assignment(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    first.sync({second.member_id: b"two"})
    assert second.sync().assignment == b"two"


def test_member_missing_from_the_assignment_gets_an_empty_one(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    first.sync({first.member_id: b"all"})
    assert second.sync().response["assignment"] == b""


def test_assignment_by_a_follower_is_ignored(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    assert second.sync({second.member_id: b"everything"}).waits
    first.sync({second.member_id: b"a part"})
    assert harness.machine.describe("g", 5)["members"][1]["member_assignment"] == b"a part"


def test_sync_in_another_generation_is_refused(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    assert second.sync(generation=1).code == ILLEGAL_GENERATION
    assert second.sync(generation=3).code == ILLEGAL_GENERATION


def test_sync_with_another_protocol_is_refused(harness):
    client = harness.client()
    harness.joined(client)
    assert client.sync(protocol_name="sticky").code == INCONSISTENT
    assert client.sync(protocol_type="connect").code == INCONSISTENT
    assert client.sync(protocol_name="range", protocol_type="consumer").code == NONE


def test_sync_during_a_rebalance_is_refused(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.stable(first)
    second.join()
    assert first.sync().code == REBALANCE_IN_PROGRESS


def test_sync_of_an_unknown_group_returns_unknown_member_id(harness):
    client = harness.client()
    assert client.sync(generation=1).code == UNKNOWN_MEMBER
    assert client.beat(generation=1).code == UNKNOWN_MEMBER


def test_member_that_does_not_sync_in_time_is_removed(harness):
    first, second = (harness.client(name, session_ms=1_000_000) for name in "ab")
    harness.joined(first, second)
    first.sync({first.member_id: b"", second.member_id: b""})
    harness.after(REBALANCE_MS - 1)
    assert harness.state() == "Stable"
    harness.after(1)
    assert harness.state() == "PreparingRebalance"
    assert harness.member_ids() == ["a-1"]


def test_second_sync_of_a_member_completes_the_first(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    waiting = second.sync()
    again = second.sync()
    assert waiting.code == REBALANCE_IN_PROGRESS
    first.sync({second.member_id: b"two"})
    assert again.assignment == b"two"


def test_assignment_that_cannot_be_written_fails_waiting_members(harness):
    first, second = harness.client("a"), harness.client("b")
    harness.joined(first, second)
    waiting = second.sync()
    harness.writable = False
    assert first.sync({second.member_id: b"two"}).fault is not None
    assert harness.state() == "CompletingRebalance"
    harness.after(0)
    assert waiting.code == 16
    harness.writable = True
    assert first.join().code == NONE
    assert second.join().code == NONE
    harness.sync(first, second)
    assert harness.state() == "Stable"


def test_waiting_members_of_a_failed_write_get_an_error(harness):
    for write in (
        lambda: harness.take(forget_topics(harness, "u")),
        lambda: harness.commit("h", {("t", 0): 2}),
    ):
        harness.commit("h", {("u", 0): 1})
        first, second = harness.client("a"), harness.client("b")
        harness.joined(first, second)
        waiting = second.sync()
        harness.writable = False
        first.sync({second.member_id: b"two"})
        harness.writable = True
        write()
        harness.after(0)
        assert waiting.code == 16
        harness.leave("g", (first.member_id, None), (second.member_id, None))


def test_members_that_do_not_rejoin_after_a_failed_write_are_removed(harness):
    first, second = (
        harness.client("a", session_ms=1_000_000),
        harness.client("b", session_ms=1_000_000),
    )
    harness.joined(first, second)
    second.sync()
    harness.writable = False
    first.sync()
    harness.writable = True
    harness.after(REBALANCE_MS)
    assert harness.state() == "PreparingRebalance"
    harness.after(REBALANCE_MS)
    assert harness.state() == "Empty"
