"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Tests that run in the background or under nohup were handed these signals ignored, and would
    hand that on to every process they start and then ask to end."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
