"""`make oracle`: the Spark connector on Apache Kafka, beside Spark's own Kafka connector.

Both read the same topics in one session, and alternate at one checkpoint.
"""

from __future__ import annotations

import json
import uuid

import pytest

pytest.importorskip("pyspark")

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as F

from benchmarks.spark import jars
from pyspark_kafkalite import read, session
from pyspark_kafkalite.launch.java import NoJava
from tests.spark.settling import settings_in
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

PATIENCE_S = 120
OURS, THEIRS = "kafkalite", "kafka"
ISOLATION = "kafka.isolation.level"
BEGUN_MS = 1_700_000_000_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    try:
        # Its first retention pass, after 30 seconds, would delete records of BEGUN_MS.
        with ApacheKafka(tmp_path_factory.mktemp("kafka"), {"log.retention.ms": "-1"}) as kafka:
            yield kafka
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    settings = settings_in(tmp_path_factory.mktemp("spark"))
    try:
        started = session("oracle", "local[2]", **{"spark.jars": jars(), **settings})
    except (NoJava, Unavailable) as missing:
        pytest.skip(str(missing))
    yield started
    started.stop()


@pytest.fixture
def topic(kafka):
    """A function that creates topics with these settings."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def make(**config):
        name = f"topic-{uuid.uuid4().hex[:8]}"
        wanted = NewTopic(name, PARTITIONS, config={key.replace("_", "."): value
                                                    for key, value in config.items()})  # fmt: skip
        for future in admin.create_topics([wanted]).values():
            future.result(30)
        return name

    return make


def produce(kafka, topic, numbers, **settings):
    """Write a record of each number, with and without key, value and headers, times unordered."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, **settings})
    for number in numbers:
        headers = [("a", b"%d" % number), ("b", None), ("a", b"")][: number % 4]
        producer.produce(
            topic,
            value=None if number % 7 == 3 else b"value-%d" % number,
            key=None if number % 5 == 2 else b"key-%d" % (number % 11),
            partition=number % PARTITIONS,
            timestamp=BEGUN_MS + number * 1000 * (-1) ** number,
            headers=headers,
        )
    assert producer.flush(30) == 0


