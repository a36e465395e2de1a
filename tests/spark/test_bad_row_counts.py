"""Counts of bad rows: the driver gets those of each micro-batch, each row once."""

import logging
import os
import signal
import subprocess
import sys
import uuid
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from kafkalite import Consumer, Producer
from pyspark_kafkalite import LagListener, read_stream
from pyspark_kafkalite.connector import bad_row_counts
from pyspark_kafkalite.connector.bad_row_counts import BATCH_ID, QUERY_ID, BadRowCounts
from pyspark_kafkalite.connector.offset_ranges import OffsetRange
from pyspark_kafkalite.connector.range_pipeline import RangePipeline
from pyspark_kafkalite.connector.source_options import source_options
from pyspark_kafkalite.decoding import Decode
from pyspark_kafkalite.decoding.bad_rows import BadRows
from tests.client.consuming import take
from tests.spark.queries import TIMEOUT_S

QUERY = str(uuid.UUID(int=7))
RANGE = OffsetRange("flights", 0, 100, 200)
OTHER = OffsetRange("flights", 1, 100, 200)
LOGGER = "pyspark_kafkalite"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The directory with those of all queries, for this test alone."""
    monkeypatch.setattr(bad_row_counts.tempfile, "tempdir", str(tmp_path))
    return bad_row_counts.place()


@pytest.fixture
def task(monkeypatch):
    """A function that makes the code after it run as in a task of a micro-batch."""

    def of(batch, attempt=1, query=QUERY):
        properties = {QUERY_ID: query, BATCH_ID: None if batch is None else str(batch)}
        context = SimpleNamespace(getLocalProperty=properties.get, taskAttemptId=lambda: attempt)
        monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)

    return of


def reported(*counts):
    for wanted, bad_rows in counts:
        bad_row_counts.report(wanted, bad_rows)


# Counts, without a JVM.


def test_counts_of_a_batch_are_added_and_their_files_removed(directory, task):
    counts = BadRowCounts(QUERY)
    task(0)
    reported((RANGE, 2), (OTHER, 3))
    task(0, attempt=2)
    reported((RANGE._replace(start=200, end=300), 5))
    assert counts.take(0) == 10
    assert os.listdir(counts.path) == []
    assert counts.take(0) == counts.take(1) == 0


def test_retried_range_is_counted_once(directory, task):
    counts = BadRowCounts(QUERY)
    for attempt, bad_rows in ((1, 2), (2, 7), (3, 7), (4, 1)):
        task(0, attempt)
        reported((RANGE, bad_rows))
    assert counts.take(0) == 7


def test_late_task_is_not_counted_and_missed_batch_is(directory, task):
    counts = BadRowCounts(QUERY)
    for batch in (3, 4, 5):
        task(batch)
        reported((RANGE, 10**batch))
    assert counts.take(4) == 10**3 + 10**4, "Spark dropped the report of batch 3"
    task(4, attempt=9)
    reported((RANGE, 1))
    assert counts.take(5) == 10**5
    assert os.listdir(counts.path) == []


def test_incomplete_line_of_a_killed_task_is_ignored(directory, task):
    counts = BadRowCounts(QUERY)
    task(0)
    reported((RANGE, 2))
    (counts.path / "0.2.3").write_text('["flights", 1, 100, 200, 4]\n["flights", 2, 1')
    assert counts.take(0) == 6


def test_every_listener_of_a_query_counts_its_rows(directory, task):
    ours = [BadRowCounts(QUERY), BadRowCounts(QUERY)]
    others = BadRowCounts(str(uuid.UUID(int=8)))
    task(0)
    reported((RANGE, 2))
    assert [each.take(0) for each in ours] == [2, 2] and others.take(0) == 0


@pytest.mark.parametrize(("batch", "query"), [(None, QUERY), (0, None)])
def test_task_outside_a_micro_batch_writes_no_count(directory, task, batch, query):
    counts = BadRowCounts(QUERY)
    task(batch, query=query)
    reported((RANGE, 2))
    assert os.listdir(counts.path) == []


def test_counts_are_not_written_without_a_listener(directory, task, tmp_path):
    task(0)
    reported((RANGE, 2))
    assert list(tmp_path.iterdir()) == []


def test_lag_listener_accepts_the_former_name_of_its_argument(directory):
    calls = []

    def called(*arguments):
        calls.append(arguments)

    source = SimpleNamespace(
        endOffset={"t": {"0": 3}}, latestOffset={"t": {"0": 5}}, description="t"
    )
    progress = SimpleNamespace(name="query", id=QUERY, runId=QUERY, batchId=0, sources=[source])
    for listener in (LagListener(called), LagListener(on_lag=called), LagListener(told=called)):
        listener.onQueryProgress(SimpleNamespace(progress=progress))
    assert calls == [("query", "0: t", (2, 2, 2.0))] * 3
    with pytest.raises(TypeError, match="both given"):
        LagListener(called, told=called)


def test_directory_open_to_others_is_not_used(directory, task, caplog):
    directory.mkdir()
    directory.chmod(0o755)
    (directory / f"{QUERY}.x").mkdir()
    task(0)
    reported((RANGE, 2))
    assert os.listdir(directory / f"{QUERY}.x") == []
    listener = LagListener()
    with caplog.at_level(logging.WARNING, LOGGER):
        started(listener)
        progressed(listener, 0)
    assert listener.bad_rows == {}
    (message,) = caplog.messages
    assert "are not counted" in message and "mode 700" in message


def test_count_that_cannot_be_written_is_logged_and_fails_no_task(directory, task, caplog):
    counts = BadRowCounts(QUERY)
    task(0)
    (counts.path / f"0.1.{os.getpid()}").mkdir()
    with caplog.at_level(logging.WARNING, LOGGER):
        reported((RANGE, 2))
    assert "was not written" in caplog.text and "Is a directory" in caplog.text


KILLED = """
import sys
from pyspark_kafkalite.connector.bad_row_counts import BadRowCounts, tempfile
tempfile.tempdir = sys.argv[1]
counts = BadRowCounts("left")
print(counts.path, flush=True)
sys.stdin.read()
"""


def test_directories_of_killed_drivers_are_removed(directory, tmp_path):
    held = BadRowCounts(QUERY)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as driver:
        try:
            path = driver.stdout.readline().strip()
            BadRowCounts("another").close()
            assert os.path.isdir(path), "its driver runs"
        finally:
            driver.send_signal(signal.SIGKILL)
    assert os.path.isdir(path)
    newest = BadRowCounts("another")
    assert sorted(directory.iterdir()) == sorted([held.path, newest.path])


def test_directory_is_removed_with_its_owner_and_not_by_a_fork(directory):
    counts = BadRowCounts(QUERY)
    if (child := os.fork()) == 0:
        counts.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert counts.path.is_dir()
    path = counts.path
    del counts
    assert not path.exists()


# The listener.


def started(listener, run=1):
    listener.onQueryStarted(SimpleNamespace(id=QUERY, runId=run))


def progressed(listener, batch, run=1):
    progress = SimpleNamespace(id=QUERY, runId=run, batchId=batch, sources=[], name=None)
    listener.onQueryProgress(SimpleNamespace(progress=progress))


def ended(listener, run=1):
    listener.onQueryTerminated(SimpleNamespace(id=QUERY, runId=run))


def test_listener_adds_counts_and_warns_once_per_batch(directory, task, caplog):
    listener = LagListener()
    started(listener)
    with caplog.at_level(logging.WARNING, LOGGER):
        for batch, bad_rows in enumerate((2, 0, 3)):
            task(batch)
            if bad_rows:
                reported((RANGE, bad_rows), (OTHER, 1))
            progressed(listener, batch)
    assert listener.bad_rows == {QUERY: 7}
    first, last = caplog.messages
    assert first.endswith(f"query={QUERY} batch=0 bad_rows=3 bad_rows_total=3")
    assert last.endswith(f"query={QUERY} batch=2 bad_rows=4 bad_rows_total=7")
    ended(listener)
    assert list(directory.iterdir()) == [] and listener.bad_rows == {QUERY: 7}


def test_next_run_may_start_before_the_end_of_the_last_is_reported(directory, task):
    listener = LagListener()
    started(listener, run=1)
    started(listener, run=2)
    ended(listener, run=1)
    task(5)
    reported((RANGE, 2))
    progressed(listener, 5, run=2)
    assert listener.bad_rows == {QUERY: 2}
    ended(listener, run=2)
    assert list(directory.iterdir()) == []


def test_listener_added_later_counts_from_then_on(directory, task):
    listener = LagListener()
    task(0)
    reported((RANGE, 1))
    progressed(listener, 0)
    task(1)
    reported((RANGE, 2))
    progressed(listener, 1)
    assert listener.bad_rows == {QUERY: 2}


# The work of a task.


def numbers(broker, topic, good, bad, partition=0):
    """Write `good` good values, and `bad` bad ones after them."""
    with Producer(broker.bootstrap) as producer:
        for number in range(good):
            producer.send(topic, b'{"n": %d}' % number, partition=partition)
        for _ in range(bad):
            producer.send(topic, b"{", partition=partition)


@pytest.fixture
def reports(monkeypatch):
    """The reports of a task about its ranges."""
    calls = []
    monkeypatch.setattr(bad_row_counts, "report", lambda *arguments: calls.append(arguments))
    return calls


def pipeline(broker, topic):
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    decode = Decode("json", "n INT", bad_rows=BadRows("drop"))
    return RangePipeline(source_options(options, stream=False), decode, ["n"])


def test_task_reports_a_range_with_bad_rows_once(broker, reports):
    topic = broker.topic(1)
    numbers(broker, topic, good=10, bad=3)
    made = pipeline(broker, topic)
    good, whole = OffsetRange(topic, 0, 0, 10), OffsetRange(topic, 0, 0, 13)
    assert sum(map(len, made.of(good))) == 10 and reports == []
    assert sum(map(len, made.of(whole))) == 10 and reports == [(whole, 3)]


def test_range_closed_before_its_end_is_reported(broker, reports):
    topic = broker.topic(1)
    numbers(broker, topic, good=1, bad=2)
    wanted = OffsetRange(topic, 0, 0, 3)
    batches = pipeline(broker, topic).of(wanted)
    assert len(next(batches)) == 1
    batches.close()
    assert reports == [(wanted, 2)]


# With Spark.


@pytest.fixture
def listener(spark):
    made = LagListener()
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)


def await_events(spark):
    """Wait until listeners have received all events."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()


