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


class Ending:
    """Ends a command in order, but not in the middle of what must stay whole.

        ending = Ending()
        for batch in source:
            with ending.held():
                write(batch)
                commit(batch)

    A signal that comes while it is held ends the command where that is over; a second one, for a
    command that is stuck, at once.
    """

    def __init__(self) -> None:
        self.is_held = False
        self.asked = 0
        orderly(self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.is_held and not self.asked:
            self.asked = number
        else:
            end(number, frame)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False
        if self.asked:
            end(self.asked, None)
