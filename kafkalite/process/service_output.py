"""ServiceOutput: the pipe that a service beside the broker writes its output to.

The line `ready` says that the service has all it needs and waits only for the broker.  Every other
line goes to the broker's log; the last one is kept, since it says why a service ended.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kafkalite.transport.reactor import Reactor

log = logging.getLogger("kafkalite.process")

READY = "ready"
READ_MAX = 1 << 16
LINE_MAX = 4096


def report_ready() -> None:
    """Tell the broker that this process, its service, has started."""
    print(READY, flush=True)


class ServiceOutput:
    """The end of the pipe that is read, until the other end is closed."""

    def __init__(self, reactor: Reactor, name: str, ready: Callable[[], object]) -> None:
        """Make the pipe; OSError when there is no descriptor for it."""
        self.reactor = reactor
        self.name = name
        self.ready = ready
        self.last_line = ""
        self._begun = b""
        """A line that is not whole yet."""
        self._descriptor, self.written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._descriptor, False)
        self.reactor.watch(self._descriptor, self._read)

    def close_written(self) -> None:
        """Close the end that the service has by now."""
        os.close(self.written)

    def close(self) -> None:
        """Take what there is, and close."""
        while self._read():
            pass
        if self._descriptor >= 0:
            self.reactor.unwatch(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._take(self._begun)
        self._begun = b""

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        if self._descriptor < 0:
            return False
        try:
            output = os.read(self._descriptor, READ_MAX)
        except BlockingIOError:
            return False
        if not output:
            self.reactor.unwatch(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            return False
        *lines, begun = (self._begun + output).split(b"\n")
        self._begun = begun[-LINE_MAX:]
        for line in lines:
            self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        text = line[-LINE_MAX:].decode(errors="replace").strip()
        if text == READY:
            self.ready()
        elif text:
            self.last_line = text.removeprefix("kafkalite: ")
            log.warning("%s: %s", self.name, text)
