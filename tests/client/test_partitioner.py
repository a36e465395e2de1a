"""Partitioning by key as in every Kafka client: Java's known hashes, other clients' choices."""

from __future__ import annotations

import struct

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner import default as kafka_python

from kafkalite._ext import hashing
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.producer.partitioner import RoundRobinPartitioner, partitioner_of
from tests.twins import hashing as twin

RUNS = settings(max_examples=300, deadline=None)

# Of UtilsTest in Apache Kafka.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

KEYS = st.lists(st.none() | st.binary(max_size=20), max_size=30)


@pytest.mark.parametrize(("key", "hashed"), JAVA.items())
def test_murmur2_equals_java(key, hashed):
    assert hashing.murmur2(key) == hashed
    assert twin.murmur2(key) == hashed


@RUNS
@given(st.binary(max_size=70), st.integers(1, 1000))
def test_key_partition_equals_the_twin_and_kafka_python(key, count):
    assert hashing.murmur2(key) == twin.murmur2(key)
    assert hashing.partition_of(key, count) == twin.partition_of(key, count)
    there = kafka_python.murmur2(key) & 0x7FFFFFFF
    assert hashing.partition_of(memoryview(key), count) == there % count


def test_key_partition_equals_librdkafka(kafka_broker):
    topic = kafka_broker.topic(7)
    there = {}
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap, "partitioner": "murmur2"})
    for number in range(200):
        key = b"%d-" % number + b"x" * (number % 9)
        producer.produce(
            topic,
            b"",
            key,
            on_delivery=lambda _, told: there.update({told.key(): told.partition()}),
        )
    assert producer.flush(30) == 0
    assert len(there) == 200
    assert there == {key: hashing.partition_of(key, 7) for key in there}


@pytest.mark.parametrize("count", [0, -1, 1 << 40])
def test_invalid_partition_count_is_rejected(count):
    with pytest.raises(ValueError, match="partitions"):
        hashing.partition_of(b"key", count)
    with pytest.raises(ValueError, match="partitions"):
        hashing.group_rows(b"", count, bytearray())


# Columns.


def column(keys, wide, skipped=0):
    """Return the keys as an Arrow column, after `skipped` rows that are not part of it."""
    cells = [b"skipped"] * skipped + list(keys)
    ends, content = [0], b""
    for cell in cells:
        content += cell or b""
        ends.append(len(content))
    validity = bytearray((len(cells) + 7) // 8)
    for place, cell in enumerate(cells):
        validity[place >> 3] |= (cell is not None) << (place & 7)
    return validity, struct.pack(f"={len(ends)}{'qi'[not wide]}", *ends), content, skipped, wide


def numbers(values):
    return bytearray(struct.pack(f"={len(values)}i", *values))


def listed(buffer):
    return list(struct.unpack(f"={len(buffer) // 4}i", buffer))


@RUNS
@given(KEYS, st.integers(1, 50), st.booleans(), st.integers(0, 9), st.randoms())
def test_partitions_of_a_key_column_equal_the_twin(keys, count, wide, skipped, chance):
    before = [chance.choice([-1, chance.randrange(count)]) for _ in keys]
    partitions = numbers(before)
    hashing.partitions_of(column(keys, wide, skipped), count, partitions)
    assert listed(partitions) == twin.partitions_of(keys, count, before)


def test_key_column_may_lack_a_validity_buffer():
    partitions = numbers([-1, -1])
    hashing.partitions_of((None, *column([b"a", b"b"], False)[1:]), 3, partitions)
    assert listed(partitions) == [twin.partition_of(b"a", 3), twin.partition_of(b"b", 3)]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ((None, struct.pack("=3i", 0, 2, 1), b"abc", 0, False), "row 1's key"),
        ((None, struct.pack("=3i", 0, 2, 4), b"abc", 0, False), "row 1's key"),
        ((None, struct.pack("=3q", -1, 2, 3), b"abc", 0, True), "row 0's key"),
        ((None, struct.pack("=2i", 0, 2), b"abc", 0, False), "2 rows have partitions, and 1"),
        ((b"", struct.pack("=3i", 0, 1, 2), b"abc", 0, False), "2 rows have partitions, and 0"),
        ((None, struct.pack("=3i", 0, 2, 3), b"abc", 3, False), "begins at 3"),
        ((None, struct.pack("=3i", 0, 2, 3), b"abc", -1, False), "begins at -1"),
    ],
)
def test_invalid_key_offsets_are_rejected(keys, words):
    with pytest.raises(ValueError, match=words):
        hashing.partitions_of(keys, 3, numbers([-1, -1]))


@RUNS
@given(st.integers(1, 9).flatmap(
    lambda count: st.tuples(st.just(count), st.lists(st.integers(0, count - 1), max_size=40))
))  # fmt: skip
def test_rows_are_grouped_by_partition_in_order(drawn):
    count, partitions = drawn
    rows = bytearray(4 * len(partitions))
    ends = hashing.group_rows(numbers(partitions), count, rows)
    assert (listed(rows), ends) == twin.group_rows(partitions, count)


@pytest.mark.parametrize("partition", [-1, 3, 1 << 30])
def test_row_without_a_partition_is_rejected(partition):
    with pytest.raises(ValueError, match="row 1 has none of the 3"):
        hashing.group_rows(numbers([0, partition]), 3, bytearray(8))


def test_group_rows_rejects_a_short_buffer():
    with pytest.raises(ValueError, match="room for 1 of 2 rows"):
        hashing.group_rows(numbers([0, 1]), 2, bytearray(7))


# Choice of the partitioner.


def test_round_robin_ignores_keys():
    chosen = RoundRobinPartitioner()
    assert [chosen("a", b"key", 3) for _ in range(4)] == [0, 1, 2, 0]
    assert chosen("b", None, 3) == 0
    assert chosen("a", None, 2) == 1


def test_partitioner_setting_selects_default_round_robin_or_function():
    def first(topic, key, count):
        return 0

    assert partitioner_of(producer_settings(None, {})) is None
    assert partitioner_of(producer_settings(None, {"partitioner": first})) is first
    assert isinstance(
        partitioner_of(producer_settings(None, {"partitioner": "round_robin"})),
        RoundRobinPartitioner,
    )
