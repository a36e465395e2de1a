"""The source in a real Spark session: batches first and then streams."""

import json
import time
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from kafkalite import Producer
from kafkalite.client.net import offset_requests
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import consumer_settings
from pyspark_kafkalite import LagListener
from tests.spark.topics import trim

pytestmark = pytest.mark.spark_session

TIMEOUT_S = 120


@pytest.fixture
def topic(broker):
    return broker.topic(partitions=3)


@pytest.fixture
def frame(spark, broker, topic):
    """Return a DataFrame over the topic."""

    def make(stream=False, **options):
        reader = (spark.readStream if stream else spark.read).format("kafkalite")
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        if not {"assign", "subscribe", "subscribePattern"} & options.keys():
            reader = reader.option("subscribe", topic)
        return reader.options(**options).load()

    return make


def produce(broker, topic, values, partition=None, **more):
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=partition, **more)


def values(frame):
    return sorted(int(row.value) for row in frame.select("value").collect())


def numbers(first, end):
    return [b"%d" % number for number in range(first, end)]


# Batches.


def test_batch_reads_records_present_at_its_first_action(broker, topic, frame):
    df = frame()
    produce(broker, topic, numbers(0, 30))
    assert values(df) == list(range(30))
    produce(broker, topic, numbers(30, 40))
    assert values(df.union(df)) == sorted([*range(30), *range(30)]), "a frame keeps its offsets"
    assert values(frame()) == list(range(40))


def test_row_has_every_field_of_the_record(broker, topic, frame):
    headers = [("a", b"1"), ("a", None)]
    produce(broker, topic, [b"v"], 1, key=b"k", timestamp=1_700_000_000_123, headers=headers)
    produce(broker, topic, [None], 1, timestamp=1_700_000_000_124)
    first, second = frame(includeHeaders="true").orderBy("offset").collect()
    assert first.asDict() | {"timestamp": None, "headers": None} == {
        "key": b"k", "value": b"v", "topic": topic, "partition": 1, "offset": 0, "timestamp": None,
        "timestampType": 0, "headers": None,
    }  # fmt: skip
    assert first.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
    assert [tuple(header) for header in first.headers] == headers
    assert second.value is second.key is second.headers is None
    assert frame(columns="offset,value").columns == ["offset", "value"]


def test_empty_topic_is_an_empty_frame(frame):
    assert frame().count() == 0


@pytest.mark.spark
def test_offsets_timestamps_and_assignments_bound_a_batch(broker, topic, frame):
    produce(broker, topic, numbers(0, 10), 0, timestamp=5_000)
    produce(broker, topic, numbers(10, 20), 2, timestamp=6_000)
    bound = {"startingOffsets": json.dumps({topic: {"0": 2, "1": -2, "2": 5}}),
             "endingOffsets": json.dumps({topic: {"0": 4, "1": -1, "2": -1}})}  # fmt: skip
    assert values(frame(**bound)) == [2, 3, 15, 16, 17, 18, 19]
    assert values(frame(assign=json.dumps({topic: [2]}))) == list(range(10, 20))
    assert values(frame(subscribePattern=topic[:-1] + "[" + topic[-1] + "]")) == list(range(20))
    late = frame(startingTimestamp="6000", startingOffsetsByTimestampStrategy="latest")
    assert values(late) == list(range(10, 20))
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy"):
        frame(startingTimestamp="6000").count()


@pytest.mark.spark
def test_partitions_are_split(broker, topic, frame):
    produce(broker, topic, numbers(0, 100), 0)
    assert frame().rdd.getNumPartitions() == 1
    many = frame(maxRecordsPerPartition="7")
    assert many.rdd.getNumPartitions() == 15
    assert values(many) == list(range(100))
    assert frame(minPartitions="4").rdd.getNumPartitions() == 4


@pytest.mark.parametrize("where", [
    "timestamp < timestamp_millis(1005) and partition <=> 2", "offset in (1, 9) or value = '4'",
    *(pytest.param(where, marks=pytest.mark.spark) for where in (
        "partition = 1", "partition in (0, 2)", "offset >= 5 and offset < 7", "offset = 3",
        "timestamp >= timestamp_millis(1005)", "timestamp > timestamp_millis(1005)",
        "topic like 'topic%' and offset > 8", "partition = 7", "value is null",
    )),
])  # fmt: skip
def test_pushed_filters_return_the_same_rows(broker, topic, frame, spark, where):
    for partition in range(3):
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number, partition=partition, timestamp=1000 + number)
    pruned = frame().where(where).select("partition", "offset").collect()
    whole = spark.createDataFrame(frame().collect(), frame().schema)
    assert sorted(pruned) == sorted(whole.where(where).select("partition", "offset").collect())


