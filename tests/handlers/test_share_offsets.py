"""Start offsets of share groups, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker import stepping
from kafkalite.broker.future import Future
from kafkalite.ids import NO_ID
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    SHARE_GROUP_DESCRIBE,
)
from tests.handlers.conftest import InProcess
from tests.handlers.grouping import find
from tests.handlers.test_share_fetches import Member, produce, wait_for_load
from tests.handlers.test_share_groups import beat, settled


@pytest.fixture
def broker(tmp_path):
    """Yield a node with share groups."""
    node = InProcess(tmp_path / "data")
    find(node)
    yield node
    node.close()


@pytest.fixture
def topic_id(broker):
    return broker.create("t", 4)


def describe(broker, *names, group_id="g"):
    """Return (start offset, lag) of each partition."""
    topics = [{"topic_name": name, "partitions": [0, 1]} for name in names] or None
    groups = [{"group_id": group_id, "topics": topics}]
    (group,) = broker.request(DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups).groups
    assert group.error_code == 0, group.error_message
    return {
        (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
        for topic in group.topics
        for each in topic.partitions
    }


def alter(broker, offset, *indexes, name="t", group_id="g"):
    partitions = [{"partition_index": index, "start_offset": offset} for index in indexes]
    topics = [{"topic_name": name, "partitions": partitions}]
    return broker.request(ALTER_SHARE_GROUP_OFFSETS, 0, group_id=group_id, topics=topics)


def delete(broker, name="t", group_id="g"):
    topics = [{"topic_name": name}]
    return broker.request(DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group_id, topics=topics)


def test_offsets_of_a_new_group_are_set_and_described(broker, topic_id):
    for index in (0, 1):
        produce(broker, "t", b"a", b"b", b"c", partition=index)
    response = alter(broker, 2, 0, 9)
    codes = [each.error_code for each in response.responses[0].partitions]
    assert codes == [0, errors.UnknownTopicOrPartition.code]
    assert describe(broker) == {("t", 0): (2, 1)}
    assert describe(broker, "t", "none") == {
        ("t", 0): (2, 1), ("t", 1): (-1, -1), ("none", 0): (-1, -1), ("none", 1): (-1, -1),
    }  # fmt: skip


def test_lag_counts_acknowledged_records_of_the_window(broker, topic_id):
    produce(broker, "t", *[b"v"] * 5)
    alter(broker, 0, 0)
    member = Member(broker, topic_id)
    member.poll(0)
    wait_for_load(broker, topic_id, 0)
    assert member.poll() == {0: [(0, 4, 1)]}
    assert member.acknowledge(1, 2, 1) == 0
    assert describe(broker) == {("t", 0): (0, 3)}
    assert member.acknowledge(0, 0, 1) == 0
    assert describe(broker) == {("t", 0): (3, 2)}


def test_offsets_of_many_partitions_are_set_and_described_in_steps(
    broker, topic_id, monkeypatch
):
    alter(broker, 1, 0)  # opens the topic of the states
    monkeypatch.setattr(stepping, "STEP_MS", 0)
    indexes = [0, 1, 2, 3]
    partitions = [{"partition_index": index, "start_offset": 7} for index in indexes]
    topics = [{"topic_name": "t", "partitions": partitions}]
    wire = broker.send(ALTER_SHARE_GROUP_OFFSETS, 0, group_id="g", topics=topics)
    assert steps_until_sent(broker, wire) >= len(indexes)
    groups = [{"group_id": "g", "topics": [{"topic_name": "t", "partitions": indexes}]}]
    wire = broker.send(DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups)
    assert steps_until_sent(broker, wire) >= len(indexes)
    (group,) = broker.response(wire, DESCRIBE_SHARE_GROUP_OFFSETS, 1).groups
    assert [each.start_offset for each in group.topics[0].partitions] == [7] * 4


def steps_until_sent(broker, wire):
    """Return the number of ticks until the response is sent."""
    steps = []
    broker.until(lambda: wire.sent is not None or steps.append(advance(broker)))
    return len(steps)


def advance(broker):
    broker.clock.advance(stepping.STEP_PAUSE_MS)


def test_group_with_members_keeps_its_offsets(broker, topic_id):
    settled(broker)
    assert alter(broker, 2, 0).error_code == errors.NonEmptyGroup.code
    assert delete(broker).error_code == errors.NonEmptyGroup.code


def test_altered_offset_fences_the_leader_that_has_the_old_state(broker, topic_id):
    produce(broker, "t", *[b"v"] * 5)
    alter(broker, 0, 0)
    member = Member(broker, topic_id)
    member.poll(0)
    wait_for_load(broker, topic_id, 0)
    assert member.poll() == {0: [(0, 4, 1)]}
    alter(broker, 3, 0)
    assert member.acknowledge(0, 4, 1) == errors.NotLeaderOrFollower.code
    member.fetch()
    wait_for_load(broker, topic_id, 0)
    assert member.poll() == {0: [(3, 4, 1)]}


def test_deleted_offsets_begin_again(broker, topic_id):
    alter(broker, 3, 0, 1)
    response = delete(broker)
    assert [each.error_code for each in response.responses] == [0]
    assert describe(broker) == {}
    response = delete(broker)
    assert [each.error_code for each in response.responses] == [errors.UnknownTopicOrPartition.code]
    assert len(settled(broker).assignment.topic_partitions[0].partitions) == 4
    assert describe(broker)["t", 0][0] == -1


def test_partition_whose_offset_could_not_be_set_is_initialized_by_a_member(
    broker, topic_id, monkeypatch
):
    alter(broker, 3, 1)
    coordinators = broker.node.share_coordinators
    with monkeypatch.context() as patched:
        patched.setattr(
            coordinators,
            "outcomes",
            lambda requests: Future.of([errors.CoordinatorNotAvailable() for _ in requests]),
        )
        (failed,) = alter(broker, 3, 0).responses[0].partitions
    assert failed.error_code == errors.CoordinatorNotAvailable.code
    assert len(settled(broker).assignment.topic_partitions[0].partitions) == 4
    (host,) = coordinators
    assert {key.partition for key in host.machine.keys()} == {0, 1, 2, 3}
    assert describe(broker)["t", 1][0] == 3


def test_unknown_group_has_no_offsets(broker, topic_id):
    assert describe(broker, group_id="other") == {}
    assert beat(broker, group_id="other", epoch=1).error_code == errors.GroupIdNotFound.code


def test_new_group_of_an_alteration_begins_with_epoch_1(broker, topic_id):
    epochs = []
    for offset in (2, 1):
        alter(broker, offset, 0)
        (group,) = broker.request(SHARE_GROUP_DESCRIBE, 1, group_ids=["g"]).groups
        epochs.append((group.group_epoch, group.assignment_epoch))
    assert epochs == [(1, 1), (2, 1)]


def test_group_without_a_name_is_refused(broker, topic_id):
    assert alter(broker, 2, 0, group_id="").error_code == errors.InvalidGroupId.code
    assert delete(broker, group_id="").error_code == errors.InvalidGroupId.code


def test_topic_without_states_has_no_id_in_the_response(broker, topic_id):
    alter(broker, 3, 0)
    broker.create("other", 1)
    assert [each.topic_id for each in delete(broker).responses] == [topic_id]
    for name in ("t", "other", "unknown"):
        (entry,) = delete(broker, name).responses
        assert (entry.error_code, entry.topic_id) == (errors.UnknownTopicOrPartition.code, NO_ID)


def test_lag_of_a_start_offset_beyond_the_end_is_0(broker, topic_id):
    alter(broker, 5, 0)
    assert describe(broker) == {("t", 0): (5, 0)}
