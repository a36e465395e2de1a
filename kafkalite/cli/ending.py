"""Signals that request the end of a command, and the points at which it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def end(number: int, _: FrameType | None) -> None:
    """End by an exception, so that cleanup runs."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def orderly(ended: Callable[[int, FrameType | None], None] = end) -> None:
    """Make SIGTERM and SIGHUP end this command as Ctrl-C does, instead of immediately.

    Ignored signals stay ignored, as nohup and a shell's background jobs require.
    """
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, ended)


class SignalHandling:
    """Ends a command at points of its choice after a signal.

        ending = SignalHandling()
        with ending.at_a_look():
            while True:
                ending.look()
                commit(write(consumer.consume()))

    Within the block, a signal ends the command at the next look(): the current batch is completed,
    and no exception interrupts a call of librdkafka, after which closing a group member may block
    without end.  A second signal ends the command at once.
    """

    def __init__(self) -> None:
        self.asked = 0
        """The signal that came; 0 for none."""
        self._waits = False
        orderly(self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if not self._waits or self.asked:
            end(number, frame)
        self.asked = number

    @contextmanager
    def at_a_look(self) -> Iterator[None]:
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def look(self) -> None:
        """End the command here if a signal was received."""
        if self.asked:
            end(self.asked, None)
