"""Membership of share groups, through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite import errors
from kafkalite.broker.security import DESCRIBE, READ
from kafkalite.coordination import features
from kafkalite.coordination.groups import group_table, request_checks
from kafkalite.coordination.share.state_requests import StateInitialization
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    JOIN_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
)
from kafkalite.protocol.schemas.internal import FEATURE
from kafkalite.protocol.schemas.share import (
    ALTER_SHARE_GROUP_OFFSETS,
    SHARE_FETCH,
    SHARE_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
)
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from kafkalite.protocol.schemas.topics import CREATE_PARTITIONS, DELETE_TOPICS
from tests.handlers.conftest import TICKS_MAX, InProcess
from tests.handlers.denying import Denying
from tests.handlers.grouping import find
from tests.handlers.test_share_fetches import Member, produce, wait_for_load

SESSION_MS = 45_000


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


def beat(broker, member_id="a", epoch=0, topics=("t",), group_id="g", **fields):
    return broker.request(
        SHARE_GROUP_HEARTBEAT, 1, group_id=group_id, member_id=member_id, member_epoch=epoch,
        subscribed_topic_names=None if topics is None else [*topics], **fields,
    )  # fmt: skip


def partitions_of(response):
    """Return the assigned partitions; None if the response has no assignment."""
    if response.assignment is None:
        return None
    return {
        (entry.topic_id, index)
        for entry in response.assignment.topic_partitions
        for index in entry.partitions
    }


def settled(broker, member_id="a", epoch=0, topics=("t",)):
    """Heartbeat until the partitions are initialized and assigned; return the last response."""
    response = beat(broker, member_id, epoch, topics)
    assert response.error_code == 0, response.error_message
    for _ in range(TICKS_MAX):
        broker.reactor.tick(10)
        response = beat(broker, member_id, response.member_epoch, topics)
        assert response.error_code == 0
        if response.heartbeat_interval_ms == 5_000:
            return response
    raise AssertionError("the partitions were not initialized")


def describe(broker, group_id="g"):
    (group,) = broker.request(SHARE_GROUP_DESCRIBE, 1, group_ids=[group_id]).groups
    return group


def test_first_member_gets_all_partitions_once_they_are_initialized(broker, topic_id):
    response = beat(broker)
    assert (response.error_code, response.member_epoch) == (0, 2)
    assert partitions_of(response) == set()
    assert response.heartbeat_interval_ms == 200
    response = settled(broker, epoch=response.member_epoch)
    assert partitions_of(response) == {(topic_id, index) for index in range(4)}
    idle = beat(broker, epoch=response.member_epoch, topics=None)
    assert partitions_of(idle) is None and idle.member_epoch == response.member_epoch


def test_members_share_partitions(broker, topic_id):
    first = settled(broker)
    members = {"a": first.member_epoch}
    for name in "bcdefg":
        members[name] = beat(broker, name).member_epoch
    assigned = {name: partitions_of(beat(broker, name, epoch)) for name, epoch in members.items()}
    assert set().union(*assigned.values()) == {(topic_id, index) for index in range(4)}
    assert all(1 <= len(partitions) <= 2 for partitions in assigned.values())


def test_member_that_leaves_or_expires_gives_its_partitions_to_the_others(broker, topic_id):
    epoch = settled(broker).member_epoch
    beat(broker, "b")
    response = beat(broker, epoch=epoch)
    assert len(partitions_of(response)) == 2
    left = beat(broker, "b", -1, None)
    assert (left.error_code, left.member_epoch) == (0, -1)
    response = beat(broker, epoch=response.member_epoch)
    assert len(partitions_of(response)) == 4
    beat(broker, "c")
    for _ in range(3):
        broker.clock.advance(SESSION_MS // 3)
        broker.reactor.tick(0)
        response = beat(broker, epoch=response.member_epoch)
    broker.clock.advance(1)
    broker.reactor.tick(0)
    response = beat(broker, epoch=response.member_epoch)
    assert len(partitions_of(response)) == 4
    assert [member.member_id for member in describe(broker).members] == ["a"]


def test_epochs_are_checked(broker, topic_id):
    epoch = settled(broker).member_epoch
    assert beat(broker, epoch=epoch + 1).error_code == errors.FencedMemberEpoch.code
    assert beat(broker, epoch=epoch - 2).error_code == errors.FencedMemberEpoch.code
    assert beat(broker, "b", 1).error_code == errors.UnknownMemberId.code
    assert beat(broker, "b", 1, group_id="other").error_code == errors.GroupIdNotFound.code
    assert beat(broker, "b", -1, group_id="other").error_code == errors.GroupIdNotFound.code
    again = beat(broker, epoch=0)
    assert (again.error_code, again.member_epoch) == (0, epoch)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": " "}, {"member_id": ""}, {"member_id": "x" * 37}, {"topics": ()},
        {"topics": None}, {"epoch": -2}, {"rack_id": " "},
    ],
)  # fmt: skip
def test_invalid_heartbeat_is_refused(broker, topic_id, fields):
    assert beat(broker, **fields).error_code == errors.InvalidRequest.code


def test_new_partitions_of_a_known_topic_start_at_offset_0(broker, topic_id):
    epoch = settled(broker).member_epoch
    topic = {"name": "t", "count": 5, "assignments": None}
    broker.request(CREATE_PARTITIONS, 3, topics=[topic], timeout_ms=1_000)
    produce(broker, "t", b"a", partition=4)
    response = settled(broker, epoch=epoch)
    assert (topic_id, 4) in partitions_of(response)
    member = Member(broker, topic_id)
    wire = member.begin_fetch(4, wait_ms=1_000)
    fetched = member.respond(wire, SHARE_FETCH, 2)
    (acquired,) = fetched.responses[0].partitions[0].acquired_records
    assert (acquired.first_offset, acquired.last_offset) == (0, 0)


def test_deleted_topic_is_taken_away(broker, topic_id):
    other_id = broker.create("u", 1)
    epoch = settled(broker, topics=("t", "u")).member_epoch
    broker.request(DELETE_TOPICS, 6, topics=[{"name": "t"}], timeout_ms=1_000)
    response = beat(broker, epoch=epoch, topics=("t", "u"))
    assert partitions_of(response) == {(other_id, 0)}


def test_group_is_the_same_after_a_restart(broker, topic_id):
    response = settled(broker)
    before = describe(broker)
    broker.restart()
    assert describe(broker) == before
    assert beat(broker, epoch=response.member_epoch, topics=None).error_code == 0


def test_group_is_listed_and_described(broker, topic_id):
    settled(broker)
    (listed,) = broker.request(LIST_GROUPS, 5, types_filter=["share"]).groups
    assert (listed.group_type, listed.protocol_type, listed.group_state) == (
        "share", "share", "Stable",
    )  # fmt: skip
    group = describe(broker)
    assert (group.error_code, group.assignor_name, group.group_state) == (0, "simple", "Stable")
    (member,) = group.members
    assert member.subscribed_topic_names == ["t"]
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == ("t", [0, 1, 2, 3])
    assert describe(broker, "other").error_code == errors.GroupIdNotFound.code
    broker.node.authorizer = Denying(DESCRIBE, names="t")
    assert describe(broker).error_code == errors.TopicAuthorizationFailed.code


def test_share_group_refuses_members_and_commits_of_other_groups(broker, topic_id):
    settled(broker)
    joined = broker.request(
        JOIN_GROUP, 3, group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        member_id="", protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
    )  # fmt: skip
    assert joined.error_code != 0
    assert commit(broker, "g") == errors.GroupIdNotFound.code
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    removed = broker.request(OFFSET_DELETE, 0, group_id="g", topics=topics)
    assert removed.error_code == errors.GroupIdNotFound.code


def test_group_of_another_type_is_not_a_share_group(broker, topic_id):
    broker.request(
        JOIN_GROUP, 3, group_id="c", session_timeout_ms=10_000, rebalance_timeout_ms=10_000,
        member_id="", protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
    )  # fmt: skip
    assert beat(broker, group_id="c").error_code == errors.GroupIdNotFound.code


def commit(broker, group_id, offset=1):
    """Commit an offset without a member; return the error code."""
    committed = broker.request(
        OFFSET_COMMIT, 9, group_id=group_id, generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
    )  # fmt: skip
    return committed.topics[0].partitions[0].error_code


def test_group_with_offsets_alone_is_not_a_share_group(broker, topic_id):
    assert commit(broker, "c") == 0
    assert beat(broker, group_id="c").error_code == errors.GroupIdNotFound.code
    starts = [{"partition_index": 0, "start_offset": 2}]
    altered = broker.request(
        ALTER_SHARE_GROUP_OFFSETS, 0, group_id="c",
        topics=[{"topic_name": "t", "partitions": starts}],
    )  # fmt: skip
    assert altered.error_code == errors.GroupIdNotFound.code
    assert describe(broker, "c").error_code == errors.GroupIdNotFound.code
    assert commit(broker, "c", 2) == 0
    topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    assert broker.request(OFFSET_DELETE, 0, group_id="c", topics=topics).error_code == 0
    assert beat(broker, group_id="c").error_code == 0
    assert commit(broker, "c") == errors.GroupIdNotFound.code


def test_deleted_group_can_begin_again(broker, topic_id):
    settled(broker)
    assert deleted(broker) == errors.NonEmptyGroup.code
    assert len(describe(broker).members) == 1
    beat(broker, epoch=-1, topics=None)
    assert deleted(broker) == 0
    assert describe(broker).error_code == errors.GroupIdNotFound.code
    keys = [*broker.node.share_coordinators][0].machine.keys()
    assert keys == []
    assert len(partitions_of(settled(broker))) == 4


def test_subscription_beyond_the_memory_limit_is_refused(broker, topic_id, monkeypatch):
    epoch = settled(broker).member_epoch
    monkeypatch.setattr(group_table, "SIZE_MAX", 10_000)
    names = ["x" * 100 + str(number) for number in range(100)]
    assert beat(broker, "b", topics=names).error_code == errors.GroupMaxSizeReached.code
    assert beat(broker, epoch=epoch, topics=names).error_code == errors.GroupMaxSizeReached.code
    assert beat(broker, epoch=epoch).error_code == 0


def test_subscription_to_too_many_topics_is_refused_and_changes_nothing(broker, topic_id):
    epoch = settled(broker).member_epoch
    before = describe(broker)
    names = [f"x{number}" for number in range(request_checks.SUBSCRIBED_TOPICS_MAX + 1)]
    for member_id, sent in (("a", epoch), ("b", 0)):
        response = beat(broker, member_id, sent, topics=names)
        assert response.error_code == errors.InvalidRequest.code
        assert "10001 topics; at most 10000" in response.error_message
    assert beat(broker, "b", topics=["x"] * len(names)).error_code == errors.InvalidRequest.code
    assert describe(broker) == before
    assert beat(broker, "b", topics=names[1:]).error_code == 0


@pytest.fixture
def slow(tmp_path):
    """Yield a node with share groups whose decisions wait for a flush."""
    node = InProcess(tmp_path / "slow", durability="fsync")
    find(node)
    yield node
    node.close()


def heartbeat(broker, member_id):
    """Send the first heartbeat of a member without waiting for the response."""
    return broker.send(
        SHARE_GROUP_HEARTBEAT, 1, group_id="g", member_id=member_id, member_epoch=0,
        subscribed_topic_names=["t"],
    )  # fmt: skip


def test_member_that_joins_while_its_group_is_deleted_gets_records(slow):
    topic_id = slow.create("t", 2)
    settled(slow)
    beat(slow, epoch=-1, topics=None)
    deleting = slow.send(DELETE_GROUPS, 2, groups_names=["g"])
    joining = heartbeat(slow, "b")
    slow.until(lambda: deleting.sent is not None and joining.sent is not None)
    (result,) = slow.response(deleting, DELETE_GROUPS, 2).results
    assert result.error_code == errors.NonEmptyGroup.code
    epoch = slow.response(joining, SHARE_GROUP_HEARTBEAT, 1).member_epoch
    assert len(partitions_of(settled(slow, "b", epoch))) == 2
    member = Member(slow, topic_id)
    response = member.fetch(0, 1)
    wait_for_load(slow, topic_id, 0, 1)
    response = member.fetch(0, 1)
    assert {each.error_code for topic in response.responses for each in topic.partitions} <= {0}


def test_partitions_are_initialized_once(slow, monkeypatch):
    topic_id = slow.create("t", 2)
    coordinators = slow.node.share_coordinators
    initialized = []
    outcomes = coordinators.outcomes

    def counted(requests):
        initialized.extend(each.key for each in requests if isinstance(each, StateInitialization))
        return outcomes(requests)

    monkeypatch.setattr(coordinators, "outcomes", counted)
    wires = [heartbeat(slow, name) for name in "ab"]
    slow.until(lambda: all(wire.sent is not None for wire in wires))
    epoch = slow.response(wires[1], SHARE_GROUP_HEARTBEAT, 1).member_epoch
    settled(slow, "b", epoch)
    assert initialized == [SharePartitionKey("g", topic_id, index) for index in range(2)]


def deleted(broker):
    return broker.request(DELETE_GROUPS, 2, groups_names=["g"]).results[0].error_code


def test_heartbeat_is_authorized(broker, topic_id):
    broker.node.authorizer = Denying(DESCRIBE, names="t")
    assert beat(broker).error_code == errors.TopicAuthorizationFailed.code
    broker.node.authorizer = Denying(READ, names="g")
    assert beat(broker).error_code == errors.GroupAuthorizationFailed.code


def test_share_groups_need_their_feature(tmp_path):
    node = InProcess(tmp_path / "data")
    find(node)
    node.node.local_controller.machine.replay(FEATURE(name=features.SHARE_VERSION, level=0))
    assert beat(node).error_code == errors.UnsupportedVersion.code
    node.close()