def transact(kafka, topic):
    """Write transactions that commit and abort, at the beginning, in the middle and at the end."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for round_number, commits in enumerate([False, True, False, False, True, True, False]):
        producer.begin_transaction()
        for number in range(round_number * 100, round_number * 100 + 20):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        if commits:
            producer.commit_transaction(30)
        else:
            producer.flush(30)  # so that aborted records are in the log
            producer.abort_transaction(30)
    return sorted(number for start in (100, 400, 500) for number in range(start, start + 20))


@pytest.fixture
def reader(spark, kafka):
    def make(who, topic, stream=False, **options):
        made = (spark.readStream if stream else spark.read).format(who)
        made = made.option("kafka.bootstrap.servers", kafka.bootstrap)
        return made.option("subscribe", topic).options(**options)

    return make


def rows(frame):
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


@pytest.mark.parametrize("settings", [
    {}, {"compression_type": "gzip"}, {"compression_type": "snappy"}, {"compression_type": "lz4"},
    {"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"},
], ids=lambda settings: "-".join(settings.values()) or "plain")  # fmt: skip
def test_rows_are_the_same(kafka, topic, reader, settings):
    name = topic(**settings)
    codec = settings.get("compression_type", "none")
    produce(kafka, name, range(500), **{"compression.type": codec})
    ours, theirs = (rows(reader(who, name, includeHeaders="true").load()) for who in (OURS, THEIRS))
    assert len(ours) == 500
    assert ours == theirs


@pytest.mark.parametrize("options", [
    {"startingTimestamp": str(BEGUN_MS + 100_000)},
    {"endingTimestamp": str(BEGUN_MS + 100_000)},
    {"startingTimestamp": str(BEGUN_MS), "endingTimestamp": str(BEGUN_MS + 50_001)},
    {"startingTimestamp": str(BEGUN_MS + 10_000_000),
     "startingOffsetsByTimestampStrategy": "latest"},
    {"endingTimestamp": str(BEGUN_MS + 10_000_000)},
    {"minPartitions": "7"},
    {"maxRecordsPerPartition": "11"},
])  # fmt: skip
def test_bounds_are_the_same(kafka, topic, reader, options):
    name = topic()
    produce(kafka, name, range(500))
    ours, theirs = (rows(reader(who, name, **options).load()) for who in (OURS, THEIRS))
    assert ours == theirs


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_filters_on_times_leave_the_same_rows(spark, kafka, topic, reader, kind):
    name = topic(message_timestamp_type=kind)
    produce(kafka, name, range(300))
    times = [row.timestamp for row in rows(reader(THEIRS, name).load())]
    low, high = sorted(times)[50], sorted(times)[200]
    for where in (F.col("timestamp") >= low, F.col("timestamp") < high,
                  (F.col("timestamp") > low) & (F.col("timestamp") <= high),
                  F.col("timestamp") == low):  # fmt: skip
        ours, theirs = (rows(reader(who, name).load().where(where)) for who in (OURS, THEIRS))
        assert ours == theirs


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions_show_the_same(spark, kafka, topic, reader, level):
    name = topic()
    committed = transact(kafka, name)
    ours, theirs = (rows(reader(who, name, **{ISOLATION: level}).load()) for who in (OURS, THEIRS))
    assert ours == theirs
    numbers = sorted(int(row.value) for row in ours)
    assert (numbers == committed) == (level == "read_committed")
    settings = {"startingOffsets": "earliest", ISOLATION: level}
    fast = read(spark, name, bootstrap=kafka.bootstrap, columns=["partition", "offset", "value"],
                **settings)  # fmt: skip
    assert sorted(int(row.value) for row in fast.collect()) == numbers


def in_turns(reader, topic, place, whose, **options):
    """Let each connector read once what is available, from one checkpoint into the same files."""
    for who in whose:
        frame = reader(who, topic, stream=True, startingOffsets="earliest", **options).load()
        writer = frame.select("partition", "offset", "value").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(place / "out"))
        assert query.awaitTermination(PATIENCE_S)
        yield who


def last_offsets(place):
    files = sorted((place / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda at: int(at.name))
    return json.loads(files[-1].read_text().splitlines()[-1])


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "70"}], ids=["all", "limited"])
def test_a_checkpoint_moves_over_and_back(spark, kafka, topic, reader, tmp_path, options):
    name = topic()
    count = 0
    for _ in in_turns(reader, name, tmp_path, [OURS, THEIRS, OURS, THEIRS], **options):
        if count:
            came = rows(spark.read.parquet(str(tmp_path / "out")))
            assert [(row.partition, row.offset) for row in came] == [
                (partition, offset)
                for partition in range(PARTITIONS)
                for offset in range(count // PARTITIONS)
            ]
            assert last_offsets(tmp_path) == {
                name: {str(partition): count // PARTITIONS for partition in range(PARTITIONS)}
            }
        produce(kafka, name, range(count, count + 300))
        count += 300


@pytest.mark.parametrize("whose", [[OURS], [THEIRS]], ids=[OURS, THEIRS])
def test_a_stream_of_transactions_has_gaps(spark, kafka, topic, reader, tmp_path, whose):
    name = topic()
    committed = transact(kafka, name)
    options = {ISOLATION: "read_committed", "maxOffsetsPerTrigger": "10"}
    assert [*in_turns(reader, name, tmp_path, whose, **options)] == whose
    came = rows(spark.read.parquet(str(tmp_path / "out")))
    assert sorted(int(row.value) for row in came) == committed


def test_written_rows_are_the_same(spark, kafka, topic, reader):
    headers = F.array(F.struct(F.lit("a").alias("key"), F.lit(b"1").alias("value")))
    source = spark.range(300).select(
        F.when(F.col("id") % 5 != 2, F.concat(F.lit("key-"), F.col("id"))).alias("key"),
        F.when(F.col("id") % 7 != 3, F.encode(F.col("id").cast("string"), "utf-8")).alias("value"),
        F.when(F.col("id") % 2 == 0, headers).alias("headers"),
        F.when(F.col("id") % 3 == 0, (F.col("id") % PARTITIONS).cast("int")).alias("partition"),
    )
    came = {}
    for who in (OURS, THEIRS):
        name = topic()
        written = source.coalesce(1).write.format(who).option("topic", name)
        # Spark's sink sends headers only with this option.
        written = written.option("kafka.bootstrap.servers", kafka.bootstrap)
        written.option("includeHeaders", "true").mode("append").save()
        found = rows(reader(THEIRS, name, includeHeaders="true").load())
        assert len(found) == 300
        # Partitions must be equal where a key or the column selects them; others may differ.
        came[who] = sorted(
            (row.key or b"", row.value or b"", str(row.headers),
             row.partition if row.key is not None else None)
            for row in found
        )  # fmt: skip
    assert came[OURS] == came[THEIRS]
