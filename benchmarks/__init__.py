"""What kafkalite costs, in ratios within one run: against Apache Kafka and plain system calls.

`make bench` runs everything (`python -m benchmarks --help`); `pytest benchmarks` runs each
benchmark once, tiny, so that none can rot.  `bench_*.py` time one compiled module each, on
pytest-benchmark; the other files load a whole broker through client.c.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.harness import Bench

ALL = (
    "startup", "produce", "fetch", "end_to_end", "append", "growth", "durability",
    "workers", "leading", "dedicated", "thousand", "failover", "groups", "native",
    "gateway", "spark",
)  # fmt: skip


def one(name: str) -> Callable[[Bench], None]:
    """The benchmark of this name, to be called with a Bench."""
    run: Callable[[Bench], None] = import_module(f"benchmarks.{name}").run
    return run
