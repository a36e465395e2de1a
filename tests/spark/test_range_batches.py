"""Ranges as Arrow in Spark's types: complete, in order, with gaps anywhere; loss is an error."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalite.client.consumer import range_reader
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.testing import Broker
from pyspark_kafkalite.connector import range_batches
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_batches import TYPES, DataLoss, fetched, headers_of
from tests.client.consuming import TIMEOUT_S, delete, descriptors, numbered, produce, until

EVERY = tuple(TYPES)


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "workers"])
def served(request):
    with Broker(workers=request.param, config={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(params=["auto", "off"], ids=["direct", "tcp"])
def native(request):
    return request.param


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(range_reader, "STALL_S", 0.05)
    monkeypatch.setattr(range_reader, "LAG_S", 0.2)
    monkeypatch.setattr(range_reader, "GAP_WAIT_MS", 30)


def client(broker, **keywords):
    return {"bootstrap.servers": broker.bootstrap, **keywords}


def read(topic, start, end, settings, columns=("offset", "value"), partition=0, **keywords):
    batches = list(
        fetched(OffsetRange(topic, partition, start, end), columns, settings, **keywords)
    )
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, range_batches.schema_of(columns))


def offsets_of(table):
    return table.column("offset").to_pylist()


def trim(broker, topic, offset):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(TIMEOUT_S)


# Records.


@pytest.mark.parametrize("bounds", [(0, 5000), (0, 1), (1, 4999), (4999, 5000), (77, 77)])
def test_range_is_read_whole_and_in_order(served, native, bounds):
    topic = served.topic(2)
    produce(served.bootstrap, topic, numbered(5000), 1)
    rows = read(topic, *bounds, client(served, native=native), partition=1)
    assert offsets_of(rows) == list(range(*bounds))
    assert rows.column("value").to_pylist() == numbered(bounds[1] - bounds[0], bounds[0])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_cut_at_the_bounds(served, native, codec):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(3000), compression_type=codec)
    rows = read(topic, 999, 2001, client(served, native=native))
    assert offsets_of(rows) == list(range(999, 2001))


def test_schema_equals_the_arrow_schema_of_spark():
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    header = types.StructType().add("key", "string").add("value", "binary")
    schema = types.StructType()
    for name, kind in (
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "integer"),
        ("offset", "long"), ("timestamp", "timestamp"), ("timestampType", "integer"),
        ("headers", types.ArrayType(header)),
    ):  # fmt: skip
        schema.add(name, kind)
    told = range_batches.schema_of(schema.names)
    assert told.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
    assert told.field("headers").type.value_field.name == "element"


@pytest.mark.parametrize("columns", [EVERY, EVERY[::-1], ("timestampType",), ("headers", "topic")])
def test_each_column_has_the_value_of_the_record(served, native, columns):
    topic = served.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123)
    producer.produce(topic, None, None, timestamp=1, headers=[("a", b"1"), ("a", None)])
    assert producer.flush(TIMEOUT_S) == 0
    rows = read(topic, 0, 2, client(served, native=native), columns).to_pylist()
    whole = [
        {"key": b"k", "value": b"v", "offset": 0, "headers": None},
        {"key": None, "value": None, "offset": 1,
         "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]},
    ]  # fmt: skip
    for row, expected in zip(rows, whole, strict=True):
        assert list(row) == list(columns)
        expected |= {"topic": topic, "partition": 0, "timestampType": 0}
        moment = row.pop("timestamp", None)
        assert moment is None or moment.timestamp() in (1_700_000_000.123, 0.001)
        assert row == {name: expected[name] for name in row}


def test_unknown_columns_are_rejected_by_name(served):
    topic = served.topic()
    with pytest.raises(ValueError, match="no column 'timestamp_type'.*timestampType"):
        read(topic, 0, 1, client(served), ["timestamp_type"])
    for columns in ([], "value", ["value", "value"]):
        with pytest.raises(ValueError, match="list of distinct names"):
            list(fetched(OffsetRange(topic, 0, 0, 1), columns, client(served)))


def test_batch_size_is_limited(served, native, monkeypatch):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 10] * 100_000)
    settings = client(served, native=native)
    sizes = [len(each) for each in fetched(OffsetRange(topic, 0, 0, 100_000), ["value"], settings)]
    assert sum(sizes) == 100_000 and max(sizes) <= range_batches.ROWS_MAX
    monkeypatch.setattr(range_batches, "BATCH_SIZE_MAX", 1000)
    batches = list(fetched(OffsetRange(topic, 0, 0, 1000), ["value"], settings))
    assert max(each.nbytes for each in batches) <= 2000 and sum(map(len, batches)) == 1000


@given(
    counts=st.lists(st.integers(0, 3), max_size=40),
    start=st.integers(0, 9),
    size=st.integers(0, 40),
)
def test_headers_are_null_where_empty(counts, start, size):
    lists = [[{"key": "k", "value": b"%d" % n} for n in range(count)] for count in counts]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    array = pa.array(lists, kind).slice(start, size)
    turned = headers_of(array)
    turned.validate(full=True)
    assert turned.to_pylist() == [each or None for each in lists[start : start + size]]
    assert turned.type == TYPES["headers"]


# Readers that are kept.


def test_next_range_reuses_the_connection(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(100), partition)
    settings = client(served, native=native, client_id=f"kept-{topic}")
    for partition in range(2):  # each has a descriptor from a segment grant
        assert len(read(topic, 0, 100, settings, partition=partition)) == 100
    (pooled,) = range_batches._pool._readers[frozenset(settings.items())]
    before = descriptors()
    for partition in (1, 0, 1):
        assert len(read(topic, 10, 90, settings, partition=partition)) == 80
    assert descriptors() <= before
    assert range_batches._pool._readers[frozenset(settings.items())] == [pooled]
    assert pooled.reader.metrics()["transports"]


def test_reader_left_within_a_range_is_not_reused(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000)
    settings = client(served, native=native, client_id=f"left-{topic}")
    before = descriptors()
    for _ in range(3):
        batches = fetched(OffsetRange(topic, 0, 0, 20_000), ["value"], settings)
        next(batches)
        batches.close()
    assert frozenset(settings.items()) not in range_batches._pool._readers
    gc.collect()
    until(lambda: descriptors() <= before, "the closing of descriptors")


def test_ranges_are_read_in_concurrent_threads(served, native):
    topic = served.topic(4)
    for partition in range(4):
        produce(served.bootstrap, topic, numbered(3000, 10_000 * partition), partition)
    settings = client(served, native=native)
    found = {}

    def run(partition):
        for _ in range(3):
            rows = read(topic, 0, 3000, settings, partition=partition)
            found.setdefault(partition, []).append(rows.column("value").to_pylist())

    threads = [threading.Thread(target=run, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert found == {p: [numbered(3000, 10_000 * p)] * 3 for p in range(4)}


def test_forked_child_opens_its_own_connections(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(1000))
    settings = client(served, native=native)
    assert len(read(topic, 0, 1000, settings)) == 1000
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if len(read(topic, 0, 1000, settings)) == 1000 else 1)
        except BaseException as fault:
            print(fault, file=sys.stderr)
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(read(topic, 5, 1000, settings)) == 995


def test_pooled_reader_survives_a_broker_restart(native):
    with Broker() as broker:
        topic = broker.topic()
        produce(broker.bootstrap, topic, numbered(100))
        settings = client(broker, native=native)
        assert len(read(topic, 0, 100, settings)) == 100
        broker.restart()
        assert len(read(topic, 0, 100, settings)) == 100


# Lost records.


def test_trimmed_start_raises_data_loss_or_is_skipped(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    trim(served, topic, 40)
    settings = client(served, native=native)
    with pytest.raises(DataLoss, match=rf"{topic}-0.*offsets 0 to 99.*begins at offset 40") as told:
        read(topic, 0, 100, settings)
    assert "set failOnDataLoss to false" in str(told.value)
    rows = read(topic, 0, 100, settings, fail_on_data_loss=False)
    assert offsets_of(rows) == list(range(40, 100))
    assert "begins at offset 40" in caplog.text
    assert not read(topic, 0, 30, settings, fail_on_data_loss=False)
    assert offsets_of(read(topic, 40, 50, settings)) == list(range(40, 50))


@pytest.mark.parametrize("bounds", [(90, 101), (100, 200), (150, 200)])
def test_log_ending_before_the_range_raises_data_loss(served, native, caplog, quick, bounds):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    settings = client(served, native=native)
    with pytest.raises(DataLoss, match="the log ends at offset 100"):
        read(topic, *bounds, settings)
    rows = read(topic, *bounds, settings, fail_on_data_loss=False)
    assert offsets_of(rows) == list(range(min(bounds[0], 100), 100))
    assert "Records were lost" in caplog.text


def test_missing_topic_or_partition_raises_data_loss(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    settings = client(served, native=native)
    with pytest.raises(DataLoss, match=f"{topic}-1.*counted from 0"):
        read(topic, 0, 10, settings, partition=1)
    assert not read(topic, 0, 10, settings, partition=1, fail_on_data_loss=False)
    delete(served.bootstrap, topic)
    with pytest.raises(DataLoss, match=topic):
        read(topic, 0, 10, settings)
    assert not read(topic, 0, 10, settings, fail_on_data_loss=False)


def test_recreated_topic_raises_data_loss(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        former = consumer.buffer.cluster.topic(topic).topic_id
    settings = client(served, native=native)
    assert len(read(topic, 0, 10, settings, topic_id=former)) == 10
    delete(served.bootstrap, topic)
    served.topic(name=topic)
    produce(served.bootstrap, topic, numbered(20))
    with pytest.raises(DataLoss, match="deleted and recreated"):
        read(topic, 0, 10, settings, topic_id=former)
    assert not read(topic, 0, 10, settings, topic_id=former, fail_on_data_loss=False)
    assert "deleted and recreated" in caplog.text
    assert len(read(topic, 0, 20, settings)) == 20


# Timeouts.


def test_unreachable_broker_raises_in_time(served):
    settings = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": "50"}
    began = time.monotonic()
    with pytest.raises(Exception, match="127.0.0.1:1"):
        read("t", 0, 1, settings, timeout_s=0.5)
    assert time.monotonic() - began < 30


def test_killed_broker_is_waited_for(native):
    with Broker() as broker:
        topic = broker.topic()
        produce(broker.bootstrap, topic, [b"x" * 1000] * 20_000)
        settings = client(broker, native=native)
        batches = fetched(OffsetRange(topic, 0, 0, 20_000), ["offset"], settings)
        first = next(batches)
        broker.kill()
        broker.start()
        rows = [*first["offset"].to_pylist()]
        for batch in batches:
            rows += batch["offset"].to_pylist()
        assert rows == list(range(20_000))