def test_filters_without_pushdown_return_the_same_rows(broker, topic, frame, spark):
    produce(broker, topic, numbers(0, 10), 1)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert frame().where("partition = 1 and offset = 3").count() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


@pytest.mark.spark
def test_trimmed_records_are_data_loss_or_skipped(broker, topic, frame):
    produce(broker, topic, numbers(0, 10), 0)
    trim(broker, topic, {0: 4})
    start = json.dumps({topic: {"0": 0, "1": -2, "2": -2}})
    with pytest.raises(Exception, match="failOnDataLoss"):
        frame(startingOffsets=start).count()
    assert values(frame(startingOffsets=start, failOnDataLoss="false")) == list(range(4, 10))


@pytest.mark.parametrize(("options", "words"), [
    ({"subscribe": ""}, "No topics to subscribe"),
    ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
    ({"startingOffsets": "latest"}, "cannot be latest"),
    ({"subscribe": "nowhere-to-be-found"}, "nowhere-to-be-found"),
    ({"columns": "size"}, "columns must be a list"),
    pytest.param(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "2000",
         "kafka.request.timeout.ms": "1000"}, "127.0.0.1:1", marks=pytest.mark.spark),
])  # fmt: skip
def test_invalid_options_raise_on_the_driver(frame, options, words):
    with pytest.raises(Exception, match=words):
        frame(**options).count()


@pytest.mark.spark
def test_user_schema_is_rejected(spark, broker, topic):
    reader = spark.read.format("kafkalite").schema("a int")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    with pytest.raises(Exception, match="remove schema"):
        reader.load().count()


@pytest.mark.spark
def test_sql_view_reads_a_topic(spark, broker, topic):
    produce(broker, topic, numbers(0, 5))
    spark.sql(
        "create or replace temporary view records using kafkalite options ("
        f"'kafka.bootstrap.servers' '{broker.bootstrap}', 'subscribe' '{topic}')"
    )
    assert spark.sql("select count(*) from records").first()[0] == 5


@pytest.mark.spark
def test_values_become_typed_columns(broker, topic, frame, collected, spark):
    produce(broker, topic, [b'{"carrier": "UA", "delay": 5}', b'{"carrier": "AA"}', b"{"], 0)
    options = {"value_format": "json", "value_schema": "carrier STRING, delay INT",
               "on_bad_rows": "drop", "columns": "carrier,delay,Offset"}  # fmt: skip
    df = frame(**options)
    assert df.dtypes == [("carrier", "string"), ("delay", "int"), ("offset", "bigint")]
    rows = [("UA", 5, 0), ("AA", None, 1)]
    assert [tuple(row) for row in df.orderBy("offset").collect()] == rows
    query = collected(frame(stream=True, startingOffsets="earliest", **options), availableNow=True)
    assert query.awaitTermination(TIMEOUT_S)
    assert [tuple(row) for row in spark.table("came").orderBy("offset").collect()] == rows
    with pytest.raises(Exception, match="value_format"):
        frame(**{**options, "value_format": "xml"}).count()


# Streams.


@pytest.fixture
def collected(spark, tmp_path):
    """Start a stream into memory; its rows are a view of that name."""
    queries = []

    def start(frame, name="came", checkpoint=None, **trigger):
        writer = frame.writeStream.format("memory").queryName(name)
        writer = writer.option("checkpointLocation", str(checkpoint or tmp_path / "checkpoint"))
        writer = writer.trigger(**trigger) if trigger else writer
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


def await_rows(spark, query, count, name="came"):
    until_s = time.monotonic() + TIMEOUT_S
    while (came := spark.table(name).count()) < count:
        assert query.exception() is None, query.exception()
        assert time.monotonic() < until_s, f"{came} of {count}"
        time.sleep(0.05)
    return sorted(int(row.value) for row in spark.table(name).select("value").collect())


