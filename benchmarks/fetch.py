"""Fetch: records per second to a client that parses them, and bytes to one that does not.

Estimate: `sendfile` hands pages to the socket without a copy in the broker, so a fetch of 1 MB is
a request of a hundred bytes, one search in an index, and the kernel's work; against a process that
only calls sendfile the broker should lose nothing but that search.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from benchmarks.frames import batch_of, count_in, fetch_frame, produce_frame
from benchmarks.harness import Bench, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Subject, Yardstick

LARGE_BATCH = 1_000_000
FETCH_SIZE = 1 << 20


def run(bench: Bench) -> None:
    by_a_client(bench)
    against_sendfile(bench)


def by_a_client(bench: Bench) -> None:
    records = bench.scale(3_000_000, at_least=1000)
    with ExitStack() as topics:
        names: dict[str, str] = {}
        for subject in bench.subjects:
            name = names[subject.name] = topics.enter_context(topic(subject))
            # A run counts from its second response on, so there must be enough for two.
            run_client(subject, "produce", topic=name, records=records + 20_000, linger_ms=5)

        def measure(subject: Subject) -> Mapping[str, float]:
            run = run_client(subject, "consume", topic=names[subject.name], records=records)
            return {
                "throughput, records/s": run.per_second,
                "broker's user time, us/record": run.user_us_per(records),
                "broker's system time, us/record": run.system_us_per(records),
            }

        budgets = {
            "throughput, records/s": Budget(at_least=1.0),
            "broker's user time, us/record": Budget(at_most=1 / 2),
        }
        bench.compare("fetch", measure, budgets)


def against_sendfile(bench: Bench) -> None:
    requests = bench.scale(5000, at_least=10)
    batch = batch_of(LARGE_BATCH)
    batches = bench.scale(500, at_least=2)
    with ExitStack() as stack:
        sender = stack.enter_context(Yardstick("sendfile", bench.scratch / "sender"))
        names: dict[str, str] = {}
        for subject in bench.subjects:
            name = names[subject.name] = stack.enter_context(topic(subject))
            produce_frame(name, batch).run(subject, bench.scratch, batches)
        names[sender.name] = "none"

        def measure(subject: Subject) -> Mapping[str, float]:
            frame = fetch_frame(
                names[subject.name], end_offset=batches * count_in(batch), size_max=FETCH_SIZE
            )
            run = frame.run(subject, bench.scratch, requests)
            megabytes = run.client["bytes"] / 1e6
            return {
                "throughput, MB/s": run.mb_per_second,
                "CPU, us/MB": run.cpu_us_per(megabytes),
            }

        bench.compare("fetch, 1 MB a request", measure, {"throughput, MB/s": Budget(at_least=1.0)})
        bench.compare(
            "fetch, 1 MB a request, against sendfile", measure, subjects=[bench.ours, sender]
        )
