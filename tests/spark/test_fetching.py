"""Ranges as Arrow in Spark's types: complete, in order, with gaps anywhere; loss is an error."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
import time
from unittest import mock

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.errors import (
    BY_CODE,
    CorruptMessage,
    NotLeaderOrFollower,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.offsets import LIST_OFFSETS
from kafkalite.records.batch import Record, build
from kafkalite.testing import Broker
from pyspark_kafkalite import fetching
from pyspark_kafkalite.fetching import TYPES, DataLoss, fetched, headers_of
from pyspark_kafkalite.offsets import OffsetRange
from tests.client.consuming import PATIENCE_S, delete, descriptors, numbered, produce, until
from tests.client.impostor import Impostor, metadata
from tests.client.test_decoding import marker

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
    monkeypatch.setattr(fetching, "STALL_S", 0.05)
    monkeypatch.setattr(fetching, "LAG_S", 0.2)
    monkeypatch.setattr(fetching, "GAP_WAIT_MS", 30)


def client(broker, **keywords):
    return {"bootstrap.servers": broker.bootstrap, **keywords}


def read(topic, start, end, said, columns=("offset", "value"), partition=0, **keywords):
    batches = list(fetched(OffsetRange(topic, partition, start, end), columns, said, **keywords))
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, fetching.schema_of(columns))


def offsets_of(table):
    return table.column("offset").to_pylist()


def trim(broker, topic, offset):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(PATIENCE_S)


# Records.


@pytest.mark.parametrize("bounds", [(0, 5000), (0, 1), (1, 4999), (4999, 5000), (77, 77)])
def test_a_range_comes_whole_and_in_order(served, native, bounds):
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


def test_the_types_are_those_that_spark_wants():
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
    told = fetching.schema_of(schema.names)
    assert told.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
    assert told.field("headers").type.value_field.name == "element"


@pytest.mark.parametrize("columns", [EVERY, EVERY[::-1], ("timestampType",), ("headers", "topic")])
def test_each_column_has_what_the_record_has(served, native, columns):
    topic = served.topic()
    producer = confluent_kafka.Producer({"bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123)
    producer.produce(topic, None, None, timestamp=1, headers=[("a", b"1"), ("a", None)])
    assert producer.flush(PATIENCE_S) == 0
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


def test_columns_that_do_not_exist_are_named(served):
    topic = served.topic()
    with pytest.raises(ValueError, match="no column 'timestamp_type'.*timestampType"):
        read(topic, 0, 1, client(served), ["timestamp_type"])
    for columns in ([], "value", ["value", "value"]):
        with pytest.raises(ValueError, match="list of different names"):
            list(fetched(OffsetRange(topic, 0, 0, 1), columns, client(served)))


def test_batches_are_of_the_size_that_spark_likes(served, native, monkeypatch):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 10] * 100_000)
    said = client(served, native=native)
    sizes = [len(each) for each in fetched(OffsetRange(topic, 0, 0, 100_000), ["value"], said)]
    assert sum(sizes) == 100_000 and max(sizes) <= fetching.ROWS_MAX
    monkeypatch.setattr(fetching, "BATCH_SIZE_MAX", 1000)
    batches = list(fetched(OffsetRange(topic, 0, 0, 1000), ["value"], said))
    assert max(each.nbytes for each in batches) <= 2000 and sum(map(len, batches)) == 1000


@given(
    counts=st.lists(st.integers(0, 3), max_size=40),
    start=st.integers(0, 9),
    size=st.integers(0, 40),
)
def test_headers_are_null_exactly_where_there_are_none(counts, start, size):
    lists = [[{"key": "k", "value": b"%d" % n} for n in range(count)] for count in counts]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    array = pa.array(lists, kind).slice(start, size)
    turned = headers_of(array)
    turned.validate(full=True)
    assert turned.to_pylist() == [each or None for each in lists[start : start + size]]
    assert turned.type == TYPES["headers"]


# Readers that are kept.


def test_the_next_range_needs_no_new_connection(served, native):
    topic = served.topic(2)
    for partition in range(2):
        produce(served.bootstrap, topic, numbered(100), partition)
    said = client(served, native=native, client_id=f"kept-{topic}")
    for partition in range(2):  # each has a descriptor from a segment grant
        assert len(read(topic, 0, 100, said, partition=partition)) == 100
    (reader,) = fetching._idle._readers[frozenset(said.items())]
    before = descriptors()
    for partition in (1, 0, 1):
        assert len(read(topic, 10, 90, said, partition=partition)) == 80
    assert descriptors() <= before
    assert fetching._idle._readers[frozenset(said.items())] == [reader]
    assert reader.reading.lanes.ways


def test_a_reader_that_was_left_amid_a_range_is_not_used_again(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, [b"x" * 1000] * 20_000)
    said = client(served, native=native, client_id=f"left-{topic}")
    before = descriptors()
    for _ in range(3):
        batches = fetched(OffsetRange(topic, 0, 0, 20_000), ["value"], said)
        next(batches)
        batches.close()
    assert frozenset(said.items()) not in fetching._idle._readers
    gc.collect()
    until(lambda: descriptors() <= before, "the closing of descriptors")


def test_ranges_are_read_beside_each_other_in_threads(served, native):
    topic = served.topic(4)
    for partition in range(4):
        produce(served.bootstrap, topic, numbered(3000, 10_000 * partition), partition)
    said = client(served, native=native)
    found = {}

    def run(partition):
        for _ in range(3):
            rows = read(topic, 0, 3000, said, partition=partition)
            found.setdefault(partition, []).append(rows.column("value").to_pylist())

    threads = [threading.Thread(target=run, args=(partition,)) for partition in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == {p: [numbered(3000, 10_000 * p)] * 3 for p in range(4)}


def test_a_child_has_connections_of_its_own(served, native):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(1000))
    said = client(served, native=native)
    assert len(read(topic, 0, 1000, said)) == 1000
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if len(read(topic, 0, 1000, said)) == 1000 else 1)
        except BaseException as fault:
            print(fault, file=sys.stderr)
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(read(topic, 5, 1000, said)) == 995


def test_a_kept_reader_outlives_the_broker_s_restart(native):
    with Broker() as broker:
        topic = broker.topic()
        produce(broker.bootstrap, topic, numbered(100))
        said = client(broker, native=native)
        assert len(read(topic, 0, 100, said)) == 100
        broker.restart()
        assert len(read(topic, 0, 100, said)) == 100


# Lost records.


def test_a_trimmed_start_is_told_or_passed_over(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    trim(served, topic, 40)
    said = client(served, native=native)
    with pytest.raises(DataLoss, match=rf"{topic}-0.*offsets 0 to 99.*begins at offset 40") as told:
        read(topic, 0, 100, said)
    assert "set failOnDataLoss to false" in str(told.value)
    rows = read(topic, 0, 100, said, fail_on_data_loss=False)
    assert offsets_of(rows) == list(range(40, 100))
    assert "begins at offset 40" in caplog.text
    assert not read(topic, 0, 30, said, fail_on_data_loss=False)
    assert offsets_of(read(topic, 40, 50, said)) == list(range(40, 50))


@pytest.mark.parametrize("bounds", [(90, 101), (100, 200), (150, 200)])
def test_a_log_that_ends_before_the_range_is_told(served, native, caplog, quick, bounds):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(100))
    said = client(served, native=native)
    with pytest.raises(DataLoss, match="the log ends at offset 100"):
        read(topic, *bounds, said)
    rows = read(topic, *bounds, said, fail_on_data_loss=False)
    assert offsets_of(rows) == list(range(min(bounds[0], 100), 100))
    assert "is lost" in caplog.text or "are lost" in caplog.text


def test_topics_and_partitions_that_are_gone_are_told(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    said = client(served, native=native)
    with pytest.raises(DataLoss, match=f"{topic}-1.*counted from 0"):
        read(topic, 0, 10, said, partition=1)
    assert not read(topic, 0, 10, said, partition=1, fail_on_data_loss=False)
    delete(served.bootstrap, topic)
    with pytest.raises(DataLoss, match=topic):
        read(topic, 0, 10, said)
    assert not read(topic, 0, 10, said, fail_on_data_loss=False)


def test_a_topic_made_anew_is_not_taken_for_the_former(served, native, caplog, quick):
    topic = served.topic()
    produce(served.bootstrap, topic, numbered(10))
    with Consumer(served.bootstrap, topics=[topic]) as consumer:
        former = consumer.intake.cluster.topic(topic).topic_id
    said = client(served, native=native)
    assert len(read(topic, 0, 10, said, topic_id=former)) == 10
    delete(served.bootstrap, topic)
    served.topic(name=topic)
    produce(served.bootstrap, topic, numbered(20))
    with pytest.raises(DataLoss, match="made again"):
        read(topic, 0, 10, said, topic_id=former)
    assert not read(topic, 0, 10, said, topic_id=former, fail_on_data_loss=False)
    assert "made again" in caplog.text
    assert len(read(topic, 0, 20, said)) == 20


# Gaps, from a scripted broker.

LIMIT = 60


class Gappy:
    """A broker of one partition, with its batches and the bounds it reports."""

    def __init__(self, batches, high=LIMIT, stable=None, start=0, aborted=()):
        self.batches = sorted(batches)
        self.high, self.start, self.aborted = high, start, list(aborted)
        self.stable = high if stable is None else stable
        self.error_code = 0
        self.impostor = Impostor(
            {METADATA: self.described, LIST_OFFSETS: self.listed, FETCH: self.fetched}
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.impostor.close()

    def read(self, start, end, **keywords):
        said = {
            "bootstrap.servers": self.impostor.address, "retry.backoff.ms": "1",
            "isolation.level": "read_committed", "fetch.max.wait.ms": "20",
        }  # fmt: skip
        return offsets_of(read("t", start, end, said, ["offset"], **keywords))

    def described(self, asked):
        told = metadata({0: self.impostor.port}, {"t": {0: (0, 3)}})
        told["topics"][0]["topic_id"] = bytes([7]) * 16
        return told

    def listed(self, asked):
        sought = asked.body.topics[0].partitions[0].timestamp
        offset = self.start if sought == -2 else self.high
        partition = {"partition_index": 0, "offset": offset, "timestamp": -1}
        return {"topics": [{"name": "t", "partitions": [partition]}]}

    def at_hand(self, asked):
        return self.batches

    def fetched(self, asked):
        (topic,) = asked.body.topics
        (partition,) = topic.partitions
        found = b"".join(
            data for last, data in self.at_hand(asked) if last >= partition.fetch_offset
        )
        if not found and asked.body.max_wait_ms:
            time.sleep(asked.body.max_wait_ms / 1000)
        told = {
            "partition_index": 0, "error_code": self.error_code, "high_watermark": self.high,
            "last_stable_offset": self.stable, "log_start_offset": self.start,
            "aborted_transactions": [
                {"producer_id": who, "first_offset": first} for who, first in self.aborted
            ],
            "records": found,
        }  # fmt: skip
        named = {"topic": topic.topic, "topic_id": topic.topic_id, "partitions": [told]}
        return {"responses": [named]}


def records(*offsets, **words):
    return offsets[-1], build(
        [Record(offset, 0, None, b"%d" % offset) for offset in offsets],
        base_offset=offsets[0],
        **words,
    )


def control(offset, producer_id, kind):
    return offset, marker(offset, producer_id, kind)


GAPS = {
    "begin": [records(*range(20, 60))],
    "middle": [records(*range(10)), records(*range(50, 60))],
    "within a batch": [records(0, 3, 9, 59)],
    "end": [records(*range(10))],
    "everywhere": [],
    "a marker last": [records(*range(59)), control(59, 5, 1)],
    "two markers last": [records(*range(58)), control(58, 5, 1), control(59, 6, 0)],
    "a marker alone": [control(0, 5, 1)],
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("bounds", [(0, 60), (5, 55), (15, 45), (0, 20), (59, 60)])
def test_a_range_ends_wherever_the_gap_is(name, bounds, quick):
    present = {"middle": [*range(10), *range(50, 60)], "begin": range(20, 60),
               "within a batch": (0, 3, 9, 59), "end": range(10),
               "a marker last": range(59), "two markers last": range(58)}  # fmt: skip
    with Gappy(GAPS[name]) as log:
        expected = [n for n in present.get(name, ()) if bounds[0] <= n < bounds[1]]
        assert log.read(*bounds) == expected


@settings(deadline=None, max_examples=60)
@given(
    present=st.sets(st.integers(0, LIMIT - 1)),
    markers=st.sets(st.integers(0, LIMIT - 1)),
    cuts=st.sets(st.integers(1, LIMIT - 1)),
    bounds=st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(sorted),
)
def test_whatever_is_missing_the_rest_comes(present, markers, cuts, bounds):
    batches = [control(at, 5, 1) for at in markers]
    kept = present - markers
    edges = [0, *sorted(cuts | markers | {at + 1 for at in markers}), LIMIT]
    for low, high in itertools.pairwise(edges):
        offsets = [at for at in range(low, high) if at in kept]
        if offsets:
            batches.append(records(*offsets))
    with (
        mock.patch.multiple(fetching, STALL_S=0.03, GAP_WAIT_MS=5),
        Gappy(batches) as log,
    ):
        start, end = bounds
        assert log.read(start, end) == [at for at in sorted(kept) if start <= at < end]


class Remote(Gappy):
    """A broker whose segments are remote, and are fetched only for a request that waits."""

    arrived = False

    def at_hand(self, asked):
        self.arrived = self.arrived or asked.body.max_wait_ms == fetching.GAP_WAIT_MS
        return self.batches if self.arrived else []


def test_gap_is_not_believed_before_the_leader_was_given_time(quick):
    with Remote([records(*range(60))]) as log:
        assert log.read(0, 60) == list(range(60))
        assert log.arrived


class Trimming(Gappy):
    """A broker whose log start moves for a while, so that a response about a gap changes."""

    def fetched(self, asked):
        if self.start < 8:
            self.start += 1
        else:
            self.batches = [records(*range(40, 60))]
        return super().fetched(asked)


def test_gap_is_not_believed_while_the_log_start_moves(quick):
    with Trimming([]) as log:
        assert log.read(8, 60) == list(range(40, 60))


def test_aborted_records_at_the_end_are_no_loss(quick):
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    batches = [records(*range(40)), records(*range(40, 59), **producer), control(59, 5, 0)]
    with Gappy(batches, aborted=[(5, 40)]) as log:
        assert log.read(0, 60) == list(range(40))
        assert log.read(45, 60) == []


def test_an_open_transaction_is_waited_for_and_told(quick):
    with Gappy([records(*range(40))], stable=40) as log:
        with pytest.raises(RequestTimedOut, match="t-0.*0.5 s.*offset 40.*transaction is open"):
            log.read(0, 60, timeout_s=0.5)
        timer = threading.Timer(0.3, lambda: setattr(log, "stable", 60))
        timer.start()
        assert log.read(0, 60) == list(range(40))
        timer.join()


def test_a_log_that_is_behind_for_a_moment_is_waited_for(quick):
    with Gappy([records(*range(40))], high=40) as log:

        def grow():
            log.batches.append(records(*range(40, 60)))
            log.high = log.stable = 60

        timer = threading.Timer(0.12, grow)
        timer.start()
        assert log.read(0, 60) == list(range(60))
        timer.join()


class Forgetful(Gappy):
    """After the first records its node lags: it does not know the topic until a metadata update."""

    forgot, forgot_times = False, 0

    def described(self, asked):
        told = super().described(asked)
        if self.forgot:
            self.forgot_times += 1
            told["topics"][0] |= {"error_code": UnknownTopicOrPartition.code, "partitions": []}
        return told

    def fetched(self, asked):
        if self.forgot:
            self.error_code = NotLeaderOrFollower.code
        elif asked.body.topics[0].partitions[0].fetch_offset >= 20 and not self.forgot_times:
            self.forgot = True
            threading.Timer(0.1, self.remember).start()
        return super().fetched(asked)

    def remember(self):
        self.forgot, self.error_code = False, 0
        self.batches.append(records(*range(20, 60)))


def test_the_rest_comes_after_a_node_that_did_not_know_the_topic_for_a_moment(quick):
    with Forgetful([records(*range(20))]) as log:
        assert log.read(0, 60, fail_on_data_loss=False) == list(range(60))
        assert log.forgot_times


def test_damage_is_told_with_its_place(quick):
    last, data = records(*range(60))
    with Gappy([(last, data[:-1] + bytes([data[-1] ^ 1]))]) as log, pytest.raises(CorruptMessage):
        log.read(0, 60)


@pytest.mark.parametrize("code", [29, 55])
def test_what_the_leader_refuses_is_raised(quick, code):
    with Gappy([records(*range(60))]) as log:
        log.error_code = code
        with pytest.raises(BY_CODE[code]):
            log.read(0, 60)


# Timeouts.


def test_a_broker_that_is_not_there_is_told_in_time(served):
    said = {"bootstrap.servers": "127.0.0.1:1", "reconnect.backoff.max.ms": "50"}
    began = time.monotonic()
    with pytest.raises(Exception, match="127.0.0.1:1"):
        read("t", 0, 1, said, timeout_s=0.5)
    assert time.monotonic() - began < 30


def test_a_broker_that_says_nothing_is_told_in_time(quick):
    with Gappy([records(*range(60))]) as log:
        log.impostor.answers[FETCH] = lambda asked: None
        with pytest.raises(RequestTimedOut, match="t-0: nothing came for 0.5 s at offset 7"):
            log.read(7, 60, timeout_s=0.5)


def test_a_killed_broker_is_waited_for(native):
    with Broker() as broker:
        topic = broker.topic()
        produce(broker.bootstrap, topic, [b"x" * 1000] * 20_000)
        said = client(broker, native=native)
        batches = fetched(OffsetRange(topic, 0, 0, 20_000), ["offset"], said)
        first = next(batches)
        broker.kill()
        broker.start()
        rows = [*first["offset"].to_pylist()]
        for batch in batches:
            rows += batch["offset"].to_pylist()
        assert rows == list(range(20_000))
