"""kill -9 under load, again and again: nothing acknowledged is lost, repeated or disordered.

A run is void, and fails as such, when fewer than 500 records a second were acknowledged, the
restarts included: an idle broker loses nothing.  A seed names a run; `-m faults` makes a hundred.
KAFKALITE_CRASH_RECORD=FILE appends a line for each to FILE; record.jsonl holds those of a release.
"""

import json
import os
import time
from pathlib import Path

import pytest

from tests.crash.history import violations
from tests.crash.workload import run

ACKED_PER_SECOND_MIN = 500
MODES = ("os", "fsync", "interval")


def check(seed, kills, durability, directory):
    done = run(seed, kills, durability)
    found = violations(done.history)
    line = {
        "seed": seed,
        "durability": durability,
        "kills": kills,
        "acked": done.history.acked,
        "acked_per_second": round(done.acked_per_second),
        "read": len(done.history.final),
        "violations": len(found),
        "faults": len(done.faults),
        "void": done.acked_per_second < ACKED_PER_SECOND_MIN,
    }
    print(json.dumps(line))
    if record := os.environ.get("KAFKALITE_CRASH_RECORD"):
        with Path(record).open("a") as file:
            print(json.dumps({**line, "day": time.strftime("%Y-%m-%d")}), file=file)
    if found or done.faults:
        done.history.write(directory / "history.jsonl")
    assert not found, (found[:10], f"seed {seed}, see {directory}/history.jsonl")
    assert not done.faults, (done.faults[:10], f"seed {seed}, see {directory}/history.jsonl")
    assert not line["void"], f"void: too little load in seed {seed}, run it again"


def test_three_kills_lose_repeat_and_disorder_nothing(tmp_path):
    check(seed=1, kills=3, durability="fsync", directory=tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_runs_lose_repeat_and_disorder_nothing(seed, tmp_path):
    check(seed, kills=3, durability=MODES[seed % len(MODES)], directory=tmp_path)
