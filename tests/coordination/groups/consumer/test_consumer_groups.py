"""Consumer groups (KIP-848): the scenarios of members that come, stay, move and go."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups import group_table
from kafkalite.coordination.groups.consumer.consumer_group import ResolvedPattern
from kafkalite.coordination.groups.consumer.consumer_membership import (
    FENCING_RETRY_MS,
    UNSETTLED_INTERVAL_MS,
)
from kafkalite.coordination.groups.group_settings import ConsumerGroupSettings
from kafkalite.coordination.steps import result_of
from kafkalite.errors import GroupIdNotFound
from kafkalite.protocol.schemas import group_records
from kafkalite.protocol.schemas.consumer_group_records import PARTITION_METADATA
from kafkalite.protocol.schemas.group_records import GroupRecord
from tests.coordination.groups.consumers import ConsumerClient, fields_of, settle
from tests.coordination.groups.harness import REBALANCE_MS, GroupHarness


@pytest.fixture
def harness():
    harness = GroupHarness()
    harness.topics.create("t", 4)
    return harness


def test_first_member_gets_all_partitions(harness):
    a = ConsumerClient(harness, "a", "t")
    joined = a.join()
    assert (joined.code, joined.member_id, joined.member_epoch) == (0, "a", 2)
    assert a.partitions == [0, 1, 2, 3]
    assert harness.machine.list()[0] == {
        "group_id": "g",
        "protocol_type": "consumer",
        "group_state": "Stable",
        "group_type": "consumer",
    }


def test_second_member_gets_half_after_the_first_has_revoked(harness):
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    settle(a)
    b.join()
    assert b.partitions == []
    assert b.epoch == 3
    asked = a.beat()
    assert (asked.member_epoch, len(a.partitions)) == (2, 2)
    b.beat()
    assert b.partitions == []
    a.revoke()
    a.beat()
    assert a.epoch == 3
    b.beat()
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]
    assert harness.machine.list()[0]["group_state"] == "Stable"


def pair(harness, **options):
    """Return two settled members of group g with two partitions each."""
    clients = [ConsumerClient(harness, name, "t", **options) for name in "ab"]
    settle(*clients)
    return clients


def epochs_of(harness):
    group = harness.described()
    return group["group_epoch"], group["assignment_epoch"]


def test_repeated_request_after_a_lost_response_changes_nothing(harness):
    a, b = pair(harness)
    b.leave()
    epoch = a.epoch
    lost = a.lose_response()
    assert lost.member_epoch > epoch
    log_size = len(harness.log)
    repeated = a.beat()
    assert (repeated.code, repeated.member_epoch) == (0, lost.member_epoch)
    assert a.partitions == [0, 1, 2, 3]
    assert len(harness.log) == log_size


def test_previous_epoch_is_fenced_with_foreign_or_unnamed_partitions(harness):
    a, b = pair(harness)
    b.leave()
    a.send(topic_partitions=fields_of(a.owned))
    assert a.send(topic_partitions=None).code == 110
    assert a.send(topic_partitions=fields_of({bytes(16): {0}})).code == 110
    assert a.send(topic_partitions=[]).code == 0


@pytest.mark.parametrize("change", [1, -2])
def test_other_epoch_is_fenced(harness, change):
    a, _ = pair(harness)
    assert a.send(member_epoch=a.epoch + change, topic_partitions=[]).code == 110


def test_epoch_0_of_a_known_member_rejoins(harness):
    a, b = pair(harness)
    before = epochs_of(harness)
    partitions = a.partitions
    a.join()
    assert (a.partitions, epochs_of(harness)) == (partitions, before)
    assert b.beat().assignment is None


def test_member_that_keeps_its_partitions_is_fenced_after_its_rebalance_timeout(harness):
    harness.settings = ConsumerGroupSettings(session_timeout_ms=10 * REBALANCE_MS)
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    settle(a)
    b.join()
    a.beat()
    harness.after(REBALANCE_MS - 1)
    a.beat()
    assert b.beat().code == 0
    assert b.partitions == []
    harness.after(1)
    assert a.beat().code == 25
    settle(b)
    assert b.partitions == [0, 1, 2, 3]


def test_rebalance_timeout_restarts_after_a_load(harness):
    harness.settings = ConsumerGroupSettings(session_timeout_ms=10 * REBALANCE_MS)
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    settle(a)
    b.join()
    a.beat()
    harness.restart()
    harness.after(REBALANCE_MS)
    assert a.beat().code == 25


def test_heartbeat_without_owned_partitions_acknowledges_nothing(harness):
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    settle(a)
    b.join()
    a.beat()
    a.take(a.send())
    b.beat()
    assert (a.epoch, b.partitions) == (2, [])
    a.revoke()
    a.beat()
    assert a.epoch == 3


def test_unsubscribed_topic_is_revoked_at_once(harness):
    u = harness.topics.create("u", 2)
    harness.settings = ConsumerGroupSettings(assignment_interval_ms=10_000)
    a = ConsumerClient(harness, "a", "t", "u")
    settle(a)
    changed = a.beat(subscribed_topic_names=["t"])
    assert u not in a.assigned
    assert (changed.code, len(a.partitions)) == (0, 4)
    assert epochs_of(harness) == (3, 2)
    state = harness.machine.groups.get("g").members["a"].current
    assert (state.state, [*state.pending]) == (1, [u])


def test_topic_that_grows_moves_no_other_partition(harness):
    a, b = pair(harness)
    before = {index: client for client in (a, b) for index in client.partitions}
    harness.topics.grow("t", 8)
    harness.machine.topics_changed(["t"])
    settle(a, b)
    assert sorted(a.partitions + b.partitions) == [*range(8)]
    assert {index: c for c in (a, b) for index in c.partitions if index < 4} == before


def test_member_with_known_topics_looks_up_its_own_only(harness, monkeypatch):
    names = [f"t{number}" for number in range(6)]
    for name in names:
        harness.topics.create(name, 1)
    a, b, c = (ConsumerClient(harness, name, *names) for name in "abc")
    settle(a)
    b.join()
    harness.settings = ConsumerGroupSettings(assignment_interval_ms=10_000)
    looked_up = []
    topic = harness.topics.topic

    def look_up(name):
        looked_up.append(name)
        return topic(name)

    monkeypatch.setattr(harness.topics, "topic", look_up)
    a.step()
    a.step()
    assert len(a.assigned) == 3
    c.join()
    assert looked_up == []
    assert epochs_of(harness) == (4, 3)
    c.beat(subscribed_topic_names=names[1:])
    a.leave()
    b.leave()
    assert {*looked_up} == {*names[1:]}


def test_recreated_topic_is_another_topic(harness):
    a, b = pair(harness)
    old = {*a.assigned}
    new = harness.topics.create("t", 4)
    harness.machine.topics_changed(["t"])
    settle(a, b)
    assert {*a.assigned, *b.assigned} == {new}
    assert new not in old


def test_deleted_topic_is_unassigned(harness):
    a, b = pair(harness)
    harness.topics.delete("t")
    harness.machine.topics_changed(["t"])
    settle(a, b)
    assert a.partitions == b.partitions == []


def test_static_member_that_returns_keeps_its_partitions(harness):
    a = ConsumerClient(harness, "a", "t", instance_id="i")
    b = ConsumerClient(harness, "b", "t")
    settle(a, b)
    before, partitions = epochs_of(harness), a.partitions
    again = ConsumerClient(harness, "a2", "t", instance_id="i")
    assert again.join().code == 111
    assert a.leave(epoch=-2).member_epoch == -2
    b.beat()
    assert again.join().code == 0
    assert again.partitions == partitions
    assert epochs_of(harness) == before
    assert a.send(member_epoch=5, topic_partitions=[]).code == 82
    assert [each["member_id"] for each in harness.described()["members"]] == [
        "b",
        "a2",
    ]


def test_member_that_takes_the_place_of_a_static_one_gives_up_its_own(harness):
    a = ConsumerClient(harness, "a", "t", instance_id="i")
    b = ConsumerClient(harness, "b", "t")
    settle(a, b)
    a.leave(epoch=-2)
    b.instance_id = "i"
    b.join()
    settle(b)
    assert b.partitions == [0, 1, 2, 3]


def test_static_member_that_stays_away_is_removed(harness):
    a = ConsumerClient(harness, "a", "t", instance_id="i")
    b = ConsumerClient(harness, "b", "t")
    settle(a, b)
    a.leave(epoch=-2)
    for _ in range(3):
        harness.after(harness.settings.session_timeout_ms // 2)
        b.step()
    settle(b)
    assert b.partitions == [0, 1, 2, 3]


def test_unknown_instance_and_unknown_member_are_refused(harness):
    a, _ = pair(harness)
    assert a.send(instance_id="other").code == 25
    assert a.send(member_id="other").code == 25
    assert a.send(group_id="other").code == 69
    assert a.send(member_epoch=-1, member_id="other").code == 25
    assert a.send(member_epoch=-1, group_id="other").code == 69


def test_session_that_expires_frees_the_partitions(harness):
    a, b = pair(harness)
    for _ in range(3):
        harness.after(harness.settings.session_timeout_ms // 2)
        b.step()
    settle(b)
    assert b.partitions == [0, 1, 2, 3]
    assert a.beat().code == 25


def test_members_that_expire_together_leave_an_empty_group(harness):
    pair(harness)
    harness.after(harness.settings.session_timeout_ms + 1_000)
    group = harness.described()
    assert (group["group_state"], group["members"]) == ("Empty", [])
    assert group["group_epoch"] == group["assignment_epoch"]


def test_member_that_joins_an_empty_group_is_assigned_at_once(harness):
    harness.settings = ConsumerGroupSettings(assignment_interval_ms=15_000)
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    a.join()
    a.leave()
    b.join()
    assert b.partitions == [0, 1, 2, 3]


def test_target_is_computed_once_in_an_interval_and_by_a_timer(harness):
    harness.settings = ConsumerGroupSettings(assignment_interval_ms=5_000)
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    a.join()
    assert a.interval_ms == harness.settings.heartbeat_interval_ms
    b.join()
    assert (b.epoch, b.interval_ms) == (2, UNSETTLED_INTERVAL_MS)
    assert harness.machine.list()[0]["group_state"] == "Assigning"
    harness.after(4_999)
    assert epochs_of(harness) == (3, 2)
    harness.after(1)
    assert epochs_of(harness) == (3, 3)


def test_full_group_refuses_new_members():
    harness = GroupHarness(consumer_max_size=1)
    harness.topics.create("t", 1)
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    assert (a.join().code, b.join().code, a.join().code) == (0, 81, 0)


def test_subscriptions_are_within_the_memory_limit(harness, monkeypatch):
    a, _ = pair(harness)
    names = [f"topic-{number}" for number in range(1_000)]
    monkeypatch.setattr(group_table, "SIZE_MAX", 100_000)
    assert a.beat(subscribed_topic_names=names).code == 81
    assert a.beat(subscribed_topic_names=names[:10]).code == 0
    c = ConsumerClient(harness, "c", *names)
    assert c.join().code == 81


def test_assignor_that_most_members_want_is_used(harness):
    a, b = pair(harness)
    assert harness.described()["assignor_name"] == "uniform"
    before = epochs_of(harness)
    a.beat(server_assignor="range")
    assert harness.described()["assignor_name"] == "range"
    assert epochs_of(harness)[0] == before[0] + 1
    settle(a, b)
    assert (a.partitions, b.partitions) == ([0, 1], [2, 3])


@pytest.mark.parametrize("count", range(9))
def test_restart_after_any_record_gives_the_same_responses(harness, count):
    a, b = ConsumerClient(harness, "a", "t"), ConsumerClient(harness, "b", "t")
    clients = [a.join, b.join, a.step, a.step, b.step, a.step, b.step, b.leave, a.step]
    for step in clients[:count]:
        step()
    described = harness.described() if count else None
    harness.restart()
    assert (harness.described() if count else None) == described
    settle(a)
    settle(a, b)
    assert sorted(a.partitions + b.partitions) == [0, 1, 2, 3]


HEARTBEATS = ("a.join", "b.join", "a.step", "a.step", "b.step", "a.step", "b.step", "a.step")
"""The heartbeats by which two members come to share a topic."""


def heartbeats_with_a_crash(harness, count, crash):
    """Return the outcome of `count` heartbeats; the coordinator crashes at the last one.

    A client that got no response repeats its heartbeat, with all fields.
    """
    clients = {name: ConsumerClient(harness, name, "t") for name in "ab"}
    for at, heartbeat in enumerate(HEARTBEATS[:count], 1):
        name, action = heartbeat.split(".")
        client = clients[name]
        if at == count and crash == "before the records":
            harness.writable = False
            getattr(client, action)()
            harness.writable = True
            harness.restart()
            client.has_lost = True
        elif at == count and crash == "after the records":
            epoch, assigned, owned = client.epoch, client.assigned, client.owned
            getattr(client, action)()
            client.epoch, client.assigned, client.owned = epoch, assigned, owned
            harness.restart()
            client.has_lost = True
        assert getattr(client, action)().code == 0
    return harness.described(), [(each.epoch, each.assigned) for each in clients.values()]


@pytest.mark.parametrize("crash", ["before the records", "after the records"])
@pytest.mark.parametrize("count", range(1, len(HEARTBEATS) + 1))
def test_heartbeat_repeated_after_a_crash_gets_the_same_response(count, crash):
    """The records of a heartbeat are one batch: all of them are in the log, or none is."""
    outcomes = []
    for each in ("", crash):
        harness = GroupHarness()
        harness.topics.create("t", 4)
        outcomes.append(heartbeats_with_a_crash(harness, count, each))
    assert outcomes[0] == outcomes[1]


def test_write_that_fails_changes_nothing(harness):
    a = ConsumerClient(harness, "a", "t")
    harness.writable = False
    assert a.join().code == 56
    assert harness.machine.list() == []
    harness.writable = True
    settle(a)
    harness.topics.grow("t", 5)
    harness.machine.topics_changed(["t"])
    harness.writable = False
    assert a.send(topic_partitions=fields_of(a.owned)).code == 56
    harness.writable = True
    settle(a)
    assert a.partitions == [*range(5)]


def test_topic_is_noticed_after_a_change_that_could_not_be_written(harness):
    a = ConsumerClient(harness, "a", "t", "u")
    settle(a)
    u = harness.topics.create("u", 1)
    harness.machine.topics_changed(["u"])
    harness.writable = False
    a.send(subscribed_topic_names=["t"], topic_partitions=fields_of(a.owned))
    harness.writable = True
    settle(a)
    assert u in a.assigned


def test_resolved_expression_adds_topics(harness):
    a = ConsumerClient(harness, "a")
    harness.topics.create("logs", 2)
    a.join()
    a.beat(subscribed_topic_regex="l.*")
    before = epochs_of(harness)
    assert harness.machine.patterns_due("g", harness.now_ms) == ["l.*"]
    resolve(harness, "l.*", "logs")
    assert epochs_of(harness)[0] == before[0] + 1
    settle(a)
    assert a.partitions == [0, 1]
    resolve(harness, "l.*", "logs")
    assert epochs_of(harness)[0] == before[0] + 1
    b = ConsumerClient(harness, "b")
    b.join()
    b.beat(subscribed_topic_regex="l.*")
    settle(a, b)
    assert (len(a.partitions), len(b.partitions)) == (1, 1)
    b.beat(subscribed_topic_regex="")
    settle(a, b)
    assert (len(a.partitions), len(b.partitions)) == (2, 0)
    a.leave()
    assert harness.machine.groups.get("g").patterns == {}


def resolve(harness, pattern, *topics):
    resolved = {pattern: ResolvedPattern(frozenset(topics), 1, harness.wall_ms)}
    harness.decide(
        "patterns",
        lambda token: harness.machine.patterns_resolved(
            "g", resolved, token, harness.now_ms, harness.wall_ms
        ),
    )
    harness.after(0)


def test_group_with_members_is_not_deleted_and_an_empty_one_leaves_nothing(harness):
    a, b = pair(harness)
    assert harness.delete_groups("g") == {"g": 68}
    a.leave()
    b.leave()
    harness.commit("g", {("t", 0): 5})
    assert harness.delete_groups("g") == {"g": 0}
    assert harness.machine.list() == []
    harness.restart()
    assert harness.machine.list() == []
    with pytest.raises(GroupIdNotFound):
        harness.described()


def test_description_is_of_the_moment_when_it_begins(harness):
    a, b = pair(harness)
    before = harness.described()
    steps = harness.machine.describe_consumer("g")
    next(steps)
    b.leave()
    settle(a)
    assert result_of(steps) == before
    assert [each["member_id"] for each in harness.described()["members"]] == ["a"]


def test_group_is_described_and_listed_by_its_own_protocol(harness):
    pair(harness)
    harness.stable(harness.client(group_id="classic"))
    described = harness.machine.describe("g", 6)
    assert (described["error_code"], described["group_state"]) == (69, "Dead")
    with pytest.raises(GroupIdNotFound):
        harness.described("classic")
    listed = harness.machine.list([], ["consumer"])
    assert [each["group_id"] for each in listed] == ["g"]


def test_target_follows_the_old_target_not_what_members_have():
    harness = GroupHarness()
    t = harness.topics.create("t", 6)
    a, b, c = (ConsumerClient(harness, name, "t") for name in "abc")
    settle(a)
    b.join()
    targets = harness.machine.groups.get("g").target
    before = {*targets["b"][t]}
    assert len(before) == 3
    assert b.partitions == []
    c.join()
    assert {*targets["b"][t]} < before


def test_leave_deletes_the_assignment_before_the_member(harness):
    a, _ = pair(harness)
    log_size = len(harness.log)
    a.leave()
    left = [key[:2] for key, _ in harness.log[log_size:]]
    assert left == [bytes((0, kind)) for kind in (8, 7, 5, 3)]


def test_records_of_the_first_heartbeat_are_in_the_order_of_kafka(harness):
    ConsumerClient(harness, "a", "t").join()
    assert [key[1] for key, _ in harness.log] == [5, 3, 7, 6, 8]


def test_partition_metadata_of_an_older_kafka_is_deleted_with_the_next_epoch(harness):
    a, b = pair(harness)
    value = {"topics": []}
    key, content = group_records.write(GroupRecord(PARTITION_METADATA, "g", value))
    harness.log.append((key, content))
    harness.restart()
    b.leave()
    assert (key, None) in harness.log
    harness.restart()
    settle(a)
    assert harness.log.count((key, None)) == 1


@pytest.mark.parametrize("is_leaving", [False, True])
def test_removal_that_cannot_be_written_is_repeated_when_the_session_expires(harness, is_leaving):
    a, b = pair(harness)
    harness.writable = False
    if is_leaving:
        assert (a.leave().code, b.leave().code) == (56, 56)
        harness.writable = True
    harness.after(harness.settings.session_timeout_ms + 1_000)
    harness.writable = True
    harness.after(FENCING_RETRY_MS)
    assert harness.machine.list()[0]["group_state"] == "Empty"


def test_member_id_that_the_coordinator_makes_fits_into_a_record(harness):
    a = ConsumerClient(harness, "a", "t", instance_id="i" * 32_767)
    a.join()
    a.leave(epoch=-2)
    a.name = ""
    joined = a.join()
    assert joined.code == 0
    assert len(joined.member_id) < 1_000


def test_member_that_changes_its_instance_id_gives_up_the_old_one(harness):
    a = ConsumerClient(harness, "a", "t", instance_id="i")
    a.join()
    a.instance_id = "j"
    a.join()
    other = ConsumerClient(harness, "b", "t", instance_id="i")
    assert other.join().code == 0
    assert len(harness.described()["members"]) == 2
