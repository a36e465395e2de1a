"""The ends of the version ranges: aiokafka sends the oldest requests, kafka-python new ones.

They do not run the whole table yet; each writes, and reads what it and the other wrote.
"""

from __future__ import annotations

import asyncio

import pytest

from kafkalite.testing import Broker

RECORDS = [(b"key %d" % (i % 3), b"value %d" % i) for i in range(50)]


def test_kafka_python_reads_what_it_wrote(kafka_broker: Broker, kafka_topic: str) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=kafka_broker.bootstrap, compression_type="lz4")
    for key, value in RECORDS:
        producer.send(kafka_topic, value, key, headers=[("h", b"1")])
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=kafka_broker.bootstrap, group_id=None)
    partition = kafka.TopicPartition(kafka_topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    got = [next(consumer) for _ in RECORDS]
    consumer.close()
    assert [(record.key, record.value) for record in got] == RECORDS
    assert [record.offset for record in got] == [*range(len(RECORDS))]
    assert all(list(record.headers) == [("h", b"1")] for record in got)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_reads_what_it_wrote(
    kafka_broker: Broker, kafka_topic: str, codec: str | None
) -> None:
    aiokafka = pytest.importorskip("aiokafka")

    async def there_and_back() -> list[tuple[bytes, bytes]]:
        servers = {"bootstrap_servers": kafka_broker.bootstrap}
        idempotent = {"enable_idempotence": True, "compression_type": codec}
        async with aiokafka.AIOKafkaProducer(**servers, **idempotent) as producer:
            for key, value in RECORDS:
                await producer.send(kafka_topic, value, key)
        async with aiokafka.AIOKafkaConsumer(**servers) as consumer:
            partition = aiokafka.TopicPartition(kafka_topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            return [(got.key, got.value) for got in [await consumer.getone() for _ in RECORDS]]

    assert asyncio.run(asyncio.wait_for(there_and_back(), 60)) == RECORDS
