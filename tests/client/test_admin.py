"""Admin: metadata, offsets and log sizes, from a broker and with errors by topic."""

from __future__ import annotations

import pytest

from kafkalite import Admin
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.errors import InvalidConfig, NetworkException, UnknownTopicOrPartition
from tests.client.consuming import numbered, produce


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
        for call in (
            lambda: admin.log_sizes(["not-created"], timeout=0.2),
            lambda: admin.list_offsets({("not-created", 0): Admin.LATEST}, timeout=0.2),
        ):
            with pytest.raises(UnknownTopicOrPartition):
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
