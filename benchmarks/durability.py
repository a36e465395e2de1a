"""Produce with every acknowledged record on the disk: `durability=fsync`, acks all.

Estimate: a flush of a few KiB costs this disk about 0.1 to 1 ms, however many requests share it.
One connection pays it for every batch; a hundred at once share a flush, so throughput should grow
almost as they do, and more files increase the cost only until one syncfs replaces their flushes.
Apache Kafka does the same with flush.messages=1, in the request's own thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from benchmarks.frames import batch_of, produce_frame
from benchmarks.harness import Bench, topic
from benchmarks.report import Figure
from benchmarks.subjects import Kafkalite, Subject

COUNTS = (1, 10, 100)
BATCH = 1000


def run(bench: Bench) -> None:
    one_writer(bench)
    with Kafkalite(bench.scratch / "durable", durability="fsync") as ours:
        subjects = [ours, *(other for other in bench.subjects if other is not bench.ours)]
        for count in bench.scale.up_to(COUNTS):
            requests = bench.scale(1000 + 100 * count, at_least=count)

            def measure(
                subject: Subject, count: int = count, requests: int = requests
            ) -> Mapping[str, float]:
                flushed = {} if subject.name == "kafkalite" else {"flush.messages": "1"}
                with topic(subject, count, flushed) as name:
                    frame = produce_frame(name, batch_of(BATCH), partitions=count, acks=-1)
                    run = frame.run(subject, bench.scratch, requests, connections=count)
                return {
                    "batches flushed, batches/s": run.per_second,
                    "an answer's p99, us": run.client["p99_us"],
                }

            what = f"fsync, {count} partitions and connections"
            bench.compare(what, measure, subjects=subjects, at=count)


def one_writer(bench: Bench) -> None:
    """Measure the disk itself: one file, write and fdatasync in turn."""
    batch = batch_of(BATCH)
    count = bench.scale(1000, at_least=5)
    values = []
    for _ in range(bench.scale.repeats):
        file = os.open(bench.scratch / "flushed", os.O_CREAT | os.O_WRONLY)
        begun = time.monotonic()
        for _ in range(count):
            os.write(file, batch)
            os.fdatasync(file)
        values.append(count / (time.monotonic() - begun))
        os.close(file)
    bench.figures.append(
        Figure("fsync, the disk itself: write and fdatasync", "batches/s", {"disk": values})
    )
