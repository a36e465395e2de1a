"""Scenarios of producing: codecs, acknowledgements, headers, nulls, times, sizes, order."""

from __future__ import annotations

import time

import pytest

from tests.conformance.table import (
    CODECS,
    HEADER_TWICE,
    HEADERS,
    NULL_HEADERS,
    NULLS_AND_EMPTIES,
    TIMESTAMPS,
    Client,
    Kafka,
    Refused,
    Sent,
    scenario,
)

WORDS = [Sent(b"value %d " % i + b"abc" * (i % 50), b"key %d" % (i % 7)) for i in range(200)]


@scenario(codec=CODECS)
def records_of_each_codec_come_back_as_they_were_sent(
    client: Client, kafka: Kafka, codec: str
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, WORDS, settings={"compression.type": codec})
    got = client.consume(kafka, topic)
    assert [(record.key, record.value) for record in got] == [(r.key, r.value) for r in WORDS]
    assert [record.offset for record in got] == [*range(len(WORDS))]


@scenario(codec=CODECS[1:])
def a_topic_of_a_codec_keeps_what_came_in_another(client: Client, kafka: Kafka, codec: str) -> None:
    topic = kafka.topic(compression_type=codec)
    client.produce(kafka, topic, WORDS, settings={"compression.type": "none"})
    got = client.consume(kafka, topic)
    assert [(record.key, record.value) for record in got] == [(r.key, r.value) for r in WORDS]


@scenario(acks=["0", "1", "all"])
def records_sent_under_each_acks_arrive_in_order(client: Client, kafka: Kafka, acks: str) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, WORDS, settings={"acks": acks})
    got = client.consume(kafka, topic, count=len(WORDS))
    assert [record.value for record in got] == [record.value for record in WORDS]


