"""CommittedOffset offsets: valid commits, retention, expiration; and groups as admins see them."""

from __future__ import annotations

import pytest

from kafkalite.coordination import group_coordinator
from tests.coordination.groups import (
    CHECK_MS,
    RETENTION_MS,
    SESSION_MS,
    WALL_MS,
    Stage,
    forget_topics,
    subscription,
)

NONE, METADATA_TOO_LARGE, ILLEGAL_GENERATION, INVALID_GROUP_ID, UNKNOWN_MEMBER = 0, 12, 22, 24, 25
REBALANCE_IN_PROGRESS, INVALID_SIZE, NON_EMPTY, GROUP_NOT_FOUND, SUBSCRIBED = 27, 28, 68, 69, 86
FENCED = 82


@pytest.fixture
def stage():
    return Stage()


# -- valid commits -------------------------------------------------------------------------------


def test_a_member_commits_in_its_generation(stage):
    client = stage.client()
    stage.stable(client)
    assert client.commit(7).code == NONE
    assert stage.offsets("g") == {("t", 0): 7}


def test_nobody_commits_in_another_generation(stage):
    client = stage.client()
    stage.stable(client)
    assert client.commit(7, generation=0).code == ILLEGAL_GENERATION
    assert client.commit(7, generation=2).code == ILLEGAL_GENERATION
    assert client.commit(7, generation=-1).code == ILLEGAL_GENERATION
    assert stage.offsets("g") == {}


def test_who_is_no_member_does_not_commit_for_a_group_that_has_some(stage):
    client = stage.client()
    stage.stable(client)
    assert stage.commit("g", {("t", 0): 7}).code == UNKNOWN_MEMBER
    assert stage.commit("g", {("t", 0): 7}, generation=1, member_id="x").code == UNKNOWN_MEMBER
    assert stage.commit("g", {("t", 0): 7}, instance_id="x").code == UNKNOWN_MEMBER
    assert stage.offsets("g") == {}


def test_a_member_may_still_commit_while_others_join(stage):
    first = stage.client("a")
    stage.stable(first)
    stage.client("b").join()
    assert stage.state() == "PreparingRebalance"
    assert first.commit(7).code == NONE


def test_a_member_does_not_commit_before_it_was_assigned_anything(stage):
    client = stage.client()
    stage.joined(client)
    assert client.commit(7).code == REBALANCE_IN_PROGRESS
    assert stage.offsets("g") == {}


def test_a_member_that_was_put_out_commits_nothing(stage):
    client = stage.client()
    stage.stable(client)
    stage.after(SESSION_MS)
    assert client.commit(7).code == UNKNOWN_MEMBER
    assert stage.offsets("g") == {}


def test_anybody_commits_for_a_group_without_members(stage):
    assert stage.commit("new", {("t", 0): 7}).code == NONE
    assert stage.commit("", {("t", 0): 8}).code == NONE
    client = stage.client()
    stage.stable(client)
    client.leave()
    assert stage.commit("g", {("t", 0): 9}).code == NONE
    assert stage.offsets("new") == {("t", 0): 7}
    assert stage.offsets("") == {("t", 0): 8}
    assert stage.offsets("g") == {("t", 0): 9}


def test_a_generation_of_a_group_that_is_not_there_is_none(stage):
    place = {("t", 0): 7}
    assert stage.commit("g", place, generation=1, member_id="x").code == GROUP_NOT_FOUND
    assert stage.commit("g", place, generation=1, member_id="x", version=8).code == (
        ILLEGAL_GENERATION
    )
    assert stage.machine.list() == []


def test_metadata_is_as_long_as_the_broker_keeps(stage):
    places = {("t", 0): 7}
    assert stage.commit("g", places, metadata="x" * 4_096).code == NONE
    assert stage.commit("g", {("t", 1): 7}, metadata="x" * 4_097).code == METADATA_TOO_LARGE
    assert stage.offsets("g") == places


def test_a_commit_may_be_refused_in_part(stage):
    stage.machine.limits = stage.limits._replace(metadata_size_max=0)
    asked = stage.commit("g", {("t", 0): 7, ("t", 1): 8})
    assert asked.codes == {("t", 0): 0, ("t", 1): 0}
    assert stage.committed("g")["t", 1].metadata == ""


def test_a_commit_that_cannot_be_written_is_none(stage):
    stage.commit("g", {("t", 0): 7})
    stage.writable = False
    assert stage.commit("g", {("t", 0): 8}).fault is not None
    assert stage.offsets("g") == {("t", 0): 7}


