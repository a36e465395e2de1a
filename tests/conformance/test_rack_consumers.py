"""Consumers with a rack read the follower in it (KIP-392): every client that has `client.rack`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from kafkalite.config.replication import RACK_AWARE_SELECTOR
from kafkalite.metrics import read_pages
from kafkalite.process.run_directory import stored_path
from kafkalite.testing import Broker
from tests.conformance.clients import FRANZ_GO, JAVA, KAFKAJS, LIBRDKAFKA, missing
from tests.conformance.table import Client, Kafka, done, until

RACKS = {1: "a", 2: "b", 3: "c"}
LEADER, NEAR = 1, 2
CONFIG = {"replica.selector.class": RACK_AWARE_SELECTOR}
COUNT, SIZE = 200, 1_000
BYTES_OUT = "kafka_server_brokertopicmetrics_bytesout_total"
WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Three workers, each in a rack of its own."""
    with Broker(workers=3, config=CONFIG) as broker:
        admin = Kafka(broker.bootstrap).admin
        for node_id, rack in RACKS.items():
            entry = ConfigEntry("broker.rack", rack, incremental_operation=AlterConfigOpType.SET)
            node = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=[entry])
            done(admin.incremental_alter_configs([node]))
        yield broker


def fill(broker: Broker, name: str) -> Kafka:
    """Create a topic that node LEADER leads, with COUNT records."""
    kafka = Kafka(broker.bootstrap)
    topic = NewTopic(name, num_partitions=1, replica_assignment=[[LEADER, 2, 3]])
    done(kafka.admin.create_topics([topic]))
    produce(broker, name, COUNT)
    return kafka


def produce(broker: Broker, name: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
    for number in range(count):
        producer.produce(name, b"%0*d" % (SIZE, number))
    assert producer.flush(WAIT_S) == 0


def bytes_out(broker: Broker) -> dict[int, int]:
    """Return the bytes that each node has sent to consumers."""
    directory = stored_path(Path(broker.data))
    assert directory is not None
    return {
        page.node_id: next(
            int(value)
            for family in page.families
            if family.name == BYTES_OUT
            for labels, value in family.samples
            if not labels
        )
        for page in read_pages(directory, time.monotonic_ns() // 1_000_000)
    }


@pytest.mark.parametrize("client", [LIBRDKAFKA, JAVA, FRANZ_GO, KAFKAJS], ids=lambda c: c.name)
def test_consumer_reads_the_follower_of_its_rack(client: Client, broker: Broker) -> None:
    if why := missing(client):
        pytest.skip(why)
    name = f"read-by-{client.name}"
    kafka = fill(broker, name)
    before = bytes_out(broker)
    settings = {"client.rack": RACKS[NEAR], "max.partition.fetch.bytes": "20000"}
    records = client.consume(kafka, name, count=COUNT, settings=settings)
    assert [record.offset for record in records] == [*range(COUNT)]
    assert [int(record.value or b"") for record in records] == [*range(COUNT)]
    # The pages are written once a second.
    until(lambda: bytes_out(broker)[NEAR] - before[NEAR] >= COUNT * SIZE)
    after = bytes_out(broker)
    assert after[LEADER] == before[LEADER]
    assert after[3] == before[3]


class Reader:
    """A consumer of librdkafka in a rack, and the node that it fetches from."""

    def __init__(self, broker: Broker, topic: str, rack: str) -> None:
        self.node: int | None = None
        self.topic = topic
        self.consumer = Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": "g", "client.rack": rack,
            "statistics.interval.ms": 20, "stats_cb": self._statistics,
            "topic.metadata.refresh.interval.ms": 200,
        })  # fmt: skip
        self.consumer.assign([TopicPartition(topic, 0, 0)])
        self.values: list[int] = []

    def _statistics(self, text: str) -> None:
        partition: dict[str, Any] = json.loads(text)["topics"].get(self.topic, {})
        self.node = partition.get("partitions", {}).get("0", {}).get("broker")

    def has_read(self, count: int) -> bool:
        """Poll once; return whether it has so many values."""
        message = self.consumer.poll(0.1)
        if message is not None and message.error() is None:
            self.values.append(int(message.value()))
        return len(self.values) == count


def test_consumer_goes_on_when_the_follower_and_then_the_leader_ends(broker: Broker) -> None:
    name = "failing-over"
    kafka = fill(broker, name)
    reader = Reader(broker, name, RACKS[NEAR])
    until(lambda: reader.has_read(COUNT))
    until(lambda: reader.has_read(COUNT) and reader.node == NEAR)
    for node_id in (NEAR, LEADER):
        broker.kill(node_id)
        count = len(reader.values) + COUNT
        writer = threading.Thread(target=produce, args=(broker, name, COUNT))
        writer.start()
        until(partial(reader.has_read, count))
        writer.join()
    reader.consumer.close()
    assert reader.values == [*range(COUNT)] * 3
    assert kafka.end(name, committed=False) == 3 * COUNT
