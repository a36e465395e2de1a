"""End-to-end latency: from produce() until a consumer has the record, one record at a time.

Estimate: two round trips over loopback (produce; the fetch that waits), each about 20 us of
kernel, and librdkafka's threads waking each other four times, 10 to 50 us each.  The broker's part
is the time between: validating, appending, completing the fetch that waits.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.frames import RECORD_SIZE, batch_of, produce_frame, waiting_fetch
from benchmarks.harness import Bench, run_client, topic
from benchmarks.report import Budget
from benchmarks.subjects import Subject

# Where there is another subject, the bound is half of its time; without one the design sets it.
RATIOS = {"p50, us": Budget(at_most=1 / 2), "p99, us": Budget(at_most=1 / 2)}
VALUES = {
    "p50, us": Budget(at_most=250, of_value=True),
    "p99, us": Budget(at_most=1000, of_value=True),
}


def run(bench: Bench) -> None:
    records = bench.scale(10_000, at_least=20)

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject) as name:
            run = run_client(
                subject, "roundtrip", topic=name, records=records, warm_up=records // 10, acks=1
            )
        return {
            "p50, us": run.client["p50_us"],
            "p99, us": run.client["p99_us"],
            "broker's user time, us/record": run.user_us_per(records * 1.1),
        }

    bench.compare("round trip, acks 1, linger 0", measure, RATIOS)
    bench.compare("round trip, ours alone", measure, VALUES, subjects=[bench.ours])
    plain_sockets(bench, records)


def plain_sockets(bench: Bench, records: int) -> None:
    """Measure the same without librdkafka: the broker's and the kernel's part of a round trip."""
    produced, waiting = bench.scratch / "produced", bench.scratch / "waiting"

    def measure(subject: Subject) -> Mapping[str, float]:
        with topic(subject) as name:
            produced.write_bytes(produce_frame(name, batch_of(RECORD_SIZE)).request)
            request, offset_at = waiting_fetch(name)
            waiting.write_bytes(request)
            run = run_client(
                subject, "rawtrip", frame=produced, fetch_frame=waiting, offset_at=offset_at,
                records=records, warm_up=records // 10,
            )  # fmt: skip
        return {"p50, us": run.client["p50_us"], "p99, us": run.client["p99_us"]}

    bench.compare("round trip, plain sockets", measure, RATIOS)
    ours = {"p50, us": Budget(at_most=120, of_value=True)}
    bench.compare("round trip, plain sockets, ours alone", measure, ours, subjects=[bench.ours])
