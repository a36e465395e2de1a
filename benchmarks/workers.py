"""Worker processes: 8 producers over 8 partitions, in 1, 2 and 4 workers and in one process.

Estimate: a full batch of 1 MB is a copy out of the socket and one into the page cache, a
checksum, and little else: 0.9 ms, most of it the kernel's.  A process uses one core at most, so two
of them should take twice as much, until the cores are used up.  The load generator needs a part of
those: it is the C program, which sends the same bytes repeatedly (0.2 ms/MB), each connection to
its partition's leader; at 16 KiB per batch it needs 0.6 ms/MB, half of a second core.  The CPU
time of a MB should be the same in every shape, since no worker forwards another's data.

The files are in memory where possible.  The activity of a disk, and the time that the host of a
virtual machine takes to return memory, differ threefold from run to run, and would be what is
measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from benchmarks.frames import batch_of, produce_frame
from benchmarks.harness import (
    Bench,
    file_system_in_memory,
    have_memory_at_hand,
    run_client,
    scratch_directory,
    topic,
)
from benchmarks.report import Budget
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import leaders

COUNTS = (1, 2, 4, 8)
PARTITIONS = PRODUCERS = 8
SIZES = {"1 MB": (1_000_000, 800), "16 KiB": (16 << 10, 30_000)}
"""Size of a batch, and the number of them that takes about a second."""
BUDGET_AT = 2
CONFIGS = {"file.delete.delay.ms": "0"}


def run(bench: Bench) -> None:
    cores = os.cpu_count() or 1
    with (
        scratch_directory(file_system_in_memory()) as scratch,
        Kafkalite(scratch / "one-process", name="workers=0") as one,
    ):
        for count in COUNTS:
            if count > max(4, cores):
                break
            with Kafkalite(scratch / f"workers-{count}", workers=count) as many:
                for name in SIZES:
                    batches(bench, name, count, [many, one], budget(name, count, cores))
                records(bench, count, [many, one])


def budget(name: str, count: int, cores: int) -> Budget | None:
    """Return the bound where two cores are free: small batches leave two only of four."""
    free = cores >= (2 if name == "1 MB" else 4)
    return Budget(at_least=1.3) if count == BUDGET_AT and free else None


def batches(
    bench: Bench, name: str, count: int, subjects: list[Kafkalite], bound: Budget | None
) -> None:
    """Measure batches that are prepared in advance, so that the broker is the limit."""
    size, whole_load = SIZES[name]
    batch = batch_of(size)
    requests = bench.scale(whole_load, at_least=PRODUCERS)
    megabytes = requests * len(batch) / 1e6

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS, CONFIGS) as wanted:
            frame = produce_frame(wanted, batch, partitions=PARTITIONS)
            have_memory_at_hand(requests * len(batch))
            run = frame.run(subject, bench.scratch, requests, PRODUCERS, leaders(subject, wanted))
        client_s = run.client["client_user_s"] + run.client["client_system_s"]
        return {
            f"{name} batches, MB/s": megabytes / run.client["seconds"],
            f"{name} batches, us of CPU/MB": run.cpu_us_per(megabytes),
            f"{name} batches, us of the client's CPU/MB": client_s * 1e6 / megabytes,
        }

    kept = {f"{name} batches, MB/s": bound} if bound else {}
    bench.compare(f"produce, {workers(count)}", measure, kept, subjects, at=count)


def records(bench: Bench, count: int, subjects: list[Kafkalite]) -> None:
    """Measure one librdkafka, which makes the batches and costs more than the broker."""
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
