"""The record file: a line for every run of a fault scenario, and their sums.

    python -m tests.faults.record             sums by scenario
    python -m tests.faults.record F15 F23     of these only

A line is a JSON object.  Every run has `day`, `commit`, `fault`, `count` (faults injected), `seed`,
`workers`, `durability`, `acked` (what clients had acknowledged: records, messages or, of F15,
transactions) and `violations`; some have more.  Runs of a scenario by different programs are summed
separately.  The sums are also given for the runs since the last one with a violation, because a
violation is of its commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("record.jsonl")
PROGRAMS = ("client", "copier")
"""Fields that name the program of a run."""
COLUMNS = ("runs", "faults", "acked", "violations")


class RecordedRun(Protocol):
    """A run that the record file lists."""

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""


def recorded(fault: str, **fields: Any) -> dict[str, Any]:
    """Return the line of a run of this fault, with the fields that every line has."""
    return {
        "day": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "fault": fault,
        **fields,
        "load": round(os.getloadavg()[0], 1),
    }


def write_down(came: RecordedRun, record: Path = RECORD) -> None:
    """Append the run's line to the record file."""
    with record.open("a") as file:
        print(json.dumps(came.line()), file=file)


def commit(root: Path = ROOT) -> str:
    """Return the commit of the sources below `root`, with a + if they have uncommitted changes."""
    asked = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "kafkalite", "ext"])
    try:
        said = [
            subprocess.run(["git", *words], capture_output=True, text=True, cwd=root)
            for words in asked
        ]
    except OSError:
        return ""
    return said[0].stdout.strip() + ("+" if said[1].stdout.strip() else "")


@dataclass
class Sums:
    """Sums over runs of one scenario."""

    runs: int = 0
    faults: int = 0
    acked: int = 0
    violations: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        self.runs += 1
        self.faults += line["count"]
        self.acked += line["acked"]
        self.violations += line["violations"]

    def row(self) -> list[str]:
        return [f"{getattr(self, column):,}" for column in COLUMNS]


@dataclass
class ScenarioSums:
    """Sums over all runs of a scenario, and over those since the last violation."""

    whole: Sums = field(default_factory=Sums)
    since: Sums = field(default_factory=Sums)

    def add(self, line: Mapping[str, Any]) -> None:
        self.whole.add(line)
        if line["violations"]:
            self.since = Sums()
        else:
            self.since.add(line)


def scenario(line: Mapping[str, Any]) -> str:
    """Return the name under which a line is summed: fault, program, version of transactions, and
    replicas."""
    words = [line["fault"], *(line[name] for name in PROGRAMS if name in line)]
    if "transactions" in line:
        words.append(f"v{line['transactions']}")
    if "replicas" in line:
        words.append(f"{line['replicas']} replicas, min ISR {line['min_isr']}")
    return " ".join(words)


def summed(lines: Iterable[Mapping[str, Any]]) -> dict[str, ScenarioSums]:
    """Return the sums by scenario; a run with too little load (`void`) counts only violations."""
    sums: dict[str, ScenarioSums] = {}
    for line in lines:
        if not line.get("void") or line["violations"]:
            sums.setdefault(scenario(line), ScenarioSums()).add(line)
    return dict(sorted(sums.items()))


def shown(sums: Mapping[str, ScenarioSums]) -> str:
    """Return the sums as a table."""
    head = ["scenario", *COLUMNS, *(f"since: {column}" for column in COLUMNS[:-1])]
    rows = [
        head,
        *([name, *each.whole.row(), *each.since.row()[:-1]] for name, each in sums.items()),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.record", description=__doc__)
    parser.add_argument("faults", nargs="*", help="all of them when not given")
    words = parser.parse_args(arguments)
    lines = [json.loads(line) for line in RECORD.read_text().splitlines()]
    wanted = words.faults or {line["fault"] for line in lines}
    print(shown(summed(line for line in lines if line["fault"] in wanted)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
