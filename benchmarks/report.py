"""A figure, its budget, and what a person sees of them: a table, a JSON file, a plot."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

OURS = "kafkalite"


@dataclass(frozen=True)
class Budget:
    """A bound: on ours divided by the other's, or on our own value where `of_value` says so."""

    at_most: float | None = None
    at_least: float | None = None
    of_value: bool = False

    def holds(self, number: float) -> bool:
        if self.at_most is not None and number > self.at_most:
            return False
        return self.at_least is None or number >= self.at_least

    def __str__(self) -> str:
        sign, bound = ("≤", self.at_most) if self.at_most is not None else ("≥", self.at_least)
        return f"{sign} {bound:g}" + (" (value)" if self.of_value else "")


@dataclass(frozen=True)
class Figure:
    """One thing measured, several times, of ours and mostly of one other."""

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

    @property
    def ratio(self) -> float | None:
        if self.other is None or OURS not in self.values or self.median(self.other) == 0:
            return None
        return self.median(OURS) / self.median(self.other)

    @property
    def kept(self) -> bool | None:
        """Whether the budget holds; None where there is none, or nothing to hold it against."""
        if self.budget is None:
            return None
        number = self.median(OURS) if self.budget.of_value else self.ratio
        return None if number is None else self.budget.holds(number)


def table(figures: Sequence[Figure]) -> str:
    """The figures as a markdown table."""
    lines = [
        "| what | kafkalite | against | ratio | budget | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for figure in figures:
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
    """Three digits that mean something, thousands apart."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def write(figures: Sequence[Figure], directory: Path, command: str) -> None:
    """Leave table.md, figures.json and plot.png in the directory."""
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
    plot(figures, directory / "plot.png")


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def plot(figures: Sequence[Figure], path: Path) -> None:
    """On the left every ratio with its budget; on the right how the curves grow."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    compared = [figure for figure in figures if figure.ratio is not None and figure.at is None]
    curves: dict[str, list[Figure]] = {}
    for figure in figures:
        if figure.at is not None:
            curves.setdefault(f"{figure.name.partition(': ')[2]}, {figure.unit}", []).append(figure)
    picture, (left, right) = pyplot.subplots(
        1, 2, figsize=(15, 1.5 + 0.32 * max(len(compared), 8)), width_ratios=(3, 2)
    )
    places = range(len(compared))
    ratios = [figure.ratio or 0.0 for figure in compared]
    colours = [{True: "#4a8f5a", False: "#b5493d", None: "#8899aa"}[f.kept] for f in compared]
    left.barh(places, ratios, color=colours)
    for place, figure in zip(places, compared, strict=True):
        if figure.budget and not figure.budget.of_value:
            bound = figure.budget.at_most or figure.budget.at_least
            left.plot([bound, bound], [place - 0.45, place + 0.45], color="black")
    left.set_yticks(places, [f"{figure.name} ({figure.other})" for figure in compared], fontsize=8)
    left.set_xscale("log")
    left.axvline(1.0, color="#cccccc", zorder=0)
    left.invert_yaxis()
    left.set_xlabel("kafkalite / other; the stroke is the budget")
    for label, points in curves.items():
        for who in points[0].values:
            medians = [point.median(who) for point in points if who in point.values]
            at = [point.at for point in points if who in point.values]
            right.plot(at, medians, marker="o", label=f"{label} ({who})")
    if curves:
        right.set_xscale("log")
        right.set_yscale("log")
        right.legend(fontsize=7)
    picture.tight_layout()
    picture.savefig(path, dpi=110)
    pyplot.close(picture)
