"""The time that a poll takes while brokers do not respond, by a simulated clock."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kafkalite.client.consumer.assignment_reader import AssignmentReader
from kafkalite.client.net import deadline as deadline_module
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.settings import consumer_settings
from kafkalite.client.net.topology import PartitionMetadata, TopicMetadata, TopicPartition
from kafkalite.client.net.waker import Waker
from kafkalite.errors import NetworkException, RequestTimedOut

NODES = range(8)


class HungCluster:
    """A cluster of nodes that do not respond, over a simulated clock; metadata may be known."""

    def __init__(self, topic):
        self.now_s = 1000.0
        self.topic = topic

    def monotonic(self):
        return self.now_s

    def wait(self, timeout_s):
        self.now_s += timeout_s
        return []

    def describe(self, names, timeout_s, create):
        if self.topic is None:
            self.wait(timeout_s)
            raise RequestTimedOut("hung")
        return dict.fromkeys(names, self.topic)

    def connection(self, node_id, purpose, timeout_s):
        assert timeout_s > 0, "an attempt without time counts as a failure of the node"
        self.wait(timeout_s)
        raise NetworkException("hung")


TOPIC = TopicMetadata(
    "t", bytes([7]) * 16, {number: PartitionMetadata(number, 0) for number in NODES}
)


@pytest.mark.parametrize("topic", [None, TOPIC], ids=["metadata", "connections"])
@pytest.mark.parametrize("timeout_s", [0, 0.3, 5])
def test_poll_of_hung_nodes_is_late_by_one_call_at_most(monkeypatch, timeout_s, topic):
    cluster = HungCluster(topic)
    monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=cluster.monotonic))
    settings = consumer_settings(None, {"native": "off", "default_api_timeout_ms": 10**6})
    waker = Waker()
    reader = AssignmentReader(cluster, settings, "fetch", waker)
    monkeypatch.setattr(reader.transports, "wait", cluster.wait)
    reader.assign([TopicPartition("t", number) for number in NODES])
    for position in reader.assignment:
        position.seek(0)
    for _ in range(20):
        began_s = cluster.now_s
        assert reader.next_range(Deadline(timeout_s)) is None
        assert cluster.now_s <= began_s + timeout_s + 1.001
    reader.close()
    waker.close()
