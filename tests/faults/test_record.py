"""The record file: one format, and sums over its runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.faults import fault_table
from tests.faults.record import (
    RECORD,
    Sums,
    commit,
    recorded,
    scenario,
    shown,
    summed,
    write_down,
)

FIELDS = {
    "day", "commit", "fault", "count", "seed", "workers", "durability", "acked", "violations"
}  # fmt: skip


def line(fault: str = "F1", **fields: Any) -> dict[str, Any]:
    return {"fault": fault, "count": 10, "acked": 1_000, "violations": 0, **fields}


def test_every_line_has_the_fields_of_the_format() -> None:
    lines = [json.loads(each) for each in RECORD.read_text().splitlines()]
    assert lines
    assert [each for each in lines if not each.keys() >= FIELDS] == []


def test_run_is_appended_to_the_record(tmp_path) -> None:
    class Done:
        def line(self) -> dict[str, Any]:
            given = {key: value for key, value in line().items() if key != "fault"}
            return recorded("F1", seed=7, workers=2, durability="os", **given)

    record = tmp_path / "record.jsonl"
    write_down(Done(), record)
    write_down(Done(), record)
    lines = [json.loads(each) for each in record.read_text().splitlines()]
    assert [each["count"] for each in lines] == [10, 10]
    assert lines[0].keys() >= FIELDS


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_commit_of_changed_sources_has_a_plus(tmp_path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    source = tmp_path / "kafkalite" / "node.py"
    source.parent.mkdir()
    source.write_text("first")
    git("init")
    git("add", ".")
    git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-m", "first")
    clean = commit(tmp_path)
    assert clean
    assert not clean.endswith("+")
    source.write_text("second")
    assert commit(tmp_path) == f"{clean}+"


def test_sums_are_of_all_runs_and_of_those_since_the_last_violation() -> None:
    runs = [line(), line(count=5, violations=2), line(count=3), line(acked=7)]
    sums = summed(runs)["F1"]
    assert sums.whole == Sums(runs=4, faults=28, acked=3_007, violations=2)
    assert sums.since == Sums(runs=2, faults=13, acked=1_007)


def test_void_run_adds_nothing_but_its_violations() -> None:
    assert summed([line(void=True)]) == {}
    assert summed([line(void=True, violations=1)])["F1"].whole.violations == 1


def test_programs_and_transaction_versions_are_summed_separately() -> None:
    names = [
        scenario(line("F15", client="java", transactions=2)),
        scenario(line("F15", client="java-v1", transactions=1)),
        scenario(line("F23", transactions=2, copier="java")),
        scenario(line("F1")),
    ]
    assert names == ["F15 java v2", "F15 java-v1 v1", "F23 java v2", "F1"]


def test_table_has_a_row_for_each_scenario() -> None:
    head, row = shown(summed([line(), line(count=2_000)])).splitlines()
    assert head.split()[:5] == ["scenario", "runs", "faults", "acked", "violations"]
    assert row.split() == ["F1", "2", "2,010", "2,000", "0", "2", "2,010", "2,000"]


def test_replicas_are_summed_separately_and_their_command_repeats_them() -> None:
    runs = [
        line(commit="a"),
        line(commit="b", replicas=3, min_isr=2, violations=1),
        line(commit="c", replicas=3, min_isr=2),
    ]
    one, three = fault_table.rows(runs)
    assert one[0] == "F1" and one[2:7] == ["10", "1", "1,000", "0", ""]
    assert three[0] == "F1 3 replicas, min ISR 2" and three[2:7] == ["10", "1", "1,000", "1", "b"]
    assert three[7] == "`python -m tests.faults F1 --replicas 3 --min-isr 2`"


def test_page_has_the_table_of_the_record() -> None:
    text = fault_table.PAGE.read_text()
    lines = fault_table.recorded_lines()
    assert fault_table.page(text, lines) == text, "run: python -m tests.faults.fault_table"
