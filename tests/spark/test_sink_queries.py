"""The sink under Spark: batches and streams into real topics, restarts and errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import functions as F

from kafkalite import Consumer
from kafkalite.testing import Broker
from pyspark_kafkalite.connector.sink import appending

pytestmark = pytest.mark.spark_session

SHORT_TIMEOUTS = {
    "kafka.max.block.ms": "1000", "kafka.request.timeout.ms": "1000",
    "kafka.delivery.timeout.ms": "2000", "kafka.linger.ms": "0",
}  # fmt: skip
STREAM_S_MAX = 120
ROOT = Path(__file__).resolve().parents[2]


def batch(frame, broker: Broker, mode: str = "append", **options: str) -> None:
    to = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    frame.write.format("kafkalite").options(**to).mode(mode).save()


def records_in(broker: Broker, topic: str, columns: list[str] | None = None) -> list:
    """Return a topic's records in order, as tuples of the columns or the values alone."""
    with Consumer(broker.bootstrap, topics=[topic]) as consumer:
        found = consumer.to_table(columns=columns or ["value"], timeout=30).to_pylist()
    if columns is None:
        return [each["value"] for each in found]
    return [tuple(each[name] for name in columns) for each in found]


def counted(broker: Broker, topic: str) -> list[int]:
    return sorted(map(int, records_in(broker, topic)))


# Batches.


def test_rows_are_written_to_topics_of_column_and_option(spark, broker):
    by_column, other, by_option = broker.topic(2), broker.topic(), broker.topic(3)
    rows = spark.range(3_000).selectExpr(
        "cast(id as string) as value",
        f"if(id % 3 = 0, '{other}', '{by_column}') as topic",
    )
    batch(rows, broker)
    assert counted(broker, other) == list(range(0, 3_000, 3))
    assert counted(broker, by_column) == [number for number in range(3_000) if number % 3]
    batch(rows, broker, topic=by_option)
    assert counted(broker, by_option) == list(range(3_000))


