"""How long from the command to the first accepted ApiVersions, and how much memory that takes.

The sketch: a JVM loads some ten thousand classes, we fifty modules.  Memory is asked twice: when
the broker has just become ready, and after a load of a few hundred megabytes in and out, on
topics of 1 and of 10 partitions.  What the kernel caches of the files is nobody's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from benchmarks.harness import Bench, pss_mib, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Subject


class Started(Subject, Protocol):
    startup_s: float


def run(bench: Bench) -> None:
    makers = {subject.name: type(subject) for subject in bench.subjects}
    rounds = iter(range(1 << 30))

    def fresh(subject: Subject) -> AbstractContextManager[Started]:
        make = cast(Callable[[Path], AbstractContextManager[Started]], makers[subject.name])
        return make(bench.scratch / f"{subject.name}-{next(rounds)}".replace(" ", "-"))

    def measure(subject: Subject) -> Mapping[str, float]:
        with fresh(subject) as started:
            idle_mib = pss_mib(started.pids)
            load(bench, started)
            return {
                "to the first answer, s": started.startup_s,
                "memory when ready, MiB": idle_mib,
                "memory after a load, MiB": pss_mib(started.pids),
            }

    bench.compare(
        "start",
        measure,
        {
            "to the first answer, s": Budget(at_most=1 / 5),
            "memory when ready, MiB": Budget(at_most=1 / 8),
            "memory after a load, MiB": Budget(at_most=1 / 8),
        },
    )


def load(bench: Bench, subject: Subject) -> None:
    records = bench.scale(1_000_000, at_least=100)
    for partitions in (1, 10):
        with topic(subject, partitions) as name:
            options = {"topic": name, "partitions": partitions, "records": records}
            run_client(subject, "produce", **options)
            run_client(subject, "consume", **options)
