"""One run: a broker, a scenario under load, and the checks.

A run is void, and fails as such, when fewer than 500 records a second were acknowledged, the
faults included: an idle broker loses nothing.  A seed identifies a run.
"""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkalite.coordination.replication.durable_copies import DurableCopies
from kafkalite.testing import Broker
from tests.faults import group_workload, rings
from tests.faults.clients import IDEMPOTENT, UNORDERED, UNORDERED_BY_MOVES
from tests.faults.footprint import at_rest, grown
from tests.faults.harness import FaultHarness
from tests.faults.history import History, violations
from tests.faults.processes import Processes, free_address
from tests.faults.record import recorded
from tests.faults.replicas import Replicas
from tests.faults.replicated import REPLICATED
from tests.faults.scenarios import CONFIG, MOVING, SCENARIOS

ACKED_PER_SECOND_MIN = 500
DURABILITIES = ("os", "fsync", "interval")
COPIES = tuple(each.value for each in DurableCopies)
GROUPS = "F22"
RINGS = "F24"


@dataclass(frozen=True)
class Plan:
    """The parameters of a run."""

    fault: str
    count: int
    seed: int
    workers: int = 3
    partitions: int = 6
    durability: str = ""
    timed: bool = True
    """If True, a recovery that takes longer than its limit is a violation."""
    replicas: int = 1
    min_isr: int = 1

    @property
    def mode(self) -> str:
        """The durability: given, or chosen by the seed."""
        return self.durability or DURABILITIES[self.seed % len(DURABILITIES)]

    @property
    def copies(self) -> str:
        """The topic's durable.copies, chosen by the seed."""
        return COPIES[self.seed // len(DURABILITIES) % len(COPIES)]

    @property
    def replication(self) -> dict[str, int | str]:
        """The settings of a topic with several replicas, for the record."""
        return {"replicas": self.replicas, "min_isr": self.min_isr, "copies": self.copies}


@dataclass
class Run:
    """The result of a run."""

    plan: Plan
    history: History
    done: int = 0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)
    log: str = ""
    """The broker's own log."""
    events: list[str] = field(default_factory=list)
    """The events of members of groups."""
    group_logs: list[str] = field(default_factory=list)
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    acts: dict[str, int] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    """The number of members that were started, by client and strategy."""

    @property
    def acked_per_second(self) -> float:
        return self.history.acked / max(self.seconds, 0.001)

    @property
    def void(self) -> bool:
        return self.acked_per_second < ACKED_PER_SECOND_MIN

    @property
    def good(self) -> bool:
        return not (self.void or self.complaints)

    def line(self) -> dict[str, Any]:
        """Return the run's line of the record file."""
        return recorded(
            self.plan.fault,
            count=self.done,
            seed=self.plan.seed,
            workers=self.plan.workers,
            durability=self.plan.mode,
            **(self.plan.replication if self.plan.replicas > 1 else {}),
            acked=self.history.acked,
            acked_per_second=round(self.acked_per_second),
            read=len(self.history.final),
            violations=len(self.complaints),
            void=self.void,
            **({"acts": self.acts} if self.acts else {}),
            **({"members": self.members} if self.members else {}),
            recovery_s={kind: spread(times) for kind, times in sorted(self.recoveries.items())},
        )


def spread(times: list[float]) -> list[float]:
    """Return count, median, 99th percentile and maximum."""
    ranked = sorted(times)
    p99 = ranked[min(len(ranked) - 1, int(len(ranked) * 0.99))]
    return [len(ranked), *(round(s, 3) for s in (statistics.median(ranked), p99, ranked[-1]))]


def run(plan: Plan) -> Run:
    """Run a plan and check the result."""
    # A history is a large set of objects that live long; a collection would take long.
    gc.collect()
    gc.disable()
    try:
        return churned(plan) if plan.fault == GROUPS else played(plan)
    finally:
        gc.enable()


def played(plan: Plan) -> Run:
    moves = plan.fault in MOVING or plan.replicas > 1
    unordered = UNORDERED_BY_MOVES if moves else UNORDERED
    history = History(idempotent=IDEMPOTENT, unordered=unordered)
    came = Run(plan, history)
    scenarios = REPLICATED if plan.replicas > 1 else SCENARIOS
    play = rings.sabotage if plan.fault == RINGS else scenarios[plan.fault]
    with Broker(
        durability=plan.mode,
        config={**CONFIG, **(rings.CONFIG if plan.fault == RINGS else {})},
        workers=plan.workers,
        listen=free_address(),
    ) as broker:
        topic = broker.topic(
            plan.partitions,
            {"min.insync.replicas": plan.min_isr, "durable.copies": plan.copies},
            replication_factor=plan.replicas,
        )
        replicas = Replicas(broker, topic, plan.partitions, plan.replicas)
        harness = FaultHarness(
            Processes(broker), topic, plan.partitions, plan.seed, history, plan.timed, plan.replicas
        )
        harness.warm_up()
        before = at_rest(harness.processes, harness.watched(), like=None)
        begun = time.monotonic()
        harness.begin()
        try:
            play(harness, plan.count)
            harness.work()
            harness.remove_made()
        except Exception as fault:
            harness.faults.append(f"{plan.fault} could not be played on: {fault!r}")
        finally:
            came.seconds = time.monotonic() - begun
            harness.end()
        differences = replicas.differences()
        after = at_rest(harness.processes, harness.watched(), like=before)
        came.done = harness.faults_done
        came.recoveries = harness.recoveries
        came.acts = dict(sorted(harness.acts.items()))
        came.diary = harness.diary
        came.log = (broker.data / "kafkalite.log").read_text()
        came.complaints = [
            *violations(history),
            *harness.faults,
            *differences,
            *grown(before, after),
        ]
    return came


def churned(plan: Plan) -> Run:
    """Run F22, where the faults hit groups; a rebalance counts as a fault."""
    history = History()
    came = Run(plan, history)
    with Broker(
        durability=plan.mode,
        config={
            **CONFIG, **group_workload.CONFIG, **group_workload.internal_factors(plan.replicas)
        },
        workers=plan.workers,
        listen=free_address(),
    ) as broker:
        play = group_workload.Churn(
            broker, broker.topic(plan.partitions), plan.partitions, plan.seed, history,
            plan.replicas,
        )  # fmt: skip
        begun = time.monotonic()
        try:
            play.play(plan.count)
        finally:
            came.seconds = time.monotonic() - begun
            play.end()
        came.done = play.generations
        came.recoveries = play.recoveries
        came.members = dict(sorted(play.started.items()))
        came.events = play.events
        came.group_logs = play.group_logs()
        came.diary = play.diary
        came.log = (broker.data / "kafkalite.log").read_text()
        came.complaints = play.faults
    return came


def keep(came: Run, directory: Path) -> None:
    """Write everything that may help the analysis of a violation."""
    came.history.write(directory / "history.jsonl")
    (directory / "kafkalite.log").write_text(came.log)
    (directory / "diary").write_text("\n".join([*came.diary, *came.complaints, ""]))
    if came.events:
        (directory / "events").write_text("".join(came.events))
        (directory / "group_logs").write_text("\n".join([*came.group_logs, ""]))
