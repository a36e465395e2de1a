"""Queries that are stopped and drivers that are killed: nothing is lost and nothing is repeated.

Spark's files are written once for each micro-batch of a checkpoint, so they contain what the
source returned for those offsets; if a repeated micro-batch returned others, records would be
missing or double.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kafkalite import Producer
from tests.spark.queries import TIMEOUT_S, await_sources, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.spark_session]

ROOT = Path(__file__).resolve().parents[2]
OFFSETS, COMMITS = "offsets", "commits"
"""The logs of a checkpoint: a file for each micro-batch that was begun, and that is committed."""
STARTED, SOURCES = "started", "sources"
RESTARTS = {STARTED: 10, SOURCES: 10, OFFSETS: 20, COMMITS: 10}
KILLS = {STARTED: 1, OFFSETS: 4, COMMITS: 3}
"""Number of stops of a query by the stage it has reached: stops at a fixed time would on a slow
machine come before its first micro-batch, and never test the later stages."""
SEED = random.randrange(1 << 32)


class Source(threading.Thread):
    """A thread that writes numbers to a topic until it is stopped."""

    def __init__(self, bootstrap, topic, rest_s):
        super().__init__(daemon=True)
        self.bootstrap, self.topic, self.rest_s = bootstrap, topic, rest_s
        self.count = 0
        self.ended = threading.Event()

    def run(self):
        with Producer(self.bootstrap) as producer:
            while not self.ended.wait(self.rest_s):
                for _ in range(50):
                    producer.send(self.topic, b"%d" % self.count)
                    self.count += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.join(30)


class Checkpoint:
    """The logs of a checkpoint, at the start of a query and now."""

    def __init__(self, path):
        self.path = path
        self.before = {log: self.newest(log) for log in (OFFSETS, COMMITS)}

    def newest(self, log):
        """Return the newest micro-batch in a log, -1 if there is none."""
        place = self.path / log
        names = os.listdir(place) if place.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    @property
    def is_interrupted(self):
        """True if a micro-batch was begun and not committed, so that it is repeated."""
        return self.before[OFFSETS] > self.before[COMMITS]

    def await_batch(self, log, is_active):
        """Wait until the next micro-batch is in a log, or the query has failed."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.newest(log) == self.before[log] and is_active():
            assert time.monotonic() < until_s, f"no micro-batch after {self.before}"
            time.sleep(0.01)


def moments(dice, counts):
    """Return stages in random order, each with a time to wait then: zero for half of them.

    Of two consecutive queries one has its sources, so that few Python processes of queries that
    were stopped earlier are still starting at the same time.  The first query writes its first
    micro-batch: Spark refuses a checkpoint in which that was interrupted and left a temporary file.
    """
    order = [moment for moment, count in counts.items() if moment != STARTED for _ in range(count)]
    dice.shuffle(order)
    order.remove(OFFSETS)
    order.insert(0, OFFSETS)
    for place in sorted(dice.sample(range(1, len(order)), counts[STARTED]), reverse=True):
        order.insert(place, STARTED)
    for moment in order:
        yield moment, dice.choice((0, dice.uniform(0, 0.5)))


def numbers_in(spark, directory):
    rows = spark.read.parquet(str(directory)).select("partition", "offset", "value").collect()
    assert len({(row.partition, row.offset) for row in rows}) == len(rows), "a record came twice"
    return sorted(int(row.value) for row in rows)


def test_restarts_from_a_checkpoint_lose_no_record(spark, broker, tmp_path):
    topic = broker.topic(partitions=3)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    interrupted = 0
    dice = random.Random(SEED)
    reader = spark.readStream.format("kafkalite").option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    reader = reader.option("subscribe", topic)
    frame = reader.option("maxOffsetsPerTrigger", "2000").load()

    def started():
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        return writer.start(out)

    with Source(broker.bootstrap, topic, 0.05) as source:
        for moment, rest_s in moments(dice, RESTARTS):
            point = Checkpoint(tmp_path / "checkpoint")
            interrupted += point.is_interrupted
            query = started()
            if moment == SOURCES:
                await_sources(query)
            elif moment != STARTED:
                point.await_batch(moment, lambda query=query: query.isActive)
            time.sleep(rest_s)
            query.stop()
            failure = failure_of(query)
            assert failure is None, f"seed {SEED}: {failure}"
    writer = reader.option("maxOffsetsPerTrigger", "1000000").load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", checkpoint)
    assert writer.trigger(availableNow=True).start(out).awaitTermination(TIMEOUT_S)
    assert numbers_in(spark, out) == list(range(source.count)), f"seed {SEED}"
    assert interrupted, "no micro-batch was stopped at work"


@pytest.fixture
def sockets():
    """A directory with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield directory


def test_killed_drivers_lose_no_record(spark, broker, tmp_path, sockets):
    topic = broker.topic(partitions=3)
    dice = random.Random(SEED)
    paths = [str(ROOT / "spark"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    # The environment of this process's JVM must not be inherited.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_ENV_LOADED"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tests.spark.stream_job", broker.bootstrap, topic,
               str(tmp_path), sockets]  # fmt: skip
    out = tmp_path / "out"
    interrupted = 0

    def job(log):
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True,
        )  # fmt: skip

    with Source(broker.bootstrap, topic, 0.02) as source, (tmp_path / "log").open("wb") as log:
        for moment, rest_s in moments(dice, KILLS):
            point = Checkpoint(tmp_path / "checkpoint")
            interrupted += point.is_interrupted
            victim = job(log)
            try:
                assert victim.stdout.readline() == b"running\n", (tmp_path / "log").read_text()
                if moment != STARTED:
                    point.await_batch(moment, lambda victim=victim: victim.poll() is None)
                time.sleep(rest_s)
                assert victim.poll() is None, (tmp_path / "log").read_text()
            finally:
                with contextlib.suppress(ProcessLookupError):  # it ended by itself: see above
                    os.killpg(victim.pid, signal.SIGKILL)
                victim.wait()
                victim.stdout.close()
    reader = spark.readStream.format("kafkalite").option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    writer = reader.load().select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(TIMEOUT_S)
    assert numbers_in(spark, out) == list(range(source.count)), f"seed {SEED}"
    assert interrupted, "no micro-batch was killed at work"
