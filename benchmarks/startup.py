"""Startup: the time from the command to the first accepted ApiVersions, and the memory then.

Estimate: a JVM loads about ten thousand classes, kafkalite fifty modules.  Memory is measured
twice: when the broker has just become ready, and after a load of a few hundred megabytes in and
out, on topics of 1 and of 10 partitions.  The page cache is not counted.

With workers, each further process is a fork of one that has everything loaded: about 3 ms, and
only the pages that it writes to, a few MiB, are its own.

A start with many transactional ids reads the records of all: 0.3 us to find the last one of an id,
and 4.5 us to decode and replay it, so half a second of processor time for 100,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, cast

from benchmarks.harness import Bench, cpu_s, private_mib, pss_mib, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import Wire, frame, header_size
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.transactions import INIT_PRODUCER_ID

TRANSACTIONAL_IDS = 100_000
IN_FLIGHT = 100
TIMEOUT_MS = 60_000
RETRY_S = 0.001
TRANSACTION_TYPE = 1
FIND_VERSION, INIT_VERSION = 4, 4

IDLE_MS = 3000
"""Longer than a heartbeat interval, so that memory first allocated by one is included."""


class Started(Subject, Protocol):
    startup_s: float


def run(bench: Bench) -> None:
    one_process(bench)
    many_processes(bench)
    many_transactional_ids(bench)


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


def many_transactional_ids(bench: Bench) -> None:
    """Measure from the command to the first InitProducerId that is served."""
    count = bench.scale(TRANSACTIONAL_IDS, at_least=50)
    broker = Kafkalite(bench.scratch / "ids")
    with broker:
        init_producers(broker.bootstrap, count)

    def measure(subject: Subject) -> Mapping[str, float]:
        assert isinstance(subject, Kafkalite)
        with subject:
            begun = time.monotonic()
            while init_producers(subject.bootstrap, 1):
                time.sleep(RETRY_S)
            served_s = subject.startup_s + time.monotonic() - begun
            return {
                "to the first served, s": served_s,
                "CPU until then, s": sum(cpu_s(subject.pids)),
            }

    bench.compare(
        f"start with {count:,} transactional ids", measure,
        {"to the first served, s": Budget(at_most=1, of_value=True)}, [broker],
    )  # fmt: skip


def init_producers(bootstrap: str, count: int) -> int:
    """Send InitProducerId for `count` transactional ids; return the error code of the last one."""
    with Wire(bootstrap) as wire:
        find = {"key_type": TRANSACTION_TYPE, "coordinator_keys": ["id-0"]}
        wire.ask(FIND_COORDINATOR, FIND_VERSION, find)
        for begin in range(0, count, IN_FLIGHT):
            ids = range(begin, min(begin + IN_FLIGHT, count))
            requests = [
                frame(INIT_PRODUCER_ID, INIT_VERSION, {
                    "transactional_id": f"id-{number}", "transaction_timeout_ms": TIMEOUT_MS,
                    "producer_id": -1, "producer_epoch": -1,
                })
                for number in ids
            ]  # fmt: skip
            framed = [len(request).to_bytes(4, "big") + request for request in requests]
            wire.socket.sendall(b"".join(framed))
            for _ in ids:
                body = wire.take(int.from_bytes(wire.take(4), "big"))
    response = INIT_PRODUCER_ID.response.read(
        INIT_VERSION, body, header_size(INIT_PRODUCER_ID, INIT_VERSION)
    )
    return int(response.error_code)


def load(bench: Bench, subject: Subject) -> None:
    records = bench.scale(1_000_000, at_least=100)
    for partitions in (1, 10):
        with topic(subject, partitions) as name:
            options = {"topic": name, "partitions": partitions, "records": records}
            run_client(subject, "produce", **options)
            run_client(subject, "consume", **options)
