"""Groups in bounded steps: loaded on the loop, offsets of deleted topics removed in parts."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.coordinator import coordinator_host, group_coordinators, journal_loader
from kafkalite.protocol.schemas.groups import JOIN_GROUP, LIST_GROUPS
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from tests.handlers.grouping import commit, fetch, joining, member

LOADING = errors.CoordinatorLoadInProgress.code


@pytest.fixture
def restart_slowly(groups, monkeypatch):
    """Return a function that restarts the node so that a tick loads one record."""

    def restart():
        monkeypatch.setattr(journal_loader, "STEP_SIZE", 1)
        monkeypatch.setattr(coordinator_host, "LOAD_MS", 0)
        groups.restart()

    return restart


def test_groups_load_in_steps_and_return_load_in_progress(groups, restart_slowly):
    for offset in range(5):
        assert commit(groups, offset=offset) == 0
    restart_slowly()
    assert commit(groups) == LOADING
    assert groups.request(LIST_GROUPS, 5).error_code == LOADING
    assert list(groups.node.groups) == []
    ticks = 0
    while not list(groups.node.groups):
        groups.clock.advance(coordinator_host.LOAD_PAUSE_MS)
        groups.reactor.tick(0)
        ticks += 1
    assert ticks >= 2
    assert fetch(groups)["t", 0][0] == 4
    assert groups.request(LIST_GROUPS, 5).error_code == 0


def test_offsets_of_a_topic_deleted_during_load_are_removed(groups, restart_slowly):
    assert commit(groups) == 0
    restart_slowly()
    groups.request(DELETE_TOPICS, 5, topic_names=["t"], timeout_ms=1_000)
    while not list(groups.node.groups):
        groups.clock.advance(coordinator_host.LOAD_PAUSE_MS)
        groups.reactor.tick(0)
    (host,) = groups.node.groups
    assert host.machine.offsets.count == 0


def test_log_damaged_beyond_the_first_step_is_not_served(groups, restart_slowly, monkeypatch):
    monkeypatch.setattr(journal_loader, "READ_SIZE", 1)  # a batch at a time
    for offset in range(5):
        assert commit(groups, offset=offset) == 0
    restart_slowly()
    log = groups.node.replicas.leader("__consumer_offsets", 0).log
    with open(log.active.path, "r+b") as segment:
        segment.seek(log.size - 3)
        segment.write(b"???")
    assert commit(groups) == LOADING
    while commit(groups) == LOADING:
        groups.clock.advance(coordinator_host.LOAD_PAUSE_MS)
        groups.reactor.tick(0)
    assert commit(groups) == errors.CoordinatorNotAvailable.code
    assert groups.request(LIST_GROUPS, 5).error_code == errors.CoordinatorNotAvailable.code


def test_offsets_of_deleted_topics_are_removed_in_parts(groups, monkeypatch):
    for name in ("a", "b", "c", "d"):
        assert commit(groups, group_id=name) == 0
    monkeypatch.setattr(group_coordinators, "DELETE_COUNT", 2)
    (host,) = groups.node.groups
    assert host.machine.offsets.count == 4
    counts = []
    forget = host.machine.write_deletions

    def noted(tombstones, now_ms):
        counts.append(len(tombstones))
        return forget(tombstones, now_ms)

    monkeypatch.setattr(host.machine, "write_deletions", noted)
    groups.request(DELETE_TOPICS, 5, topic_names=["t"], timeout_ms=1_000)
    groups.create("t", 2)
    assert host.machine.offsets.count > 0
    assert commit(groups, group_id="d", offset=9) == 0
    for _ in range(10):
        groups.clock.advance(group_coordinators.DELETE_PAUSE_MS)
        groups.reactor.tick(0)
    assert host.machine.offsets.count == 1, "the topic made again keeps what was committed"
    assert max(counts) <= 2 and sum(counts) == 3


def test_members_of_a_large_group_get_their_responses_in_parts(groups, monkeypatch):
    monkeypatch.setattr(coordinator_host, "REPLIES_AT_ONCE", 1)
    first = member(groups)
    wires = [groups.send(JOIN_GROUP, 3, **joining()) for _ in range(2)]
    wires.append(groups.send(JOIN_GROUP, 3, **joining(member_id=first.member_id)))
    answered = [sum(wire.sent is not None for wire in wires)]
    while not all(wire.sent for wire in wires):
        groups.clock.advance(coordinator_host.REPLIES_PAUSE_MS)
        groups.reactor.tick(0)
        answered.append(sum(wire.sent is not None for wire in wires))
    assert {1, 2, 3} <= {*answered}
    responses = [groups.response(wire, JOIN_GROUP, 3) for wire in wires]
    assert [each.error_code for each in responses] == [0, 0, 0]
    assert len({each.generation_id for each in responses}) == 1