@scenario(HEADER_TWICE)
def headers_come_back_in_order_and_twice_if_sent_twice(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    headers = (("a", b"1"), ("b", b""), ("a", b"2"))
    client.produce(kafka, topic, [Sent(b"v", b"k", headers)])
    (got,) = client.consume(kafka, topic)
    assert tuple(got.headers) == headers


@scenario(HEADERS)
def each_record_keeps_its_own_headers(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    records = [
        Sent(b"none"),
        Sent(b"empty", headers=[("h", b"")]),
        Sent(b"many", headers=[(f"h{i}", b"%d" % i) for i in range(100)]),
        Sent(b"words", headers=[("größe", "weiß".encode()), ("", b"\0\xff")]),
    ]
    client.produce(kafka, topic, records)
    assert [got.headers for got in client.consume(kafka, topic)] == [
        r.headers or [] for r in records
    ]


@scenario(NULL_HEADERS)
def a_header_may_be_null(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, [Sent(b"v", headers=[("h", None)])])
    (got,) = client.consume(kafka, topic)
    assert got.headers == [("h", None)]


@scenario()
def a_null_stays_null(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, [Sent(None, b"gone"), Sent(b"v", None), Sent(b"v", b"k")])
    got = client.consume(kafka, topic)
    assert [(record.key, record.value) for record in got] == [
        (b"gone", None),
        (None, b"v"),
        (b"k", b"v"),
    ]


@scenario(NULLS_AND_EMPTIES)
def null_and_empty_are_two_things(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    sent = [Sent(value, key) for value in (b"v", b"", None) for key in (b"k", b"", None)]
    # Not every client sends a record without key and value.
    sent.pop()
    client.produce(kafka, topic, sent)
    got = client.consume(kafka, topic)
    assert [(record.value, record.key) for record in got] == [(r.value, r.key) for r in sent]


@scenario()
def a_record_bears_the_time_it_was_sent(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    before_ms = time.time_ns() // 1_000_000
    client.produce(kafka, topic, [Sent(b"now", b"k")])
    (got,) = client.consume(kafka, topic)
    assert before_ms <= got.timestamp_ms <= time.time_ns() // 1_000_000


@scenario(TIMESTAMPS)
def a_timestamp_given_is_kept(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    now_ms = time.time_ns() // 1_000_000
    given = [1, now_ms - 86_400_000, now_ms, 1_357_000_000_000]
    client.produce(kafka, topic, [Sent(b"v", timestamp_ms=t) for t in given])
    assert [record.timestamp_ms for record in client.consume(kafka, topic)] == given


@scenario(TIMESTAMPS)
def a_topic_of_log_append_time_stamps_records_itself(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    client.produce(kafka, topic, [Sent(b"v", timestamp_ms=5), Sent(b"w", timestamp_ms=6)])
    times = [record.timestamp_ms for record in client.consume(kafka, topic)]
    assert len(times) == 2
    assert all(before_ms <= t <= time.time_ns() // 1_000_000 for t in times)


@scenario(TIMESTAMPS)
def a_timestamp_too_far_ahead_is_refused(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(message_timestamp_after_max_ms="60000")
    ahead_ms = time.time_ns() // 1_000_000 + 3_600_000
    with pytest.raises(Refused, match="Invalid timestamp"):
        client.produce(kafka, topic, [Sent(b"v", timestamp_ms=ahead_ms)])
    assert client.consume(kafka, topic) == []


@scenario()
def a_batch_of_exactly_max_message_bytes_is_taken_and_one_more_refused(
    client: Client, kafka: Kafka
) -> None:
    size_max = 100_000
    topic = kafka.topic(max_message_bytes=str(size_max))
    # Size of a batch of one record without its value: 61 bytes of batch, and of record the
    # length (3), attributes, two deltas, key length and key (1 + 1), value length (3), headers.
    fits = size_max - 61 - 12
    client.produce(kafka, topic, [Sent(b"x" * fits, b"k")])
    with pytest.raises(Refused, match="Message size too large"):
        client.produce(kafka, topic, [Sent(b"x" * (fits + 1), b"k")])
    assert [len(record.value or b"") for record in client.consume(kafka, topic)] == [fits]


@scenario()
def a_record_of_ten_megabytes_goes_through_where_the_topic_allows_it(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic(max_message_bytes="20000000")
    value = bytes(range(32, 127)) * 110_000
    client.produce(kafka, topic, [Sent(value, b"k"), Sent(b"after", b"k")])
    got = client.consume(kafka, topic)
    assert [record.value for record in got] == [value, b"after"]


@scenario()
def an_idempotent_producer_writes_each_record_once_in_order(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    sent = [Sent(b"%d" % i, b"k") for i in range(5_000)]
    settings = {"enable.idempotence": "true", "batch.num.messages": "100"}
    client.produce(kafka, topic, sent, settings=settings)
    client.produce(kafka, topic, sent, settings=settings)
    got = client.consume(kafka, topic)
    assert [record.value for record in got] == [record.value for record in sent] * 2


@scenario()
def a_key_stays_in_one_of_the_partitions_and_in_order(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=4)
    sent = [Sent(b"%d" % i, b"key %d" % (i % 50)) for i in range(1_000)]
    client.produce(kafka, topic, sent)
    homes: dict[bytes | None, set[int]] = {}
    values: dict[bytes | None, list[bytes | None]] = {}
    for partition in range(4):
        for record in client.consume(kafka, topic, partition):
            homes.setdefault(record.key, set()).add(record.partition)
            values.setdefault(record.key, []).append(record.value)
    assert all(len(partitions) == 1 for partitions in homes.values())
    for key in {record.key for record in sent}:
        assert values[key] == [record.value for record in sent if record.key == key]


@scenario()
def a_record_goes_where_it_was_told_to_go(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    client.produce(kafka, topic, [Sent(b"v", b"k")], partition=2)
    assert [len(client.consume(kafka, topic, partition)) for partition in range(3)] == [0, 0, 1]


@scenario()
def the_first_record_makes_the_topic(client: Client, kafka: Kafka) -> None:
    topic = kafka.name()
    client.produce(kafka, topic, [Sent(b"first", b"k")])
    assert [record.value for record in client.consume(kafka, topic)] == [b"first"]


@scenario()
def an_illegal_topic_name_is_refused(client: Client, kafka: Kafka) -> None:
    # Clients report the broker's error, or that they know no such topic.
    with pytest.raises(Refused, match="Invalid topic|Unknown topic"):
        client.produce(
            kafka, "not/legal", [Sent(b"v", b"k")], settings={"message.timeout.ms": "9000"}
        )
