"""A process for each partition, against workers that share them: one topic of 16 partitions.

Estimate: on no more cores than workers there is no gain, and 16 processes cost about 7 MiB each.
A partition with a process of its own waits for no other partition's flush, scan or deletion, and
on many cores it has one of them.  The figures show the memory cost and whether the throughput
justifies it.  The files are in memory, as in workers.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from benchmarks.frames import batch_of, produce_frame
from benchmarks.harness import (
    Bench,
    file_system_in_memory,
    have_memory_at_hand,
    pss_mib,
    scratch_directory,
    topic,
)
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import leaders

PARTITIONS = 16
SHARED_WORKERS = 3
BATCH = 1_000_000
CONFIGS = {"file.delete.delay.ms": "0"}
DEDICATED = {**CONFIGS, "worker.dedicated": "true"}


def run(bench: Bench) -> None:
    batch = batch_of(BATCH)
    requests = bench.scale(1000, at_least=PARTITIONS)
    megabytes = requests * len(batch) / 1e6

    def measure(subject: Subject) -> Mapping[str, float]:
        configs = CONFIGS if subject is shared else DEDICATED
        before_mib = pss_mib(subject.pids)
        begun = time.monotonic()
        with topic(subject, PARTITIONS, configs) as name:
            made_s = time.monotonic() - begun
            added_mib = pss_mib(subject.pids) - before_mib
            frame = produce_frame(name, batch, partitions=PARTITIONS)
            have_memory_at_hand(requests * len(batch))
            run = frame.run(subject, bench.scratch, requests, PARTITIONS, leaders(subject, name))
        return {
            "created and led, s": made_s,
            "memory added, MiB": added_mib,
            "throughput, MB/s": megabytes / run.client["seconds"],
            "CPU, us/MB": run.cpu_us_per(megabytes),
            "an answer's p99, us": run.client["p99_us"],
        }

    with (
        scratch_directory(file_system_in_memory()) as scratch,
        Kafkalite(scratch / "dedicated", workers=SHARED_WORKERS) as dedicated,
        Kafkalite(scratch / "shared", workers=SHARED_WORKERS, name="shared") as shared,
    ):
        bench.compare("16 dedicated workers", measure, subjects=[dedicated, shared])
