"""Queries that are stopped and drivers that are killed: nothing is lost and nothing comes twice.

Spark's files are written once for each micro-batch of a checkpoint, so what stands in them is what
the source gave for those offsets; were they ever other ones, records would be missing or double.
"""

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
from tests.spark.queries import PATIENCE_S, await_sources, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.spark_session]

ROOT = Path(__file__).resolve().parents[2]
RESTARTS, KILLS = 100, 15
SEED = random.randrange(1 << 32)


class Source(threading.Thread):
    """A thread that writes numbers to a topic until it is told to stop."""

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


def numbers_in(spark, directory):
    rows = spark.read.parquet(str(directory)).select("partition", "offset", "value").collect()
    assert len({(row.partition, row.offset) for row in rows}) == len(rows), "a record came twice"
    return sorted(int(row.value) for row in rows)


def test_a_hundred_restarts_from_a_checkpoint_lose_nothing(spark, broker, tmp_path):
    topic = broker.topic(partitions=3)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    dice = random.Random(SEED)
    reader = spark.readStream.format("kafkalite").option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
    reader = reader.option("subscribe", topic)
    frame = reader.option("maxOffsetsPerTrigger", "2000").load()

    def started():
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        return writer.start(out)

    with Source(broker.bootstrap, topic, 0.05) as source:
        for _ in range(RESTARTS):
            query = started()
            if dice.random() < 0.8:
                await_sources(query)
            time.sleep(dice.uniform(0, 1.2))
            query.stop()
            failure = failure_of(query)
            assert failure is None, f"seed {SEED}: {failure}"
    writer = reader.option("maxOffsetsPerTrigger", "1000000").load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", checkpoint)
    assert writer.trigger(availableNow=True).start(out).awaitTermination(PATIENCE_S)
    assert numbers_in(spark, out) == list(range(source.count)), f"seed {SEED}"


@pytest.fixture
def sockets():
    """A directory with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield directory


def test_killed_drivers_lose_nothing(spark, broker, tmp_path, sockets):
    topic = broker.topic(partitions=3)
    dice = random.Random(SEED)
    paths = [str(ROOT / "spark"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    # The JVM of this process is not theirs.
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_ENV_LOADED"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "tests.spark.stream_job", broker.bootstrap, topic,
               str(tmp_path), sockets]  # fmt: skip
    out = tmp_path / "out"

    def job(log):
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log,
            start_new_session=True,
        )  # fmt: skip

    with Source(broker.bootstrap, topic, 0.02) as source, (tmp_path / "log").open("wb") as log:
        for _ in range(KILLS):
            victim = job(log)
            try:
                assert victim.stdout.readline() == b"running\n", (tmp_path / "log").read_text()
                time.sleep(dice.uniform(0.5, 6))
            finally:
                os.killpg(victim.pid, signal.SIGKILL)
                victim.wait()
                victim.stdout.close()
    reader = spark.readStream.format("kafkalite").option("startingOffsets", "earliest")
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    writer = reader.load().select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(out))
    assert query.awaitTermination(PATIENCE_S)
    assert numbers_in(spark, out) == list(range(source.count)), f"seed {SEED}"
