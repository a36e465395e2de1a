"""The jobs of the Spark benchmark, in one Spark session: each prints its times as a line of JSON.

    python -m benchmarks.spark_jobs '{"bootstrap": …, "topic": …, "records": …, "repeats": …,
                                      "trickle": …, "jars": …, "directory": …, "out": […]}'

Both connectors read the same topic in turn.  A time is of an action alone; the CPU time is that of
the driver's JVM and of every Python process under it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_kafkalite
from kafkalite import Consumer

OURS, THEIRS = "kafkalite", "kafka"
FUSED = "key binary, records bigint, size bigint"
PATIENCE_S = 600


def main(asked: dict[str, Any]) -> None:
    place = Path(asked["directory"])
    spark = pyspark_kafkalite.session(
        "benchmark",
        "local[2]",
        driver_memory="6g",
        **{
            "spark.ui.enabled": "false",
            "spark.jars": asked["jars"],
            "spark.local.dir": place / "blocks",
            "spark.driver.maxResultSize": "4g",
        },
    )
    jobs = Jobs(spark, asked, place)
    warm = jobs.sides()
    for side in (name for name in warm if "toArrow" not in name and "streaming" not in name):
        warm[side]()
    for _ in range(asked["repeats"]):
        for name, job in jobs.sides().items():
            begun_s, cpu_s = time.monotonic(), tree_cpu_s()
            found = job()
            told = {"seconds": time.monotonic() - begun_s, "cpu_s": tree_cpu_s() - cpu_s}
            print(json.dumps({"job": name, **told, **(found or {})}), flush=True)
    spark.stop()


class Jobs:
    """The jobs to time, by name."""

    def __init__(self, spark: SparkSession, asked: dict[str, Any], place: Path) -> None:
        self.spark, self.asked, self.place = spark, asked, place
        self.outs = iter(asked["out"] * 1000)
        self.number = 0

    def sides(self) -> dict[str, Callable[[], dict[str, float] | None]]:
        """Return the jobs in the order in which they are run."""
        both = [
            (f"{name} {who}", lambda run=run, who=who: run(who))
            for name, run in (
                ("full", self.full), ("aggregate", self.aggregate), ("sink", self.sink),
                ("streaming", self.streaming), ("available now", self.available_now),
            )
            for who in (OURS, THEIRS)
        ]  # fmt: skip
        fast = [("full fast", self.full_fast), ("aggregate fast", self.aggregate_fast)]
        arrow = [("table", self.table), ("table toArrow", self.to_arrow)]
        return dict([*both[:2], *fast, *both[2:], *arrow])

    def read(self, who: str, topic: str | None = None, stream: bool = False) -> Any:
        reader = (self.spark.readStream if stream else self.spark.read).format(who)
        reader = reader.option("kafka.bootstrap.servers", self.asked["bootstrap"])
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("subscribe", topic or self.asked["topic"])

    def full(self, who: str) -> None:
        noop(self.read(who).load())

    def full_fast(self) -> None:
        noop(self.fast())

    def fast(self, **keywords: Any) -> DataFrame:
        return pyspark_kafkalite.read(
            self.spark, self.asked["topic"], bootstrap=self.asked["bootstrap"], **keywords
        )

    def aggregate(self, who: str) -> None:
        found = self.read(who).load().groupBy("key").agg(
            F.count("*").alias("records"), F.sum(F.length("value")).alias("size")
        )  # fmt: skip
        self.check(found)

    def aggregate_fast(self) -> None:
        parts = self.fast(columns=["key", "value"], map_arrow=partial_totals, schema=FUSED)
        self.check(
            parts.groupBy("key").agg(F.sum("records").alias("records"), F.sum("size").alias("size"))
        )

    def check(self, totals: DataFrame) -> None:
        """Check that the totals are complete and correct."""
        rows = totals.collect()
        assert sum(row.records for row in rows) == self.asked["records"]
        assert sum(row.size for row in rows) == self.asked["records"] * self.asked["record_size"]

    def sink(self, who: str) -> None:
        rows = self.spark.range(0, self.asked["records"] // 4, 1, 4).select(
            F.encode(F.col("id").cast("string"), "utf-8").alias("key"),
            F.encode(F.lpad(F.col("id").cast("string"), 100, "x"), "utf-8").alias("value"),
        )
        writer = rows.write.format(who).mode("append").option("topic", next(self.outs))
        writer.option("kafka.bootstrap.servers", self.asked["bootstrap"]).save()

    def started(self, frame: DataFrame, **trigger: Any) -> Any:
        self.number += 1
        checkpoint = str(self.place / f"checkpoint-{self.number}")
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()

    def streaming(self, who: str) -> dict[str, float]:
        """Run micro-batches of a thousand rows; the first are not counted."""
        reader = self.read(who, self.asked["trickle"], stream=True)
        query = self.started(reader.option("maxOffsetsPerTrigger", "1000").load(),
                             availableNow=True)  # fmt: skip
        assert query.awaitTermination(PATIENCE_S)
        took = [each.durationMs["triggerExecution"] for each in query.recentProgress
                if each.numInputRows == 1000]  # fmt: skip
        return {"p50_ms": statistics.median(took[5:] or took)}

    def available_now(self, who: str) -> None:
        frame = self.read(who, stream=True).load()
        query = self.started(frame, availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        assert query.exception() is None
        assert sum(each.numInputRows for each in query.recentProgress) == self.asked["records"]

    def table(self) -> None:
        with Consumer(self.asked["bootstrap"], topics=self.asked["topic"]) as consumer:
            assert len(consumer.to_table()) == self.asked["records"]

    def to_arrow(self) -> None:
        """Convert a quarter of the records, which a driver can do in reasonable time."""
        few = self.read(OURS).load().where("partition = 0")
        rows = len(few.toArrow())
        print(json.dumps({"job": "table toArrow rows", "rows": rows}), flush=True)


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def partial_totals(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return count and length by key, of one batch."""
    sizes = pc.binary_length(batch.column("value"))
    table = pa.table({"key": batch.column("key"), "size": pc.cast(sizes, pa.int64())})
    found = table.group_by("key").aggregate([("size", "count"), ("size", "sum")])
    columns = [found.column("key"), found.column("size_count"), found.column("size_sum")]
    return pa.RecordBatch.from_arrays(
        [column.combine_chunks() for column in columns], names=["key", "records", "size"]
    )


def tree_cpu_s() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones."""
    return sum(stat_cpu_s(pid) for pid in tree(os.getpid()))


def tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from tree(int(child))


def stat_cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
