"""Every benchmark runs, tiny and alone, so that none can rot; the figures say nothing here."""

from __future__ import annotations

import json

import pytest

from benchmarks import ALL, one
from benchmarks.harness import TINY, Bench, what_is_missing
from benchmarks.report import Budget, Figure, table, write
from benchmarks.subjects import Kafkalite


@pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
@pytest.mark.parametrize("name", ALL)
def test_a_benchmark_runs_to_its_figures(name, tmp_path):
    with Kafkalite(tmp_path / "ours") as ours:
        bench = Bench([ours], TINY, tmp_path)
        one(name)(bench)
    assert bench.figures
    assert all(value >= 0 for figure in bench.figures for who in figure.values.values()
               for value in who)  # fmt: skip
    write(bench.figures, tmp_path / "results", "tiny")
    assert len(json.loads((tmp_path / "results/figures.json").read_text())["figures"]) == len(
        bench.figures
    )
    assert (tmp_path / "results/plot.png").stat().st_size > 0


def test_a_budget_is_held_against_the_ratio_of_the_medians():
    values = {"kafkalite": [1.0, 9.0, 2.0], "Apache Kafka": [4.0, 4.0, 100.0]}
    assert Figure("x", "us", values, Budget(at_most=0.5)).kept
    assert not Figure("x", "us", values, Budget(at_most=0.49)).kept
    assert not Figure("x", "us", values, Budget(at_least=0.51)).kept


def test_a_budget_may_be_held_against_our_own_value():
    figure = Figure("x", "us", {"kafkalite": [1.0, 9.0, 2.0]}, Budget(at_most=2, of_value=True))
    assert figure.kept
    assert "kept" in table([figure])
    assert Figure("x", "us", figure.values, Budget(at_most=2)).kept is None
