"""Signals that ask a command to end, and what they wait for."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def end(number: int, _: FrameType | None) -> None:
    """End by an exception, so that everything is left as on the way out."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def orderly(ended: Callable[[int, FrameType | None], None] = end) -> None:
    """Let SIGTERM and SIGHUP end this command as Ctrl-C does, rather than on the spot.

    What is ignored stays so: nohup and a shell's background want it.
    """
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, ended)


class SignalHandling:
    """Ends a command in order, and where it wants to, rather than anywhere.

        ending = SignalHandling()
        with ending.at_a_look():
            while True:
                ending.look()
                commit(write(consumer.consume()))

    Within the with, a signal ends the command at the next look: what is under way stays whole, and
    no exception leaves a call of librdkafka's in the middle, after which closing a member of a
    group may wait for ever.  A second signal, for a command that is stuck, ends it at once.
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
        """End here if that was asked."""
        if self.asked:
            end(self.asked, None)
