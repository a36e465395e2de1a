"""Every benchmark runs once with a tiny load and without others; the figures mean nothing here."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from benchmarks import ALL, leading, one
from benchmarks.harness import TINY, Bench, what_is_missing
from benchmarks.report import Budget, Figure, table, write
from benchmarks.subjects import Kafkalite
from tools.apache_kafka import Unavailable


@pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.spark) if name == "spark" else name
             for name in ALL]
)  # fmt: skip
def test_benchmark_writes_its_figures(name, tmp_path):
    with Kafkalite(tmp_path / "ours") as ours:
        bench = Bench([ours], TINY, tmp_path)
        try:
            one(name)(bench)
        except Unavailable as missing:
            pytest.skip(str(missing))
    assert bench.figures
    assert all(value >= 0 for figure in bench.figures for who in figure.values.values()
               for value in who)  # fmt: skip
    write(bench.figures, tmp_path / "results", "tiny")
    written = json.loads((tmp_path / "results" / "figures.json").read_text())
    assert [figure["name"] for figure in written["figures"]] == [f.name for f in bench.figures]


def test_figures_are_written_as_table_and_plots(tmp_path):
    values = {"kafkalite": [1.0], "Apache Kafka": [4.0]}
    figures = [Figure("start: time", "s", values, Budget(at_most=0.2))]
    figures += [Figure(f"x, {at}: cost", "us", values, at=at) for at in (1, 10)]
    write(figures, tmp_path, "tiny")
    assert "| start: time | 1 s | 4 (Apache Kafka) | 0.25 | ≤ 0.2 | **missed** |" in (
        tmp_path / "table.md"
    ).read_text(encoding="utf-8")
    for picture in ("ratios.png", "curves.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_several_values_are_compared_in_pairs_and_one_plot(tmp_path):
    values = {"kafkalite": [6.0], "a queue": [2.0], "a socket": [3.0]}
    write([Figure("shared", "records/s", values)], tmp_path, "tiny")
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()[2:]
    assert lines == [
        "| shared | 6 records/s | 2 (a queue) | 3.00 |  |  |",
        "| shared | 6 records/s | 3 (a socket) | 2.00 |  |  |",
    ]
    assert (tmp_path / "line_ups.png").read_bytes().startswith(b"\x89PNG")


def test_budget_applies_to_the_ratio_of_medians():
    values = {"kafkalite": [1.0, 9.0, 2.0], "Apache Kafka": [4.0, 4.0, 100.0]}
    assert Figure("x", "us", values, Budget(at_most=0.5)).kept
    assert not Figure("x", "us", values, Budget(at_most=0.49)).kept
    assert not Figure("x", "us", values, Budget(at_least=0.51)).kept


def test_budget_may_apply_to_our_own_value():
    figure = Figure("x", "us", {"kafkalite": [1.0, 9.0, 2.0]}, Budget(at_most=2, of_value=True))
    assert figure.kept
    assert "kept" in table([figure])
    assert Figure("x", "us", figure.values, Budget(at_most=2)).kept is None


def test_producers_above_the_time_limit_are_killed(monkeypatch):
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(leading.subprocess, "Popen", Recorded)
    monkeypatch.setattr(leading, "CLIENT_S_MAX", 0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        leading.together("librdkafka", [["sleep", "60"]] * 3)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 3
