"""Requests of a follower to one leader, with a connection and timers of the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafkalite.broker.node_settings import ReplicaFetchSettings
from kafkalite.broker.replica.isr import FollowerFetch
from kafkalite.broker.replica.replica_fetch import ReplicaFetch
from kafkalite.broker.replica.replica_fetcher import VERSION, FollowerNode, ReplicaFetcher
from kafkalite.clock import ManualClock
from kafkalite.protocol.frame import response_header
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
        self.fetcher = ReplicaFetcher(
            FollowerNode(FOLLOWER, 1), self.connect,
            lambda: ReplicaFetchSettings(500, 1, 1 << 20, 10 << 20, 1_000),
            self, ManualClock(), lambda partition: None,
        )  # fmt: skip

    def connect(self, on_response, on_close):
        self.on_response = on_response
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

    def respond(self, request, *indexes):
        """Respond to a request, with news of these partitions."""
        partitions = [{"partition_index": index, "high_watermark": 1} for index in indexes]
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
