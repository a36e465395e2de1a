"""ServiceOutput: the pipe that receives the output of a service beside the broker.

The line `ready` means that the service has all it needs except the broker.  Every other line goes
to the broker's log; the last one is kept as the reason of the service's exit.
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
    """Report to the broker that this process, one of its services, has started."""
    print(READY, flush=True)


class ServiceOutput:
    """The read end of the pipe, read until the write end is closed."""

    def __init__(self, reactor: Reactor, name: str, ready: Callable[[], object]) -> None:
        """Create the pipe; raise OSError if no descriptor is free."""
        self.reactor = reactor
        self.name = name
        self.ready = ready
        self.last_line = ""
        self._begun = b""
        """The last line, while it is incomplete."""
        self._descriptor, self.written = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._descriptor, False)
        self.reactor.watch(self._descriptor, self._read)

    def close_written(self) -> None:
        """Close the write end, once the service has it."""
        os.close(self.written)

    def close(self) -> None:
        """Read the remaining output and close the pipe."""
        while self._read():
            pass
        if self._descriptor >= 0:
            self.reactor.unwatch(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._handle_line(self._begun)
        self._begun = b""

    def _read(self) -> bool:
        """Read once and return True if there may be more."""
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
            self._handle_line(line)
        return True

    def _handle_line(self, line: bytes) -> None:
        text = line[-LINE_MAX:].decode(errors="replace").strip()
        if text == READY:
            self.ready()
        elif text:
            self.last_line = text.removeprefix("kafkalite: ")
            log.warning("%s: %s", self.name, text)
