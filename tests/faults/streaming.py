"""Applications of Kafka that work exactly once, killed and started again.

    python -m tests.faults.streaming --kills 5              kills of the program and of brokers
    python -m tests.faults.streaming --program join         one program only
    python -m tests.faults.streaming --against apache       with Apache Kafka as the broker

The programs are two of Kafka Streams (exactly_once_v2), in streams_applications.py, and Kafka
Connect, in connect_application.py.  What a read_committed consumer reads of their output must be
what the input gives, exactly.  Every run appends a line to record.jsonl.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.application import Application, ApplicationRun
from tests.faults.connect_application import FileSource
from tests.faults.record import write_down
from tests.faults.streams_applications import JoinAndSums, WordCount
from tests.faults.victims import Victim, victims

PROGRAMS: dict[str, type[Application]] = {
    "count": WordCount, "join": JoinAndSums, "connect": FileSource,
}  # fmt: skip


def play(run: ApplicationRun, kind: type[Application], victim: Victim, scratch: Path) -> None:
    application = kind(run, victim, scratch)
    try:
        application.advance()
        while sum(run.kills.values()) < run.kills_wanted:
            application.strike()
            application.advance()
        application.finish()
    except TimeoutError as fault:
        told = (scratch / "output").read_text(errors="replace").splitlines()
        run.complaints.append(f"{fault}: {told[-8:]}")
    finally:
        application.end()
    run.complaints += application.judge()


def played(run: ApplicationRun, kind: type[Application], against: str) -> ApplicationRun:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, victims(against, run.durability) as victim:
        play(run, kind, victim, Path(scratch))
        run.seconds = time.monotonic() - begun
    return run


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.streaming", description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, help="all of them when not given")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--durability", default="os")
    parser.add_argument("--against", choices=("kafkalite", "apache"), default="kafkalite")
    words = parser.parse_args(arguments)
    bad = 0
    for name in [words.program] if words.program else PROGRAMS:
        kind = PROGRAMS[name]
        for seed in range(words.seed, words.seed + words.runs):
            run = ApplicationRun(kind.name, words.kills, seed, words.durability)
            played(run, kind, words.against)
            if words.against == "kafkalite":
                write_down(run)
            print(
                f"{'BAD ' if run.complaints else 'good'} {run.name} seed {seed}  {run.sent} sent"
                f"  {run.seconds:.0f} s  kills {dict(run.kills)}",
                *run.complaints[:10], sep="\n      ", flush=True,
            )  # fmt: skip
            bad += bool(run.complaints)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
