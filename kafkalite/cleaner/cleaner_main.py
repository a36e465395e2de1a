"""The log cleaner's main function: its threads, its priority, and its end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

from kafkalite.cleaner.cleaner_thread import CleanedBroker, CleanerThread
from kafkalite.cleaner.throttle import Throttle

NICENESS = 10
"""Lower priority than the nodes', which serve clients meanwhile."""

CHECK_S = 1.0


def run(
    broker: Callable[[], CleanedBroker | None],
    until: int | None,
    ready: Callable[[], object] = lambda: None,
) -> int:
    """Clean until SIGTERM, SIGINT or end of file on `until`; return the exit code of the process.

    `broker` returns the state of the running broker, or None.  A pass in progress is abandoned at
    the end: the nodes delete its files.
    """
    os.nice(NICENESS)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    if until is not None:
        threading.Thread(target=_end_with, args=[until], name="until", daemon=True).start()
    throttle = Throttle()
    threads: list[tuple[CleanerThread, threading.Thread]] = []
    wanted = 1
    ready()
    while True:
        threads = [(each, thread) for each, thread in threads if thread.is_alive()]
        if threads:
            wanted = threads[0][0].threads_wanted
        for missing in sorted(set(range(wanted)) - {each.number for each, _ in threads}):
            threads.append(_started(CleanerThread(missing, broker, throttle)))
        threads.sort(key=lambda pair: pair[0].number)
        threads[0][1].join(CHECK_S)


def _started(cleaner: CleanerThread) -> tuple[CleanerThread, threading.Thread]:
    thread = threading.Thread(
        target=cleaner.run, args=[_is_wanted(cleaner)], name=f"cleaner-{cleaner.number}",
        daemon=True,
    )  # fmt: skip
    thread.start()
    return cleaner, thread


def _is_wanted(thread: CleanerThread) -> Callable[[], bool]:
    return lambda: thread.number < max(1, thread.threads_wanted)


def _end_with(descriptor: int) -> None:
    """Exit when the process that holds the other end of this pipe ends."""
    while os.read(descriptor, 1):
        pass
    os._exit(0)
