"""CommittedOffset offsets: valid commits, retention, expiration; and groups as admins see them."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups import offset_retention
from kafkalite.coordination.groups.offsets import commit_records
from tests.coordination.groups.harness import (
    CHECK_MS,
    RETENTION_MS,
    SESSION_MS,
    WALL_MS,
    GroupHarness,
    forget_topics,
    subscription,
)

NONE, METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER = 0, 12, 22, 24, 25
REBALANCE_IN_PROGRESS, INVALID_SIZE, NON_EMPTY, GROUP_NOT_FOUND, SUBSCRIBED = 27, 28, 68, 69, 86
FENCED = 82


@pytest.fixture
def harness():
    return GroupHarness()


# -- valid commits -------------------------------------------------------------------------------


def test_member_commits_in_its_generation(harness):
    client = harness.client()
    harness.stable(client)
    assert client.commit(7).code == NONE
    assert harness.offsets("g") == {("t", 0): 7}


def test_commit_in_another_generation_is_refused(harness):
    client = harness.client()
    harness.stable(client)
    assert client.commit(7, generation=0).code == ILLEGAL_GENERATION
    assert client.commit(7, generation=2).code == ILLEGAL_GENERATION
    assert client.commit(7, generation=-1).code == ILLEGAL_GENERATION
    assert harness.offsets("g") == {}


def test_commit_by_a_non_member_of_an_active_group_is_refused(harness):
    client = harness.client()
    harness.stable(client)
    assert harness.commit("g", {("t", 0): 7}).code == UNKNOWN_MEMBER
    assert harness.commit("g", {("t", 0): 7}, generation=1, member_id="x").code == UNKNOWN_MEMBER
    assert harness.commit("g", {("t", 0): 7}, instance_id="x").code == UNKNOWN_MEMBER
    assert harness.offsets("g") == {}


def test_member_may_commit_during_a_rebalance(harness):
    first = harness.client("a")
    harness.stable(first)
    harness.client("b").join()
    assert harness.state() == "PreparingRebalance"
    assert first.commit(7).code == NONE


def test_commit_before_the_assignment_is_refused(harness):
    client = harness.client()
    harness.joined(client)
    assert client.commit(7).code == REBALANCE_IN_PROGRESS
    assert harness.offsets("g") == {}


def test_commit_by_an_expired_member_is_refused(harness):
    client = harness.client()
    harness.stable(client)
    harness.after(SESSION_MS)
    assert client.commit(7).code == UNKNOWN_MEMBER
    assert harness.offsets("g") == {}


def test_commit_for_an_empty_group_is_allowed(harness):
    assert harness.commit("new", {("t", 0): 7}).code == NONE
    assert harness.commit("", {("t", 0): 8}).code == NONE
    client = harness.client()
    harness.stable(client)
    client.leave()
    assert harness.commit("g", {("t", 0): 9}).code == NONE
    assert harness.offsets("new") == {("t", 0): 7}
    assert harness.offsets("") == {("t", 0): 8}
    assert harness.offsets("g") == {("t", 0): 9}


def test_commit_with_generation_to_an_unknown_group_is_refused(harness):
    place = {("t", 0): 7}
    assert harness.commit("g", place, generation=1, member_id="x").code == GROUP_NOT_FOUND
    assert harness.commit("g", place, generation=1, member_id="x", version=8).code == (
        ILLEGAL_GENERATION
    )
    assert harness.machine.list() == []


def test_commit_metadata_length_is_bounded(harness):
    places = {("t", 0): 7}
    assert harness.commit("g", places, metadata="x" * 4_096).code == NONE
    assert harness.commit("g", {("t", 1): 7}, metadata="x" * 4_097).code == METADATA_TOO_LARGE
    assert harness.offsets("g") == places


def test_commit_without_metadata_is_accepted_at_metadata_limit_0(harness):
    harness.machine.limits = harness.limits._replace(metadata_size_max=0)
    asked = harness.commit("g", {("t", 0): 7, ("t", 1): 8})
    assert asked.codes == {("t", 0): 0, ("t", 1): 0}
    assert harness.committed("g")["t", 1].metadata == ""


def test_commit_that_cannot_be_written_changes_nothing(harness):
    harness.commit("g", {("t", 0): 7})
    harness.writable = False
    assert harness.commit("g", {("t", 0): 8}).fault is not None
    assert harness.offsets("g") == {("t", 0): 7}


def test_fetch_omits_offsets_that_do_not_exist(harness):
    harness.commit("g", {("t", 0): 7, ("u", 1): 8}, metadata="m")
    fetched = harness.machine.fetch_offsets("g", {"t": [0, 1], "v": [0]})
    assert fetched == {"t": {0: (7, 0, "m")}}
    assert harness.machine.fetch_offsets("nobody", {"t": [0]}) == {}
    assert harness.machine.fetch_offsets("nobody", None) == {}


def test_offsets_of_an_earlier_topic_of_the_name_are_omitted(harness):
    old, new = bytes(range(16)), bytes(range(1, 17))
    harness.commit("g", {("t", 0): 7}, topic_id=old)
    harness.commit("g", {("t", 1): 8}, topic_id=new)
    harness.commit("g", {("t", 2): 9})

    def fetched(wanted, topic_id):
        return [*harness.machine.fetch_offsets("g", wanted, lambda _: topic_id).get("t", {})]

    for wanted in (None, {"t": [0, 1, 2]}):
        assert fetched(wanted, old) == [0, 2]
        assert fetched(wanted, new) == [1, 2]
        assert fetched(wanted, bytes(16)) == [0, 1, 2]
    harness.restart()
    assert fetched(None, new) == [1, 2]


def test_memory_of_all_committed_offsets_is_bounded(harness, monkeypatch):
    monkeypatch.setattr(commit_records, "OFFSETS_SIZE_MAX", 10_000)
    codes = [harness.commit("g", {("t", at): 1}, metadata="x" * 1_000).code for at in range(20)]
    assert codes[0] == NONE
    assert codes[-1] == INVALID_SIZE
    assert len(harness.offsets("g")) < 10
    assert harness.commit("g", {("t", 0): 2}, metadata="x" * 1_000).code == NONE
    asked = harness.commit("g", {("t", 1): 3, ("t", 19): 1})
    assert asked.codes == {("t", 1): NONE, ("t", 19): INVALID_SIZE}
    harness.delete_groups("g")
    assert harness.commit("g", {("t", 0): 1}).code == NONE
    assert harness.machine.offsets.size < 1_000


def test_group_names_count_towards_the_offsets_limit(harness, monkeypatch):
    monkeypatch.setattr(commit_records, "OFFSETS_SIZE_MAX", 100_000)
    codes = [harness.commit(f"{at}" + "g" * 20_000, {("t", 0): 1}).code for at in range(8)]
    assert codes == [NONE] * 5 + [INVALID_SIZE] * 3
    harness.delete_groups(*[*harness.machine.offsets])
    assert harness.machine.offsets.size == 0


# -- deleting ------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_are_deleted(harness):
    harness.commit("g", {("t", 0): 7, ("t", 1): 8})
    assert harness.delete_offsets("g", ("t", 0), ("t", 5)).codes == {("t", 0): 0, ("t", 5): 0}
    assert harness.offsets("g") == {("t", 1): 8}


def test_offsets_of_subscribed_topics_are_not_deleted(harness):
    client = harness.client(protocols={"range": subscription("t", version=3, rest=b"whatever")})
    harness.stable(client)
    harness.commit_as(client, {("t", 0): 7, ("u", 0): 8})
    asked = harness.delete_offsets("g", ("t", 0), ("u", 0))
    assert asked.codes == {("t", 0): SUBSCRIBED, ("u", 0): 0}
    assert harness.offsets("g") == {("t", 0): 7}


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\x00", bytes(5), b"\xff\xff" + bytes(4), b"\x00\x00\x7f\xff\xff\xff",
     b"\x00\x00\x00\x00\x00\x01\x00\x05ab", b"\x00\x00\x00\x00\x00\x01\x00\x01\xff"],
)  # fmt: skip
def test_invalid_subscription_counts_as_all_topics(harness, metadata):
    client = harness.client(protocols={"range": metadata})
    harness.stable(client)
    harness.commit_as(client, {("u", 0): 8})
    assert harness.delete_offsets("g", ("u", 0)).codes == {("u", 0): SUBSCRIBED}


def test_oversized_subscription_counts_as_all_topics(harness):
    clients = [
        harness.client(
            name, protocols={"range": subscription(*(f"{name}{n}" for n in range(60_000)))}
        )
        for name in "ab"
    ]
    harness.stable(*clients)
    harness.commit_as(clients[0], {("u", 0): 8})
    assert harness.delete_offsets("g", ("u", 0)).codes == {("u", 0): SUBSCRIBED}


def test_offsets_of_other_protocol_types_are_deleted_when_empty(harness):
    client = harness.client(protocol_type="connect")
    harness.stable(client)
    harness.commit_as(client, {("u", 0): 8})
    assert harness.delete_offsets("g", ("u", 0)).code == NON_EMPTY
    client.leave()
    assert harness.delete_offsets("g", ("u", 0)).code == NONE
    assert harness.offsets("g") == {}


def test_offset_delete_of_an_unknown_group_is_refused(harness):
    assert harness.delete_offsets("g", ("u", 0)).code == GROUP_NOT_FOUND
    assert harness.delete_offsets("", ("u", 0)).code == INVALID_GROUP_ID


def test_deleted_topic_has_no_committed_offsets(harness):
    for group_id in "ab":
        harness.commit(group_id, {("t", 0): 7, ("u", 0): 8})
    harness.take(forget_topics(harness, "t", "never"))
    assert harness.offsets("a") == harness.offsets("b") == {("u", 0): 8}


def test_each_deleted_topic_of_a_name_has_no_committed_offsets(harness):
    one, other, new = (bytes([number]) * 16 for number in (1, 2, 3))
    for index, topic_id in enumerate((one, other, new)):
        harness.commit("g", {("t", index): 7}, topic_id=topic_id)
    found = harness.machine.topic_deletions({"t": {one, other}})
    tombstones = [record for record in found if record is not None]
    harness.take(harness.machine.write_deletions(tombstones, harness.now_ms))
    assert harness.offsets("g") == {("t", 2): 7}


def test_empty_group_is_deleted_with_its_offsets(harness):
    client = harness.client()
    harness.stable(client)
    client.commit(7)
    client.leave()
    harness.commit("offsets-only", {("t", 0): 7})
    harness.commit("", {("t", 0): 7})
    found = harness.delete_groups("g", "offsets-only", "nowhere", "")
    assert found == {"g": 0, "offsets-only": 0, "nowhere": GROUP_NOT_FOUND, "": 0}
    assert harness.machine.list() == []
    assert harness.offsets("g") == harness.offsets("offsets-only") == {}
    assert not any(dict(harness.log).values())


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance", "PreparingRebalance"])
def test_group_with_members_is_not_deleted(harness, state):
    client = harness.client()
    if state == "CompletingRebalance":
        harness.joined(client)
    else:
        harness.stable(client)
    if state == "PreparingRebalance":
        harness.client("b").join()
    assert harness.state() == state
    assert harness.delete_groups("g") == {"g": NON_EMPTY}
    assert harness.state() == state


def test_pending_member_of_a_deleted_group_is_unknown(harness):
    client = harness.client()
    client.member_id = client.send_join().member_id
    assert harness.delete_groups("g") == {"g": NONE}
    assert client.send_join().code == UNKNOWN_MEMBER
    harness.after(SESSION_MS)


# -- expiring ------------------------------------------------------------------------------------


def test_offsets_expire_after_their_group_was_empty_for_the_retention(harness):
    client = harness.client()
    harness.stable(client)
    client.commit(7)
    while harness.now_ms < 2 * RETENTION_MS:
        harness.after(SESSION_MS // 2 + RETENTION_MS // 2)  # no member sends a heartbeat
        if harness.state() == "Empty":
            break
    empty_since = SESSION_MS
    harness.at(empty_since + RETENTION_MS - 1)
    assert harness.offsets("g") == {("t", 0): 7}
    harness.after(CHECK_MS)
    assert harness.offsets("g") == {}
    assert harness.state() == "Dead"
    assert not any(dict(harness.log).values())


def test_offsets_without_a_group_expire_after_their_commit(harness):
    harness.commit("g", {("t", 0): 7})
    harness.after(RETENTION_MS // 2)
    harness.commit("g", {("t", 1): 8})
    harness.at(RETENTION_MS + CHECK_MS)
    assert harness.offsets("g") == {("t", 1): 8}
    assert harness.state() == "Empty"
    harness.after(RETENTION_MS)
    assert harness.state() == "Dead"


def test_offsets_of_an_active_group_expire_for_unsubscribed_topics(harness):
    client = harness.client(protocols={"range": subscription("t")}, session_ms=1_800_000)
    harness.stable(client)
    harness.commit_as(client, {("t", 0): 7, ("u", 0): 8})
    while harness.now_ms < RETENTION_MS + CHECK_MS:
        assert ("u", 0) in harness.offsets("g") or harness.now_ms >= RETENTION_MS
        harness.after(1_700_000)
        assert client.beat().code == NONE
    assert harness.offsets("g") == {("t", 0): 7}


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_offsets_of_an_active_group_with_unknown_subscription_are_kept(harness, protocol_type):
    client = harness.client(
        protocols={"range": b"\xff"}, protocol_type=protocol_type, session_ms=1_800_000
    )
    harness.stable(client)
    harness.commit_as(client, {("u", 0): 8})
    while harness.now_ms < RETENTION_MS + CHECK_MS:
        harness.after(1_700_000)
        assert client.beat().code == NONE
    assert harness.offsets("g") == {("u", 0): 8}


def test_old_commit_may_set_its_own_retention_time(harness):
    harness.commit("g", {("t", 0): 7}, version=4, retention_time_ms=CHECK_MS * 3)
    harness.commit("h", {("t", 0): 7}, version=4, retention_time_ms=-(1 << 63))
    harness.at(CHECK_MS * 2)
    assert harness.offsets("g") == {("t", 0): 7}
    assert harness.offsets("h") == {}
    harness.at(CHECK_MS * 4)
    assert harness.offsets("g") == {}


def test_empty_group_without_offsets_is_removed_at_the_next_check(harness):
    client = harness.client()
    harness.stable(client)
    client.leave()
    assert harness.state() == "Empty"
    harness.at(CHECK_MS)
    assert harness.state() == "Dead"
    assert harness.log[-1] == (harness.log[0][0], None)


def test_shorter_retention_check_interval_applies_at_once(harness):
    harness.commit("g", {("t", 0): 1})
    limits = harness.limits._replace(retention_ms=60_000, retention_check_ms=1_000)
    harness.machine.reconfigure(limits, harness.now_ms)
    harness.after(61_000)
    assert harness.offsets("g") == {}


def test_group_with_a_pending_member_is_kept(harness):
    harness.at(CHECK_MS - 1)
    client = harness.client()
    client.member_id = client.send_join().member_id
    harness.at(CHECK_MS)
    assert client.send_join().code == NONE


def test_expiry_check_runs_in_parts(harness, monkeypatch):
    monkeypatch.setattr(offset_retention, "SWEEP_COUNT", 10)
    for at in range(95):
        harness.commit(f"g{at}", {("t", index): at for index in range(3)})
    ticks = 0
    harness.at(RETENTION_MS - 1)
    while harness.machine.list():
        ticks += 1
        harness.now_ms = max(harness.now_ms, harness.machine.next_due_ms, RETENTION_MS)
        result = harness.machine.tick(harness.now_ms, harness.wall_ms)
        assert len(result.records) <= 10
        harness.take(result)
    assert ticks >= 10
    assert harness.machine.next_due_ms == harness.now_ms + CHECK_MS


# -- admin requests ------------------------------------------------------------------------------


def test_described_group_has_member_metadata_and_assignments(harness):
    client = harness.client("c", instance_id="i")
    harness.stable(client)
    assert harness.machine.describe("g", 6) == {
        "error_code": 0,
        "error_message": None,
        "group_id": "g",
        "group_state": "Stable",
        "protocol_type": "consumer",
        "protocol_data": "range",
        "members": [
            {
                "member_id": "i-1",
                "group_instance_id": "i",
                "client_id": "c",
                "client_host": "/127.0.0.1",
                "member_metadata": subscription("t"),
                "member_assignment": b"c",
            }
        ],
    }


def test_describe_of_an_unknown_group_is_dead_or_not_found(harness):
    old, new = harness.machine.describe("x", 5), harness.machine.describe("x", 6)
    assert (old["group_state"], old["error_code"]) == ("Dead", 0)
    assert (new["group_state"], new["error_code"]) == ("Dead", GROUP_NOT_FOUND)
    assert "x" in new["error_message"]


def test_groups_are_listed_by_state_and_type_in_any_case(harness):
    harness.stable(harness.client(group_id="stable"))
    harness.commit("simple", {("t", 0): 1})

    def named(*args):
        return [each["group_id"] for each in harness.machine.list(*args)]

    assert named() == ["stable", "simple"]
    assert named(["STABLE"]) == ["stable"]
    assert named(["empty", "Stable"]) == ["stable", "simple"]
    assert named([], ["Classic"]) == ["stable", "simple"]
    assert named([], ["consumer"]) == named(["no such state"]) == []
    assert harness.machine.list(["stable"])[0]["protocol_type"] == "consumer"


def test_group_metrics_are_counted(harness):
    harness.stable(harness.client(group_id="stable"))
    harness.commit("simple", {("t", 0): 1, ("t", 1): 1})
    counts = harness.machine.counts
    assert counts == {
        "Empty": 1,
        "PreparingRebalance": 0,
        "CompletingRebalance": 0,
        "Assigning": 0,
        "Reconciling": 0,
        "Stable": 1,
        "groups": 2,
        "offsets": 2,
    }
    assert (harness.machine.rebalance_count, harness.machine.commit_count) == (1, 2)
    assert WALL_MS == harness.wall_ms
