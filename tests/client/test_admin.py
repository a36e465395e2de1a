"""Admin: topics, configurations, groups and offsets, from a broker and with its errors."""

from __future__ import annotations

import confluent_kafka
import pytest

from kafkalite import Admin
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopicException,
    NetworkException,
    NonEmptyGroup,
    OffsetOutOfRange,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from tests.client.consuming import TIMEOUT_S, numbered, produce, until


@pytest.fixture
def admin(served):
    with Admin(served.bootstrap) as made:
        yield made


def test_topics_are_described_with_errors_by_topic(served, admin):
    topic = served.topic(3)
    found = admin.describe_topics([topic, "nowhere"])
    assert sorted(found[topic].partitions) == [0, 1, 2] and found[topic].name == topic
    assert isinstance(found["nowhere"], UnknownTopicOrPartition)
    everything = admin.list_topics()
    assert everything[topic] == found[topic] and "nowhere" not in everything


def test_no_call_creates_a_topic(served):
    with Admin(served.bootstrap, allow_auto_create_topics=True) as admin:
        admin.list_topics()  # connects, which the short timeout does not always allow
        for call in (
            lambda: admin.log_sizes(["not-created"], timeout=0.2),
            lambda: admin.list_offsets({("not-created", 0): Admin.LATEST}, timeout=0.2),
        ):
            # The error of the last attempt; that of the timeout on a machine that stalls.
            with pytest.raises((UnknownTopicOrPartition, RequestTimedOut)):
                call()
        assert "not-created" not in admin.list_topics()


def test_offsets_are_listed_by_time_and_at_both_ends(served, admin):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(10), 1)
    for which, expected in ((Admin.EARLIEST, [0, 0]), (Admin.LATEST, [0, 10])):
        found = admin.list_offsets({(topic, 0): which, (topic, 1): which})
        assert [found[topic, number].offset for number in range(2)] == expected
    (first,) = admin.list_offsets({(topic, 1): 1}).values()
    assert first.offset == 0 and first.timestamp > 1
    (none,) = admin.list_offsets({(topic, 0): 1}).values()
    assert none == (-1, -1)


def test_offsets_are_committed_and_read(served, admin):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(10))
    group = f"admin-{topic}"
    admin.commit_offsets(group, {(topic, 0): 7})
    found = admin.committed_offsets(group, [(topic, 0), (topic, 1)])
    assert found == {(topic, 0): 7, (topic, 1): None}
    with pytest.raises(UnknownTopicOrPartition):
        admin.commit_offsets(group, {("nowhere", 0): 1})


def test_log_sizes_grow_with_the_records(served, admin):
    topic = served.topic(2)
    produce(served.bootstrap, topic, [b"x" * 1000] * 10, 1)
    sizes = admin.log_sizes([topic])
    assert sizes[topic, 0] == 0 and 10_000 < sizes[topic, 1] < 20_000


def test_errors_of_settings_connections_and_timeouts_are_raised(served):
    with pytest.raises(InvalidConfig, match="isolation.levle"):
        Admin(served.bootstrap, isolation_levle="read_committed")
    with Admin("127.0.0.1:1", default_api_timeout_ms=50) as admin:
        assert admin.default_timeout_s == 0.05
        with pytest.raises(NetworkException, match="127.0.0.1:1"):
            admin.describe_topics(["t"])
        with pytest.raises(ValueError, match="timeout"):
            admin.list_topics(timeout=-1)
    with pytest.raises(ClientClosed):
        admin.list_topics()


def test_topics_are_created_grown_and_deleted(served, admin):
    name = f"{served.topic()}-made"
    admin.create_topic(name, 2, configs={"retention.ms": 5_000, "cleanup.policy": ["compact"]})
    assert sorted(admin.describe_topics([name])[name].partitions) == [0, 1]
    with pytest.raises(TopicAlreadyExists, match=name):
        admin.create_topic(name)
    admin.create_partitions(name, 5)
    assert len(admin.describe_topics([name])[name].partitions) == 5
    with pytest.raises(InvalidPartitions):
        admin.create_partitions(name, 5)
    admin.delete_topic(name)
    assert isinstance(admin.describe_topics([name])[name], UnknownTopicOrPartition)
    with pytest.raises(UnknownTopicOrPartition, match=name):
        admin.delete_topic(name)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "no/slashes"}, InvalidTopicException),
        ({"name": "t", "configs": {"no.such.key": 1}}, InvalidConfig),
        ({"name": "t", "configs": {"retention.ms": None}}, TypeError),
        ({"name": "t", "replication_factor": 32_000}, InvalidReplicationFactor),
        ({"name": "t", "partitions": 0}, ValueError),
        ({"name": "t", "partitions": 1.5}, TypeError),
        ({"name": "t", "partitions": True}, TypeError),
    ],
    ids=str,
)
def test_invalid_topic_is_not_created(admin, arguments, error):
    with pytest.raises(error):
        admin.create_topic(**arguments)
    assert arguments["name"] not in admin.list_topics()


def test_records_before_an_offset_are_deleted(served, admin):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(10))
    assert admin.delete_records({(topic, 0): 4}) == {(topic, 0): 4}
    assert admin.list_offsets({(topic, 0): Admin.EARLIEST})[topic, 0].offset == 4
    with pytest.raises(OffsetOutOfRange):
        admin.delete_records({(topic, 0): 11})
    with pytest.raises(ValueError, match="at least 0"):
        admin.delete_records({(topic, 0): -2})


