"""The Spark connector beside Spark's own Kafka connector, on the same broker and the same topic.

One Spark session on two cores runs all jobs (spark_jobs.py), the two connectors in turn.  Spark's
connector comes from Maven, once.

Estimate: a row of seven columns costs Spark's JVM 0.6 us to take from Python and 0.35 by
mapInArrow, of which decoding is 0.05; a row that is counted where it is decoded costs neither.
Spark's own connector costs 0.7 to 1.5 us per row, in Java.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, have_memory_at_hand, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import ROOT
from tools.apache_kafka import classpath

PARTITIONS = 4
RECORDS = 10_000_000
TRICKLE = 50_000
KEYS = 1_000
RECORD_SIZE = 100
JOB_S_MAX = 3_000
# The newest of each on Maven; a newer pyspark runs them.
CONNECTOR = ("spark-sql-kafka-0-10_2.13", "4.2.0")
TOKENS = ("spark-token-provider-kafka-0-10_2.13", "4.0.0")
JARS = ("spark-sql-kafka", "spark-token-provider", "kafka-clients", "commons-pool2")
THEIRS = "Spark's Kafka connector"


def run(bench: Bench) -> None:
    records = bench.scale(RECORDS, at_least=20_000) // PARTITIONS * PARTITIONS
    trickle = bench.scale(TRICKLE, at_least=2_000)
    with ExitStack() as held:
        names = [held.enter_context(topic(bench.ours, PARTITIONS)) for _ in range(4)]
        fill(bench.ours.bootstrap, names[0], records)
        fill(bench.ours.bootstrap, names[1], trickle)
        directory = bench.scratch / "spark"
        directory.mkdir()
        try:
            told = jobs(
                bootstrap=bench.ours.bootstrap, topic=names[0], records=records, out=names[2:],
                trickle=names[1], repeats=min(3, bench.scale.repeats), jars=jars(),
                directory=str(directory), record_size=RECORD_SIZE,
            )  # fmt: skip
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    bench.figures.extend(figures(told, records))


def figures(told: dict[str, list[dict[str, float]]], records: int) -> list[Figure]:
    """Return the rates by what they are compared with, and the CPU time per row."""

    def rate(job: str, count: int = records) -> list[float]:
        return [count / each["seconds"] for each in told[job]]

    def cost(job: str, count: int = records) -> list[float]:
        return [each["cpu_s"] / count * 1e6 for each in told[job]]

    found = []
    for name, ours, theirs, least, count in (
        ("full rows", "full kafkalite", "full kafka", 0.9, records),
        ("full rows, fast path", "full fast", "full kafka", 1.5, records),
        ("aggregate", "aggregate kafkalite", "aggregate kafka", None, records),
        ("aggregate, fused", "aggregate fast", "aggregate kafka", 5, records),
        ("sink", "sink kafkalite", "sink kafka", 1, records // 4),
        ("AvailableNow", "available now kafkalite", "available now kafka", 1, records),
    ):
        budget = None if least is None else Budget(at_least=least)
        rates = {OURS: rate(ours, count), THEIRS: rate(theirs, count)}
        found.append(Figure(f"Spark: {name}", "rows/s", rates, budget))
        costs = {OURS: cost(ours, count), THEIRS: cost(theirs, count)}
        found.append(Figure(f"Spark: {name}: CPU a row", "us", costs))
    batches = {OURS: "streaming kafkalite", THEIRS: "streaming kafka"}
    p50 = {who: [each["p50_ms"] for each in told[job]] for who, job in batches.items()}
    found.append(Figure("Spark: 1,000-row micro-batch p50", "ms", p50, Budget(at_most=2)))
    rows = [each["rows"] for each in told["table toArrow rows"]]
    slow = [count / each["seconds"] for count, each in
            zip(rows, told["table toArrow"], strict=True)]  # fmt: skip
    both = {OURS: rate("table"), "toArrow()": slow}
    found.append(Figure("one pyarrow.Table", "rows/s", both, Budget(at_least=15)))
    return found


def fill(bootstrap: str, name: str, records: int) -> None:
    """Write records with one of a thousand keys and a hundred bytes, evenly to the partitions."""
    import numpy as np
    import pyarrow as pa

    from kafkalite import Producer

    have_memory_at_hand(records // PARTITIONS * (RECORD_SIZE + 20))
    step = min(1_000_000, records // PARTITIONS)
    keys = pa.array([b"key-%04d" % (number % KEYS) for number in range(step)])
    value = np.random.default_rng(0).integers(0, 256, step * RECORD_SIZE, np.uint8).tobytes()
    offsets = np.arange(0, (step + 1) * RECORD_SIZE, RECORD_SIZE, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(value)]
    values = pa.Array.from_buffers(pa.binary(), step, buffers)
    with Producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            place = pa.array(np.full(step, partition, np.int32))
            table = pa.table({"key": keys, "value": values, "partition": place})
            for begun in range(0, records // PARTITIONS, step):
                producer.send_arrow(name, table.slice(0, records // PARTITIONS - begun))
            producer.flush(JOB_S_MAX)


def jars() -> str:
    """Return the jars of Spark's own connector and of its dependencies besides Spark."""
    found = Path(classpath(CONNECTOR, [TOKENS], "org.apache.spark")).parent
    return ",".join(str(jar) for jar in sorted(found.iterdir()) if jar.name.startswith(JARS))


def jobs(**asked: Any) -> dict[str, list[dict[str, float]]]:
    """Run the jobs and return their figures, by name."""
    command = [sys.executable, "-m", "benchmarks.spark_jobs", json.dumps(asked)]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=JOB_S_MAX
    )
    if done.returncode:
        raise RuntimeError(f"the Spark jobs: {done.stderr[-3000:]}")
    told = defaultdict(list)
    for line in done.stdout.splitlines():
        each = json.loads(line)
        told[each.pop("job")].append(each)
    return told
