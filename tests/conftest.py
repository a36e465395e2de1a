"""What holds for every test."""

from __future__ import annotations

import gc
import signal

THRESHOLD = gc.get_threshold()


def pytest_runtest_teardown() -> None:
    """A node in the tests' own process lays the collector to rest, as its process would; what tests
    leave in cycles, clients with their descriptors among it, is to go all the same."""
    if gc.get_threshold() != THRESHOLD:
        gc.set_threshold(*THRESHOLD)
        gc.unfreeze()
        gc.collect()


def pytest_configure() -> None:
    """Tests that run in the background or under nohup were handed these signals ignored, and would
    hand that on to every process they start and then ask to end."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
