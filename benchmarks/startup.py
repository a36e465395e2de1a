"""Startup: the time from the command to the first accepted ApiVersions, and the memory then.

Estimate: a JVM loads about ten thousand classes, kafkalite fifty modules.  Memory is measured
twice: when the broker has just become ready, and after a load of a few hundred megabytes in and
out, on topics of 1 and of 10 partitions.  The page cache is not counted.

With workers, each further process is a fork of one that has everything loaded: about 3 ms, and
only the pages that it writes to, a few MiB, are its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from benchmarks.harness import Bench, private_mib, pss_mib, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Kafkalite, Subject

IDLE_MS = 3000
"""Longer than a heartbeat interval, so that memory first allocated by one is included."""


class Started(Subject, Protocol):
    startup_s: float


def run(bench: Bench) -> None:
    one_process(bench)
    many_processes(bench)


def one_process(bench: Bench) -> None:
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


def many_processes(bench: Bench) -> None:
    """Measure kafkalite with workers beside kafkalite in one process."""
    one = Kafkalite(bench.scratch / "one", name="workers=0")
    three = Kafkalite(bench.scratch / "three", workers=3)
    two = Kafkalite(bench.scratch / "two", workers=2)

    def time_to_ready(subject: Subject) -> Mapping[str, float]:
        assert isinstance(subject, Kafkalite)
        with subject:
            return {"to the first answer, s": subject.startup_s}

    def memory(subject: Subject) -> Mapping[str, float]:
        assert isinstance(subject, Kafkalite)
        with subject:
            time.sleep(bench.scale(IDLE_MS) / 1000)
            taken = {"memory of all processes, idle, MiB": pss_mib(subject.pids)}
            if workers := [node["pid"] for node in subject.nodes if node["role"] == "worker"]:
                taken["the largest worker's own, idle, MiB"] = max(map(private_mib, workers))
            load(bench, subject)
            taken["memory of all processes after a load, MiB"] = pss_mib(subject.pids)
            if workers:
                taken["the largest worker's own after a load, MiB"] = max(map(private_mib, workers))
        return taken

    ready = {"to the first answer, s": Budget(at_most=0.5, of_value=True)}
    bench.compare("start, 3 workers", time_to_ready, ready, [three, one])
    small = {
        "memory of all processes, idle, MiB": Budget(at_most=80, of_value=True),
        "the largest worker's own, idle, MiB": Budget(at_most=5, of_value=True),
    }
    bench.compare("start, 2 workers", memory, small, [two, one])


def load(bench: Bench, subject: Subject) -> None:
    records = bench.scale(1_000_000, at_least=100)
    for partitions in (1, 10):
        with topic(subject, partitions) as name:
            options = {"topic": name, "partitions": partitions, "records": records}
            run_client(subject, "produce", **options)
            run_client(subject, "consume", **options)
