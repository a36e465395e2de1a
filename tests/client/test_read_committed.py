"""read_committed consumers of several clients, over logs with committed, aborted and open
transactions: each shows exactly the records whose outcome is a commit."""

from __future__ import annotations

import asyncio
import random

import aiokafka
import confluent_kafka
import kafka
import pytest

from kafkalite import RangeReader
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.net.connection import BrokerConnection
from kafkalite.client.net.settings import producer_settings
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.protocol.schemas.transactions import WRITE_TXN_MARKERS
from kafkalite.records.batch import Record, build
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S

TRANSACTIONS = 60
PRODUCERS = range(100, 105)
PRODUCE_UNVERIFIED = 11
"""Newer versions add their partition at the coordinator, also without verification."""


@pytest.fixture(scope="module")
def served():
    """A broker that accepts transactions without a coordinator, in segments of 4 KiB."""
    config = {
        "transaction.partition.verification.enable": "false",
        "log.retention.ms": "-1",
        "log.segment.bytes": "1048576",
    }
    with Broker(workers=0, config=config) as broker:
        yield broker


class TransactionWriter:
    """Writes transactions to one partition without a client library, whose producers would need a
    coordinator."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = producer_settings(bootstrap, {})
        self.topic = topic
        self.connection = BrokerConnection(settings.addresses[0], settings)
        self.connection.open()
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    def write(self, producer_id: int, values: list[bytes], *, transactional: bool = True) -> None:
        batch = build(
            [Record(timestamp=1_700_000_000_000, value=value) for value in values],
            producer_id=producer_id, producer_epoch=0,
            base_sequence=self.sequences[producer_id], transactional=transactional,
        )  # fmt: skip
        self.sequences[producer_id] += len(values)
        partitions = [{"index": 0, "records": batch}]
        response = self.connection.request(
            PRODUCE,
            {
                "transactional_id": "id",
                "acks": -1,
                "timeout_ms": 1000 * TIMEOUT_S,
                "topic_data": [{"name": self.topic, "partition_data": partitions}],
            },
            at_most=PRODUCE_UNVERIFIED,
        )
        assert response.responses[0].partition_responses[0].error_code == 0

    def end(self, producer_id: int, *, commit: bool) -> None:
        marker = {
            "producer_id": producer_id,
            "producer_epoch": 0,
            "transaction_result": commit,
            "coordinator_epoch": 0,
            "topics": [{"name": self.topic, "partition_indexes": [0]}],
        }
        response = self.connection.request(WRITE_TXN_MARKERS, {"markers": [marker]})
        assert response.markers[0].topics[0].partitions[0].error_code == 0


@pytest.fixture(scope="module")
def history(served):
    """Return a topic with interleaved transactions, the committed values, and those below the first
    offset of a transaction that stays open."""
    topic = served.topic()
    writer = TransactionWriter(served.bootstrap, topic)
    seed = random.Random(7)
    written: list[tuple[bytes, int]] = []
    outcomes: dict[int, bool] = {}
    open_transactions: dict[int, int] = {}
    number = 0
    while number < TRANSACTIONS or open_transactions:
        producer_id = seed.choice(PRODUCERS)
        transaction = open_transactions.get(producer_id)
        if transaction is None and number >= TRANSACTIONS:
            continue
        if transaction is not None and seed.random() < 0.4:
            outcomes[transaction] = seed.random() < 0.5
            writer.end(producer_id, commit=outcomes[transaction])
            del open_transactions[producer_id]
            continue
        transactional = transaction is not None or seed.random() < 0.8
        if transaction is None:
            transaction, number = number, number + 1
            if transactional:
                open_transactions[producer_id] = transaction
            else:
                outcomes[transaction] = True
        values = [b"%d %d" % (transaction, seed.getrandbits(60)) for _ in range(seed.randint(1, 9))]
        writer.write(producer_id, values, transactional=transactional)
        written += [(value, transaction) for value in values]
    shown = [value for value, transaction in written if outcomes[transaction]]
    assert 0 < len(shown) < len(written)
    writer.write(PRODUCERS[0], [b"open"])
    writer.write(PRODUCERS[1], [b"behind it"], transactional=False)
    writer.connection.close()
    return topic, shown, len(written) + 2


@pytest.mark.parametrize("native", ["auto", "off"], ids=["direct", "tcp"])
def test_native_consumer_shows_committed_records(served, history, native):
    topic, shown, _ = history
    with Consumer(
        served.bootstrap, topics=[topic], native=native, isolation_level="read_committed"
    ) as consumer:
        found = [consumer.poll(TIMEOUT_S).value for _ in shown]
        assert consumer.poll(0.2) is None
    assert found == shown


@pytest.mark.parametrize("native", ["auto", "off"], ids=["direct", "tcp"])
def test_native_columns_have_committed_records(served, history, native):
    topic, shown, _ = history
    found: list[bytes] = []
    with Consumer(
        served.bootstrap, topics=[topic], native=native, isolation_level="read_committed"
    ) as consumer:
        for batch in consumer.batches(timeout=TIMEOUT_S):
            found += batch.column("value").to_pylist()
            if len(found) >= len(shown):
                break
    assert found == shown


@pytest.mark.parametrize("native", ["auto", "off"], ids=["direct", "tcp"])
@pytest.mark.parametrize("begin_share", [0, 0.3, 0.7])
def test_range_that_begins_inside_a_transaction_has_committed_records(
    served, history, native, begin_share
):
    topic, shown, _ = history
    with Consumer(served.bootstrap, isolation_level="read_committed") as consumer:
        end = consumer.watermarks((topic, 0)).high
    begin = int(begin_share * end)
    with RangeReader(served.bootstrap, native=native, isolation_level="read_committed") as reader:
        rows = [row for batch in reader.read((topic, 0), 0, end) for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == shown
        found = [row for batch in reader.read((topic, 0), begin, end) for row in batch.to_pylist()]
    assert found == [row for row in rows if row["offset"] >= begin]


def test_native_consumer_shows_all_records_by_default(served, history):
    topic, _, count = history
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        found = [consumer.poll(TIMEOUT_S) for _ in range(count)]
    assert found[-1].value == b"behind it"


def test_librdkafka_shows_committed_records(served, history):
    topic, shown, _ = history
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": served.bootstrap, "group.id": "librdkafka",
        "isolation.level": "read_committed", "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    })  # fmt: skip
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(message.value())
    consumer.close()
    assert message is not None, "the end of the partition was not reported"
    assert found == shown


def test_kafka_python_shows_committed_records(served, history):
    topic, shown, _ = history
    with kafka.KafkaConsumer(
        topic, bootstrap_servers=served.bootstrap, isolation_level="read_committed",
        auto_offset_reset="earliest", consumer_timeout_ms=1000 * TIMEOUT_S,
    ) as consumer:  # fmt: skip
        found = [record.value for _, record in zip(shown, consumer, strict=False)]
        assert not consumer.poll(200)
    assert found == shown


def test_aiokafka_shows_committed_records(served, history):
    topic, shown, _ = history

    async def consume() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=served.bootstrap, isolation_level="read_committed",
            auto_offset_reset="earliest",
        )  # fmt: skip
        await consumer.start()
        try:
            found: list[bytes] = []
            while len(found) < len(shown):
                for records in (await consumer.getmany(timeout_ms=1000 * TIMEOUT_S)).values():
                    found += [record.value for record in records]
            return found
        finally:
            await consumer.stop()

    assert asyncio.run(consume()) == shown
