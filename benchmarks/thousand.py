"""A thousand partitions on three workers: creation, restart and Metadata.

Estimate: a partition is a directory, five files and a record of the metadata log, 0.2 ms of
system calls, so creating a thousand is about 0.1 s of each worker beside one flush.  At a start
each is opened again, and after a clean shutdown nothing of it is read.  Metadata of all is 26 KB:
a thousand entries for the compiled plan, 0.3 us each, and about as much to look up their values.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping

from benchmarks.harness import Bench, run_client
from benchmarks.report import Budget, Figure
from benchmarks.subjects import Kafkalite, Subject
from benchmarks.wire import METADATA_VERSION, Wire, await_served, frame
from kafkalite.errors import raise_for
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.topics import CREATE_TOPICS

COUNTS = (10, 1000)
WORKERS = 3
TOPIC = "thousand"
CREATE_VERSION = 4
FILES_OF_A_PARTITION = 5
BUDGETS = {
    "created and served, s": Budget(at_most=10, of_value=True),
    "start until all are served, s": Budget(at_most=3, of_value=True),
    "Metadata of all from node 0, p50 us": Budget(at_most=2000, of_value=True),
    "Metadata of all from a worker, p50 us": Budget(at_most=2000, of_value=True),
}


def run(bench: Bench) -> None:
    count = bench.scale.up_to(COUNTS)[-1]
    rounds = iter(range(1 << 30))

    def measure(subject: Subject) -> Mapping[str, float]:
        assert isinstance(subject, Kafkalite)
        directory = bench.scratch / f"thousand-{next(rounds)}"
        started = Kafkalite(directory, workers=subject.workers, name=subject.name)
        with started:
            taken = {"created and served, s": created_s(started, count)}
            for who, node in (("node 0", started.nodes[0]), ("a worker", started.nodes[-1])):
                p50_us = metadata_us(bench, started, f"{node['host']}:{node['port']}", count)
                taken[f"Metadata of all from {who}, p50 us"] = p50_us
        taken["start until all are served, s"] = served_again_s(started, count)
        started.end(signal.SIGKILL)
        taken["start after a kill until all are served, s"] = served_again_s(started, count)
        started.end(signal.SIGTERM)
        return taken

    subjects = [
        Kafkalite(bench.scratch, workers=WORKERS),
        Kafkalite(bench.scratch, name="workers=0"),
    ]
    bench.compare(f"{count:,} partitions, 3 workers", measure, BUDGETS, subjects)
    plain_files(bench, count)


def plain_files(bench: Bench, count: int) -> None:
    """Measure the disk itself: as many directories and files.  The time a file system takes for a
    new one differs tenfold with what was deleted there a moment before."""
    values = []
    for repeat in range(bench.scale.repeats):
        begun = time.monotonic()
        for index in range(count):
            directory = bench.scratch / f"plain-{repeat}-{index}"
            directory.mkdir()
            for file in range(FILES_OF_A_PARTITION):
                (directory / str(file)).touch()
        values.append(time.monotonic() - begun)
    name = f"{count:,} partitions, the disk itself: their directories and files"
    bench.figures.append(Figure(name, "s", {"disk": values}))


def created_s(subject: Kafkalite, count: int) -> float:
    """Return the time from the request until every partition's leader responds for it."""
    topic = {
        "name": TOPIC, "num_partitions": count, "replication_factor": -1,
        "assignments": [], "configs": [],
    }  # fmt: skip
    begun = time.monotonic()
    with Wire(subject.bootstrap) as wire:
        body: dict[str, object] = {"topics": [topic], "timeout_ms": 60_000, "validate_only": False}
        (created,) = wire.ask(CREATE_TOPICS, CREATE_VERSION, body).topics
    raise_for(created.error_code, created.error_message)
    await_served(subject, TOPIC, count)
    return time.monotonic() - begun


def served_again_s(subject: Kafkalite, count: int) -> float:
    """Return the time from the command until every partition's leader responds for it."""
    begun = time.monotonic()
    subject.__enter__()
    await_served(subject, TOPIC, count)
    return time.monotonic() - begun


def metadata_us(bench: Bench, subject: Subject, address: str, count: int) -> float:
    """Return a plain socket's median wait for the response that names all partitions."""
    body: dict[str, object] = {"topics": None, "allow_auto_topic_creation": False}
    request = frame(METADATA, METADATA_VERSION, body)
    with Wire(address) as wire:
        (told,) = wire.send(METADATA, METADATA_VERSION, request).topics
    assert len(told.partitions) == count, "not all of the partitions are known there"
    path = bench.scratch / "frame"
    path.write_bytes(request)
    run = run_client(
        subject, "frames", broker=address, frame=path, records=bench.scale(2000, at_least=3)
    )
    return run.client["p50_us"]
