"""Benchmarks of kafkalite: ratios within one run, against Apache Kafka and plain system calls.

`make bench` runs all of them (`python -m benchmarks --help`); `pytest benchmarks` runs each one
once with a tiny load, so that none breaks unnoticed.  Each `bench_*.py` times one component on its
own; the other files load a whole broker, most of them through client.c.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness import Bench

ALL = (
    "startup", "produce", "fetch", "end_to_end", "append", "growth", "durability",
    "workers", "leading", "dedicated", "thousand", "failover", "replication", "groups",
    "consumer_groups", "share_groups", "native", "gateway", "transactions", "compaction", "spark",
)  # fmt: skip


def one(name: str) -> Callable[[Bench], None]:
    """Return the run function of this benchmark; it takes a Bench."""
    run: Callable[[Bench], None] = import_module(f"benchmarks.{name}").run
    return run
