"""Handling of the signals that end a command: immediately, or at a point where it is safe."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def raise_for_signal(number: int, _: FrameType | None) -> None:
    """Raise an exception for a signal, so that cleanup code runs."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def install_handlers(handler: Callable[[int, FrameType | None], None] = raise_for_signal) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C: run cleanup code before exiting.

    Ignored signals stay ignored, as nohup and a shell's background jobs require.
    """
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


class SignalHandling:
    """Defers signals to the points where the command calls check().

        signals = SignalHandling()
        with signals.deferred():
            while True:
                signals.check()
                commit(write(consumer.consume()))

    Within the block, a signal ends the command at the next check(): the current batch is completed,
    and no exception interrupts a call of librdkafka, after which closing a group member can block
    forever.  A second signal ends the command immediately.
    """

    def __init__(self) -> None:
        self.received = 0
        """The signal that was received; 0 for none."""
        self._is_deferring = False
        install_handlers(self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_deferring or self.received:
            raise_for_signal(number, frame)
        self.received = number

    @contextmanager
    def deferred(self) -> Iterator[None]:
        self._is_deferring = True
        try:
            yield
        finally:
            self._is_deferring = False

    def check(self) -> None:
        """End the command here if a signal was received."""
        if self.received:
            raise_for_signal(self.received, None)
