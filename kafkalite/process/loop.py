"""What every node's process does to its own loop: signals, and a collector that rests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor

LOOK_MS = 60_000
"""Interval between two looks at how much memory is allocated."""

GROWN_BLOCKS = 3_000_000
"""Least growth, in blocks of about 100 bytes, after which all objects are searched."""

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
    """Have the collector search nothing by itself: no request leaves a cycle behind, and each of
    its passes is part of a tick.

    Measured in a worker of 2,500 partitions and 500 waiting fetches: 20 to 43 ms for a pass of the
    young generations after each 10,000 new objects, 40 to 80 ms for one of all objects.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    watch_memory(reactor)


def watch_memory(reactor: Reactor) -> None:
    """Search all objects once memory has doubled since, in case there are cycles after all: a slow
    tick is better than a process that grows for ever."""
    kept = sys.getallocatedblocks()

    def look() -> None:
        nonlocal kept
        blocks = sys.getallocatedblocks()
        if blocks >= 2 * kept + GROWN_BLOCKS:
            freed = gc.collect()
            kept = sys.getallocatedblocks()
            log.info(
                "Garbage collection of all objects has run, because memory has doubled."
                " blocks_before=%d blocks=%d unreachable=%d",
                blocks, kept, freed,
            )  # fmt: skip
        reactor.call_later(LOOK_MS, look)

    reactor.call_later(LOOK_MS, look)
