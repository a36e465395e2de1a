"""python -m tests.faults: run a fault scenario a number of times, or all of them for some minutes.

    python -m tests.faults F1 --count 300 --seed 7     300 kills, in runs of ten
    python -m tests.faults F3 --replicas 3 --min-isr 2 leaders and followers stopped
    python -m tests.faults F24 --count 10000           10,000 producers killed on their rings, and
                                                       1,000,000 frames scribbled
    python -m tests.faults all --minutes 15            one run after the other, in turn

Every run prints its result and appends a line to record.jsonl.  The exit code is 0 if all runs were
good.  The clients' history of a run that was not is kept in a directory that is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.faults.record import write_down
from tests.faults.replicated import REPLICATED
from tests.faults.run import GROUPS, RINGS, Plan, Run, keep, run, spread
from tests.faults.scenarios import FOR_ONE_PROCESS, SCENARIOS

COMPLAINT_SIZE_MAX = 300
A_RUN = {"F1": 10, "F3": 8, "F4": 5, "F5": 8, "MOVES": 24, "MIX": 10, "F22": 50, "F24": 500}
"""Number of faults of a run: each takes about twenty seconds, of groups two minutes."""
ONE_REPLICA = (1, 1)
REPLICATIONS = ((3, 2), (2, 1))
"""Replication factor and min.insync.replicas."""


def plans(words: argparse.Namespace) -> Iterator[Plan]:
    """Yield the plan of each run."""
    seeds = itertools.count(words.seed)
    if words.fault == "all":
        end = time.monotonic() + words.minutes * 60
        workers = words.workers
        one = [(each, workers, *ONE_REPLICA) for each in (*SCENARIOS, GROUPS, RINGS)]
        several = [(each, workers, *isr) for each in REPLICATED for isr in REPLICATIONS]
        kinds = itertools.cycle([*one, ("F1", 0, *ONE_REPLICA), *several])
        while time.monotonic() < end:
            fault, *rest = next(kinds)
            yield plan(words, fault, A_RUN[fault], next(seeds), *rest)
        return
    left = words.count
    while left > 0:
        count = min(left, A_RUN[words.fault])
        seed = next(seeds)
        yield plan(
            words, words.fault, count, seed, words.workers, words.replicas, words.min_isr
        )
        left -= count


def plan(
    words: argparse.Namespace,
    fault: str,
    count: int,
    seed: int,
    workers: int,
    replicas: int,
    min_isr: int,
) -> Plan:
    partitions = 12 if fault in ("MOVES", "MIX", GROUPS) else 6
    return Plan(
        fault,
        count,
        seed,
        workers,
        partitions,
        words.durability,
        replicas=replicas,
        min_isr=min_isr,
    )


def shown(came: Run, seconds: float) -> None:
    """Print a run's result, its violations, and the directory with its history."""
    verdict = "good" if came.good else "VOID" if came.void else "BAD"
    print(
        f"{verdict}  {came.plan.fault:5} {came.done:3} faults  seed {came.plan.seed}"
        f"  workers {came.plan.workers}  replicas {came.plan.replicas}  {came.plan.mode:8}"
        f"  {came.history.acked} acked, {came.acked_per_second:.0f}/s"
        f"  {len(came.complaints)} violations  {seconds:.0f} s",
        flush=True,
    )
    for complaint in came.complaints[:10]:
        print(f"      {complaint[:COMPLAINT_SIZE_MAX]}", flush=True)
    if came.complaints:
        kept = Path(tempfile.mkdtemp(prefix="kafkalite-faults-"))
        keep(came, kept)
        print(f"      what was seen is in {kept}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("fault", choices=[*SCENARIOS, GROUPS, RINGS, "all"])
    parser.add_argument("--count", type=int, default=10, help="faults, in as many runs as it takes")
    parser.add_argument("--minutes", type=float, default=15, help="for `all`")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--workers", type=int, default=3)
    replicas = "replication factor of the topic, for F22 of internal topics"
    parser.add_argument("--replicas", type=int, default=1, help=replicas)
    parser.add_argument("--min-isr", type=int, default=1, help="its min.insync.replicas")
    parser.add_argument("--durability", default="", help="by the seed when not given")
    words = parser.parse_args(arguments)
    if words.workers == 0 and words.fault not in {*FOR_ONE_PROCESS, "all"}:
        parser.error(f"{words.fault} wants workers")
    if words.replicas > 1 and words.fault not in {*REPLICATED, GROUPS, "all"}:
        parser.error(f"{words.fault} is not for several replicas")
    print(f"seed {words.seed}", flush=True)
    bad, faults = 0, 0
    recoveries: dict[str, list[float]] = defaultdict(list)
    for each in plans(words):
        begun = time.monotonic()
        came = run(each)
        write_down(came)
        shown(came, time.monotonic() - begun)
        bad += not came.good
        faults += came.done
        for kind, times in came.recoveries.items():
            recoveries[kind] += times
    print(f"{faults} faults, {bad} runs that were not good")
    for kind, times in sorted(recoveries.items()):
        print(f"  {kind}: {json.dumps(spread(times))}  (count, median, p99, worst; seconds)")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
