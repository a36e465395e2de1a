"""Worker processes: 8 producers over 8 partitions, in 1, 2 and 4 workers and in one process.

The sketch: a full batch of 1 MB is a copy out of the socket and one into the page cache, 2 ms of
kernel and little else, so a process is its core's and no more; two of them should take twice as
much, until the cores are used up.  The load needs a part of them: it is the C program, which
sends the same bytes again and again (some 0.2 ms/MB), each connection to its partition's leader.
The CPU time of a MB should be the same in every shape, since nobody passes on what another owns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchmarks.frames import batch_of, produce_frame
from benchmarks.harness import Bench, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import leaders

COUNTS = (1, 2, 4, 8)
PARTITIONS = PRODUCERS = 8
SIZES = {"1 MB": (1_000_000, 1000), "16 KiB": (16 << 10, 40_000)}
"""How large a batch, and how many of them are a second or two."""
BUDGET_AT = 2
CONFIGS = {"file.delete.delay.ms": "0"}


def run(bench: Bench) -> None:
    cores = os.cpu_count() or 1
    with Kafkalite(bench.scratch / "one-process", name="workers=0") as one:
        for count in COUNTS:
            if count > max(4, cores):
                break
            with Kafkalite(bench.scratch / f"workers-{count}", workers=count) as many:
                budget = Budget(at_least=1.3) if count == BUDGET_AT <= cores else None
                for name in SIZES:
                    batches(bench, name, count, [many, one], budget)
                records(bench, count, [many, one])


def batches(
    bench: Bench, name: str, count: int, subjects: list[Kafkalite], budget: Budget | None
) -> None:
    """Batches that are ready made, so that the broker is what limits."""
    size, whole_load = SIZES[name]
    batch = batch_of(size)
    requests = bench.scale(whole_load, at_least=PRODUCERS)
    megabytes = requests * len(batch) / 1e6

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS, CONFIGS) as wanted:
            frame = produce_frame(wanted, batch, partitions=PARTITIONS)
            run = frame.run(subject, bench.scratch, requests, PRODUCERS, leaders(subject, wanted))
        client_s = run.client["client_user_s"] + run.client["client_system_s"]
        return {
            f"{name} batches, MB/s": megabytes / run.client["seconds"],
            f"{name} batches, us of CPU/MB": run.cpu_us_per(megabytes),
            f"{name} batches, us of the client's CPU/MB": client_s * 1e6 / megabytes,
        }

    kept = {f"{name} batches, MB/s": budget} if budget else {}
    bench.compare(f"produce, {workers(count)}", measure, kept, subjects, at=count)


def records(bench: Bench, count: int, subjects: list[Kafkalite]) -> None:
    """The same through one librdkafka, which makes the batches and costs more than the broker."""
    wanted = bench.scale(2_000_000, at_least=1000)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS, CONFIGS) as name:
            run = run_client(
                subject, "produce", topic=name, records=wanted, partitions=PARTITIONS, acks=1
            )
        return {"by one librdkafka, records/s": wanted / run.client["seconds"]}

    bench.compare(f"produce, {workers(count)}", measure, subjects=subjects, at=count)


def workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
