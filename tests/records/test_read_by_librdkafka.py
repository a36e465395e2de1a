"""Batches written from rows and from columns, read by librdkafka."""

from __future__ import annotations

import pyarrow as pa
from confluent_kafka import Consumer

from benchmarks.wire import Wire
from kafkalite.protocol.schemas.produce import PRODUCE
from tests.records.columns import built, columns_of, encoded

VERSION = 9
NOW = 1_700_000_000_000
ROWS = [
    (b"key", b"value", (), NOW),
    (None, b"no key", (("one", b"1"), ("one", b"again")), NOW + 5),
    (b"a tombstone", None, (("nothing", None), ("", b"")), NOW - 1_000),
    (b"", b"", (), NOW + (1 << 35)),
    *((b"%d" % place, b"v" * (place % 300), (), NOW + place) for place in range(3_000)),
]


def produced(bootstrap, topic, batch):
    body = {
        "acks": 1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    }
    with Wire(bootstrap) as wire:
        answer = wire.ask(PRODUCE, VERSION, body)
    assert answer.responses[0].partition_responses[0].error_code == 0


def consumed(bootstrap, topic, count):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    found = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=30)
            assert messages, f"{len(found)} of {count} records came"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(
                    (
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                        message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()
    return found


def test_librdkafka_reads_rows_and_columns(kafka_broker, kafka_topic):
    taken, batch = encoded(columns_of(ROWS, pa.large_binary()), 0, len(ROWS), room=1 << 24)
    assert taken == len(ROWS)
    produced(kafka_broker.bootstrap, kafka_topic, batch)
    produced(kafka_broker.bootstrap, kafka_topic, built(ROWS[:300]))
    found = consumed(kafka_broker.bootstrap, kafka_topic, len(ROWS) + 300)
    assert found == ROWS + ROWS[:300]