def bad_rows_directories():
    directory = bad_row_counts.place()
    return sorted(directory.iterdir()) if directory.is_dir() else []


@pytest.mark.spark_session
@pytest.mark.spark
def test_bad_rows_of_a_stream_reach_the_driver(spark, broker, listener, tmp_path, caplog):
    topic = broker.topic(2)
    numbers(broker, topic, good=8, bad=4, partition=0)
    numbers(broker, topic, good=8, bad=4, partition=1)
    before = bad_rows_directories()
    reader = spark.readStream.format("kafkalite").options(
        value_format="json", value_schema="n INT", on_bad_rows="drop",
        startingOffsets="earliest", maxOffsetsPerTrigger="12", subscribe=topic,
    )  # fmt: skip
    frame = reader.option("kafka.bootstrap.servers", broker.bootstrap).load().select("n")
    writer = frame.writeStream.format("memory").queryName("good").trigger(availableNow=True)
    with caplog.at_level(logging.WARNING, LOGGER):
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        assert query.awaitTermination(TIMEOUT_S)
        await_events(spark)
    assert spark.table("good").count() == 16
    assert listener.bad_rows == {str(query.id): 8}
    messages = [each for each in caplog.messages if f"query={query.id}" in each]
    assert len(messages) == 1 and "batch=1 bad_rows=8 " in messages[0], "batch 0 had none"
    assert bad_rows_directories() == before


@pytest.mark.spark
@pytest.mark.spark_session
def test_bad_rows_of_a_batch_read_twice_are_counted_once(spark, broker, listener, tmp_path):
    topic, quarantine = broker.topic(2), broker.topic(1)
    numbers(broker, topic, good=3, bad=2, partition=0)
    numbers(broker, topic, good=3, bad=1, partition=1)
    frame = read_stream(
        spark, topic, bootstrap=broker.bootstrap, columns=["n"], decode="json",
        value_schema="n INT", on_bad_rows="quarantine", quarantine_topic=quarantine,
        startingOffsets="earliest",
    )  # fmt: skip
    seen = []

    def twice(rows, _batch):
        seen.append((rows.count(), len(rows.collect())))

    writer = frame.writeStream.foreachBatch(twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(TIMEOUT_S)
    await_events(spark)
    assert seen == [(6, 6)] and listener.bad_rows == {str(query.id): 3}
    with Consumer(broker.bootstrap, topics=[quarantine], auto_offset_reset="earliest") as consumer:
        assert len(take(consumer, 6)) == 6, "a quarantine has each at least once"