def test_what_is_asked_for_and_not_there_is_left_out(stage):
    stage.commit("g", {("t", 0): 7, ("u", 1): 8}, metadata="m")
    fetched = stage.machine.fetch_offsets("g", {"t": [0, 1], "v": [0]})
    assert fetched == {"t": {0: (7, 0, "m")}}
    assert stage.machine.fetch_offsets("nobody", {"t": [0]}) == {}
    assert stage.machine.fetch_offsets("nobody", None) == {}


def test_what_was_committed_of_a_topic_that_had_the_name_before_is_not_there(stage):
    old, new = bytes(range(16)), bytes(range(1, 17))
    stage.commit("g", {("t", 0): 7}, topic_id=old)
    stage.commit("g", {("t", 1): 8}, topic_id=new)
    stage.commit("g", {("t", 2): 9})

    def fetched(wanted, topic_id):
        return [*stage.machine.fetch_offsets("g", wanted, lambda _: topic_id).get("t", {})]

    for wanted in (None, {"t": [0, 1, 2]}):
        assert fetched(wanted, old) == [0, 2]
        assert fetched(wanted, new) == [1, 2]
        assert fetched(wanted, bytes(16)) == [0, 1, 2]
    stage.restart()
    assert fetched(None, new) == [1, 2]


def test_what_all_groups_commit_is_bounded(stage, monkeypatch):
    monkeypatch.setattr(group_coordinator, "OFFSETS_SIZE_MAX", 10_000)
    codes = [stage.commit("g", {("t", at): 1}, metadata="x" * 1_000).code for at in range(20)]
    assert codes[0] == NONE
    assert codes[-1] == INVALID_SIZE
    assert len(stage.offsets("g")) < 10
    assert stage.commit("g", {("t", 0): 2}, metadata="x" * 1_000).code == NONE
    asked = stage.commit("g", {("t", 1): 3, ("t", 19): 1})
    assert asked.codes == {("t", 1): NONE, ("t", 19): INVALID_SIZE}
    stage.delete_groups("g")
    assert stage.commit("g", {("t", 0): 1}).code == NONE
    assert stage.machine.offsets.size < 1_000


def test_the_names_of_groups_count_as_well(stage, monkeypatch):
    monkeypatch.setattr(group_coordinator, "OFFSETS_SIZE_MAX", 100_000)
    codes = [stage.commit(f"{at}" + "g" * 20_000, {("t", 0): 1}).code for at in range(8)]
    assert codes == [NONE] * 5 + [INVALID_SIZE] * 3
    stage.delete_groups(*[*stage.machine.offsets])
    assert stage.machine.offsets.size == 0


# -- deleting ------------------------------------------------------------------------------------


def test_offsets_of_an_empty_group_are_deleted(stage):
    stage.commit("g", {("t", 0): 7, ("t", 1): 8})
    assert stage.delete_offsets("g", ("t", 0), ("t", 5)).codes == {("t", 0): 0, ("t", 5): 0}
    assert stage.offsets("g") == {("t", 1): 8}


def test_offsets_of_topics_that_a_consumer_reads_are_not_deleted(stage):
    client = stage.client(protocols={"range": subscription("t", version=3, rest=b"whatever")})
    stage.stable(client)
    stage.commit_as(client, {("t", 0): 7, ("u", 0): 8})
    asked = stage.delete_offsets("g", ("t", 0), ("u", 0))
    assert asked.codes == {("t", 0): SUBSCRIBED, ("u", 0): 0}
    assert stage.offsets("g") == {("t", 0): 7}


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\x00", bytes(5), b"\xff\xff" + bytes(4), b"\x00\x00\x7f\xff\xff\xff",
     b"\x00\x00\x00\x00\x00\x01\x00\x05ab", b"\x00\x00\x00\x00\x00\x01\x00\x01\xff"],
)  # fmt: skip
def test_a_consumer_that_says_nonsense_may_read_anything(stage, metadata):
    client = stage.client(protocols={"range": metadata})
    stage.stable(client)
    stage.commit_as(client, {("u", 0): 8})
    assert stage.delete_offsets("g", ("u", 0)).codes == {("u", 0): SUBSCRIBED}


def test_consumers_that_name_more_topics_than_anybody_has_may_read_anything(stage):
    clients = [
        stage.client(
            name, protocols={"range": subscription(*(f"{name}{n}" for n in range(60_000)))}
        )
        for name in "ab"
    ]
    stage.stable(*clients)
    stage.commit_as(clients[0], {("u", 0): 8})
    assert stage.delete_offsets("g", ("u", 0)).codes == {("u", 0): SUBSCRIBED}


