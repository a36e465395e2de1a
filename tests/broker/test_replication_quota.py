"""The rate of throttled replication, and the replicas that are throttled."""

from __future__ import annotations

import pytest

from kafkalite.broker.replica.replication_quota import (
    WAIT_MS_MIN,
    ReplicationQuota,
    WindowRate,
    throttles,
)
from kafkalite.clock import ManualClock
from kafkalite.config.topic import LEADER_REPLICATION_THROTTLED_REPLICAS
from kafkalite.errors import InvalidConfig


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def quota(clock):
    return ReplicationQuota(clock.monotonic_ms)


@pytest.mark.parametrize(
    ("text", "throttled"),
    [
        ("", set()),
        ("*", {0, 1, 2}),
        ("0:1,2:1,1:2", {0, 2}),
        ("0:2", set()),
        ("1:1,,1:1", {1}),
    ],
)
def test_throttled_replicas_are_those_of_the_node(text, throttled):
    entries = LEADER_REPLICATION_THROTTLED_REPLICAS.parse(text)
    assert {index for index in range(3) if throttles(entries, 1, index)} == throttled


@pytest.mark.parametrize("text", ["1:x", "1", "*,0:1", "0:1:2", "-1:1", "0: 1", "٣:1"])
def test_throttled_replicas_of_another_form_are_refused_in_the_words_of_kafka(text):
    with pytest.raises(InvalidConfig) as refused:
        LEADER_REPLICATION_THROTTLED_REPLICAS.parse(text)
    assert (
        "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the"
        " following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."
    ) in str(refused.value)


def test_rate_counts_at_least_one_sample(clock):
    rate = WindowRate(11, 1_000)
    assert rate.per_second(0) == 0
    rate.record(500, 0)
    assert rate.per_second(1) == 500
    assert rate.per_second(2_000) == 250


def test_rate_is_that_of_the_last_samples():
    rate = WindowRate(3, 1_000)
    for second in range(10):
        rate.record(100, second * 1_000)
    # Samples of 7, 8 and 9 s, as that of 6 s has just left the window.
    assert rate.per_second(9_000) == 300 / 2
    assert rate.per_second(10_000) == 200 / 2
    assert rate.per_second(12_000) == 0


def test_bytes_leave_the_window_only_when_all_of_their_sample_has():
    rate = WindowRate(3, 1_000)
    rate.record(100, 0)
    rate.record(100, 999)
    assert rate.per_second(3_998) == 200 / 3.998
    assert rate.per_second(3_999) == 0


@pytest.mark.parametrize("limit", [0, 1, 30, 70, 99, 250, 1_000])
def test_rate_is_not_above_a_limit_from_the_computed_time_on(limit):
    rate = WindowRate(4, 1_000)
    for time_ms, size in ((0, 1), (700, 300), (1_900, 5), (3_000, 900)):
        rate.record(size, time_ms)
    due_ms = max(3_000, rate.falls_at(limit))
    if due_ms > 3_000:
        former = WindowRate(4, 1_000)
        for time_ms, size in ((0, 1), (700, 300), (1_900, 5), (3_000, 900)):
            former.record(size, time_ms)
        assert former.per_second(due_ms - 2) > limit
    assert rate.per_second(due_ms) <= limit


def test_quota_without_a_maximum_is_never_exceeded(quota):
    quota.record(1 << 40)
    assert not quota.is_exceeded
    assert (quota.size, quota.byte_rate) == (1 << 40, 1 << 40)


def test_quota_is_exceeded_until_the_average_has_fallen(quota, clock):
    quota.set_rate_max(1_000)
    quota.record(1_000)
    assert not quota.is_exceeded
    quota.record(1_000)
    assert quota.is_exceeded
    clock.advance(quota.wait_ms)
    assert not quota.is_exceeded
    assert clock.monotonic_ms() == 2_001


def test_quota_of_zero_lets_a_batch_through_once_a_window(quota, clock):
    quota.set_rate_max(0)
    assert not quota.is_exceeded
    quota.record(1)
    assert (quota.is_exceeded, quota.wait_ms) == (True, 11_000)
    clock.advance(11_000)
    assert not quota.is_exceeded


def test_quota_is_not_looked_at_more_often_than_every_20_ms(quota, clock):
    quota.set_rate_max(1_000_000)
    quota.record(1_000_001)
    clock.advance(1_000)
    assert quota.is_exceeded
    assert quota.wait_ms == WAIT_MS_MIN


def test_listeners_learn_only_of_another_maximum(quota):
    told = []
    quota.add_listener(lambda: told.append(quota.rate_max))
    for rate in (5, 5, None, None):
        quota.set_rate_max(rate)
    assert told == [5, None]
