"""SlowTicks: the ticks of an event loop that took longer than 50 ms, by what took longest in each.

    ext/net/loop ─▶ add()    tick, processor and step time, and the longest step
                 ├─▶ counts, longest_ns …    the metrics page, `kafkalite top`
                 └─▶ a WARNING, at most one in ten seconds for each cause

A cause is the API of a request ("Fetch"), or the name of a timer's or a callback's function.

Wall time counts as slow: clients wait, whatever the reason.  A tick with less processor time waited
for a disk, or for a processor used by other processes; tests check the processor time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkalite.clock import Clock

log = logging.getLogger("kafkalite.transport")

SLOW_NS = 50_000_000
"""As in ext/net/tick_times.pxd."""
LOG_INTERVAL_MS = 10_000
CAUSES_MAX = 200
"""Functions and APIs are fewer, unless a module creates names at run time."""

Step = int | Callable[[], object] | None
"""An API key, a callback, or None while responses are sent."""


class SlowTicks:
    """Counts and logs the slow ticks of one loop; see the module."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self.cpu_counts: Counter[str] = Counter()
        """Ticks in which the loop's thread used more than 50 ms of processor time."""
        self.longest_ns = self.longest_cpu_ns = 0
        self.name_api: Callable[[int], str] = lambda api_key: f"API key {api_key}"
        """Returns the name of an API; set by the node, which knows the APIs."""
        self._clock = clock
        self._suppressed: dict[str, tuple[int, int]] = {}

    def add(self, tick_ns: int, cpu_ns: int, step_ns: int, step: Step) -> None:
        """Count a slow tick of this length, whose longest step was `step`."""
        cause = self._name(step)
        if cause not in self.counts and len(self.counts) >= CAUSES_MAX:
            cause = "other"
        self.counts[cause] += 1
        if cpu_ns >= SLOW_NS:
            self.cpu_counts[cause] += 1
        self.longest_ns = max(self.longest_ns, tick_ns)
        self.longest_cpu_ns = max(self.longest_cpu_ns, cpu_ns)
        self._log(cause, tick_ns, cpu_ns, step_ns)

    def _name(self, step: Step) -> str:
        if step is None:
            return "sending responses"
        if isinstance(step, int):
            return self.name_api(step)
        while isinstance(step, partial):
            step = step.func
        name = getattr(step, "__qualname__", type(step).__name__)
        return str(name).partition(".<locals>")[0]

    def _log(self, cause: str, tick_ns: int, cpu_ns: int, step_ns: int) -> None:
        now_ms = self._clock.monotonic_ms()
        end_ms, suppressed = self._suppressed.get(cause, (now_ms, 0))
        if now_ms < end_ms:
            self._suppressed[cause] = end_ms, suppressed + 1
            return
        self._suppressed[cause] = now_ms + LOG_INTERVAL_MS, 0
        tick_ms, cpu_ms, step_ms = (ns // 1_000_000 for ns in (tick_ns, cpu_ns, step_ns))
        log.warning(
            "Event loop was not free for %d ms; the longest step was %s."
            " cause=%r tick_ms=%d cpu_ms=%d step_ms=%d suppressed=%d",
            tick_ms, cause, cause, tick_ms, cpu_ms, step_ms, suppressed,
        )  # fmt: skip