def test_offsets_of_others_than_consumers_are_deleted_when_they_are_gone(stage):
    client = stage.client(protocol_type="connect")
    stage.stable(client)
    stage.commit_as(client, {("u", 0): 8})
    assert stage.delete_offsets("g", ("u", 0)).code == NON_EMPTY
    client.leave()
    assert stage.delete_offsets("g", ("u", 0)).code == NONE
    assert stage.offsets("g") == {}


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(stage):
    assert stage.delete_offsets("g", ("u", 0)).code == GROUP_NOT_FOUND
    assert stage.delete_offsets("", ("u", 0)).code == INVALID_GROUP_ID


def test_a_deleted_topic_has_been_read_by_nobody(stage):
    for group_id in "ab":
        stage.commit(group_id, {("t", 0): 7, ("u", 0): 8})
    stage.take(forget_topics(stage, "t", "never"))
    assert stage.offsets("a") == stage.offsets("b") == {("u", 0): 8}


def test_each_topic_of_a_name_that_was_deleted_twice_has_been_read_by_nobody(stage):
    one, other, new = (bytes([number]) * 16 for number in (1, 2, 3))
    for index, topic_id in enumerate((one, other, new)):
        stage.commit("g", {("t", index): 7}, topic_id=topic_id)
    found = stage.machine.topic_tombstones({"t": {one, other}})
    tombstones = [record for record in found if record is not None]
    stage.take(stage.machine.write_tombstones(tombstones, stage.now_ms))
    assert stage.offsets("g") == {("t", 2): 7}


def test_an_empty_group_is_deleted_with_its_offsets(stage):
    client = stage.client()
    stage.stable(client)
    client.commit(7)
    client.leave()
    stage.commit("offsets-only", {("t", 0): 7})
    stage.commit("", {("t", 0): 7})
    found = stage.delete_groups("g", "offsets-only", "nowhere", "")
    assert found == {"g": 0, "offsets-only": 0, "nowhere": GROUP_NOT_FOUND, "": 0}
    assert stage.machine.list() == []
    assert stage.offsets("g") == stage.offsets("offsets-only") == {}
    assert [*stage.machine.records()] == []


@pytest.mark.parametrize("state", ["Stable", "CompletingRebalance", "PreparingRebalance"])
def test_a_group_with_members_is_not_deleted(stage, state):
    client = stage.client()
    if state == "CompletingRebalance":
        stage.joined(client)
    else:
        stage.stable(client)
    if state == "PreparingRebalance":
        stage.client("b").join()
    assert stage.state() == state
    assert stage.delete_groups("g") == {"g": NON_EMPTY}
    assert stage.state() == state


def test_who_was_given_an_id_by_a_deleted_group_is_unknown(stage):
    client = stage.client()
    client.member_id = client.ask_to_join().member_id
    assert stage.delete_groups("g") == {"g": NONE}
    assert client.ask_to_join().code == UNKNOWN_MEMBER
    stage.after(SESSION_MS)


# -- expiring ------------------------------------------------------------------------------------


