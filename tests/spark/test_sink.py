"""The sink without Spark: its writers get record batches, and its topics are read back."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import signal
import socket
import time
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kafkalite import Consumer
from kafkalite._ext.hashing import partition_of
from kafkalite.testing import Broker
from pyspark_kafkalite.connector import row_writer
from pyspark_kafkalite.connector.row_writer import Destination, NullTopic, WriteFailed, WriteResult
from pyspark_kafkalite.connector.sink import batch_writer, stream_writer
from tests.spark.topics import delete, grow

KEY, VALUE = StructField("key", StringType()), StructField("value", BinaryType())
KINDS = {
    "string": StringType(), "binary": BinaryType(), "int": IntegerType(), "bigint": LongType(),
    "double": DoubleType(), "void": NullType(), "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(), "collated": StringType("UTF8_LCASE"),
    "struct": StructType([StructField("a", IntegerType())]), "array": ArrayType(IntegerType()),
    "map": MapType(StringType(), BinaryType()), "pairs": ArrayType(StructType([KEY, VALUE])),
    "strict_pairs": ArrayType(StructType([StructField("key", StringType(), False), VALUE]), False),
    "swapped": ArrayType(StructType([VALUE, KEY])),
}  # fmt: skip
"""Types by name, since without a JVM Spark parses none of them."""
SHORT_TIMEOUTS = {
    "kafka.max.block.ms": "1000", "kafka.request.timeout.ms": "1000",
    "kafka.delivery.timeout.ms": "2000", "kafka.linger.ms": "0",
}  # fmt: skip
SHORT_TIMEOUTS_S_MAX = 20
"""Well above what SHORT_TIMEOUTS allows, and well below the time without it."""


@pytest.fixture(params=["auto", "off"], ids=["ring", "tcp"])
def native(request):
    return request.param


@pytest.fixture(autouse=True)
def closed_producers():
    yield
    while row_writer._pool:
        row_writer.remove_producer(next(iter(row_writer._pool.values())))


def schema(words: str) -> StructType:
    """Return the schema of columns as in "key string, value binary"."""
    named = [column.split() for column in words.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in named])


def options(broker: Broker, **others: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap, **others}


def batch(ddl: str, *records: tuple, zone: str = "UTC") -> pa.RecordBatch:
    """Return records as the record batch Spark would pass."""
    columns = to_arrow_schema(schema(ddl), timezone=zone)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record[place] for record in records], kind)
            for place, kind in enumerate(columns.types)
        ],
        schema=columns,
    )


def write(broker: Broker, ddl: str, *batches: pa.RecordBatch, **others: str) -> WriteResult:
    return batch_writer(options(broker, **others), schema(ddl), False).write(iter(batches))


def records_in(broker: Broker, *topics: str, columns: list[str] | None = None) -> list:
    """Return a topic's records in order, as tuples of the columns or the values alone."""
    with Consumer(broker.bootstrap, topics=list(topics)) as consumer:
        found = consumer.to_table(columns=columns or ["value"], timeout=30).to_pylist()
    if columns is None:
        return [each["value"] for each in found]
    return [tuple(each[name] for name in columns) for each in found]


