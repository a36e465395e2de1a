"""Checks of an isolation run: slow ticks, lost workers, the healthy client's latency.

A tick is measured in processor time of the loop's thread: on a busy machine wall time depends on
other processes.  Wall time is reported beside it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kafkalite.metrics import Read
from tests.faults.isolation.healthy import RoundTrip

TICK_MS_MAX = 50
LOST = re.compile(
    r"is fenced|missed its heartbeat deadline|missed its heartbeats and is killed"
    r"|Node \d+ exited|Traceback"
)
"""Lines of the log after which a node has failed or was replaced."""
BUSY = re.compile(r"misses its heartbeats, but its process runs")
"""Lines that are reported, not checked: a process that runs is given time."""
SLOW_TICK = re.compile(r" (node-\d+) .*cause='(.*)' tick_ms=(\d+) cpu_ms=(\d+)")
"""Written by transport/slow_ticks.py, of each cause at most once in ten seconds."""


class SlowCause(NamedTuple):
    """The slow ticks of one cause at one node."""

    node: int
    cause: str
    count: int
    """Ticks longer than 50 ms of wall time."""
    cpu_count: int
    """Ticks with more than 50 ms of processor time."""


class NodeTicks(NamedTuple):
    """The metrics of a node's loop, from its page."""

    node: int
    longest_ms: float
    longest_cpu_ms: float
    causes: list[SlowCause]


@dataclass
class Observed:
    """The observations of one run."""

    nodes_before: dict[int, int]
    """Node id → pid."""
    nodes_after: dict[int, int]
    ticks: list[NodeTicks]
    log: str
    alone: list[RoundTrip]
    beside: list[RoundTrip]
    done: dict[str, float] = field(default_factory=dict)
    wanted: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Failures of the harness."""


def node_ticks(page: Read) -> NodeTicks:
    """Read the families about ticks from a metrics page."""
    families = {family.name: family.samples for family in page.families}

    def by_cause(name: str) -> dict[str, int]:
        samples = families[f"kafkalite_loop_{name}_total"]
        return {labels["cause"]: int(value) for labels, value in samples}

    def longest(name: str) -> float:
        ((_, seconds),) = families[f"kafkalite_loop_{name}_seconds"]
        return float(seconds) * 1e3

    cpu = by_cause("slow_ticks_cpu")
    return NodeTicks(
        page.node_id,
        longest("longest_tick"),
        longest("longest_tick_cpu"),
        [
            SlowCause(page.node_id, cause, count, cpu.get(cause, 0))
            for cause, count in sorted(by_cause("slow_ticks").items())
        ],
    )


def p99(values: list[float]) -> float:
    """Return the 99th percentile; of no values it is infinite."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))] if ranked else float("inf")


def judge(observed: Observed, p99_ms_max: float | None) -> list[str]:
    """Return each violation as a sentence; none for a good run.

    Without `p99_ms_max` the healthy client's latency is not checked: for a machine with other load.
    """
    violations = [*observed.faults, *lost_nodes(observed), *slow_ticks(observed)]
    for what, wanted in observed.wanted.items():
        done = observed.done.get(what, 0)
        if done < wanted:
            violations.append(f"The load was incomplete: {what} {done:,.0f} of {wanted:,.0f}")
    for kind in ("produce", "fetch"):
        found = p99([getattr(trip, f"{kind}_ms") for trip in observed.beside])
        if p99_ms_max is not None and found >= p99_ms_max:
            violations.append(
                f"The healthy client's p99 of {kind} was {found:.1f} ms (limit {p99_ms_max:g} ms)"
            )
    return violations


def lost_nodes(observed: Observed) -> Iterator[str]:
    """Find workers that died or were fenced."""
    for node, pid in observed.nodes_before.items():
        now = observed.nodes_after.get(node)
        if now != pid:
            yield f"Node {node} was process {pid} and is now {now}"
    for line in observed.log.splitlines():
        if LOST.search(line):
            yield f"The log says: {line}"


def slow_ticks(observed: Observed) -> Iterator[str]:
    """Find ticks with too much processor time, and nodes that do not report theirs."""
    known = {ticks.node for ticks in observed.ticks}
    for node in sorted(observed.nodes_after.keys() - known):
        yield f"Node {node} has no metrics page: its ticks are unknown"
    for ticks in observed.ticks:
        for cause in ticks.causes:
            if cause.cpu_count:
                yield (
                    f"Node {ticks.node} had {cause.cpu_count} ticks of over {TICK_MS_MAX} ms of"
                    f" processor time because of {cause.cause} (worst of all"
                    f" {ticks.longest_cpu_ms:.0f} ms)"
                )


def logged_ticks(log: str) -> Iterator[str]:
    """Find the lines of ticks with too much processor time, and the longest by cause."""
    worst: dict[tuple[str, str], tuple[int, int]] = {}
    for line in log.splitlines():
        if BUSY.search(line):
            yield f"log: {line}"
        if match := SLOW_TICK.search(line):
            node, cause, tick_ms, cpu_ms = match.groups()
            if int(cpu_ms) >= TICK_MS_MAX:
                yield f"log: {line}"
            worst[node, cause] = max(worst.get((node, cause), (0, 0)), (int(tick_ms), int(cpu_ms)))
    for (node, cause), (tick_ms, cpu_ms) in sorted(worst.items()):
        yield f"{node}: longest logged tick of {cause}: {tick_ms} ms, of processor time {cpu_ms} ms"


def report(observed: Observed) -> Iterator[str]:
    """Describe a run for a reader: ticks by cause, log lines, latencies, the load that was done."""
    for ticks in observed.ticks:
        yield (
            f"node {ticks.node}: longest tick {ticks.longest_ms:.0f} ms, most processor time of a"
            f" slow tick {ticks.longest_cpu_ms:.0f} ms"
        )
        for cause in ticks.causes:
            yield (
                f"    {cause.cause}: {cause.count} over {TICK_MS_MAX} ms,"
                f" {cause.cpu_count} of them by processor time"
            )
    yield from logged_ticks(observed.log)
    for name, trips in (("alone", observed.alone), ("beside", observed.beside)):
        for kind in ("produce_ms", "fetch_ms", "late_ms"):
            values = [getattr(trip, kind) for trip in trips]
            if values:
                yield (
                    f"healthy {name:6} {kind:10} median {statistics.median(values):7.2f}"
                    f"  p99 {p99(values):7.2f}  worst {max(values):7.2f}  ({len(values)})"
                )
    for what, done in sorted(observed.done.items()):
        yield f"done: {what} {done:,.0f}"