def test_offsets_expire_when_their_group_has_been_empty_for_long(stage):
    client = stage.client()
    stage.stable(client)
    client.commit(7)
    while stage.now_ms < 2 * RETENTION_MS:
        stage.after(SESSION_MS // 2 + RETENTION_MS // 2)  # no member sends a heartbeat
        if stage.state() == "Empty":
            break
    empty_since = SESSION_MS
    stage.at(empty_since + RETENTION_MS - 1)
    assert stage.offsets("g") == {("t", 0): 7}
    stage.after(CHECK_MS)
    assert stage.offsets("g") == {}
    assert stage.state() == "Dead"
    assert [*stage.machine.records()] == []


def test_offsets_of_nobody_known_expire_after_their_commit(stage):
    stage.commit("g", {("t", 0): 7})
    stage.after(RETENTION_MS // 2)
    stage.commit("g", {("t", 1): 8})
    stage.at(RETENTION_MS + CHECK_MS)
    assert stage.offsets("g") == {("t", 1): 8}
    assert stage.state() == "Empty"
    stage.after(RETENTION_MS)
    assert stage.state() == "Dead"


def test_offsets_of_a_group_at_work_expire_for_topics_it_reads_no_more(stage):
    client = stage.client(protocols={"range": subscription("t")}, session_ms=1_800_000)
    stage.stable(client)
    stage.commit_as(client, {("t", 0): 7, ("u", 0): 8})
    while stage.now_ms < RETENTION_MS + CHECK_MS:
        assert ("u", 0) in stage.offsets("g") or stage.now_ms >= RETENTION_MS
        stage.after(1_700_000)
        assert client.beat().code == NONE
    assert stage.offsets("g") == {("t", 0): 7}


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_offsets_of_a_group_at_work_stay_when_nobody_can_tell_what_it_reads(stage, protocol_type):
    client = stage.client(
        protocols={"range": b"\xff"}, protocol_type=protocol_type, session_ms=1_800_000
    )
    stage.stable(client)
    stage.commit_as(client, {("u", 0): 8})
    while stage.now_ms < RETENTION_MS + CHECK_MS:
        stage.after(1_700_000)
        assert client.beat().code == NONE
    assert stage.offsets("g") == {("u", 0): 8}


def test_a_client_of_old_may_say_itself_how_long_its_offsets_stay(stage):
    stage.commit("g", {("t", 0): 7}, version=4, retention_time_ms=CHECK_MS * 3)
    stage.commit("h", {("t", 0): 7}, version=4, retention_time_ms=-(1 << 63))
    stage.at(CHECK_MS * 2)
    assert stage.offsets("g") == {("t", 0): 7}
    assert stage.offsets("h") == {}
    stage.at(CHECK_MS * 4)
    assert stage.offsets("g") == {}


def test_an_empty_group_without_offsets_goes_with_the_next_search(stage):
    client = stage.client()
    stage.stable(client)
    client.leave()
    assert stage.state() == "Empty"
    stage.at(CHECK_MS)
    assert stage.state() == "Dead"
    assert stage.log[-1] == (stage.log[0][0], None)


def test_a_shorter_interval_between_searches_counts_at_once(stage):
    stage.commit("g", {("t", 0): 1})
    limits = stage.limits._replace(retention_ms=60_000, retention_check_ms=1_000)
    stage.machine.reconfigure(limits, stage.now_ms)
    stage.after(61_000)
    assert stage.offsets("g") == {}


def test_a_group_that_somebody_is_about_to_join_does_not_go(stage):
    stage.at(CHECK_MS - 1)
    client = stage.client()
    client.member_id = client.ask_to_join().member_id
    stage.at(CHECK_MS)
    assert client.ask_to_join().code == NONE


def test_the_search_goes_on_in_parts_and_finds_everything(stage, monkeypatch):
    monkeypatch.setattr(group_coordinator, "SWEEP_COUNT", 10)
    for at in range(95):
        stage.commit(f"g{at}", {("t", 0): at})
    ticks = 0
    stage.at(RETENTION_MS - 1)
    while stage.machine.list():
        ticks += 1
        stage.now_ms = max(stage.now_ms, stage.machine.next_due_ms, RETENTION_MS)
        result = stage.machine.tick(stage.now_ms, stage.wall_ms)
        assert len(result.records) <= 10
        stage.take(result)
    assert ticks >= 10
    assert stage.machine.next_due_ms == stage.now_ms + CHECK_MS


# -- admin requests ------------------------------------------------------------------------------


def test_a_group_is_described_with_what_its_members_said_and_were_assigned(stage):
    client = stage.client("c", instance_id="i")
    stage.stable(client)
    assert stage.machine.describe("g", 6) == {
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


def test_a_group_that_is_not_there_is_dead_or_not_found(stage):
    old, new = stage.machine.describe("x", 5), stage.machine.describe("x", 6)
    assert (old["group_state"], old["error_code"]) == ("Dead", 0)
    assert (new["group_state"], new["error_code"]) == ("Dead", GROUP_NOT_FOUND)
    assert "x" in new["error_message"]


def test_groups_are_listed_by_state_and_type_in_any_case(stage):
    stage.stable(stage.client(group_id="stable"))
    stage.commit("simple", {("t", 0): 1})

    def named(*args):
        return [each["group_id"] for each in stage.machine.list(*args)]

    assert named() == ["stable", "simple"]
    assert named(["STABLE"]) == ["stable"]
    assert named(["empty", "Stable"]) == ["stable", "simple"]
    assert named([], ["Classic"]) == ["stable", "simple"]
    assert named([], ["consumer"]) == named(["no such state"]) == []
    assert stage.machine.list(["stable"])[0]["protocol_type"] == "consumer"


def test_what_is_counted(stage):
    stage.stable(stage.client(group_id="stable"))
    stage.commit("simple", {("t", 0): 1, ("t", 1): 1})
    counts = stage.machine.counts
    assert counts == {
        "Empty": 1,
        "PreparingRebalance": 0,
        "CompletingRebalance": 0,
        "Stable": 1,
        "groups": 2,
        "offsets": 2,
    }
    assert (stage.machine.rebalance_count, stage.machine.commit_count) == (1, 2)
    assert WALL_MS == stage.wall_ms
