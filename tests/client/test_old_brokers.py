"""Brokers from Kafka 2.1 on: the client sends only the versions they support."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kafkalite import Consumer, Producer
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.offset_requests import list_offsets
from kafkalite.client.net.settings import producer_settings
from kafkalite.protocol.schemas.cluster import API_VERSIONS
from kafkalite.protocol.schemas.offsets import LATEST
from tests.client.old_broker import KAFKA_2_1, KAFKA_2_8, KAFKA_3_9, old_broker

TIMEOUT_S = 30


@pytest.fixture(scope="module", params=[KAFKA_2_1, KAFKA_2_8, KAFKA_3_9], ids=["2.1", "2.8", "3.9"])
def old(request):
    with old_broker(request.param) as found:
        yield found
        beyond = {
            (key, version)
            for key, version in found.requests
            if version > found.newest[key] and key != API_VERSIONS.key
        }
        assert not beyond


def test_rows_and_columns_are_produced_and_consumed(old):
    with Producer(old.address, native="off") as producer:
        sent = producer.send("rows", "one", key="k", headers=[("h", b"x")]).result(TIMEOUT_S)
        assert sent.offset == 0
        table = pa.table({"value": ["two", "three"]})
        assert producer.send_arrow("rows", table).result(TIMEOUT_S) == [(0, 1, 2)]
    with Consumer(old.address, topics="rows", native="off") as consumer:
        messages = [consumer.poll(TIMEOUT_S) for _ in range(3)]
        assert [message.value for message in messages] == [b"one", b"two", b"three"]
        assert messages[0].headers == [("h", b"x")]
        assert consumer.to_table(columns=["value"]).num_rows == 3


def test_offsets_are_listed_and_committed(old):
    with Producer(old.address, native="off") as producer:
        producer.send("kept", "one").result(TIMEOUT_S)
    with Consumer(old.address, group_id="readers", native="off") as consumer:
        consumer.assign([("kept", 0)])
        assert consumer.committed() == {("kept", 0): None}
        assert consumer.poll(TIMEOUT_S).value == b"one"
        consumer.commit()
        assert consumer.committed() == {("kept", 0): 1}
        assert consumer.watermarks(("kept", 0)) == (0, 1)
    cluster = Cluster(producer_settings(old.address, {}))
    try:
        assert list_offsets(cluster, {("kept", 0): LATEST}) == {("kept", 0): (1, -1)}
        assert cluster.topic("kept").led
    finally:
        cluster.close()
