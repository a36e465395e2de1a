"""Settings and hooks for every test."""

from __future__ import annotations

import gc
import os
import signal

from hypothesis import HealthCheck, settings

# A busy machine may stop in the middle of an example, or while one is generated; no example tests
# time.  `make quick` and `make fuzz` set the other profiles: they change how many examples a test
# tries that sets no number of its own.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("untimed", UNTIMED)
settings.register_profile("quick", UNTIMED, max_examples=20)
settings.register_profile("deep", UNTIMED, max_examples=2_000)
settings.load_profile("untimed")

DESCRIPTORS_MORE = 200

_descriptors_left = 0


def pytest_collection_finish() -> None:
    """Exempt the thousands of collected tests, which stay until the end, from later collections."""
    collect()


def pytest_runtest_teardown() -> None:
    """Collect garbage that tests leave in cycles, such as logs and clients with open descriptors.

    The collector counts objects, not descriptors, and the more objects there are, the more rarely
    it collects old ones; a node in the tests' own process disables it, as in a broker process.
    """
    rested = not gc.isenabled()
    gc.enable()
    if rested or descriptors() > _descriptors_left + DESCRIPTORS_MORE:
        collect()


def collect() -> None:
    """Collect all garbage, and exempt the remaining objects until this is called again."""
    global _descriptors_left
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    _descriptors_left = descriptors()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pytest_configure() -> None:
    """Restore signals that are ignored if tests run in the background or under nohup: processes
    that tests start and then stop would inherit that."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
