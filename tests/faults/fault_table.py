"""The table of docs/reliability.md, made from the record file.

    python -m tests.faults.fault_table      write it

For each scenario: the faults survived since its last run with a violation, what clients had
acknowledged in these runs, the runs that found a violation before, the commit of the last of them,
and the command of another run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.faults.record import RECORD, ROOT, ScenarioSums, scenario, summed

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table of the fault tests -->\n", "<!-- end of the table -->\n"
HEAD = (
    "scenario", "what fails", "faults survived", "runs", "acknowledged", "runs with a violation",
    "the last at", "command",
)  # fmt: skip
FAILS = {
    "CONNECT": "tasks of Kafka Connect, and workers",
    "F1": "a process is killed",
    "F3": "a worker is stopped, and continued or given up",
    "F4": "the supervisor is killed or stopped",
    "F5": "all processes are killed at once",
    "F15": "transactions of clients that are killed or fenced",
    "F22": "members of groups come, go and are killed",
    "F23": "a transactional copier and workers are killed",
    "F24": "producers on rings in shared memory die or write garbage",
    "F31": "members of share groups are killed",
    "MIX": "any of these in any order",
    "MOVES": "partitions move while processes are killed",
    "STREAMS": "Kafka Streams, while processes are killed",
    "STREAMS-JOIN": "a join of Kafka Streams, while processes are killed",
}
COMMANDS = {
    "F15": "isolation", "F23": "copying", "F31": "sharing", "STREAMS": "streaming",
    "STREAMS-JOIN": "streaming", "CONNECT": "streaming",
}  # fmt: skip


def rows(lines: list[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the cells of each scenario."""
    for name, sums in summed(lines).items():
        runs = [line for line in lines if scenario(line) == name]
        yield [name, FAILS[runs[0]["fault"]], *counts(sums, runs), f"`{command(runs[-1])}`"]


def counts(sums: ScenarioSums, runs: Iterable[Mapping[str, Any]]) -> list[str]:
    since = sums.since
    found = [line["commit"] for line in runs if line["violations"]]
    return [
        f"{since.faults:,}", f"{since.runs:,}", f"{since.acked:,}", f"{len(found):,}",
        found[-1] if found else "",
    ]  # fmt: skip


def command(line: Mapping[str, Any]) -> str:
    """Return a command that repeats a scenario."""
    fault = line["fault"]
    if fault in COMMANDS:
        return f"python -m tests.faults.{COMMANDS[fault]}"
    words = ["python -m tests.faults", fault]
    if "replicas" in line:
        words.append(f"--replicas {line['replicas']} --min-isr {line['min_isr']}")
    return " ".join(words)


def table(lines: list[Mapping[str, Any]]) -> str:
    """Return the table in Markdown."""
    cells = [HEAD, ["---"] * len(HEAD), *rows(lines)]
    return "".join("| " + " | ".join(row).replace("|  |", "| |") + " |\n" for row in cells)


def page(text: str, lines: list[Mapping[str, Any]]) -> str:
    """Return the page with the table of these runs."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(lines)}\n{END}{after}"


def recorded_lines() -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in RECORD.read_text().splitlines()]


def main() -> int:
    PAGE.write_text(page(PAGE.read_text(), recorded_lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