def test_configuration_is_changed_and_returned_to_its_default(served, admin):
    topic = served.topic()
    before = admin.describe_config("topic", topic)["retention.ms"]
    admin.alter_config("topic", topic, {"retention.ms": 60_000, "preallocate": False})
    changed = admin.describe_config("topic", topic)
    assert (changed["retention.ms"].value, changed["retention.ms"].source) == ("60000", "topic")
    admin.alter_config("topic", topic, {"retention.ms": None})
    assert admin.describe_config("topic", topic)["retention.ms"] == before
    assert admin.describe_config("broker", "0")["log.retention.hours"].value == "168"


def test_invalid_configuration_changes_nothing(served, admin):
    topic = served.topic()
    before = admin.describe_config("topic", topic)
    with pytest.raises(InvalidConfig):
        admin.alter_config("topic", topic, {"retention.ms": 60_000, "segment.bytes": "many"})
    with pytest.raises(UnknownTopicOrPartition):
        admin.alter_config("topic", "nowhere", {"retention.ms": 60_000})
    with pytest.raises(ValueError, match="a kind of resource is one of topic, broker"):
        admin.alter_config("topics", topic, {})
    with pytest.raises(ValueError, match="named by its node id"):
        admin.describe_config("broker", "first")
    assert admin.describe_config("topic", topic) == before


def test_group_with_members_is_described_and_kept(served, admin):
    topic = served.topic(2)
    group = f"described-{topic}"
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": served.bootstrap,
        "group.id": group,
        "client.id": "described",
        "group.instance.id": "first",
    })  # fmt: skip
    try:
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.05) is None and len(consumer.assignment()) == 2)
        found = admin.describe_group(group)
        assert (found.type, found.state, found.assignor) == ("classic", "Stable", "range")
        (member,) = found.members
        assert (member.client_id, member.instance_id) == ("described", "first")
        assert member.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))
        with pytest.raises(GroupSubscribedToTopic):
            admin.delete_offsets(group, [(topic, 0)])
        with pytest.raises(NonEmptyGroup):
            admin.delete_group(group)
        listed = [each for each in admin.list_groups(["classic"], ["stable"]) if each[0] == group]
        assert listed == [(group, "classic", "Stable", "consumer")]
    finally:
        consumer.close()


def starts_and_lags(admin, group):
    """Return the start offset and the lag of each partition of a share group."""
    return {place: (at.start_offset, at.lag) for place, at in admin.share_offsets(group).items()}


def test_share_group_is_described_and_its_start_offsets_are_changed(served, admin):
    topic = served.topic(2)
    both = [TopicPartition(topic, number) for number in range(2)]
    group = f"shared-{topic}"
    admin.alter_config("group", group, {"share.auto.offset.reset": "earliest"})
    for number in range(2):
        produce(served.bootstrap, topic, numbered(10), number)
    consumer = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": served.bootstrap, "group.id": group, "client.id": "shared"}
    )
    received = []

    def receive():
        received.extend(each for each in consumer.poll(0.1) if each.error() is None)
        return len(received) == 20

    try:
        consumer.subscribe([topic])
        until(receive)
        consumer.commit_sync(TIMEOUT_S)
        # The leader may store the start offset after its response (`SharePartition.final_write`).
        until(lambda: starts_and_lags(admin, group) == dict.fromkeys(both, (10, 0)))
        found = admin.describe_group(group)
        assert (found.type, found.state, found.assignor) == ("share", "Stable", "simple")
        assert found.epoch == found.assignment_epoch == found.members[0].epoch
        (member,) = found.members
        assert (member.client_id, member.partitions) == ("shared", tuple(both))
        for call in (
            lambda: admin.alter_share_offsets(group, {both[0]: 3}),
            lambda: admin.delete_share_offsets(group, [topic]),
            lambda: admin.delete_group(group),
        ):
            with pytest.raises(NonEmptyGroup):
                call()
        listed = [each for each in admin.list_groups(["share"], ["stable"]) if each[0] == group]
        assert listed == [(group, "share", "Stable", "share")]
    finally:
        consumer.close()
    admin.alter_share_offsets(group, {both[0]: 3})
    assert starts_and_lags(admin, group) == {both[0]: (3, 7), both[1]: (10, 0)}
    with pytest.raises((UnknownTopicOrPartition, RequestTimedOut)):
        admin.alter_share_offsets(group, {(topic, 9): 3}, timeout=0.2)
    admin.delete_share_offsets(group, [topic])
    assert admin.share_offsets(group) == {}
    with pytest.raises((UnknownTopicOrPartition, RequestTimedOut)):
        admin.delete_share_offsets(group, [topic], timeout=0.2)
    admin.delete_group(group)
    assert admin.share_offsets(group) == {}
    with pytest.raises(GroupIdNotFound, match=group):
        admin.describe_group(group)


def test_group_and_its_offsets_are_deleted(served, admin):
    topic = served.topic(3)
    group = f"deleted-{topic}"
    admin.commit_offsets(group, {(topic, number): number for number in range(3)})
    assert admin.committed_offsets(group) == {(topic, number): number for number in range(3)}
    admin.delete_offsets(group, [(topic, 1)])
    assert admin.committed_offsets(group) == {(topic, 0): 0, (topic, 2): 2}
    assert admin.describe_group(group).state == "Empty"
    admin.delete_group(group)
    assert group not in [each.group_id for each in admin.list_groups()]
    for call in (admin.describe_group, admin.delete_group):
        with pytest.raises(GroupIdNotFound, match=group):
            call(group)
    with pytest.raises(TypeError, match="types must be a list"):
        admin.list_groups("classic")
