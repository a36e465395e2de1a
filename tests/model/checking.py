"""Checks of Replication.tla by TLC, the model checker of TLA+, in all states within some bounds.

A check of a mutant breaks one rule of the model: TLC must find a state that violates an invariant.

TLC comes from Maven into the same cache as Apache Kafka, and needs Java.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tools.apache_kafka import TLC, TLC_GROUP, classpath, java_executable

MODEL = Path(__file__).parent / "Replication.tla"
HEAP = "-Xmx2g"

INVARIANTS = (
    "LeaderCompleteness", "PowerFailureLosesNothing", "ConsistentRead", "LogMatching",
    "OneLeaderPerEpoch", "IsrSuperset", "NoCommittedTruncation",
)  # fmt: skip

CONFIG = """CONSTANTS
    r1 = r1
    r2 = r2
    r3 = r3
    None = None
    Replicas = {{r1, r2, r3}}
    Copies = "{check.copies}"
    MinIsr = {check.min_isr}
    LengthMax = {check.length_max}
    ChangesMax = {check.changes_max}
    CrashesMax = {check.crashes_max}
    DiskLossesMax = {check.disks_max}
    Mutant = "{check.mutant}"
SPECIFICATION Spec
CONSTRAINT Bounds
SYMMETRY Symmetry
INVARIANTS {invariants}
"""

VIOLATED = re.compile(r"Invariant (\w+) is violated")
STATES = re.compile(r"(\d+) states generated, (\d+) distinct states found, (\d+) states left")


class ModelCheck(NamedTuple):
    """One check: the constants of the model."""

    copies: str
    min_isr: int
    length_max: int = 2
    changes_max: int = 2
    crashes_max: int = 0
    disks_max: int = 0
    mutant: str = "none"

    def __str__(self) -> str:
        rule = "" if self.mutant == "none" else f", {self.mutant}"
        return (
            f"copies {self.copies}, min ISR {self.min_isr}, length {self.length_max},"
            f" changes {self.changes_max}, crashes {self.crashes_max}, disks {self.disks_max}{rule}"
        )


class CheckResult(NamedTuple):
    """What TLC has found."""

    violated: str | None
    """The invariant that does not hold; None if all do."""
    states: int
    """Number of distinct states."""
    is_complete: bool
    """True if TLC has visited all states within the bounds."""
    duration_s: float
    output: str

    def is_expected(self, check: ModelCheck) -> bool:
        """Return whether the model holds, or its mutant does not."""
        if check.mutant == "none":
            return self.violated is None and self.is_complete
        return self.violated is not None


CHECKS = (
    ModelCheck("none", 1, changes_max=3),
    ModelCheck("leader", 1),
    ModelCheck("minisr", 2),
    ModelCheck("all", 2),
)
"""What `make model` checks; each takes up to a minute on two cores."""

MUTANTS = (
    ModelCheck("none", 1, changes_max=3, mutant="truncate_to_the_high_watermark"),
    ModelCheck("none", 1, changes_max=3, mutant="diverging_log_is_progress"),
    ModelCheck("leader", 1, mutant="ends_over_the_proposed_isr"),
    ModelCheck("leader", 1, mutant="no_witnesses"),
    ModelCheck("leader", 1, mutant="first_report_leads"),
    ModelCheck("leader", 1, mutant="shrink_before_the_epoch_is_flushed"),
    ModelCheck("leader", 1, changes_max=3, mutant="epoch_start_is_not_flushed"),
    ModelCheck("minisr", 2, mutant="flushes_over_the_maximal_isr"),
    ModelCheck("minisr", 2, mutant="truncation_keeps_the_durable_offset"),
    ModelCheck("minisr", 2, crashes_max=1, disks_max=1, mutant="lost_copies_are_counted"),
)

LONG = (
    ModelCheck("none", 2, changes_max=3, crashes_max=1),
    ModelCheck("minisr", 2, crashes_max=1, disks_max=1),
)
"""Larger bounds: several minutes each."""


def run(check: ModelCheck, directory: Path, *, timeout_s: float, workers: int = 2) -> CheckResult:
    """Run TLC in a directory.

    Raises Unavailable if there is no TLC or Java, and TimeoutError if it takes longer.
    """
    # TLC finds a configuration file beside the module only.
    (directory / MODEL.name).write_bytes(MODEL.read_bytes())
    config = CONFIG.format(check=check, invariants=" ".join(INVARIANTS))
    (directory / "Replication.cfg").write_text(config)
    command = [
        java_executable(), "-XX:+UseParallelGC", HEAP, "-cp", classpath(TLC, group=TLC_GROUP),
        "tlc2.TLC", "-workers", str(workers), "-deadlock", "-config", "Replication.cfg",
        MODEL.name,
    ]  # fmt: skip
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{check}: not complete after {timeout_s:.0f} s") from None
    counts = STATES.findall(done.stdout)
    if not counts:
        raise RuntimeError(f"TLC failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    violated = VIOLATED.search(done.stdout)
    _, distinct, left = counts[-1]
    return CheckResult(
        violated.group(1) if violated else None, int(distinct),
        done.returncode == 0 and left == "0", time.monotonic() - start, done.stdout,
    )  # fmt: skip