def test_stream_reads_new_records(spark, broker, topic, frame, collected):
    produce(broker, topic, numbers(0, 10))
    query = collected(frame(stream=True, startingOffsets="earliest").select("value"))
    assert await_rows(spark, query, 10) == list(range(10))
    produce(broker, topic, numbers(10, 25))
    assert await_rows(spark, query, 25) == list(range(25))


@pytest.mark.spark
def test_available_now_reads_in_batches_and_continues_from_checkpoint(
    spark, broker, topic, frame, tmp_path
):
    produce(broker, topic, numbers(0, 15), 0)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run():
        df = frame(stream=True, startingOffsets="earliest", maxOffsetsPerTrigger="5")
        writer = df.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start(out)
        assert query.awaitTermination(TIMEOUT_S)
        assert query.exception() is None
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]

    assert run() == [5, 5, 5]
    produce(broker, topic, numbers(15, 20), 1)
    assert run() == [5]
    assert values(spark.read.parquet(out)) == list(range(20))
    assert run() == []


@pytest.mark.spark
def test_checkpoint_has_the_offset_format_of_spark_kafka(
    spark, broker, topic, frame, collected, tmp_path
):
    produce(broker, topic, numbers(0, 4), 2)
    df = frame(stream=True, startingOffsets="earliest").select("value")
    query = collected(df, checkpoint=tmp_path / "held", availableNow=True)
    assert query.awaitTermination(TIMEOUT_S)
    last = (tmp_path / "held" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(last) == {topic: {"0": 0, "1": 0, "2": 4}}


@pytest.mark.spark
def test_commit_group_and_lag_listener_follow_the_stream(spark, broker, topic, frame, collected):
    told = []
    listener = LagListener(lambda query, source, lag: told.append((query, lag)))
    spark.streams.addListener(listener)
    cluster = Cluster(consumer_settings(broker.bootstrap, {}))
    try:
        produce(broker, topic, numbers(0, 12), 0)
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "4",
                   "commitGroup": f"seen-{topic}"}  # fmt: skip
        query = collected(frame(stream=True, **options).select("value"))
        await_rows(spark, query, 12)
        produce(broker, topic, numbers(12, 14), 0)
        await_rows(spark, query, 14)
        until_s = time.monotonic() + TIMEOUT_S
        while (at := offset_requests.committed_offsets(cluster, f"seen-{topic}", [(topic, 0)])) != {
            (topic, 0): 12
        }:
            assert time.monotonic() < until_s, at
        lags = [lag.maxOffsetsBehindLatest for name, lag in told if name == "came"]
        assert max(lags) == 8 and lags[-1] == 0
    finally:
        cluster.close()
        spark.streams.removeListener(listener)


@pytest.mark.spark
def test_window_with_watermark_counts_a_stream(spark, broker, topic, frame, tmp_path):
    with Producer(broker.bootstrap) as producer:
        for second in range(60):
            producer.send(topic, b"%d" % (second % 2), timestamp=1_700_000_000_000 + second * 1000)
    df = frame(stream=True, startingOffsets="earliest").withWatermark("timestamp", "5 seconds")
    counted = df.groupBy(F.window("timestamp", "10 seconds")).count()
    writer = counted.writeStream.format("memory").queryName("windows").outputMode("complete")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(TIMEOUT_S)
    assert [row["count"] for row in spark.table("windows").collect()] == [10] * 6


@pytest.mark.spark
def test_deleted_topic_fails_a_stream_with_one_sentence(spark, broker, topic, frame, collected):
    produce(broker, topic, numbers(0, 3), 0)
    query = collected(frame(stream=True, startingOffsets="earliest").select("value"))
    await_rows(spark, query, 3)
    from tests.spark.topics import delete

    delete(broker, topic)
    with pytest.raises(Exception, match="were deleted.*failOnDataLoss"):
        query.awaitTermination(TIMEOUT_S)


@pytest.mark.spark
def test_self_joined_query_reads_each_record_for_both_sides(spark, broker, topic, frame, collected):
    produce(broker, topic, numbers(0, 6))
    df = frame(stream=True, startingOffsets="earliest").select("value")
    query = collected(df.alias("a").join(df.alias("b"), "value"))
    assert await_rows(spark, query, 6) == list(range(6))
