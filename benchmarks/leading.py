"""Leading workers: how many of three workers lead, over 1 and 2 cores and 1 to 8 producers.

Clients and broker share the cores, as on a laptop.  The producers are processes: Apache Kafka's
ProducerPerformance with its defaults (acks=all, linger 5 ms, 16 KiB batches), and librdkafka.
Every producer writes to the same topic of three partitions.

What to expect: a leading worker is one more connection, thread and wake-up for a client, and a
request carries fewer batches.  Where the clients leave the broker less than a core, a second
leading worker adds nothing, so the throughput falls with each one; with more cores than the
clients use it rises.  The default leads with one worker for every two cores.

Throughput is the sum of what the producers report for their steady state, latency the mean of
their averages.  The yardstick of the default is the best of the other shapes in the same run.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import NamedTuple

from benchmarks.harness import CLIENT_S_MAX, SMALL, Bench, client_program, topic
from benchmarks.report import OURS, Budget, Figure
from benchmarks.subjects import Kafka, Kafkalite, Subject
from tools.apache_kafka import TOOLS, classpath, java_executable

CORES = (1, 2)
PRODUCERS = (1, 2, 4, 8)
PARTITIONS = 3
SHAPES = (1, 2, 3)
RECORDS = {"Java": 1_200_000, "librdkafka": 3_000_000}
"""Records of a run, all producers together."""
RECORD_SIZE = 100
STEADY = re.compile(r"([\d.]+) records/sec .*?, ([\d.]+) ms avg latency")
KEPT = {
    ("best", "records/s"): Budget(at_least=0.95),
    ("Apache Kafka", "records/s"): Budget(at_least=1.5),
    ("Apache Kafka", "ms"): Budget(at_most=0.5),
}


class Load(NamedTuple):
    """Result of producers that ran at the same time."""

    records_per_s: float
    latency_ms: float | None
    """The mean of the producers' average latencies, where they measure one."""


def run(bench: Bench) -> None:
    """Measure every shape at every number of cores and producers."""
    machine = sorted(os.sched_getaffinity(0))
    counts = [cores for cores in CORES if cores <= len(machine)]
    producer_counts, shapes = PRODUCERS, SHAPES
    if bench.scale.factor < SMALL.factor:
        # Each Java producer takes two seconds of processor time to start.
        counts, producer_counts, shapes = counts[-1:], PRODUCERS[:1], SHAPES[:1]
    for cores in counts:
        with pinned(machine[:cores]), ExitStack() as running:
            subjects = [running.enter_context(each) for each in subjects_of(bench, cores, shapes)]
            for program in RECORDS:
                for producers in producer_counts:
                    compare(bench, program, cores, producers, subjects)


def subjects_of(bench: Bench, cores: int, shapes: Sequence[int]) -> list[Kafkalite | Kafka]:
    """Return the default shape, one broker for each other shape, and Apache Kafka if it runs."""
    place = bench.scratch / f"leading-{cores}"
    subjects: list[Kafkalite | Kafka] = [Kafkalite(place / "default", workers=None)]
    for count in shapes:
        options = {"workers.leading": str(count)}
        name = f"{count} of 3 lead"
        subjects.append(Kafkalite(place / str(count), workers=3, options=options, name=name))
    if any(isinstance(subject, Kafka) for subject in bench.subjects):
        subjects.append(Kafka(place / "theirs"))
    return subjects


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Run this process, and all processes it starts meanwhile, on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(
    bench: Bench, program: str, cores: int, producers: int, subjects: Sequence[Subject]
) -> None:
    records = bench.scale(RECORDS[program], at_least=1000 * producers) // producers

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, PARTITIONS, {"file.delete.delay.ms": "0"}) as name:
            commands = [command(program, subject, name, records)] * producers
            load = together(program, commands)
        figures = {"throughput, records/s": load.records_per_s}
        if load.latency_ms is not None:
            figures["average latency, ms"] = load.latency_ms
        return figures

    on = "1 core" if cores == 1 else f"{cores} cores"
    before = len(bench.figures)
    bench.compare(f"leading workers, {on}, {program}", measure, None, subjects, at=producers)
    bench.figures[before:] = [
        judged for figure in bench.figures[before:] for judged in against(figure, program)
    ]


def against(figure: Figure, program: str) -> Iterator[Figure]:
    """Yield the default shape against the best other shape, and against Apache Kafka."""
    shapes = [who for who in figure.values if who not in (OURS, Kafka.name)]
    choose = max if figure.unit == "records/s" else min
    best = choose(shapes, key=figure.median)
    for label, who in (("best", best), (Kafka.name, Kafka.name)):
        if who in figure.values:
            values = {OURS: figure.values[OURS], who: figure.values[who]}
            # The budget beside Apache Kafka holds for the Java producer.
            promised = label == "best" or program == "Java"
            budget = KEPT.get((label, figure.unit)) if promised else None
            yield replace(figure, values=values, budget=budget)


def command(program: str, subject: Subject, name: str, records: int) -> list[str]:
    """Return the command line of one producer."""
    if program == "librdkafka":
        return [
            str(client_program()), "produce", "--broker", subject.bootstrap, "--topic", name,
            "--records", str(records), "--partitions", str(PARTITIONS), "--acks", "-1",
            "--size", str(RECORD_SIZE),
        ]  # fmt: skip
    return [
        java_executable(), "-cp", classpath(TOOLS), "org.apache.kafka.tools.ProducerPerformance",
        "--bootstrap-server", subject.bootstrap, "--topic", name, "--throughput", "-1",
        "--num-records", str(records), "--record-size", str(RECORD_SIZE),
        "--warmup-records", str(records // 3),
    ]  # fmt: skip


def together(program: str, commands: Sequence[Sequence[str]]) -> Load:
    """Run the producers at the same time and return what they report together."""
    running: list[subprocess.Popen[str]] = []
    try:
        for each in commands:
            running.append(
                subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
        outputs = [process.communicate(timeout=CLIENT_S_MAX)[0] for process in running]
    finally:
        # A timeout, Ctrl-C, or a program that does not start leaves none running.
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if any(process.returncode != 0 for process in running):
        raise RuntimeError(f"{program}: a producer failed: {outputs}")
    if program == "librdkafka":
        reports = [json.loads(output) for output in outputs]
        return Load(sum(each["records"] / each["seconds"] for each in reports), None)
    # The last line is that of the steady state.
    found = [STEADY.findall(output)[-1] for output in outputs]
    return Load(
        sum(float(rate) for rate, _ in found),
        statistics.mean(float(latency) for _, latency in found),
    )
