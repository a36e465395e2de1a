"""Figures and budgets, and their output: a table, a JSON file, plots."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

OURS = "kafkalite"


@dataclass(frozen=True)
class Budget:
    """A bound: on ours divided by the other's, or on our own value if `of_value` is set."""

    at_most: float | None = None
    at_least: float | None = None
    of_value: bool = False

    def __post_init__(self) -> None:
        assert (self.at_most is None) != (self.at_least is None), "a budget has one bound"

    @property
    def bound(self) -> float:
        return self.at_most or self.at_least or 0.0

    def holds(self, number: float) -> bool:
        return number <= self.bound if self.at_most is not None else number >= self.bound

    def __str__(self) -> str:
        sign = "≤" if self.at_most is not None else "≥"
        return f"{sign} {number(self.bound)}" + (" (value)" if self.of_value else "")


@dataclass(frozen=True)
class Figure:
    """One quantity, measured several times, of kafkalite and mostly of one other subject."""

    name: str
    unit: str
    values: dict[str, list[float]]
    budget: Budget | None = None
    at: float | None = None  # where on a curve: how many partitions, connections, bytes

    def median(self, who: str) -> float:
        return statistics.median(self.values[who])

    @property
    def other(self) -> str | None:
        return next((who for who in self.values if who != OURS), None)

    def pairs(self) -> list[Figure]:
        """Split into one figure per other subject, where there are several."""
        if len(self.values) <= 2 or OURS not in self.values:
            return [self]
        return [
            replace(self, values={OURS: self.values[OURS], who: self.values[who]})
            for who in self.values
            if who != OURS
        ]

    @property
    def ratio(self) -> float | None:
        if self.other is None or OURS not in self.values or self.median(self.other) == 0:
            return None
        return self.median(OURS) / self.median(self.other)

    @property
    def kept(self) -> bool | None:
        """Return True if the budget holds; None without a budget, or without another subject."""
        if self.budget is None:
            return None
        number = self.median(OURS) if self.budget.of_value else self.ratio
        return None if number is None else self.budget.holds(number)


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a markdown table."""
    lines = [
        "| what | kafkalite | against | ratio | budget | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for figure in (pair for each in figures for pair in each.pairs()):
        other = figure.other
        cells = [
            figure.name,
            f"{number(figure.median(OURS))} {figure.unit}" if OURS in figure.values else "",
            f"{number(figure.median(other))} ({other})" if other else "",
            f"{figure.ratio:.2f}" if figure.ratio is not None else "",
            str(figure.budget) if figure.budget else "",
            {True: "kept", False: "**missed**", None: ""}[figure.kept],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Format with three significant digits and separated thousands."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(figures: Sequence[Figure], directory: Path, command: str) -> None:
    """Write table.md, figures.json and plots to the directory: ratios, curves, comparisons."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "table.md").write_text(table(figures))
    entries = [
        {
            "name": figure.name, "unit": figure.unit, "at": figure.at, "values": figure.values,
            "ratio": figure.ratio, "budget": str(figure.budget or ""), "kept": figure.kept,
        }
        for figure in figures
    ]  # fmt: skip
    run = {
        "command": command, "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(), "python": platform.python_version(),
        "cores": os.cpu_count(), "cpu": cpu_model(), "figures": entries,
    }  # fmt: skip
    (directory / "figures.json").write_text(json.dumps(run, indent=1) + "\n")
    plot_ratios(figures, directory / "ratios.png")
    plot_curves(figures, directory / "curves.png")
    plot_line_ups(figures, directory / "line_ups.png")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def plot_ratios(figures: Sequence[Figure], path: Path) -> None:
    """Plot every ratio as a bar, its budget as a line across."""
    shown = [figure for figure in figures if figure.ratio and figure.at is None]
    shown = [pair for figure in shown for pair in figure.pairs()]
    if not shown:
        return
    pyplot = drawing()
    picture, axes = pyplot.subplots(figsize=(11, 1.5 + 0.3 * len(shown)))
    colours = {True: "#4a8f5a", False: "#b5493d", None: "#8899aa"}
    for place, figure in enumerate(shown):
        axes.barh(place, figure.ratio, color=colours[figure.kept])
        if figure.budget and not figure.budget.of_value:
            bound = figure.budget.bound
            axes.plot([bound, bound], [place - 0.45, place + 0.45], color="black")
    names = [f"{figure.name} ({figure.other})" for figure in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=8)
    axes.set_xscale("log")
    axes.axvline(1.0, color="#cccccc", zorder=0)
    axes.invert_yaxis()
    axes.set_xlabel("kafkalite divided by the other; the stroke is the budget, green is kept")
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def plot_curves(figures: Sequence[Figure], path: Path) -> None:
    """Plot one panel for each quantity that was measured at several sizes."""
    curves: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.at is not None:
            what = f"{figure.name.partition(': ')[2]}, {figure.unit}"
            curves.setdefault(what, []).append(figure)
    if not curves:
        return
    pyplot = drawing()
    picture, panels = pyplot.subplots(
        len(curves), 1, figsize=(8, 2.6 * len(curves)), squeeze=False, sharex=True
    )
    for axes, (what, points) in zip(panels[:, 0], curves.items(), strict=True):
        for who in points[0].values:
            at = [point.at for point in points if who in point.values]
            axes.plot(at, [p.median(who) for p in points if who in p.values], "o-", label=who)
        axes.set_title(what, fontsize=9)
        axes.set_xscale("log")
        # In a tiny run the clock may give 0, and 0 has no logarithm.
        positive = all(value > 0 for p in points for who in p.values for value in p.values[who])
        axes.set_yscale("log" if positive else "linear")
        axes.legend(fontsize=8)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def plot_line_ups(figures: Sequence[Figure], path: Path) -> None:
    """Plot one panel for each task that was measured in several ways, a bar each."""
    shown = [figure for figure in figures if len(figure.values) > 2 and figure.at is None]
    if not shown:
        return
    pyplot = drawing()
    rows = sum(len(figure.values) for figure in shown)
    picture, panels = pyplot.subplots(
        len(shown), 1, figsize=(9, 1.0 * len(shown) + 0.4 * rows), squeeze=False
    )
    for axes, figure in zip(panels[:, 0], shown, strict=True):
        colours = ["#4a8f5a" if who == OURS else "#8899aa" for who in figure.values]
        medians = [figure.median(who) for who in figure.values]
        bars = axes.barh(range(len(medians)), medians, color=colours)
        axes.bar_label(bars, [number(median) for median in medians], padding=3, fontsize=8)
        axes.set_yticks(range(len(medians)), list(figure.values), fontsize=8)
        axes.set_xlim(0, max(medians) * 1.15)
        axes.invert_yaxis()
        axes.set_title(f"{figure.name}, {figure.unit}", fontsize=9)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)


def drawing() -> ModuleType:
    """Return pyplot with a backend without a screen; imported only to plot."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot
