"""Growth: the cost of a request as partitions, connections and the log itself increase.

Estimate: a partition is an entry in a dictionary, a connection one in epoll's tree, and the log
size is in no path of an append; a fetch in the middle pays one bisection over segments and one
search in an index, tens of nanoseconds more for a thousand times the bytes.  So the three curves
should be flat; the processor's cache is what bends them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from benchmarks.frames import batch_of, count_in, fetch_frame, produce_frame
from benchmarks.harness import Bench, topic
from benchmarks.report import Budget, Figure
from benchmarks.subjects import Subject

COUNTS = (1, 10, 100, 1000)
SMALL_LOG, LARGE_LOG = 10_000_000, 10_000_000_000
FILL_BATCH = 1_000_000
SMALL_FETCH = 1000
# The largest part of the free disk space that is used.
DISK_SHARE = 1 / 4


def run(bench: Bench) -> None:
    partitions(bench)
    connections(bench)
    log_size(bench)


def partitions(bench: Bench) -> None:
    requests = bench.scale(10_000, at_least=10)
    for count in bench.scale.up_to(COUNTS):

        def measure(subject: Subject, count: int = count) -> Mapping[str, float]:
            with topic(subject, count) as name:
                frame = produce_frame(name, batch_of(200), partitions=count)
                run = frame.run(subject, bench.scratch, requests)
            return {"a request over so many partitions, us of CPU": run.cpu_us_per(requests)}

        bench.compare(f"produce, {count} partitions", measure, at=count)


def connections(bench: Bench) -> None:
    for count in bench.scale.up_to(COUNTS):
        # Several requests on each, or connecting would be what is measured.
        requests = bench.scale(20_000, at_least=10 * count)

        def measure(
            subject: Subject, count: int = count, requests: int = requests
        ) -> Mapping[str, float]:
            with topic(subject) as name:
                frame = produce_frame(name, batch_of(200))
                run = frame.run(subject, bench.scratch, requests, connections=count)
            return {
                "a request over so many connections, us of CPU": run.cpu_us_per(requests),
                "requests on so many connections, requests/s": run.per_second,
            }

        bench.compare(f"produce, {count} connections", measure, at=count)


def log_size(bench: Bench) -> None:
    """Measure a large log against a small one, of kafkalite alone: the curve needs no other."""
    free = shutil.disk_usage(bench.scratch).free
    large = min(bench.scale(LARGE_LOG, at_least=10 * FILL_BATCH), int(free * DISK_SHARE))
    small = min(SMALL_LOG, large // 10)
    taken: dict[str, dict[str, list[float]]] = {}
    with topic(bench.ours) as small_topic, topic(bench.ours) as large_topic:
        sizes = {f"{small / 1e6:,.0f} MB": (small_topic, small), "kafkalite": (large_topic, large)}
        for name, size in sizes.values():
            fill = produce_frame(name, batch_of(FILL_BATCH))
            fill.run(bench.ours, bench.scratch, size // FILL_BATCH)
        for _ in range(bench.scale.repeats):
            for who, (name, size) in sizes.items():
                for key, value in of_a_log(bench, name, size).items():
                    taken.setdefault(key, {}).setdefault(who, []).append(value)
    for key, values in taken.items():
        what, _, unit = key.rpartition(", ")
        bench.figures.append(
            Figure(f"{what} at {large / 1e6:,.0f} MB of log", unit, values, Budget(at_most=1.25))
        )


def of_a_log(bench: Bench, name: str, size: int) -> Mapping[str, float]:
    requests = bench.scale(20_000, at_least=10)
    produce = produce_frame(name, batch_of(200)).run(bench.ours, bench.scratch, requests)
    end_offset = size // FILL_BATCH * count_in(batch_of(FILL_BATCH))
    fetch = fetch_frame(name, end_offset=end_offset, size_max=SMALL_FETCH)
    # Processor time is counted in ticks of 10 ms: fewer fetches would take three to five of them.
    fetched = fetch.run(bench.ours, bench.scratch, bench.scale(20_000, at_least=10))
    return {
        "produce, us of CPU/request": produce.cpu_us_per(requests),
        # A fetch response holds a whole batch of 1 MB, and its bytes are not measured here.
        "fetch anywhere, us of user time/request": fetched.user_us_per(fetched.client["records"]),
    }