def test_every_column_survives_write_and_read(spark, broker):
    topic = broker.topic(2)
    rows = spark.sql("""
        select * from values
            (binary('k'), 'v', 1, timestamp '2013-01-01 10:00:00.123456 UTC',
                array(named_struct('key', 'a', 'value', binary('1')),
                      named_struct('key', 'b', 'value', cast(null as binary)),
                      named_struct('key', 'a', 'value', binary('')))),
            (null, null, 0, timestamp '1970-01-01 00:00:00 UTC', null)
        as rows (key, value, partition, timestamp, headers)
    """)
    for zone in ("UTC", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        batch(rows, broker, topic=topic)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    found = records_in(broker, topic, ["partition", "key", "value", "timestamp", "headers"])
    assert [(*each[:3], int(each[3].timestamp() * 1_000 + 0.5)) for each in found] == [
        (0, None, None, 0), (0, None, None, 0),
        (1, b"k", b"v", 1_357_034_400_123), (1, b"k", b"v", 1_357_034_400_123),
    ]  # fmt: skip
    headers = [[tuple(pair.values()) for pair in each[-1] or []] for each in found]
    assert headers == [[], [], *[[("a", b"1"), ("b", None), ("a", b"")]] * 2]


def test_read_rows_are_written_unchanged(spark, broker):
    """All columns of the source are written back, including those that the sink ignores."""
    here, there = broker.topic(2), broker.topic(2)
    batch(spark.range(100).selectExpr("cast(id as string) as value"), broker, topic=here)
    read = spark.read.format("kafkalite").options(
        **{"kafka.bootstrap.servers": broker.bootstrap, "subscribe": here, "includeHeaders": "true"}
    )
    batch(read.load(), broker, topic=there)
    columns = ["partition", "offset", "key", "value", "timestamp"]
    assert records_in(broker, there, columns) == records_in(broker, here, columns)


@pytest.mark.parametrize(
    "columns, words",
    [
        (["'k' as key"], "Required column 'value' not found"),
        (["id as value"], "value has the unsupported type bigint"),
        (["'v' as value", "id as partition"], "partition has the unsupported type bigint"),
        (["'v' as value", "map('a', 'b') as headers"], "headers has the unsupported type map"),
    ],
)
def test_unsupported_columns_raise_on_the_driver(spark, broker, columns, words):
    with pytest.raises(AnalysisException, match=words):
        batch(spark.range(1).selectExpr(*columns), broker, topic="untouched")


@pytest.mark.parametrize(
    "options, words",
    [
        ({}, "option topic is required"),
        ({"topic": "t", "kafka.value.serializer": "S"}, "kafka.value.serializer"),
        ({"topic": "t", "exactlyOnce": "true"}, "requires transactions"),
        ({"topic": "t", "kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers must be"),
    ],
)
def test_invalid_options_raise_on_the_driver(spark, broker, options, words):
    with pytest.raises(AnalysisException, match=words):
        batch(spark.sql("select 'v' as value"), broker, **options)


@pytest.mark.spark
def test_only_append_mode_is_accepted(spark, broker):
    topic = broker.topic()
    rows = spark.sql("select 'v' as value")
    with pytest.raises(AnalysisException, match="Save mode Overwrite is not allowed"):
        batch(rows, broker, "overwrite", topic=topic)
    # Spark's own message, for any source in Python.
    for mode in ("ignore", "errorifexists"):
        with pytest.raises(AnalysisException, match="use either the .Append."):
            batch(rows, broker, mode, topic=topic)
    batch(rows, broker, "append", topic=topic)
    assert records_in(broker, topic) == [b"v"]


def test_sql_insert_writes_a_record(spark, broker):
    topic = broker.topic()
    options = f"'kafka.bootstrap.servers' '{broker.bootstrap}', 'topic' '{topic}'"
    spark.sql("create table inserted using kafkalite")
    try:
        spark.sql(f"insert into inserted with ({options}) (value) select binary('by sql')")
    finally:
        spark.sql("drop table inserted")
    assert records_in(broker, topic, ["key", "value"]) == [(None, b"by sql")]


@pytest.mark.spark
def test_row_without_topic_fails_the_write(spark, broker):
    rows = spark.sql("select 'v' as value, cast(null as string) as topic")
    with pytest.raises(PythonException, match="KAFKA_NULL_TOPIC_IN_DATA"):
        batch(rows, broker)


@pytest.mark.spark
def test_records_nearly_as_large_as_the_buffer_are_written(spark, broker):
    topic = broker.topic(2)
    rows = spark.range(40).selectExpr("repeat(cast(id % 10 as string), 15000) as value")
    small = {"kafka.buffer.memory": "16384", "kafka.max.block.ms": "5000"}
    batch(rows, broker, topic=topic, **small)
    found = records_in(broker, topic)
    assert sorted(found) == sorted([b"%d" % (number % 10) * 15_000 for number in range(40)])


@pytest.mark.spark
def test_unreachable_broker_raises_in_time(spark):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    options = {"kafka.bootstrap.servers": address, "topic": "t", **SHORT_TIMEOUTS}
    rows = spark.sql("select 'v' as value")
    began_s = time.monotonic()
    with pytest.raises(PythonException, match=f"topic 't' at {address}.*kafka.bootstrap.servers"):
        rows.write.format("kafkalite").options(**options).mode("append").save()
    assert time.monotonic() - began_s < 60


@pytest.mark.spark
def test_consecutive_tasks_of_a_worker_write_all_rows(spark, broker):
    """A worker serves many tasks with the producer that it keeps."""
    topic = broker.topic(2)
    for first in range(0, 500, 100):
        rows = spark.range(first, first + 100, 1, 4).selectExpr("cast(id as string) as value")
        batch(rows, broker, topic=topic)
    assert counted(broker, topic) == list(range(500))


# Streams.


def stream(frame, broker: Broker, checkpoint: Path, mode: str = "append", **options: str):
    to = {"kafka.bootstrap.servers": broker.bootstrap, "checkpointLocation": str(checkpoint)}
    return frame.writeStream.format("kafkalite").outputMode(mode).options(**to, **options)


def to_its_end(writer) -> list[dict]:
    """Write all available rows; return the progress of each micro-batch."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(STREAM_S_MAX)
    finally:
        query.stop()
    return query.recentProgress


def lines(spark, directory: Path):
    directory.mkdir(exist_ok=True)
    return spark.readStream.format("text").load(str(directory))


def add(directory: Path, name: str, *found: str) -> None:
    """Add a file of lines atomically."""
    (directory / f".{name}").write_text("".join(f"{line}\n" for line in found))
    os.rename(directory / f".{name}", directory / name)


def test_stream_continues_from_its_checkpoint(spark, broker, tmp_path):
    topic = broker.topic(2)
    rows = lines(spark, tmp_path / "in")
    for first in (0, 100, 200):
        add(tmp_path / "in", f"{first}.txt", *map(str, range(first, first + 100)))
        progress = to_its_end(stream(rows, broker, tmp_path / "point", topic=topic))
        assert [each["sink"]["numOutputRows"] for each in progress] == [100]
        assert counted(broker, topic) == list(range(first + 100))
    to_its_end(stream(rows, broker, tmp_path / "point", topic=topic))
    assert counted(broker, topic) == list(range(300))


@pytest.mark.spark
def test_stopped_stream_loses_no_row(spark, broker, tmp_path):
    topic = broker.topic(2)
    a_batch = 500
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", a_batch)
    rows = source.load().selectExpr("cast(value as string) as value", "timestamp")
    for round_of_two in (1, 2):
        query = stream(rows, broker, tmp_path / "point", topic=topic).start()
        try:
            end_s = time.monotonic() + STREAM_S_MAX
            while len(records_in(broker, topic)) < 2_000 * round_of_two:
                assert query.exception() is None
                assert time.monotonic() < end_s
                time.sleep(0.2)
        finally:
            query.stop()
    # The batch that was stopped may be there in part; the next start would have sent it again.
    done = a_batch * sum(path.name.isdigit() for path in (tmp_path / "point/commits").iterdir())
    found = set(map(int, records_in(broker, topic)))
    assert done >= 3_000 and set(range(done)) <= found
    assert max(found) < done + a_batch


@pytest.mark.parametrize(
    "mode",
    [
        "append",
        pytest.param("update", marks=pytest.mark.spark),
        pytest.param("complete", marks=pytest.mark.spark),
    ],
)
def test_every_output_mode_appends(spark, broker, tmp_path, mode):
    topic = broker.topic()
    rows = lines(spark, tmp_path / "in")
    if mode != "append":
        told = F.concat_ws("=", "value", "count").alias("value")
        rows = rows.groupBy("value").count().select(told)
    wanted = {
        "append": [b"a", b"b", b"b", b"b"],
        "update": [b"a=1", b"b=1", b"b=3"],
        "complete": [b"a=1", b"a=1", b"b=1", b"b=3"],
    }
    writer = stream(rows, broker, tmp_path / "point", mode, topic=topic)
    if mode == "update":
        # Spark's own message, for any sink in Python.
        add(tmp_path / "in", "0.txt")
        with pytest.raises(StreamingQueryException, match="does not support Update mode"):
            to_its_end(stream(rows, broker, tmp_path / "other", mode, topic=topic))
        kafka = {"kafka.bootstrap.servers": broker.bootstrap}
        writer = writer.foreachBatch(appending(topic=topic, **kafka))
    add(tmp_path / "in", "1.txt", "a", "b")
    to_its_end(writer)
    add(tmp_path / "in", "2.txt", "b", "b")
    to_its_end(writer)
    assert sorted(records_in(broker, topic)) == wanted[mode]


@pytest.mark.spark
def test_stream_writes_to_topics_of_its_column_with_headers(spark, broker, tmp_path):
    left, right = broker.topic(), broker.topic()
    rows = lines(spark, tmp_path / "in").selectExpr(
        "value", f"if(value < 'm', '{left}', '{right}') as topic", "binary(value) as key",
        "array(struct('h' as key, binary(value) as value)) as headers",
    )  # fmt: skip
    add(tmp_path / "in", "1.txt", "a", "z", "b")
    to_its_end(stream(rows, broker, tmp_path / "point"))
    assert records_in(broker, left, ["key", "headers"]) == [
        (line, [{"key": "h", "value": line}]) for line in (b"a", b"b")
    ]
    assert records_in(broker, right) == [b"z"]


@pytest.mark.spark
def test_one_query_writes_to_several_topics(spark, broker, tmp_path):
    first, second = broker.topic(), broker.topic()
    rows = lines(spark, tmp_path / "in")
    add(tmp_path / "in", "1.txt", "a", "b")

    def twice(frame, number: int) -> None:
        batch(frame, broker, topic=first)
        batch(frame.selectExpr("upper(value) as value"), broker, topic=second)

    writer = rows.writeStream.foreachBatch(twice)
    to_its_end(writer.option("checkpointLocation", str(tmp_path / "point")))
    assert (records_in(broker, first), records_in(broker, second)) == ([b"a", b"b"], [b"A", b"B"])


@pytest.mark.spark
def test_invalid_stream_sink_raises(spark, broker, tmp_path):
    rows = lines(spark, tmp_path / "in")
    add(tmp_path / "in", "1.txt", "a")
    with pytest.raises(StreamingQueryException, match="option topic is required"):
        to_its_end(stream(rows, broker, tmp_path / "1"))
    with pytest.raises(StreamingQueryException, match="kafka.key.serializer"):
        bad = {"topic": "t", "kafka.key.serializer": "S"}
        to_its_end(stream(rows, broker, tmp_path / "2", **bad))
    without = rows.selectExpr("value", "cast(null as string) as topic")
    with pytest.raises(StreamingQueryException, match="KAFKA_NULL_TOPIC_IN_DATA"):
        to_its_end(stream(without, broker, tmp_path / "3"))


@pytest.mark.spark
def test_stream_fails_with_a_dead_broker_and_continues_after_restart(spark, tmp_path):
    with Broker() as one:
        topic = one.topic(2)
        rows = lines(spark, tmp_path / "in")
        add(tmp_path / "in", "1.txt", *map(str, range(100)))
        to_its_end(stream(rows, one, tmp_path / "point", topic=topic, **SHORT_TIMEOUTS))
        one.kill()
        add(tmp_path / "in", "2.txt", *map(str, range(100, 200)))
        began_s = time.monotonic()
        with pytest.raises(StreamingQueryException, match=f"not written to topic '{topic}'"):
            to_its_end(stream(rows, one, tmp_path / "point", topic=topic, **SHORT_TIMEOUTS))
        assert time.monotonic() - began_s < 60
        one.start()
        to_its_end(stream(rows, one, tmp_path / "point", topic=topic, **SHORT_TIMEOUTS))
        assert counted(one, topic) == list(range(200))


@pytest.mark.spark
def test_task_retried_by_spark_loses_no_row(broker, tmp_path):
    """It has a session of its own, because the number of attempts is part of the master's URL."""
    topic = broker.topic(2)
    code = """
        import os, sys
        from pyspark_kafkalite.launch.session import session

        bootstrap, topic, mark = sys.argv[1:]

        def failing_once(batches):
            for number, rows in enumerate(batches):
                if number == 2 and not os.path.exists(mark):
                    open(mark, "w").close()
                    raise OSError("the first attempt ends here")
                yield rows

        spark = session("retry", "local[1,3]", **{
            "spark.ui.enabled": "false", "spark.driver.memory": "1g",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        })
        rows = spark.range(0, 1000, 1, 1).selectExpr("cast(id as string) as value")
        rows = rows.mapInArrow(failing_once, "value string")
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        rows.write.format("kafkalite").options(**options).mode("append").save()
        spark.stop()
    """
    mark = tmp_path / "failed"
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), broker.bootstrap, topic, str(mark)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'spark'}:{ROOT}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4_000:]
    assert mark.exists()
    found = counted(broker, topic)
    assert set(found) == set(range(1_000))
    assert len(found) <= 1_200, "only what the first attempt had sent is there twice"
