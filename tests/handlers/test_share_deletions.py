"""Deleted topics and share groups, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.coordinator import share_coordinators
from kafkalite.broker.coordinator.share_coordinators import DELETE_PAUSE_MS
from kafkalite.broker.future import Future
from kafkalite.coordination.share.state_requests import (
    StateDeletion,
    StateInitialization,
    StateRead,
)
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from kafkalite.protocol.schemas.topics import DELETE_TOPICS
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import find
from tests.handlers.test_share_groups import settled
from tests.handlers.test_share_offsets import alter, delete, describe

ALL = range(4)


@pytest.fixture
def broker(tmp_path):
    """Yield a node with share groups, with states of two topics."""
    node = InProcess(tmp_path / "data")
    find(node)
    node.create("t", 4)
    node.create("u", 4)
    for name in ("t", "u"):
        alter(node, 2, *ALL, name=name)
    yield node
    node.close()


def delete_topic(broker, name="t"):
    broker.request(DELETE_TOPICS, 5, topic_names=[name], timeout_ms=1_000)


def stored(broker):
    """Return the topic ids that have states, with the number of them."""
    (host,) = broker.node.share_coordinators
    topic_ids = [key.topic_id for key in host.machine.keys()]
    return {topic_id: topic_ids.count(topic_id) for topic_id in topic_ids}


def known(broker):
    """Return the names of the topics that the group knows."""
    (host,) = broker.node.groups
    partitions = host.machine.share_partitions("g")
    initialized = {topic.name for topic in partitions.initialized.values()}
    return initialized | {*partitions.deleting.values()}


def id_of(broker, name):
    return broker.node.image.topics[name].topic_id


def test_deleted_topic_is_removed_from_groups_and_from_the_states(broker):
    kept = id_of(broker, "u")
    assert known(broker) == {"t", "u"} and len(stored(broker)) == 2
    delete_topic(broker)
    broker.until(lambda: known(broker) == {"u"})
    assert stored(broker) == {kept: 4}
    broker.restart()
    broker.until(lambda: len([*broker.node.groups]) == 1)
    assert (known(broker), stored(broker)) == ({"u"}, {kept: 4})
    broker.create("t", 4)
    assert describe(broker, "t", "u") == {
        ("t", 0): (-1, -1), ("t", 1): (-1, -1), ("u", 0): (2, 0), ("u", 1): (2, 0),
    }  # fmt: skip


def test_topic_that_is_made_again_begins_anew(broker):
    delete_topic(broker)
    topic_id = broker.create("t", 4)
    response = settled(broker)
    (entry,) = response.assignment.topic_partitions
    assert (entry.topic_id, sorted(entry.partitions)) == (topic_id, [*ALL])
    assert describe(broker, "t")["t", 0] == (-1, -1)


def test_topic_deleted_shortly_before_a_crash_is_removed_by_the_next_start(broker, monkeypatch):
    kept = id_of(broker, "u")
    with monkeypatch.context() as patched:
        patched.setattr(broker.node.groups, "delete_topics", lambda topics: None)
        patched.setattr(broker.node.share_coordinators, "delete_topics", lambda topic_ids: None)
        delete_topic(broker)
    assert known(broker) == {"t", "u"} and len(stored(broker)) == 2
    broker.restart()
    broker.until(lambda: len([*broker.node.groups]) == 1 and known(broker) == {"u"})
    assert stored(broker) == {kept: 4}


def test_states_are_deleted_in_parts(broker, monkeypatch):
    monkeypatch.setattr(share_coordinators, "DELETE_COUNT", 3)
    (host,) = broker.node.share_coordinators
    counts = []
    decide = host.machine.decide

    def noted(requests, token, wall_ms):
        counts.append(len(requests))
        return decide(requests, token, wall_ms)

    monkeypatch.setattr(host.machine, "decide", noted)
    kept = id_of(broker, "u")
    delete_topic(broker)
    for _ in range(10):
        broker.clock.advance(DELETE_PAUSE_MS)
        broker.reactor.tick(0)
    assert stored(broker) == {kept: 4}
    assert max(counts) <= 3 and sum(counts) == 4


def test_state_of_a_deleted_topic_is_neither_begun_nor_read(broker):
    key = SharePartitionKey("g", id_of(broker, "t"), 0)
    delete_topic(broker)
    wanted = [StateInitialization(key, 9, 0), StateRead(key, 0), StateDeletion(key)]
    done = broker.node.share_coordinators.outcomes(wanted)
    broker.until(lambda: done.settled)
    found = []
    done.then(lambda outcomes, _: found.extend(outcomes))
    assert [type(each) for each in found[:2]] == [errors.UnknownTopicOrPartition] * 2
    assert found[2] is None
    assert len(stored(broker)) == 1


def test_deletion_of_offsets_that_failed_is_repeated(broker, monkeypatch):
    refusal = errors.CoordinatorNotAvailable()
    with monkeypatch.context() as patched:
        patched.setattr(
            broker.node.share_coordinators,
            "outcomes",
            lambda requests: Future.of([refusal] * len(requests)),
        )
        response = delete(broker)
    assert [each.error_code for each in response.responses] == [refusal.code]
    assert len(stored(broker)) == 2
    response = delete(broker)
    assert [each.error_code for each in response.responses] == [0]
    assert (known(broker), len(stored(broker))) == ({"u"}, 1)
