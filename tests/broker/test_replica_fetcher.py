"""Requests of a follower to one leader, with a connection and timers of the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafkalite.broker.node_settings import ReplicaFetchSettings
from kafkalite.broker.replica.isr import FollowerFetch
from kafkalite.broker.replica.replica_fetch import ReplicaFetch
from kafkalite.broker.replica.replica_fetcher import (
    VERSION,
    FollowerNode,
    FollowerThrottle,
    ReplicaFetcher,
)
from kafkalite.broker.replica.replication_quota import ReplicationQuota
from kafkalite.clock import ManualClock
from kafkalite.protocol.frame import read_header, response_header
from kafkalite.protocol.schemas.fetch import FETCH

FOLLOWER, SESSION = 2, 7
TOPIC = b"\1" * 16


class FollowedPartition:
    """A partition whose log grows by one record for each response that is applied."""

    def __init__(self, index):
        self.key = (TOPIC, index)
        self.leader = 1
        self.error = None
        self.retry_ms = 0
        self.is_flush_awaited = False
        self.is_throttled = False
        self.has_all_committed = False
        self.log = SimpleNamespace(is_truncating=False)
        self.replication = self
        self.offset = 0

        self.durable_offset = 0

    def next_fetch(self):
        return ReplicaFetch(1, 1, FollowerFetch(FOLLOWER, 1, self.offset, self.durable_offset))

    def apply(self, fetch, response):
        self.offset += 1


class Leader:
    """A fetcher, and the connection that it has to its leader."""

    def __init__(self):
        self.frames = []
        self.due = []
        self.clock = ManualClock()
        self.quota = ReplicationQuota(self.clock.monotonic_ms)
        self.in_sync = set()
        self.fetcher = ReplicaFetcher(
            FollowerNode(FOLLOWER, 1), self.connect,
            lambda: ReplicaFetchSettings(500, 1, 1 << 20, 10 << 20, 1_000),
            self, self.clock, lambda partition: None,
            FollowerThrottle(self.quota, lambda topic_id, index: index in self.in_sync),
        )  # fmt: skip

    def connect(self, on_response, on_close):
        self.on_response, self.on_close = on_response, on_close
        return SimpleNamespace(send=self.frames.append, close=lambda: None)

    def call_later(self, ms, callback):
        timer = SimpleNamespace(callback=callback, cancel=lambda: self.due.remove(timer))
        self.due.append(timer)
        return timer

    def tick(self):
        while self.due:
            self.due.pop(0).callback()

    def add(self, *indexes):
        for index in indexes:
            self.fetcher.add(FollowedPartition(index))
        self.tick()

    def respond(self, request, *indexes, records=None):
        """Respond to a request, with news of these partitions."""
        partitions = [
            {"partition_index": index, "high_watermark": 1, "records": records} for index in indexes
        ]
        response = {
            "session_id": SESSION,
            "responses": [{"topic_id": TOPIC, "partitions": partitions}] if indexes else [],
        }
        header = response_header(request, FETCH.response_header_flexible(VERSION))
        self.on_response(memoryview(header + FETCH.response.write(VERSION, response)))


@pytest.fixture
def leader():
    return Leader()


def test_follower_has_one_request_in_flight(leader):
    leader.add(0)
    assert len(leader.frames) == 1
    leader.respond(1, 0)
    leader.tick()
    assert len(leader.frames) == 2
    leader.respond(2)
    leader.tick()
    assert len(leader.frames) == 3


def test_new_partition_does_not_wait_for_a_response(leader):
    leader.add(0)
    leader.respond(1)
    leader.tick()
    leader.add(1)
    assert len(leader.frames) == 3


@pytest.mark.parametrize(("is_awaited", "sent"), [(False, 2), (True, 3)])
def test_flush_is_told_at_once_only_if_that_commits_records(leader, is_awaited, sent):
    partition = FollowedPartition(0)
    partition.is_flush_awaited = is_awaited
    leader.fetcher.add(partition)
    leader.tick()
    leader.respond(1)
    leader.tick()
    partition.durable_offset = 1
    leader.fetcher.flushed(partition)
    leader.tick()
    assert len(leader.frames) == sent


def test_records_of_an_earlier_request_are_acknowledged_at_once(leader):
    leader.add(0)
    leader.respond(1)
    leader.tick()
    leader.add(1)  # requests 2 and 3 are in flight
    leader.respond(2, 0)
    leader.tick()
    assert len(leader.frames) == 4
    leader.respond(3)
    leader.tick()
    assert len(leader.frames) == 4  # one is in flight again


# -- throttled partitions --------------------------------------------------------------------------


def request_of(frame):
    """Return the partitions that a request names, and those that it forgets."""
    fields = FETCH.request.read(VERSION, frame, read_header(frame).body_position)
    named = [each.partition for topic in fields.topics for each in topic.partitions]
    forgotten = [index for topic in fields.forgotten_topics_data for index in topic.partitions]
    return named, forgotten


def follow_throttled(leader, *indexes):
    """Follow partitions that are throttled, and not in sync; return them."""
    partitions = [FollowedPartition(index) for index in indexes]
    for partition in partitions:
        partition.is_throttled = True
        leader.fetcher.add(partition)
    return partitions


def exceed(leader, rate=10):
    leader.quota.set_rate_max(rate)
    leader.quota.record(10_000)


def test_throttled_partition_leaves_the_session_until_the_rate_has_fallen(leader):
    follow_throttled(leader, 0)
    leader.add(1)
    assert request_of(leader.frames[0]) == ([0, 1], [])
    exceed(leader)
    leader.respond(1, 0, 1)
    leader.due.pop()  # the wait for the quota
    leader.fetcher._throttle_timer = None
    assert request_of(leader.frames[1]) == ([1], [0])
    leader.clock.advance(leader.quota.wait_ms)
    leader.fetcher.fetch_throttled()
    leader.tick()
    assert request_of(leader.frames[2]) == ([0], [])


def test_throttled_partitions_that_had_no_records_leave_the_session_as_well(leader):
    follow_throttled(leader, 0, 1)
    leader.tick()
    exceed(leader)
    leader.respond(1, 0)
    assert request_of(leader.frames[1]) == ([], [0, 1])


def test_throttled_partition_stays_while_its_response_is_on_its_way(leader):
    leader.add(1)
    leader.respond(1)
    follow_throttled(leader, 0)
    leader.tick()  # requests 2 and 3 are in flight; the latter names partition 0
    exceed(leader)
    leader.respond(2, 1)
    assert request_of(leader.frames[3]) == ([1], [])
    leader.respond(3, 0)
    leader.respond(4)
    assert request_of(leader.frames[4]) == ([], [0])


def test_throttled_partition_is_not_fetched_at_first_if_the_rate_is_exceeded(leader):
    exceed(leader)
    follow_throttled(leader, 0)
    leader.due.pop(0).callback()
    assert leader.frames == []
    (timer,) = leader.due
    leader.clock.advance(leader.quota.wait_ms)
    leader.tick()
    assert request_of(leader.frames[0]) == ([0], [])
    assert timer not in leader.due


def test_follower_in_sync_is_not_throttled(leader):
    exceed(leader)
    (partition,) = follow_throttled(leader, 0)
    leader.in_sync.add(0)
    leader.tick()
    assert request_of(leader.frames[0]) == ([0], [])
    leader.in_sync.clear()
    partition.has_all_committed = True
    leader.respond(1, 0)
    assert request_of(leader.frames[1]) == ([0], [])


def test_received_records_of_throttled_partitions_count_for_the_quota(leader):
    follow_throttled(leader, 0)
    leader.add(1)
    leader.respond(1, 0, 1, records=b"12345")
    assert leader.quota.size == 5


def test_higher_rate_lets_throttled_partitions_go_on_at_once(leader):
    exceed(leader)
    follow_throttled(leader, 0, 1)
    leader.due.pop(0).callback()
    leader.quota.add_listener(leader.fetcher.fetch_throttled)  # as FollowedPartitions does
    leader.quota.set_rate_max(None)
    leader.tick()
    assert request_of(leader.frames[0]) == ([0, 1], [])


def test_partition_that_is_throttled_no_longer_is_fetched_at_once(leader):
    exceed(leader)
    first, _ = follow_throttled(leader, 0, 1)
    leader.due.pop(0).callback()
    first.is_throttled = False
    leader.fetcher.reconfigured(first)
    leader.due.pop().callback()
    assert request_of(leader.frames[0]) == ([0], [])


def test_flush_of_a_throttled_partition_is_told_while_it_is_fetched(leader):
    (partition,) = follow_throttled(leader, 0)
    leader.tick()
    leader.respond(1)
    exceed(leader)
    partition.durable_offset, partition.is_flush_awaited = 1, True
    leader.fetcher.flushed(partition)
    leader.due.pop(0).callback()
    named = [request_of(frame) for frame in leader.frames]
    assert named == [([0], []), ([], []), ([0], [])]


def test_throttled_partitions_that_are_removed_leave_no_timer(leader):
    exceed(leader)
    follow_throttled(leader, 0)
    leader.due.pop(0).callback()
    leader.fetcher.remove((TOPIC, 0))
    assert leader.due == []


def test_lost_connection_does_not_end_the_throttle(leader):
    follow_throttled(leader, 0)
    leader.tick()
    exceed(leader)
    leader.respond(1, 0)
    assert request_of(leader.frames[1]) == ([], [0])
    leader.on_close()
    leader.due.pop().callback()
    assert len(leader.frames) == 2


def test_lower_rate_that_is_exceeded_does_not_end_the_wait(leader):
    exceed(leader)
    follow_throttled(leader, 0)
    leader.due.pop(0).callback()
    leader.quota.add_listener(leader.fetcher.fetch_throttled)  # as FollowedPartitions does
    leader.quota.set_rate_max(9)
    assert (leader.frames, len(leader.due)) == ([], 1)
    leader.clock.advance(leader.quota.wait_ms)
    leader.tick()
    assert request_of(leader.frames[0]) == ([0], [])