def nowhere() -> str:
    """Return an address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


# Rejections by the writer, on the driver.


def error_of(ddl: str, make=batch_writer, overwrite: bool = False, **others: str) -> str:
    with pytest.raises(ValueError) as caught:
        make({"kafka.bootstrap.servers": "127.0.0.1:1", **others}, schema(ddl), overwrite)
    return str(caught.value)


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
@pytest.mark.parametrize(
    "ddl, others, words",
    [
        ("key string", {"topic": "t"}, "'value' not found"),
        ("Value string", {"topic": "t"}, "'value' not found"),
        ("value string", {}, "option topic is required"),
        ("value string", {"topic": "  "}, "option topic is empty"),
        ("value int", {"topic": "t"}, "value has the unsupported type int"),
        ("value struct", {"topic": "t"}, "value has the unsupported type struct<a:int>"),
        ("value string, key bigint", {"topic": "t"}, "key has the unsupported type bigint"),
        ("value string, key void", {"topic": "t"}, "key has the unsupported type void"),
        ("value string, topic int", {}, "topic has the unsupported type int"),
        ("value string, topic binary", {}, "topic has the unsupported type binary"),
        ("value string, partition bigint", {"topic": "t"}, "partition has the unsupported type"),
        ("value string, partition string", {"topic": "t"}, "partition has the unsupported type"),
        ("value string, timestamp bigint", {"topic": "t"}, "timestamp has the unsupported type"),
        ("value string, timestamp timestamp_ntz", {"topic": "t"}, "it must be timestamp"),
        ("value string, headers string", {"topic": "t"}, "headers has the unsupported type string"),
        ("value string, headers map", {"topic": "t"}, "array<struct<key:string"),
        ("value string, headers swapped", {"topic": "t"}, "headers has the unsupported type"),
        ("value string, value binary", {"topic": "t"}, "Column value occurs more than once"),
        ("value string", {"topic": "t", "exactlyOnce": "true"}, "requires transactions"),
        ("value string", {"topic": "t", "exactlyonce": "yes"}, "exactlyOnce must be true or false"),
        ("value string", {"topic": "t", "kafka.key.serializer": "K"}, "kafka.key.serializer"),
        ("value string", {"topic": "t", "Kafka.Value.Serializer": "V"}, "kafka.value.serializer"),
        ("value string", {"topic": "t", "kafka.acks": "7"}, "acks"),
        ("value string", {"topic": "t", "kafka.lingering.ms": "7"}, "lingering.ms"),
        ("value string", {"topic": "t", "kafka.transactional.id": "x"}, "transactional.id"),
        ("value string", {"topic": "t", "kafka.bootstrap.servers": ""}, "bootstrap.servers"),
    ],
)
def test_unsupported_schema_or_options_are_rejected_by_name(make, ddl, others, words):
    assert words in error_of(ddl, make, **others)


def test_rejected_column_is_reported_with_a_remedy():
    assert 'col("partition").cast("int")' in error_of("value string, partition bigint", topic="t")
    assert "columns are: key, note" in error_of("key string, note string", topic="t")


def test_overwrite_batch_is_rejected_and_complete_stream_appended():
    settings = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    words = error_of("value string", overwrite=True, topic="t")
    assert "Save mode Overwrite is not allowed" in words and '.mode("append")' in words
    assert isinstance(batch_writer(settings, schema("value string"), False), DataSourceArrowWriter)
    for overwrite in (False, True):
        made = stream_writer(settings, schema("value string"), overwrite)
        assert isinstance(made, DataSourceStreamArrowWriter)


def test_stricter_types_and_collated_text_are_accepted():
    settings = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    batch_writer(settings, schema("value collated, headers strict_pairs"), False)


def test_pickled_writer_is_small():
    settings = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    made = batch_writer(settings, schema("value string, key binary, more double"), False)
    assert len(pickle.dumps(made)) < 500
    assert pickle.loads(pickle.dumps(made))._to == Destination(
        {"bootstrap.servers": "127.0.0.1:1"}, "t", ("value", "key")
    )


def test_commit_and_abort_log_written_records(caplog):
    settings = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
    done = [WriteResult(10, 2), None, WriteResult(5, 1)]
    with caplog.at_level(logging.INFO, "pyspark_kafkalite"):
        batch_writer(settings, schema("value string"), False).commit(done[::2])
        batch_writer(settings, schema("value string"), False).abort(done)
        stream_writer(settings, schema("value string"), False).commit(done[::2], 7)
        stream_writer(settings, schema("value string"), False).abort([], 8)
    assert caplog.messages == [
        "Batch was written: 15 records of 2 tasks in 3 batches are acknowledged.",
        "Write failed; 15 records of 2 tasks in 3 batches are acknowledged, and stay in the topic.",
        "Micro-batch 7 was written: 15 records of 2 tasks in 3 batches are acknowledged.",
        "Micro-batch 8 failed; 0 records of 0 tasks in 0 batches are acknowledged, and stay in the"
        " topic.",
    ]


# Writes.


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_written_records_have_all_columns(broker, native, make):
    topic = broker.topic(3)
    ddl = "key string, value binary, partition int, timestamp timestamp, headers pairs"
    moment = datetime(2013, 1, 1, 10, 0, 0, 123_456, tzinfo=UTC)
    pairs = [("a", b"1"), ("b", None), ("a", b"")]
    headers = [{"key": key, "value": value} for key, value in pairs]
    given = batch(
        ddl,
        ("k", b"v", 2, moment, headers),
        (None, None, 0, moment, []),
        ("", b"", 1, moment, None),
        zone="America/New_York",
    )
    made = make(options(broker, topic=topic, **{"kafka.native": native}), schema(ddl), False)
    assert made.write(iter([given])) == WriteResult(records=3, batches=3)
    names = ["partition", "key", "value", "timestamp", "headers"]
    stamp = moment.replace(microsecond=123_000)
    found = records_in(broker, topic, columns=names)
    assert [each[:-1] for each in found] == [
        (0, None, None, stamp), (1, b"", b"", stamp), (2, b"k", b"v", stamp),
    ]  # fmt: skip
    assert [list(map(tuple, map(dict.values, each[-1] or []))) for each in found] == [[], [], pairs]


def test_topic_option_precedes_topic_column(broker):
    by_option, by_column, other = broker.topic(), broker.topic(), broker.topic()
    ddl = "value string, topic string"
    given = batch(ddl, ("a", by_column), ("b", other), ("c", by_column))
    assert write(broker, ddl, given) == WriteResult(3, 2)
    assert write(broker, ddl, given, topic=f" {by_option} ").records == 3
    assert records_in(broker, by_column) == [b"a", b"c"]
    assert records_in(broker, other) == [b"b"]
    assert records_in(broker, by_option) == [b"a", b"b", b"c"]
    # A column that no option uses is not checked.
    assert write(broker, "value string, topic int", batch("value string, topic int", ("d", None)),
                 topic=other).records == 1  # fmt: skip


def test_other_columns_are_ignored(broker):
    topic = broker.topic()
    ddl = "offset bigint, value string, timestampType int, note array"
    assert write(broker, ddl, batch(ddl, (7, "a", 0, [1])), topic=topic) == WriteResult(1, 1)
    assert records_in(broker, topic) == [b"a"]


def test_rows_of_a_topic_keep_their_order(broker, native):
    topics = [broker.topic() for _ in range(7)]
    ddl = "topic string, value string"
    numbered = [(topics[number * number % 7], f"{number}") for number in range(5_000)]
    batches = [batch(ddl, *numbered[first : first + 500]) for first in range(0, 5_000, 500)]
    written = write(broker, ddl, *batches, **{"kafka.native": native})
    assert written.records == 5_000
    used = {topic for topic, _ in numbered}
    for topic in topics:
        wanted = [value.encode() for at, value in numbered if at == topic]
        assert records_in(broker, topic) == wanted
        assert bool(wanted) == (topic in used)


@given(
    names=st.lists(st.sampled_from(["a", "b", "ä", "a-very-long-name-of-a-topic"]), max_size=50),
    cut=st.integers(0, 10),
)
def test_rows_are_grouped_by_topic_in_order(names, cut):
    kept = names[cut:]
    numbers = [f"{number}" for number in range(len(names))]
    whole = batch("topic string, value string", *zip(names, numbers, strict=True))
    found = row_writer.routed(whole.slice(cut), Destination({}, None, ("value",)))
    wanted: dict[str, list[str]] = {}
    for name, number in zip(kept, numbers[cut:], strict=True):
        wanted.setdefault(name, []).append(number)
    assert {name: each.column("value").to_pylist() for name, each in found} == wanted


def test_row_without_topic_fails_before_its_batch_is_sent(broker):
    topic = broker.topic()
    ddl = "topic string, value string"
    good, bad = batch(ddl, (topic, "a")), batch(ddl, (topic, "b"), (None, "c"))
    with pytest.raises(NullTopic, match="KAFKA_NULL_TOPIC_IN_DATA.*option topic"):
        write(broker, ddl, bad)
    assert records_in(broker, topic) == []
    assert write(broker, ddl, good).records == 1


def test_partition_column_precedes_partitioner_and_key(broker, native):
    count = 4
    ddl = "key string, value string, partition int"
    keys = [f"{number}" for number in range(40)]
    chosen = batch(ddl, *[(key, key, 3) for key in keys])
    free = batch(ddl, *[(key, key, None) for key in keys])
    settings = {"kafka.native": native}
    by_column, by_key, in_turn = (broker.topic(count) for _ in range(3))
    write(broker, ddl, chosen, topic=by_column, **settings, **{"kafka.partitioner": "round_robin"})
    write(broker, ddl, free, topic=by_key, **settings)
    write(broker, ddl, free, topic=in_turn, **settings, **{"kafka.partitioner": "round_robin"})
    assert {at for (at,) in records_in(broker, by_column, columns=["partition"])} == {3}
    for partition, key in records_in(broker, by_key, columns=["partition", "key"]):
        assert partition == partition_of(key, count)
    spread = [at for (at,) in records_in(broker, in_turn, columns=["partition"])]
    assert spread == sorted(list(range(count)) * 10)


def test_unknown_partition_is_rejected_and_an_added_one_found(broker):
    topic = broker.topic(2)
    ddl = "value string, partition int"
    for partition, words in ((2, "none of the 2 partitions"), (-1, "-1 is not a partition")):
        with pytest.raises(ValueError, match=f"topic '{topic}' cannot be written.*{words}"):
            write(broker, ddl, batch(ddl, ("a", partition)), topic=topic)
    write(broker, ddl, batch(ddl, ("a", 0)), topic=topic)
    grow(broker, topic, 5)
    # By the producer that was kept.
    assert write(broker, ddl, batch(ddl, ("b", 4)), topic=topic).records == 1
    assert records_in(broker, topic, columns=["partition", "value"]) == [(0, b"a"), (4, b"b")]


def test_records_nearly_as_large_as_the_buffer_are_written(broker, native):
    topic = broker.topic()
    values = [bytes([number]) * 15_000 for number in range(50)]
    small = {"kafka.buffer.memory": "16384", "kafka.max.block.ms": "5000", "kafka.native": native}
    given = batch("value binary", *[(value,) for value in values])
    assert write(broker, "value binary", given, topic=topic, **small).records == 50
    assert records_in(broker, topic) == values


def test_compressed_and_acks_1_writes_succeed(broker):
    topic = broker.topic()
    given = batch("value string", *[(f"{number}",) for number in range(1_000)])
    for others in ({"kafka.compression.type": "zstd"}, {"kafka.acks": "1"}):
        assert write(broker, "value string", given, topic=topic, **others).records == 1_000
    assert len(records_in(broker, topic)) == 2_000


def test_empty_write_needs_no_broker():
    made = batch_writer(
        {"kafka.bootstrap.servers": nowhere(), "topic": "t"}, schema("value string"), False
    )
    assert made.write(iter([])) == WriteResult()
    assert made.write(iter([batch("value string")])) == WriteResult()
    assert not row_writer._pool


def test_large_and_sliced_columns_are_written(broker):
    topic = broker.topic()
    wide = pa.record_batch({"value": pa.array(["a", "b", "c"], pa.large_string()),
                            "topic": pa.array([topic] * 3, pa.large_string())})  # fmt: skip
    assert write(broker, "value string, topic string", wide.slice(1)).records == 2
    assert records_in(broker, topic) == [b"b", b"c"]


# Errors.


def test_unreachable_broker_raises_write_failed_in_time():
    address = nowhere()
    made = batch_writer(
        {"kafka.bootstrap.servers": address, "topic": "t", **SHORT_TIMEOUTS},
        schema("value string"),
        False,
    )
    began_s = time.monotonic()
    with pytest.raises(WriteFailed) as caught:
        made.write(iter([batch("value string", ("a",))]))
    assert time.monotonic() - began_s < SHORT_TIMEOUTS_S_MAX
    assert f"topic 't' at {address}" in str(caught.value)
    assert "kafka.bootstrap.servers" in str(caught.value)
    assert caught.value.__suppress_context__ and caught.value.__cause__ is None
    assert not row_writer._pool


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_silent_broker_fails_the_task_in_time(number, native):
    with Broker() as one:
        topic = one.topic()
        given = batch("value binary", *[(b"x" * 1_000,)] * 1_000)

        def falling_silent():
            yield given
            for node in one.nodes:
                os.kill(node["pid"], number)
            yield from itertools.repeat(given, 100)

        made = batch_writer(
            options(one, topic=topic, **SHORT_TIMEOUTS, **{"kafka.native": native}),
            schema("value binary"), False,
        )  # fmt: skip
        began_s = time.monotonic()
        try:
            with pytest.raises(WriteFailed, match=f"topic '{topic}'.*Check that a broker"):
                made.write(falling_silent())
        finally:
            one.kill()
        assert time.monotonic() - began_s < SHORT_TIMEOUTS_S_MAX


def test_restarted_broker_receives_each_row_once(native):
    with Broker() as one:
        topic = one.topic(2)
        batches = [
            batch("key string, value string", *[(f"{n}", f"{n}") for n in range(at, at + 1_000)])
            for at in range(0, 10_000, 1_000)
        ]

        def interrupted():
            yield from batches[:4]
            one.kill()
            one.start()
            yield from batches[4:]

        made = batch_writer(
            options(one, topic=topic, **{"kafka.native": native}),
            schema("key string, value string"), False,
        )  # fmt: skip
        assert made.write(interrupted()).records == 10_000
        assert sorted(map(int, records_in(one, topic))) == list(range(10_000))


def test_first_failed_batch_fails_the_task(broker):
    """The rows never end, but the task does."""
    topic = broker.topic(config={"max.message.bytes": "1000"})
    good, bad = batch("value binary", (b"x",)), batch("value binary", (b"x" * 2_000,))
    made = batch_writer(options(broker, topic=topic), schema("value binary"), False)

    def endless():
        yield good
        yield bad
        end_s = time.monotonic() + SHORT_TIMEOUTS_S_MAX
        while time.monotonic() < end_s:
            time.sleep(0.01)
            yield good
        raise AssertionError("nobody noticed")

    with pytest.raises(WriteFailed, match=r"MESSAGE_TOO_LARGE.*max\.message\.bytes"):
        made.write(endless())


def test_unknown_topic_raises_write_failed():
    with Broker(config={"auto.create.topics.enable": "false"}) as one:
        with pytest.raises(WriteFailed, match="UNKNOWN_TOPIC_OR_PARTITION.*Create the topic"):
            write(
                one, "value string", batch("value string", ("a",)), topic="nosuch", **SHORT_TIMEOUTS
            )
        topic = one.topic()
        write(one, "value string", batch("value string", ("a",)), topic=topic, **SHORT_TIMEOUTS)
        delete(one, topic)
        with pytest.raises(WriteFailed, match=f"'{topic}'.*still leads the topic"):
            write(one, "value string", batch("value string", ("a",)), topic=topic, **SHORT_TIMEOUTS)


@pytest.mark.parametrize(
    "column, cell, words",
    [
        (
            "headers pairs",
            [{"key": None, "value": b"1"}],
            "column headers: the name of a header is null",
        ),
        ("headers pairs", [None], "column headers: .* name .* is null"),
        ("timestamp timestamp", datetime(1969, 1, 1, tzinfo=UTC), "column timestamp: .* negative"),
    ],
)
def test_cell_no_record_can_have_is_rejected(broker, column, cell, words):
    topic = broker.topic()
    ddl = f"value string, {column}"
    with pytest.raises(ValueError, match=f"topic '{topic}' cannot be written: {words}"):
        write(broker, ddl, batch(ddl, ("a", cell)), topic=topic)
    assert records_in(broker, topic) == []


def test_invalid_topic_name_raises_write_failed(broker):
    ddl = "topic string, value string"
    with pytest.raises(WriteFailed, match="topic 'a b'.*INVALID_TOPIC_EXCEPTION"):
        write(broker, ddl, batch(ddl, ("a b", "v")))


# Consecutive tasks.


@pytest.mark.parametrize("fault", [OSError("the shuffle is gone"), KeyboardInterrupt()])
def test_retried_task_writes_all_its_rows(broker, native, fault):
    """At least once: records of the first attempt stay, and none of them is written later."""
    topic = broker.topic()
    ddl = "value string"
    batches = [batch(ddl, *[(f"{n}",) for n in range(at, at + 100)]) for at in (0, 100, 200)]

    def failing():
        yield from batches[:2]
        raise fault

    settings = options(broker, topic=topic, **{"kafka.native": native})
    made = batch_writer(settings, schema(ddl), False)
    with pytest.raises(type(fault)):
        made.write(failing())
    assert not row_writer._pool
    assert made.write(iter(batches)).records == 300
    found = list(map(int, records_in(broker, topic)))
    assert found[-300:] == list(range(300))
    assert found[:-300] == list(range(len(found) - 300))


def test_producer_is_pooled_across_tasks_and_the_pool_is_bounded(broker):
    topic = broker.topic()
    given = batch("value string", ("a",))
    write(broker, "value string", given, topic=topic)
    (first,) = row_writer._pool.values()
    write(broker, "value string", given, topic=broker.topic())
    assert list(row_writer._pool.values()) == [first]
    for number in range(row_writer.KEPT_MAX):
        write(broker, "value string", given, topic=topic, **{"kafka.client.id": f"{number}"})
    assert len(row_writer._pool) == row_writer.KEPT_MAX
    assert not first.is_open
    write(broker, "value string", given, topic=topic)
    assert len(records_in(broker, topic)) == row_writer.KEPT_MAX + 2


def test_pooled_producer_survives_a_broker_restart(native):
    with Broker() as one:
        topic = one.topic()
        settings = {"topic": topic, "kafka.native": native}
        for number in range(3):
            given = batch("value string", (f"{number}",))
            assert write(one, "value string", given, **settings).records == 1
            one.kill()
            one.start()
        assert len(row_writer._pool) == 1
        assert records_in(one, topic) == [b"0", b"1", b"2"]


def test_forked_worker_creates_its_own_producer(broker, native):
    topic = broker.topic()
    settings = {"topic": topic, "kafka.native": native}
    write(broker, "value string", batch("value string", ("before",)), **settings)
    (kept,) = row_writer._pool.values()
    child = os.fork()
    if child == 0:
        try:
            write(broker, "value string", batch("value string", ("child",)), **settings)
            os._exit(0 if kept not in row_writer._pool.values() else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    write(broker, "value string", batch("value string", ("after",)), **settings)
    assert list(row_writer._pool.values()) == [kept]
    assert records_in(broker, topic) == [b"before", b"child", b"after"]
