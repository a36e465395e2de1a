"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal

THRESHOLD = gc.get_threshold()
DESCRIPTORS_MORE = 200

_descriptors_left = 0


def pytest_runtest_teardown() -> None:
    """What tests leave in cycles, logs and clients with their descriptors among it, is to go.

    The collector counts objects, not descriptors, and looks for old ones the more seldom the more
    there are; and a node in the tests' own process lays it to rest, as its process would.
    """
    global _descriptors_left
    rested = gc.get_threshold() != THRESHOLD
    if rested:
        gc.set_threshold(*THRESHOLD)
        gc.unfreeze()
    if rested or descriptors() > _descriptors_left + DESCRIPTORS_MORE:
        gc.collect()
        _descriptors_left = descriptors()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pytest_configure() -> None:
    """Tests that run in the background or under nohup were handed these signals ignored, and would
    hand that on to every process they start and then ask to end."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
