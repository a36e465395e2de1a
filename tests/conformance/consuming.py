"""Scenarios of consuming: by offset, by time, from both ends, at the end."""

from __future__ import annotations

import threading

import pytest

from tests.conformance.table import (
    LOOKS_ONLY,
    NO_RESET,
    TIMESTAMPS,
    Client,
    Kafka,
    Refused,
    Sent,
    scenario,
)

TEN = [Sent(b"%d" % i, b"k") for i in range(10)]


def ten_of(kafka: Kafka, client: Client, batch_count: str = "3") -> str:
    """Create a topic with ten records in small batches."""
    topic = kafka.topic()
    client.produce(kafka, topic, TEN, settings={"batch.num.messages": batch_count})
    return topic


@scenario(start=[0, 1, 5, 9, 10, -1, -4, -100, "beginning", "end"])
def reading_starts_where_it_was_told_to(client: Client, kafka: Kafka, start: int | str) -> None:
    topic = ten_of(kafka, client)
    first = {"beginning": 0, "end": 10}.get(start, start)
    assert isinstance(first, int)
    first = first if first >= 0 else max(0, 10 + first)
    got = client.consume(kafka, topic, start=start)
    assert [record.offset for record in got] == [*range(first, 10)]


@scenario()
def a_count_is_kept_to(client: Client, kafka: Kafka) -> None:
    topic = ten_of(kafka, client)
    assert [r.value for r in client.consume(kafka, topic, start=2, count=3)] == [b"2", b"3", b"4"]


@scenario(NO_RESET)
def an_offset_beyond_the_end_is_refused(client: Client, kafka: Kafka) -> None:
    topic = ten_of(kafka, client)
    with pytest.raises(Refused, match=r"Offset out of range|offset 11 of .* is out of range"):
        client.consume(kafka, topic, start=11, settings={"auto.offset.reset": "error"})


@scenario()
def a_reader_at_the_end_gets_what_comes_next(client: Client, kafka: Kafka) -> None:
    topic = ten_of(kafka, client)
    got: list[bytes | None] = []
    settings = {"fetch.wait.max.ms": "500"}

    def wait() -> None:
        read = client.consume(kafka, topic, start="end", count=1, settings=settings)
        got.extend(record.value for record in read)

    reader = threading.Thread(target=wait)
    reader.start()
    # The time when the reader is at the end cannot be seen here: produce until it has a record.
    while reader.is_alive():
        client.produce(kafka, topic, [Sent(b"late", b"k")])
        reader.join(0.01)
    assert got == [b"late"]


@scenario(TIMESTAMPS, at_ms=[500, 1000, 1001, 3000])
def reading_by_time_starts_at_the_first_record_not_older(
    client: Client, kafka: Kafka, at_ms: int
) -> None:
    topic = kafka.topic()
    times = [1000, 2000, 1500, 3000]
    for timestamp_ms in times:
        client.produce(kafka, topic, [Sent(b"v", timestamp_ms=timestamp_ms)])
    first = next(i for i, timestamp_ms in enumerate(times) if timestamp_ms >= at_ms)
    got = client.consume(kafka, topic, start=f"s@{at_ms}")
    assert [record.timestamp_ms for record in got] == times[first:]


@scenario()
def a_time_between_two_runs_starts_at_the_second(client: Client, kafka: Kafka) -> None:
    topic = ten_of(kafka, client)
    last = client.consume(kafka, topic)[-1].timestamp_ms
    client.produce(kafka, topic, TEN)
    again = client.consume(kafka, topic, start=f"s@{last + 1}")
    everything = client.consume(kafka, topic)
    assert again == [record for record in everything if record.timestamp_ms > last]


@scenario()
def no_record_is_as_young_as_tomorrow(client: Client, kafka: Kafka) -> None:
    topic = ten_of(kafka, client)
    assert client.consume(kafka, topic, start="s@99999999999999") == []


@scenario(codec=["none", "zstd"])
def a_fetch_smaller_than_a_batch_still_moves_on(client: Client, kafka: Kafka, codec: str) -> None:
    topic = kafka.topic()
    sent = [Sent(b"%d " % i + b"x" * 1_000, b"k") for i in range(200)]
    client.produce(kafka, topic, sent, settings={"compression.type": codec})
    settings = {"max.partition.fetch.bytes": "100", "fetch.max.bytes": "1000"}
    settings["message.max.bytes"] = "1000"
    got = client.consume(kafka, topic, settings=settings)
    assert [record.value for record in got] == [record.value for record in sent]


@scenario()
def reading_goes_on_from_segment_to_segment(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(segment_bytes=str(1 << 20))
    sent = [Sent(b"%d " % i + b"x" * 10_000, b"k") for i in range(400)]
    client.produce(kafka, topic, sent)
    got = client.consume(kafka, topic)
    assert [record.offset for record in got] == [*range(400)]
    assert [record.value for record in got] == [record.value for record in sent]
    assert [record.offset for record in client.consume(kafka, topic, start=-3)] == [397, 398, 399]


@scenario(LOOKS_ONLY)
def an_unknown_topic_is_refused(client: Client, kafka: Kafka) -> None:
    with pytest.raises(Refused, match="Unknown (topic|partition)"):
        client.consume(kafka, kafka.name())
