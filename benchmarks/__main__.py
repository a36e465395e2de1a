"""python -m benchmarks: run the benchmarks, print the table and write it to benchmarks/results.

python -m benchmarks                      all of them, beside Apache Kafka; about a quarter hour
python -m benchmarks produce fetch        only these
python -m benchmarks --small --alone      a quick run: less load, without Apache Kafka
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks import ALL, one
from benchmarks.harness import (
    FULL,
    SMALL,
    Bench,
    run_client,
    scratch_directory,
    topic,
    what_is_missing,
)
from benchmarks.report import table, write
from benchmarks.subjects import Kafka, Kafkalite, Subject
from tools.apache_kafka import Unavailable

RESULTS = Path(__file__).with_name("results")
WARM_UP_RECORDS = 300_000
LIKE_OURS = {"group.initial.rebalance.delay.ms": "0"}
"""Settings of Apache Kafka without which a wait would be measured instead of its work."""


def main() -> int:
    parser = argparse.ArgumentParser(description="kafkalite's benchmarks")
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(ALL)}; all of them if none is named"
    )
    parser.add_argument("--small", action="store_true", help="a tenth of the load")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    asked = parser.parse_args()
    names = asked.names or list(ALL)
    if unknown := [name for name in names if name not in ALL]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(ALL)}")
    if missing := what_is_missing():
        parser.error(missing)
    with scratch_directory() as scratch, ExitStack() as running:
        subjects: list[Subject] = [running.enter_context(Kafkalite(scratch / "ours"))]
        if not asked.alone:
            try:
                subjects.append(running.enter_context(Kafka(scratch / "theirs", LIKE_OURS)))
            except Unavailable as missing:
                print(f"without Apache Kafka: {missing}", file=sys.stderr)
        bench = Bench(subjects, SMALL if asked.small else FULL, scratch)
        for subject in subjects:
            warm_up(subject)
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            before = len(bench.figures)
            one(name)(bench)
            print(table(bench.figures[before:]), flush=True)
        write(bench.figures, asked.results, " ".join(sys.argv[1:]))
    return 1 if any(figure.kept is False for figure in bench.figures) else 0


def warm_up(subject: Subject) -> None:
    """Load a subject before it is measured: a JVM reaches its speed only after a while."""
    with topic(subject) as name:
        for mode in ("produce", "consume"):
            run_client(subject, mode, topic=name, records=WARM_UP_RECORDS)
        run_client(
            subject, "produce", topic=name, records=WARM_UP_RECORDS // 10,
            linger_ms=0, batch_records=1,
        )  # fmt: skip
        run_client(subject, "roundtrip", topic=name, records=2000)


if __name__ == "__main__":
    sys.exit(main())
