"""Fetch sessions of followers with throttled partitions, whose records a leader withholds."""

from __future__ import annotations

import pytest

from kafkalite.broker.replica import follower_sessions
from kafkalite.broker.replica.follower_sessions import HIGH_WATERMARK_MS
from tests.broker.test_follower_sessions import (
    FOLLOWER,
    LEADER,
    WAIT_MS,
    LeaderNode,
    indexes,
    named,
    only,
    settled,
)


@pytest.fixture
def node(tmp_path):
    made = LeaderNode(tmp_path)
    for index in range(3):
        made.add(index)
    return made


def throttle(node, index, *, rate=10):
    """Throttle a partition whose follower is not in sync, and exceed the quota."""
    partition = node.add(index, isr=(LEADER,))
    partition.is_throttled = True
    node.quota.set_rate_max(rate)
    node.quota.record(10_000)
    return partition


def test_throttled_partition_is_withheld_until_the_rate_has_fallen(node):
    throttle(node, 3)
    node.append(3)
    assert only(node.begin(3)).records is None
    waiting = node.fetch()
    node.append(3)
    node.tick()
    assert settled(waiting) == []
    (timer,) = [timer for timer in node.timers.due if timer.ms > WAIT_MS]
    node.clock.advance(timer.ms)
    node.timers.fire(timer.ms)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).records.size > 0


def test_withheld_fetch_is_noted_for_the_isr(node):
    partition = throttle(node, 3)
    node.append(3)
    node.append(3)
    node.fetch(named(3, 1), wait_ms=0)
    assert partition.replication.isr.has_follower(FOLLOWER)
    progress = partition.replication.isr._followers[FOLLOWER]
    assert (progress.end_offset, progress.leader_end_offset) == (1, 2)


def test_sent_bytes_of_a_throttled_partition_count_for_the_quota(node):
    partition = node.add(3, isr=(LEADER,))
    partition.is_throttled = True
    node.append(3)
    node.append(0)
    node.quota.set_rate_max(0)
    sent = node.begin(3, 0)
    assert indexes(sent) == [3, 0]
    assert node.quota.size == partition.log.size  # not that of the other partition
    node.append(3)
    assert only(node.fetch(named(3, 1), wait_ms=0)).records is None


def test_follower_in_sync_is_not_throttled_and_its_bytes_count(node):
    partition = node.partitions[0]
    partition.is_throttled = True
    node.quota.set_rate_max(1)
    node.quota.record(10_000)
    node.append(0)
    assert only(node.begin(0)).records.size == partition.log.size
    assert node.quota.size == 10_000 + partition.log.size


def test_throttled_partition_does_not_hold_up_others(node):
    throttle(node, 3)
    node.append(3)
    node.append(0)
    response = node.begin(3, 0)
    assert [each.records is None for _, found in response.topics for each in found] == [True, False]


@pytest.mark.parametrize("rate", [None, 1 << 30])
def test_higher_rate_takes_effect_at_once(node, rate):
    throttle(node, 3)
    node.append(3)
    node.begin(3)
    waiting = node.fetch()
    node.quota.set_rate_max(rate)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).records.size > 0


def test_lower_rate_that_is_exceeded_changes_nothing(node):
    throttle(node, 3)
    node.append(3)
    node.begin(3)
    waiting = node.fetch()
    node.quota.set_rate_max(9)
    node.tick()
    assert settled(waiting) == []
    assert len([timer for timer in node.timers.due if timer.ms > WAIT_MS]) == 1


def test_partition_that_is_throttled_no_longer_is_sent_at_once(node):
    partition = throttle(node, 3)
    node.append(3)
    node.begin(3)
    waiting = node.fetch()
    partition.is_throttled = False
    node.changed(partition)
    node.tick()
    (response,) = settled(waiting)
    assert only(response).records.size > 0


def test_some_of_many_throttled_partitions_are_read_when_the_rate_has_fallen(node, monkeypatch):
    monkeypatch.setattr(follower_sessions, "THROTTLED_MAX", 2)
    for index in range(3, 8):
        throttle(node, index, rate=1)
        node.append(index)
    node.begin(*range(3, 8))
    sent, other_timers = [], (WAIT_MS, HIGH_WATERMARK_MS)
    for _ in range(12):
        waiting = node.fetch(*[named(index, 1) for index in sent[-1:]])
        for timer in [each for each in node.timers.due if each.ms not in other_timers]:
            node.clock.advance(timer.ms)
            node.timers.fire(timer.ms)
        node.tick()
        for response in settled(waiting):
            sent += [
                each.partition_index for _, found in response.topics for each in found
                if each.records is not None
            ]  # fmt: skip
    assert sorted(sent) == [3, 4, 5, 6, 7]


def test_session_that_ends_leaves_no_timer_of_the_quota(node):
    throttle(node, 3)
    node.append(3)
    node.begin(3)
    node.owner.close()
    assert node.timers.due == []
    node.quota.set_rate_max(None)


def test_high_watermark_of_a_throttled_partition_comes_with_its_records(node):
    throttle(node, 3)
    node.append(3)
    node.begin(3)
    waiting = node.fetch()
    node.append(3)
    node.tick()
    node.timers.fire(HIGH_WATERMARK_MS)
    node.tick()
    assert settled(waiting) == []


def test_forgotten_partition_is_not_read_when_the_rate_has_fallen(node):
    throttle(node, 3)
    node.append(3)
    node.begin(3)
    node.fetch(forgotten=[3])
    (timer,) = [timer for timer in node.timers.due if timer.ms > WAIT_MS]
    node.clock.advance(timer.ms)
    node.timers.fire(timer.ms)
    node.tick()
    assert node.timers.due == []
