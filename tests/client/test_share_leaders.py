"""The wait for responses of the leaders of a share group's partitions."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.settings import share_consumer_settings
from kafkalite.client.net.waker import Waker
from kafkalite.client.share.leader_session import ShareResponse
from kafkalite.client.share.share_leaders import ShareLeaders

TIMEOUT_S = 60.0


class PartialLeader:
    """A leader whose response arrives in parts: the socket is readable, the response incomplete."""

    node_id = 0
    is_busy = True
    due_s = float("inf")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.session = SimpleNamespace(has_unconfirmed=False)
        self.backoff = SimpleNamespace(succeeded=lambda: None)
        self._receiver, self._sender = socket.socketpair()
        self._sender.send(b".")

    def fileno(self) -> int:
        return self._receiver.fileno()

    def receive(self) -> ShareResponse | None:
        self.parts -= 1
        return None if self.parts else ShareResponse(None, [], [])

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


@pytest.fixture
def leaders() -> Iterator[ShareLeaders]:
    waker = Waker()
    cluster = Cluster(share_consumer_settings("127.0.0.1:1", {"group_id": "g"}))
    yield ShareLeaders(cluster, "g", "m", waker)
    cluster.close()
    waker.close()


@pytest.fixture
def leader(leaders: Any) -> Iterator[PartialLeader]:
    leader = PartialLeader(parts=3)
    leaders._leaders[0] = leader
    yield leader
    leader.close()


def test_part_of_a_response_does_not_end_the_wait(leaders, leader):
    leaders.pump(Deadline(TIMEOUT_S), records_max=0)
    assert leader.parts == 0


def test_wait_ends_with_its_deadline_between_two_parts(leaders, leader):
    leaders.pump(Deadline(0.0), records_max=0)
    assert leader.parts == 2


def test_waker_ends_the_wait_between_two_parts(leaders, leader):
    leaders._waker.set()
    leaders.pump(Deadline(TIMEOUT_S), records_max=0)
    assert leader.parts == 2
