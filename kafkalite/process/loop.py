"""What every node's process does to its own loop: signals, and a collector that rests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor

COLLECT_AFTER, MIDDLE_AFTER, NEVER = 10_000, 2, 1 << 30
"""The thresholds of the collector's generations: a tick pays for each of its passes, so the young
one is searched while it is small (100,000 cold objects take 20 to 60 ms), and the middle one after
three of those.  The old one is not searched by their number: in a worker of 2,500 partitions with
a few large fetch sessions that takes 40 to 80 ms (`watch_memory`)."""

LOOK_MS = 60_000
"""Interval between two looks at how much memory is allocated."""

GROWN_BLOCKS = 5_000_000
"""Least growth, in blocks of about 100 bytes, after which the old generation is searched."""

log = logging.getLogger("kafkalite.process")

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


def rest_collector(reactor: Reactor) -> None:
    """What is there now stays, and collections need not look at it; a request leaves no cycles,
    so there is little to find later."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, MIDDLE_AFTER, NEVER)
    watch_memory(reactor)


def watch_memory(reactor: Reactor) -> None:
    """Search the old generation once memory has doubled since, in case there are cycles after all:
    a slow tick is better than a process that grows for ever."""
    kept = sys.getallocatedblocks()

    def look() -> None:
        nonlocal kept
        blocks = sys.getallocatedblocks()
        if blocks >= 2 * kept + GROWN_BLOCKS:
            freed = gc.collect()
            kept = sys.getallocatedblocks()
            log.info(
                "Garbage collector searched all objects, since memory has doubled."
                " blocks_before=%d blocks=%d unreachable=%d",
                blocks, kept, freed,
            )  # fmt: skip
        reactor.call_later(LOOK_MS, look)

    reactor.call_later(LOOK_MS, look)
