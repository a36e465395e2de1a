"""A log whose directory is removed while its partition is led: another replica leads it."""

from __future__ import annotations

import json
import shutil

import pytest

from kafkalite import Consumer, Producer
from kafkalite.errors import KafkaError
from kafkalite.storage.files import layout
from kafkalite.testing import Broker
from tests.process.test_log_directories import kafkalite
from tests.process.waiting import until

VALUE = bytes(100_000)


@pytest.fixture
def broker():
    with Broker(workers=3) as broker:
        yield broker


def partition(broker, topic):
    described = kafkalite(broker, "topic", "describe", topic, "--json", of="-b")
    return json.loads(described)[0]["partitions"][0]


def remove_log(broker, topic, leader):
    """Remove the leader's log; its next segment cannot be made."""
    shutil.rmtree(layout.node_directory(broker.data, leader) / f"{topic}-0")


def test_another_replica_leads_when_the_log_of_the_leader_is_removed(broker):
    topic = broker.topic(1, {"segment.bytes": 1 << 20}, replication_factor=3)
    leader = partition(broker, topic)["leader"]
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, VALUE).result()
        remove_log(broker, topic, leader)
        for _ in range(30):
            producer.send(topic, VALUE).result()
    assert partition(broker, topic)["leader"] != leader
    assert "its log failed" in (broker.data / "kafkalite.log").read_text()
    count = 0
    with Consumer(broker.bootstrap, topics=topic) as consumer:
        while consumer.lag():
            count += len(consumer.consume(100, timeout=1))
    assert count == 31
    until(lambda: len(partition(broker, topic)["isr"]) == 3)


def test_partition_without_another_replica_logs_why_it_is_not_written(broker):
    topic = broker.topic(1, {"segment.bytes": 1 << 20})
    leader = partition(broker, topic)["leader"]
    limits = {"delivery_timeout_ms": 1000, "request_timeout_ms": 900}
    with Producer(broker.bootstrap, **limits) as producer:
        producer.send(topic, VALUE).result()
        remove_log(broker, topic, leader)
        with pytest.raises(KafkaError):
            for _ in range(30):
                producer.send(topic, VALUE).result()
    lines = (broker.data / "kafkalite.log").read_text().splitlines()
    assert sum(f"{topic}-0) cannot be written" in line for line in lines) == 1
