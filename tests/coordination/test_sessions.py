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


def test_node_is_alive_after_its_first_heartbeat(sessions):
    sessions.begin(2, 5)
    assert sessions.alive == {1}
    sessions.extend(2, 5, now_ms=1)
    assert sessions.alive == {1, 2}


def test_node_without_heartbeats_expires_once(sessions):
    assert sessions.expire(TIMEOUT_MS) == []
    assert sessions.expire(TIMEOUT_MS + 1) == [(1, 5)]
    assert sessions.expire(TIMEOUT_MS + 2) == []
    assert sessions.alive == set()


def test_busy_node_expires_at_the_tick_timeout():
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


def test_node_with_heartbeats_never_expires(sessions):
    for now_ms in range(0, 10 * TIMEOUT_MS, TIMEOUT_MS):
        assert sessions.extend(1, 5, now_ms)
        assert sessions.expire(now_ms) == []


def test_expired_session_is_not_resumed(sessions):
    sessions.expire(TIMEOUT_MS + 1)
    sessions.begin(1, 5)
    assert not sessions.extend(1, 5, TIMEOUT_MS + 2)
    assert sessions.alive == set()


def test_starting_node_does_not_expire(sessions):
    sessions.begin(2, 1)
    sessions.extend(1, 5, 100 * TIMEOUT_MS)
    assert sessions.expire(100 * TIMEOUT_MS) == []


@pytest.mark.parametrize("incarnation", [4, 6])
def test_heartbeat_of_another_incarnation_is_ignored(sessions, incarnation):
    assert not sessions.extend(1, incarnation, now_ms=TIMEOUT_MS)
    assert sessions.expire(TIMEOUT_MS + 1) == [(1, 5)]


def test_heartbeat_of_an_unknown_node_is_ignored(sessions):
    assert not sessions.extend(7, 1, now_ms=0)
    assert sessions.alive == {1}


def test_new_incarnation_replaces_the_old_session(sessions):
    sessions.begin(1, 6)
    assert sessions.alive == set()
    assert not sessions.extend(1, 5, now_ms=1)
    assert sessions.extend(1, 6, now_ms=1)


def test_late_report_of_an_old_incarnation_changes_nothing(sessions):
    sessions.end(1, 4)
    sessions.begin(1, 4)
    assert sessions.alive == {1}
    sessions.end(1, 5)
    assert sessions.alive == set()
    assert sessions.expire(10 * TIMEOUT_MS) == []


def test_extend_all_extends_every_session(sessions):
    sessions.extend_all(30_000)
    assert sessions.expire(30_000 + TIMEOUT_MS) == []
    assert sessions.expire(30_000 + TIMEOUT_MS + 1) == [(1, 5)]


def test_extend_all_adds_nothing_to_a_recent_heartbeat(sessions):
    sessions.extend(1, 5, now_ms=30_000)
    sessions.extend_all(30_000)
    sessions.expire(30_000)
    assert sessions.expire(30_000 + TIMEOUT_MS + 1) == [(1, 5)]
