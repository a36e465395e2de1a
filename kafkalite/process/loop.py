"""What every node's process does to its own loop: signals, and a collector that rests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor

COLLECT_AFTER, MIDDLE_AFTER, OLD_AFTER = 10_000, 2, 300
"""The thresholds of the collector's generations: a tick pays for each of its passes, so the young
one is searched while it is small (100,000 cold objects take 20 to 60 ms), and the middle one after
three of those.  The old one is searched once in about ten million objects."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends a broker cleanly; a node's process among others hears SIGTERM only."""


def hear_signals(
    reactor: Reactor,
    heard: Callable[[int], None],
    *numbers: int,
    at_once: Callable[[int], None] = lambda number: None,
) -> None:
    """Have the loop call `heard(number)` for these signals, in the tick after they came.

    `at_once` is called where the process just is, which may be long before the next tick.  SIGHUP
    stays ignored where it was ignored from the start (nohup).
    """
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def read() -> None:
        for number in os.read(woken, 512):
            if number in numbers:
                heard(number)

    reactor.watch(woken, read)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: at_once(number))


def rest_collector() -> None:
    """What is there now stays, and collections need not look at it; a request leaves no cycles,
    so there is little to find later."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, MIDDLE_AFTER, OLD_AFTER)
