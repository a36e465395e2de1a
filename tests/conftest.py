"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import settings

# A machine may stand still in the middle of an example, and no test is about time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

DESCRIPTORS_MORE = 200

_descriptors_left = 0


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay until the end; no collection need look at them again."""
    collect()


def pytest_runtest_teardown() -> None:
    """What tests leave in cycles, logs and clients with their descriptors among it, is to go.

    The collector counts objects, not descriptors, and looks for old ones the more seldom the more
    there are; and a node in the tests' own process lays it to rest, as its process would.
    """
    rested = not gc.isenabled()
    gc.enable()
    if rested or descriptors() > _descriptors_left + DESCRIPTORS_MORE:
        collect()


def collect() -> None:
    """Collect everything, and look at what is left no more until this is called again."""
    global _descriptors_left
    gc.unfreeze()
    gc.collect()
    gc.freeze()
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
