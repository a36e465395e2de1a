"""Interoperability: every client reads what a Producer writes, and a Consumer what they write.

The clients are those of the conformance table: kcat, confluent-kafka, kafka-python, aiokafka, and
Java's if it is available.  The records have every attribute that the client can set.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from kafkalite import Consumer, Producer
from kafkalite.records.batch import batches
from kafkalite.records.compression import Codec
from tests.conformance.clients import AIOKAFKA, JAVA, KAFKA_PYTHON, KCAT, LIBRDKAFKA, missing
from tests.conformance.table import CODECS, NULL_HEADERS, Client, Kafka, Sent

NOW = 1_700_000_000_000
TIMEOUT_S = 60
SHARED = (("source", b"a sensor"), ("again", b"1"), ("again", b"2"))
# For kcat: headers are the same for all records, and with a null there is no empty value.
SIMPLE = [
    Sent(b"value %d " % at + b"abc" * at, b"key %d" % (at % 7) if at % 3 else None, SHARED)
    for at in range(60)
] + [Sent(None, b"a tombstone", SHARED)]
FULL = [
    *(Sent(r.value, r.key, r.headers, NOW + 1000 * at) for at, r in enumerate(SIMPLE)),
    Sent(b"", b"", [], NOW - 5),
    Sent(None, None, [("", b"")], NOW + (1 << 33)),
    Sent(b"\0\xff" * 40, b"\xfe", [("größe", "weiß".encode()), ("raw", b"\0\xff")], NOW),
    Sent(b"long" * 10_000, b"k" * 300, [("h" * 200, b"v" * 5_000)] * 3, NOW),
]
NULLS = [Sent(b"v", None, [("null", None), ("then", b"1")], NOW)]

CLIENTS = [KCAT, LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA, JAVA]
EACH = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
EACH_CODEC = pytest.mark.parametrize("codec", CODECS)

Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


@pytest.fixture(autouse=True)
def at_hand(client: Client) -> None:
    if lacking := missing(client):
        pytest.skip(lacking)


def sendable(client: Client) -> list[Sent]:
    """Return the records that this client can send."""
    if client is KCAT:
        return SIMPLE
    records = FULL + NULLS if NULL_HEADERS in client.can else FULL
    if client in (KAFKA_PYTHON, AIOKAFKA):  # they want a key or a value
        records = [record for record in records if (record.key, record.value) != (None, None)]
    return records


def readable(client: Client) -> list[Sent]:
    """Return the records that this client can output; kcat cannot show headers exactly."""
    if client is KCAT:
        return [Sent(r.value, r.key, SHARED, NOW + at) for at, r in enumerate(SIMPLE)]
    return FULL + NULLS


def row_of(record: Sent) -> Row:
    headers = [(name, content) for name, content in record.headers]
    return record.key, record.value, headers, record.timestamp_ms


def send_rows(producer: Producer, topic: str, records: Sequence[Sent]) -> None:
    sent = [
        producer.send(topic, r.value, r.key, list(r.headers), r.timestamp_ms, partition=0)
        for r in records
    ]
    assert [each.result(TIMEOUT_S).offset for each in sent] == [*range(len(records))]


def send_columns(producer: Producer, topic: str, records: Sequence[Sent]) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    cells = [[{"key": name, "value": value} for name, value in r.headers] for r in records]
    table = pa.table(
        {
            "value": pa.array([r.value for r in records], pa.binary()),
            "key": pa.array([r.key for r in records], pa.large_binary()),
            "headers": pa.array(cells, headers),
            "timestamp": pa.array([r.timestamp_ms for r in records], pa.timestamp("ms", "UTC")),
            "partition": pa.array([0] * len(records), pa.int8()),
        }
    )
    producer.send_arrow(topic, table).result(TIMEOUT_S)


def codecs_in(broker, topic: str) -> set[Codec]:
    """Return the codecs of a topic's batches on the disk."""
    return {
        batch.header.codec
        for path in broker.data.glob(f"**/{topic}-*/*.log")
        for batch in batches(path.read_bytes())
    }


@EACH
@EACH_CODEC
@pytest.mark.parametrize("native", ["auto", "off"], ids=["ring", "tcp"])
def test_other_clients_read_rows_and_columns_of_a_producer(served, client, codec, native):
    topic = served.topic()
    records = readable(client)
    with Producer(served.bootstrap, compression_type=codec, native=native) as producer:
        send_rows(producer, topic, records)
        send_columns(producer, topic, records)
    got = client.consume(Kafka(served.bootstrap), topic)
    assert [record.offset for record in got] == [*range(2 * len(records))]
    rows = [(r.key, r.value, r.headers, r.timestamp_ms) for r in got]
    assert rows == 2 * [row_of(record) for record in records]
    assert codecs_in(served, topic) == {Codec[codec.upper()]}


@EACH
@EACH_CODEC
def test_consumer_reads_records_of_other_clients(served, client, codec):
    topic = served.topic()
    records = sendable(client)
    settings = {"compression.type": codec}
    client.produce(Kafka(served.bootstrap), topic, records, 0, settings)
    wanted = [row_of(record) for record in records]
    for native in ("auto", "off"):
        with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
            table = consumer.to_table(timeout=TIMEOUT_S)
            messages = [consumer.poll(TIMEOUT_S) for _ in records]
            consumer.seek_to_beginning()
            columns = read_in_columns(consumer, len(records))
        rows = [(m.key, m.value, m.headers, m.timestamp) for m in messages]
        assert timeless(rows, records) == wanted
        assert [m.offset for m in messages] == [*range(len(records))]
        assert rows_of(table) == rows
        assert columns.equals(table)


def read_in_columns(consumer: Consumer, count: int) -> pa.Table:
    """Return the next records, in batches as small as possible."""
    found: list[pa.RecordBatch] = []
    batches = consumer.batches(max_bytes=1, timeout=TIMEOUT_S)
    while sum(map(len, found)) < count:
        found.append(next(batches))
    return pa.Table.from_batches(found)


def rows_of(table: pa.Table) -> list[Row]:
    columns = table.set_column(
        table.schema.get_field_index("timestamp"),
        "timestamp",
        table.column("timestamp").cast(pa.int64()),
    )
    return [
        (
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"]],
            row["timestamp"],
        )
        for row in columns.to_pylist()
    ]


def timeless(rows: Sequence[Row], records: Sequence[Sent]) -> list[Row]:
    """Replace the time where the client chose it."""
    return [
        (*row[:3], row[3] if record.timestamp_ms else 0)
        for row, record in zip(rows, records, strict=True)
    ]


@pytest.mark.parametrize("client", [LIBRDKAFKA, KAFKA_PYTHON, AIOKAFKA, JAVA], ids=lambda c: c.name)
def test_key_goes_to_the_partition_of_other_clients(served, client):
    keys = [b"key %d" % at for at in range(100)]
    theirs, ours = served.topic(partitions=7), served.topic(partitions=7)
    settings = {"partitioner": "murmur2_random"} if client is LIBRDKAFKA else {}
    kafka = Kafka(served.bootstrap)
    client.produce(kafka, theirs, [Sent(key, key) for key in keys], settings=settings)
    with Producer(served.bootstrap) as producer:
        for key in keys:
            producer.send(ours, key, key)
    for partition in range(7):
        found = [
            [record.key for record in client.consume(kafka, topic, partition)]
            for topic in (theirs, ours)
        ]
        assert found[0] and found[0] == found[1]
