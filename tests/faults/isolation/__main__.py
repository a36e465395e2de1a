"""python -m tests.faults.isolation: a healthy client beside hostile and heavy ones.

5,000 partitions, 200 topics created and deleted, 10 GiB removed by retention, 1,000 consumers of
100 partitions each, ListOffsets by time over large compressed batches, fetch sessions of 50,000
unknown partitions.  No tick may take 50 ms of processor time, no worker may die or be fenced.

The load is throttled, so that a machine of two cores has processor time left for the measurement:
every amount and rate is an argument.  --p99-ms bounds the healthy client's latency too; it is
always reported, but on a machine with other load it means little.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from tests.faults.isolation.judge import judge, report
from tests.faults.isolation.plan import IsolationPlan
from tests.faults.isolation.run import run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.isolation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field in dataclasses.fields(IsolationPlan):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(
            name, type=type(field.default), default=field.default, help=f"default {field.default}"
        )
    parser.add_argument("--p99-ms", type=float, default=None, help="limit; not judged by default")
    words = vars(parser.parse_args(arguments))
    limit = words.pop("p99_ms")
    observed = run(IsolationPlan(**words))
    for line in report(observed):
        print(line, flush=True)
    violations = judge(observed, limit)
    for violation in violations:
        print(f"VIOLATION  {violation}")
    print("BAD" if violations else "good")
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
