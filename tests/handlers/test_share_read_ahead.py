"""Share fetches that continue where the last one ended: what is read from the log, and when."""

from __future__ import annotations

import pytest

from kafkalite.broker.replica.partition import Partition
from kafkalite.records.batch import batches
from tests.handlers.test_share_fetches import (
    ACCEPT,
    RELEASE,
    Member,
    alter,
    member,
    produce,
    topic_id,
)

__all__ = ["member", "topic_id"]


@pytest.fixture
def reads(member, monkeypatch):
    """The offsets from which the share partition of partition 0 reads the log, from here on."""
    offsets = []
    read, read_committed = Partition.read, Partition.read_committed

    def counted(read):
        def count(self, offset, *arguments, **options):
            if (self.topic, self.index) == ("t", 0):
                offsets.append(offset)
            return read(self, offset, *arguments, **options)

        return count

    monkeypatch.setattr(Partition, "read", counted(read))
    monkeypatch.setattr(Partition, "read_committed", counted(read_committed))
    return offsets


def fetched(member, acks=(), **limits):
    """Return the values that a fetch acquires."""
    response = member.fetch(0, acks=acks, **limits)
    (result,) = response.responses[0].partitions
    assert not result.error_code and not result.acknowledge_error_code
    acquired = {
        offset
        for each in result.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    return [
        record.value
        for batch in batches(result.records or b"")
        for record in batch.records()
        if record.offset in acquired
    ]


def test_fetches_that_follow_each_other_look_up_the_first_offset_only(
    broker, topic_id, member, reads
):
    values = [b"%d" % number for number in range(6)]
    for begin in range(0, 6, 2):
        produce(broker, "t", *values[begin : begin + 2])
    assert fetched(member, records=2) == values[:2]
    assert fetched(member, records=1, acks=[(0, 1, ACCEPT)]) == values[2:4]
    assert fetched(member, records=10, acks=[(2, 3, ACCEPT)]) == values[4:]
    assert reads == [0]
    produce(broker, "t", b"later")
    assert fetched(member) == [b"later"]
    assert reads == [0, 6]


def test_released_records_come_first_and_end_the_read_ahead(broker, topic_id, member, reads):
    for value in (b"a", b"b", b"c"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    assert fetched(member, records=1) == [b"b"]
    assert fetched(member, records=1, acks=[(0, 0, RELEASE)]) == [b"a"]
    assert fetched(member, records=1) == [b"c"]
    assert reads == [0, 0, 2]


def test_two_members_share_the_read_ahead(broker, topic_id, member, reads):
    other = Member(broker, topic_id, "b")
    other.poll(0)
    for value in (b"a", b"b", b"c"):
        produce(broker, "t", value)
    reads.clear()
    assert fetched(member, records=1) == [b"a"]
    assert fetched(other, records=1) == [b"b"]
    assert fetched(member, records=1) == [b"c"]
    assert reads == [0]


@pytest.mark.parametrize("surplus", [1, 30, 70])
def test_part_of_a_batch_is_read_again(broker, topic_id, member, reads, surplus):
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    size = len(member.fetch(0, records=1).responses[0].partitions[0].records)
    produce(broker, "t", b"c")
    produce(broker, "t", b"d")
    assert fetched(member, records=1) == [b"b"]
    reads.clear()
    # The slice ends within the batch of `d`, which is then left of it.
    assert fetched(member, records=1, max_bytes=min(size + surplus, 2 * size - 1)) == [b"c"]
    assert fetched(member, records=1) == [b"d"]
    assert reads == [2, 3]


def test_batch_larger_than_the_request_allows_is_read_whole(broker, topic_id, member, reads):
    for value in (b"a", b"b" * 1_000):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    assert fetched(member, records=1, max_bytes=200) == [b"b" * 1_000]
    assert reads == [0, 1]


def test_file_that_was_closed_is_opened_again(broker, topic_id, member, reads):
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    share = broker.node.share_partitions.led.find("g", topic_id, 0)
    share._ahead.file().close()
    log = broker.node.replicas.leader("t", 0).log
    log.segments.active.release()
    assert fetched(member, records=1) == [b"b"]
    assert reads == [0, 1]


def test_log_that_has_failed_is_not_read(broker, topic_id, member, reads):
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    broker.node.replicas.leader("t", 0).log.failure = "a test"
    response = member.fetch(0)
    assert response.responses[0].partitions[0].error_code


def test_deleted_records_are_not_delivered(broker, topic_id, member, reads):
    for value in (b"a", b"b", b"c"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    log = broker.node.replicas.leader("t", 0).log
    log.roll()
    log.delete_records(2)
    assert fetched(member, records=1) == [b"c"]
    assert reads == [0, 2]


def test_read_committed_groups_look_up_each_offset(broker, topic_id, member, reads):
    alter(broker, share_isolation_level="read_committed")
    for value in (b"a", b"b"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"a"]
    assert fetched(member, records=1) == [b"b"]
    assert reads == [0, 1]
    alter(broker, share_isolation_level="read_uncommitted")
    for value in (b"c", b"d"):
        produce(broker, "t", value)
    assert fetched(member, records=1) == [b"c"]
    assert fetched(member, records=1) == [b"d"]
    assert reads == [0, 1, 2]
