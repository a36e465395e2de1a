"""A consumer's columns and tables, against real brokers, over both transports."""

from __future__ import annotations

from datetime import UTC, datetime

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import InvalidConfig, OffsetOutOfRange, RequestTimedOut
from tests.client.consuming import TIMEOUT_S, numbered, produce, take

FIRST_MS = 1_700_000_000_000


@pytest.fixture
def timed(served):
    """A topic of two partitions with ten records each, a second apart."""
    topic = served.topic(2)
    producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap})
    for number in range(20):
        producer.produce(
            topic, b"%d" % number, partition=number % 2, timestamp=FIRST_MS + 1000 * number
        )
    assert producer.flush(TIMEOUT_S) == 0
    return topic


def gathered(consumer, count, **keywords):
    """Return batches until they hold `count` records, as one table."""
    batches = []
    for batch in consumer.batches(timeout=TIMEOUT_S, **keywords):
        batches.append(batch)
        if sum(map(len, batches)) >= count:
            return pa.Table.from_batches(batches)
    raise AssertionError("fewer came")


def test_batches_contain_every_record_once_and_in_order(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(3000, 10_000 * partition), partition)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        rows = gathered(consumer, 6000).to_pylist()
    for partition in range(2):
        of_it = [row for row in rows if row["partition"] == partition]
        assert [row["value"] for row in of_it] == numbered(3000, 10_000 * partition)
        assert [row["offset"] for row in of_it] == list(range(3000))
        assert {row["topic"] for row in of_it} == {topic}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_columns_of_compressed_records_are_equal(served, native, codec):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(3000), compression_type=codec)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert gathered(consumer, 3000)["value"].to_pylist() == numbered(3000)


def test_requested_columns_have_the_requested_order(served, native, timed):
    with Consumer(served.bootstrap, topics=[timed], native=native) as consumer:
        table = gathered(consumer, 20, columns=["timestamp", "value"])
        assert table.column_names == ["timestamp", "value"]
        assert consumer.to_table(columns=["value"]).column_names == ["value"]
        with pytest.raises(InvalidConfig, match="no column 'colour'"):
            consumer.batches(columns=["colour"])
        with pytest.raises(ValueError, match="max_bytes"):
            consumer.batches(max_bytes=0)


def test_max_bytes_splits_at_record_batches(served, native):
    topic = served.topic()
    for first in range(0, 100, 10):
        produce(served.bootstrap, topic, numbered(10, first))
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        sizes = []
        for batch in consumer.batches(max_bytes=1, timeout=TIMEOUT_S):
            sizes.append(len(batch))
            if sum(sizes) == 100:
                break
    assert max(sizes) <= 10


def test_position_follows_returned_batches(served, native):
    topic = served.topic()
    for first in range(0, 100, 10):
        produce(served.bootstrap, topic, numbered(10, first))
    place = (topic, 0)
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        first = next(consumer.batches(max_bytes=1))
        assert consumer.position(place) == len(first)
        assert take(consumer, 1)[0].offset == len(first)
        # One of the decoded rows was taken; columns continue after it.
        table = gathered(consumer, 100 - len(first) - 1)
        assert table["offset"].to_pylist() == list(range(len(first) + 1, 100))


def test_batches_end_at_the_timeout(served, native):
    topic = served.topic()
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        assert list(consumer.batches(timeout=0.2)) == []


def test_table_contains_present_records_by_partition(served, native, timed):
    with Consumer(served.bootstrap, topics=[timed], native=native) as consumer:
        table = consumer.to_table()
        again = consumer.to_table()
        assert table == again
        assert consumer.position((timed, 0)) == 0
    assert table["partition"].to_pylist() == [0] * 10 + [1] * 10
    assert table["offset"].to_pylist() == [*range(10), *range(10)]
    assert table["value"].to_pylist() == [b"%d" % (n + p) for p in (0, 1) for n in range(0, 20, 2)]


def bounds_and_offsets(topic):
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    return [
        ((3, 5), [3, 4, 3, 4]),
        ((-2, None), [8, 9, 8, 9]),
        ((None, -8), [0, 1, 0, 1]),
        ((-100, 1), [0, 0]),
        ((9, 100), [9, 9]),
        ((100, None), []),
        ((5, 5), []),
        ((6, 2), []),
        (({first: 9, second: -1}, None), [9, 9]),
        (({first: 8}, {second: 1}), [8, 9, 0]),
        ((datetime.fromtimestamp(1_700_000_016, UTC), None), [8, 9, 8, 9]),
        ((datetime.fromtimestamp(1_700_000_015.5, UTC), 9), [8, 8]),
        ((8, datetime.fromtimestamp(1_700_000_018, UTC)), [8, 8]),
        ((None, datetime(2001, 1, 1, tzinfo=UTC)), []),
        ((datetime(2101, 1, 1, tzinfo=UTC), None), []),
    ]


@pytest.mark.parametrize("case", range(15))
def test_table_bounds_are_exact(served, native, timed, case):
    (start, end), offsets = bounds_and_offsets(timed)[case]
    with Consumer(served.bootstrap, topics=[timed], native=native) as consumer:
        table = consumer.to_table(start, end, columns=["offset"])
    assert table["offset"].to_pylist() == offsets


def test_invalid_bounds_are_rejected(served, timed):
    with Consumer(served.bootstrap, topics=[timed]) as consumer:
        with pytest.raises(TypeError, match="a bound must be"):
            consumer.to_table(start="yesterday")
        with pytest.raises(ValueError, match="no time zone"):
            consumer.to_table(end=datetime(2026, 1, 1))
        with pytest.raises(ValueError, match="is not read by this consumer"):
            consumer.to_table(start={("elsewhere", 0): 1})


def test_table_starts_at_log_start_unless_an_earlier_start_is_given(served, native, timed):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": served.bootstrap})
    gone = [confluent_kafka.TopicPartition(timed, 0, 6)]
    list(admin.delete_records(gone).values())[0].result(TIMEOUT_S)
    with Consumer(served.bootstrap, native=native) as consumer:
        consumer.assign([(timed, 0)])
        for start in (None, 0, -100, 6):
            table = consumer.to_table(start=start, columns=["offset"])
            assert table["offset"].to_pylist() == [6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRange, match="begins at 6"):
            consumer.to_table(start=5)


def test_empty_table_has_its_columns(served, native):
    topic = served.topic()
    with Consumer(served.bootstrap, topics=[topic], native=native) as consumer:
        table = consumer.to_table(columns=["offset", "key"])
    assert table.num_rows == 0
    assert table.column_names == ["offset", "key"]


def test_incomplete_table_raises_request_timed_out(served, native, timed):
    with Consumer(served.bootstrap, topics=[timed], native=native) as consumer:
        consumer.to_table()
        with pytest.raises(RequestTimedOut):
            consumer.to_table(timeout=0)


def test_tables_convert_to_pandas_and_polars(served, timed):
    import polars

    with Consumer(served.bootstrap, topics=[timed]) as consumer:
        table = consumer.to_table()
    frame = table.to_pandas()
    assert frame["timestamp"].dt.tz is not None
    assert frame.groupby("partition").size().to_list() == [10, 10]
    assert polars.from_arrow(table)["offset"].sum() == 90
