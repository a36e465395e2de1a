"""Produce: records per second, and the broker's own time for each of them.

Estimate: a full batch of 1 MB costs the broker a checksum (0.1 ms at 10 GB/s) and two copies
through the kernel (socket in, page cache out; 0.3 ms together), so about 10,000 records share half
a millisecond, and the client is the limit.  At one record per request the cost is per request:
four system calls and the handling, a few microseconds of user time.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.frames import batch_of, count_in, produce_frame
from benchmarks.harness import Bench, Run, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Subject, Yardstick

# The log of a run is deleted at once, or five repeats would fill the page cache.
CONFIGS = {"file.delete.delay.ms": "0"}
SMALL_BATCH, LARGE_BATCH = 16 << 10, 1_000_000


def run(bench: Bench) -> None:
    full_batches(bench)
    one_record_a_request(bench)
    as_they_come(bench)
    batches_of_16_kib(bench)
    against_a_receiver(bench)


def figures(run: Run, records: float) -> dict[str, float]:
    return {
        "throughput, records/s": records / run.client["seconds"],
        "broker's user time, us/record": run.user_us_per(records),
        "broker's system time, us/record": run.system_us_per(records),
    }


def full_batches(bench: Bench) -> None:
    records = bench.scale(3_000_000, at_least=1000)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, configs=CONFIGS) as name:
            run = run_client(subject, "produce", topic=name, records=records, linger_ms=50, acks=1)
        return figures(run, records)

    budgets = {
        "throughput, records/s": Budget(at_least=1.0),
        "broker's user time, us/record": Budget(at_most=1 / 2),
    }
    bench.compare("produce, full batches", measure, budgets)


def one_record_a_request(bench: Bench) -> None:
    records = bench.scale(50_000, at_least=100)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, configs=CONFIGS) as name:
            run = run_client(
                subject, "produce", topic=name, records=records,
                linger_ms=0, batch_records=1, acks=1,
            )  # fmt: skip
        return figures(run, records)

    budgets = {
        "throughput, records/s": Budget(at_least=1.0),
        "broker's user time, us/record": Budget(at_most=1 / 3),
    }
    bench.compare("produce, linger 0, one record a request", measure, budgets)


def as_they_come(bench: Bench) -> None:
    """Measure linger 0: a batch is what accumulated while the last one was in flight.

    A faster response makes smaller batches, and more work for the client: no budget is set.
    """
    records = bench.scale(1_000_000, at_least=100)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, configs=CONFIGS) as name:
            run = run_client(subject, "produce", topic=name, records=records, linger_ms=0, acks=1)
        return figures(run, records)

    bench.compare("produce, linger 0", measure)


def batches_of_16_kib(bench: Bench) -> None:
    requests = bench.scale(20_000, at_least=10)
    batch = batch_of(SMALL_BATCH)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject, configs=CONFIGS) as name:
            run = produce_frame(name, batch).run(subject, bench.scratch, requests)
        return {
            "throughput, requests/s": run.per_second,
            "broker's user time, us/request": run.user_us_per(requests),
        }

    budgets = {"broker's user time, us/request": Budget(at_most=15, of_value=True)}
    bench.compare("produce, one batch of 16 KiB a request", measure, budgets)


def against_a_receiver(bench: Bench) -> None:
    requests = bench.scale(1000, at_least=3)
    batch = batch_of(LARGE_BATCH)
    assert count_in(batch) > 1000
    with Yardstick("receive_and_write", bench.scratch / "receiver") as receiver:

        def measure(subject: Subject) -> Mapping[str, float]:
            if subject is receiver:
                run = produce_frame("none", batch).run(subject, bench.scratch, requests)
            else:
                with topic(subject) as name:
                    run = produce_frame(name, batch).run(subject, bench.scratch, requests)
            megabytes = requests * len(batch) / 1e6
            return {
                "CPU, us/MB": run.cpu_us_per(megabytes),
                "throughput, MB/s": megabytes / run.client["seconds"],
            }

        bench.compare(
            "produce, 1 MB a request, against receive and write",
            measure,
            {"CPU, us/MB": Budget(at_most=1.5)},
            subjects=[bench.ours, receiver],
        )
