"""NodeSessions: heartbeats, session timeouts and incarnations of nodes."""

from __future__ import annotations

import pytest

from kafkalite.coordination.sessions import NodeSessions

TIMEOUT_MS = 9_000


@pytest.fixture
def sessions() -> NodeSessions:
    """Return sessions in which incarnation 5 of node 1 sent a heartbeat at time 0."""
    sessions = NodeSessions(TIMEOUT_MS)
    sessions.begin(1, 5)
    assert sessions.extend(1, 5, now_ms=0)
    return sessions


def test_a_node_is_alive_once_it_was_heard(sessions):
    sessions.begin(2, 5)
    assert sessions.alive == {1}
    sessions.extend(2, 5, now_ms=1)
    assert sessions.alive == {1, 2}


def test_a_silent_node_is_told_once_and_is_alive_no_more(sessions):
    assert sessions.expire(TIMEOUT_MS) == []
    assert sessions.expire(TIMEOUT_MS + 1) == [(1, 5)]
    assert sessions.expire(TIMEOUT_MS + 2) == []
    assert sessions.alive == set()


def test_busy_node_is_not_silent_before_the_tick_timeout():
    sessions = NodeSessions(TIMEOUT_MS, 60_000)
    for node_id in (1, 2):
        sessions.begin(node_id, 5)
        sessions.extend(node_id, 5, now_ms=0)
    busy = {1}.__contains__
    assert sessions.expire(TIMEOUT_MS, busy) == []
    assert sessions.expire(TIMEOUT_MS + 1, busy) == [(2, 5)]
    assert sessions.expire(60_000, busy) == []
    assert sessions.alive == {1}
    assert sessions.expire(60_001, busy) == [(1, 5)]


def test_a_node_that_goes_on_talking_is_never_silent(sessions):
    for now_ms in range(0, 10 * TIMEOUT_MS, TIMEOUT_MS):
        assert sessions.extend(1, 5, now_ms)
        assert sessions.expire(now_ms) == []


def test_a_session_that_was_over_is_not_taken_up_again(sessions):
    sessions.expire(TIMEOUT_MS + 1)
    sessions.begin(1, 5)
    assert not sessions.extend(1, 5, TIMEOUT_MS + 2)
    assert sessions.alive == set()


def test_a_node_may_take_as_long_as_it_will_to_start(sessions):
    sessions.begin(2, 1)
    sessions.extend(1, 5, 100 * TIMEOUT_MS)
    assert sessions.expire(100 * TIMEOUT_MS) == []


@pytest.mark.parametrize("incarnation", [4, 6])
def test_another_incarnation_is_not_heard(sessions, incarnation):
    assert not sessions.extend(1, incarnation, now_ms=TIMEOUT_MS)
    assert sessions.expire(TIMEOUT_MS + 1) == [(1, 5)]


def test_a_node_nobody_started_is_not_heard(sessions):
    assert not sessions.extend(7, 1, now_ms=0)
    assert sessions.alive == {1}


def test_a_new_incarnation_begins_unheard_and_the_old_one_counts_no_more(sessions):
    sessions.begin(1, 6)
    assert sessions.alive == set()
    assert not sessions.extend(1, 5, now_ms=1)
    assert sessions.extend(1, 6, now_ms=1)


def test_the_end_or_the_start_of_an_old_incarnation_changes_nothing_when_it_is_told_late(sessions):
    sessions.end(1, 4)
    sessions.begin(1, 4)
    assert sessions.alive == {1}
    sessions.end(1, 5)
    assert sessions.alive == set()
    assert sessions.expire(10 * TIMEOUT_MS) == []


def test_nobody_is_blamed_for_the_listeners_own_absence(sessions):
    sessions.extend_all(30_000)
    assert sessions.expire(30_000 + TIMEOUT_MS) == []
    assert sessions.expire(30_000 + TIMEOUT_MS + 1) == [(1, 5)]


def test_an_excuse_is_no_credit_for_silence_to_come(sessions):
    sessions.extend(1, 5, now_ms=30_000)
    sessions.extend_all(30_000)
    sessions.expire(30_000)
    assert sessions.expire(30_000 + TIMEOUT_MS + 1) == [(1, 5)]
