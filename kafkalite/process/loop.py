"""Settings of each node's event loop: signals, and garbage collection only on demand."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor

MEMORY_CHECK_MS = 60_000
"""Interval of the check of allocated memory."""

GROWTH_BLOCKS_MIN = 3_000_000
"""Minimum growth, in blocks of about 100 bytes, before a full collection."""

log = logging.getLogger("kafkalite.process")

SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that shut a broker down; a node's process in a cluster handles SIGTERM only."""


def handle_signals(
    reactor: Reactor,
    handle: Callable[[int], None],
    *numbers: int,
    at_once: Callable[[int], None] = lambda number: None,
) -> None:
    """Have the event loop call `handle(number)` for these signals, in the tick after they arrive.

    `at_once` is called in the signal handler, which may be long before the next tick.  SIGHUP stays
    ignored if it was ignored from the start (nohup).
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def read() -> None:
        for number in os.read(read_end, 512):
            if number in numbers:
                handle(number)

    reactor.watch(read_end, read)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: at_once(number))


def disable_automatic_gc(reactor: Reactor) -> None:
    """Disable automatic garbage collection: no request creates reference cycles, and each pass is
    part of a tick.

    Measured in a worker of 2,500 partitions and 500 waiting fetches: 20 to 43 ms for a pass of the
    young generations after each 10,000 new objects, 40 to 80 ms for one of all objects.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    watch_memory(reactor)


def watch_memory(reactor: Reactor) -> None:
    """Collect all objects whenever allocated memory has doubled, in case there are cycles: a slow
    tick is better than a process that grows without bound."""
    blocks_before = sys.getallocatedblocks()

    def check() -> None:
        nonlocal blocks_before
        blocks = sys.getallocatedblocks()
        if blocks >= 2 * blocks_before + GROWTH_BLOCKS_MIN:
            freed = gc.collect()
            blocks_before = sys.getallocatedblocks()
            log.info(
                "Garbage collection of all objects has run, because memory has doubled."
                " blocks_before=%d blocks=%d unreachable=%d",
                blocks, blocks_before, freed,
            )  # fmt: skip
        reactor.call_later(MEMORY_CHECK_MS, check)

    reactor.call_later(MEMORY_CHECK_MS, check)
