"""OfflinePartitions alone: look-ups by name and by id, and their cost."""

import pytest

from kafkalite.broker.replica.offline_partitions import OfflinePartitions
from kafkalite.errors import KafkaStorageError, NotLeaderOrFollower

OLD, NEW = b"1" * 16, b"2" * 16


@pytest.fixture
def offline():
    return OfflinePartitions()


def test_offline_partition_is_found_by_name_and_by_id(offline):
    fault = KafkaStorageError("away")
    assert offline.add("a", OLD, 3, fault)
    assert not offline.add("a", OLD, 3, fault)
    assert offline.of("a") == offline.of(OLD) == {3}
    assert offline.error("a", 3) is offline.error(OLD, 3) is fault
    assert (offline.error("a", 4), offline.error("b", 3), offline.of("b")) == (None, None, set())
    assert len(offline) == 1


def test_discard_leaves_nothing_of_an_online_partition(offline):
    offline.add("a", OLD, 0, NotLeaderOrFollower())
    offline.discard(OLD, 0)
    offline.discard(OLD, 0)
    assert (len(offline), offline.of("a"), offline.of(OLD)) == (0, set(), set())
    assert offline.add("a", OLD, 0, NotLeaderOrFollower())


def test_deleted_topic_does_not_hide_a_new_topic_of_its_name(offline):
    offline.add("a", OLD, 0, NotLeaderOrFollower())
    offline.add("a", NEW, 1, KafkaStorageError("full"))
    offline.remove_topic(OLD)
    assert offline.of("a") == {1}
    assert offline.of(OLD) == set()


class Faults(dict):
    """A dict that cannot be iterated."""

    def __iter__(self):
        raise AssertionError("a look-up walked over all offline topics")

    items = values = keys = __iter__


def test_lookup_does_not_iterate_over_other_topics(offline):
    for number in range(100):
        offline.add(f"t{number}", bytes([number]) * 16, 0, NotLeaderOrFollower())
    offline._by_id = Faults(offline._by_id)
    offline._ids = Faults(offline._ids)
    assert offline.of("t7") == {0}
    assert offline.of("other") == set()
    offline.remove_topic(bytes([7]) * 16)
    assert offline.of("t7") == set()
