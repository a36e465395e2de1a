"""Regular expressions of consumer groups: when they are looked up, and what the result changes."""

from __future__ import annotations

import pytest

from kafkalite.coordination.groups.consumer import pattern_refresh
from kafkalite.coordination.groups.consumer.consumer_group import ConsumerGroup, ResolvedPattern
from kafkalite.coordination.groups.consumer.consumer_membership import UNSETTLED_INTERVAL_MS
from kafkalite.errors import InvalidRegularExpression
from tests.coordination.groups.consumers import ConsumerClient
from tests.coordination.groups.harness import GroupHarness

VERSION = 7


def joined(harness, name="a", pattern="t.*", **fields):
    """Let a member with a regular expression join; return the client."""
    client = ConsumerClient(harness, name)
    response = client.take(
        client.send(
            rebalance_timeout_ms=1_000,
            subscribed_topic_regex=pattern,
            topic_partitions=[],
            **fields,
        )
    )
    assert response.code == 0, response
    return client


def due(harness, group_id="g"):
    return sorted(harness.machine.patterns_due(group_id, harness.now_ms))


def resolve(harness, **found):
    """Submit the result of a lookup, of the topics by pattern."""
    resolved = {
        pattern: ResolvedPattern(frozenset(names), VERSION, harness.wall_ms)
        for pattern, names in found.items()
    }
    harness.decide(
        "result",
        lambda token: harness.machine.patterns_resolved(
            "g", resolved, token, harness.now_ms, harness.wall_ms
        ),
    )


def group(harness):
    return harness.machine.groups.get("g")


@pytest.fixture
def harness():
    harness = GroupHarness()
    harness.topics.create("t1", 2)
    harness.topics.create("t2", 2)
    return harness


def test_member_gets_partitions_once_its_expression_is_resolved(harness):
    client = joined(harness)
    assert client.assigned == {}
    assert client.interval_ms == UNSETTLED_INTERVAL_MS
    epoch = group(harness).epoch
    assert due(harness) == ["t.*"]
    resolve(harness, **{"t.*": ["t1", "t2"]})
    assert group(harness).epoch == epoch + 1
    client.step()
    assert client.partitions == [0, 0, 1, 1]
    assert client.interval_ms == harness.settings.heartbeat_interval_ms


def test_result_survives_a_restart(harness):
    client = joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    client.step()
    harness.restart()
    found = group(harness).patterns["t.*"]
    assert (found.topics, found.version, found.timestamp) == ({"t1"}, VERSION, harness.wall_ms)
    client.step()
    assert client.partitions == [0, 1]


def test_equal_result_changes_nothing(harness):
    joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    harness.after(pattern_refresh.CREATED_INTERVAL_MS)
    epoch, records = group(harness).epoch, len(harness.read_log())
    harness.machine.topics_changed(["x"])
    assert due(harness) == ["t.*"]
    resolve(harness, **{"t.*": ["t1"]})
    assert (group(harness).epoch, len(harness.read_log())) == (epoch, records)


def test_lookup_is_not_repeated_before_its_result_or_a_minute(harness):
    client = joined(harness)
    assert due(harness) == ["t.*"]
    harness.machine.topics_changed(["t3"])
    for _ in range(5):
        harness.after(pattern_refresh.LOOKUP_MS_MAX // 6)
        client.step()
        assert due(harness) == []
    harness.after(pattern_refresh.LOOKUP_MS_MAX // 6)
    assert due(harness) == ["t.*"]


def test_created_topics_are_looked_up_after_ten_seconds(harness):
    client = joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    harness.topics.create("t3", 1)
    harness.machine.topics_changed(["t3"])
    for _ in range(9):
        harness.after(1_000)
        client.step()
        assert due(harness) == []
    harness.after(1_000)
    assert due(harness) == ["t.*"]
    resolve(harness, **{"t.*": ["t1", "t3"]})
    client.step()
    assert client.partitions == [0, 0, 1]


def test_new_expression_of_another_member_is_looked_up_after_a_second(harness):
    joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    joined(harness, "b", "t2")
    assert due(harness) == []
    harness.after(1_000)
    assert due(harness) == ["t.*", "t2"]


def test_expression_that_is_already_resolved_needs_no_lookup(harness):
    first = joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    second = joined(harness, "b")
    for _ in range(3):
        first.step()
        second.step()
    assert sorted(first.partitions + second.partitions) == [0, 1]


def test_expressions_are_looked_up_again_when_authorizations_may_have_changed(harness):
    client = joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    for _ in range(599):
        harness.after(1_000)
        client.step()
        assert due(harness) == []
    harness.after(1_000)
    assert due(harness) == ["t.*"]


def test_result_for_an_expression_without_members_is_dropped(harness):
    client = joined(harness)
    due(harness)
    client.leave()
    resolve(harness, **{"t.*": ["t1"]})
    assert group(harness).patterns == {}
    assert due(harness) == []


def test_topics_of_an_expression_are_dropped_with_its_last_member(harness):
    client = joined(harness)
    other = ConsumerClient(harness, "b", "t2")
    other.join()
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    client.send(subscribed_topic_regex="")
    assert group(harness).patterns == {}


def test_invalid_expression_is_refused_without_a_change(harness):
    client = joined(harness)
    before = len(harness.read_log())
    assert client.send(subscribed_topic_regex="(").code == InvalidRegularExpression.code
    assert len(harness.read_log()) == before


def test_number_of_expressions_of_a_group_is_limited(harness, monkeypatch):
    monkeypatch.setattr(pattern_refresh, "PATTERNS_MAX", 2)
    joined(harness, "a", "a")
    joined(harness, "b", "b")
    joined(harness, "c", "b")
    client = ConsumerClient(harness, "d")
    refused = client.send(
        rebalance_timeout_ms=1_000, subscribed_topic_regex="d", topic_partitions=[]
    )
    assert refused.code == InvalidRegularExpression.code


def test_change_of_topics_is_compared_without_a_list_of_all_topics(harness, monkeypatch):
    client = joined(harness)
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    client.step()
    client.step()
    monkeypatch.setattr(ConsumerGroup, "subscribed_names", None)
    harness.machine.topics_changed({"t2", "other"})
    assert group(harness).is_metadata_current
    harness.machine.topics_changed({"t1", "other"})
    assert not group(harness).is_metadata_current


def test_group_whose_members_expired_is_looked_up_no_more(harness):
    joined(harness)
    due(harness)
    harness.after(harness.settings.session_timeout_ms)
    assert group(harness).members == {}
    joined(harness)
    assert due(harness) == ["t.*"]


def test_static_member_that_comes_back_keeps_the_topics_of_its_expression(harness):
    client = joined(harness, instance_id="i")
    client.instance_id = "i"
    due(harness)
    resolve(harness, **{"t.*": ["t1"]})
    client.step()
    epoch = group(harness).epoch
    client.leave(epoch=-2)
    harness.after(1_000)
    again = joined(harness, "b", instance_id="i")
    assert again.partitions == [0, 1]
    assert group(harness).patterns["t.*"].topics == {"t1"}
    assert (group(harness).epoch, due(harness)) == (epoch, [])


def test_unknown_group_has_nothing_to_look_up(harness):
    assert due(harness, "other") == []
    resolve(harness, **{"t.*": ["t1"]})
    assert harness.machine.groups.get("g") is None
