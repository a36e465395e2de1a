"""SideProcess: a service (a command that runs beside the broker) on sockets bound by the broker.

    python -P -m kafkalite metrics --data DIR --descriptors N …           exporter_service.py
    python -P -m kafkalite gateway serve --data DIR --descriptors N,M …   gateway_service.py

-P keeps the working directory out of `sys.path`: a folder `kafkalite` in it would be imported.

The listening sockets are bound first, so that their addresses are reserved and known, and clients
that connect while the service is restarted wait in the backlog.  The broker holds the write end of
the pipe that is the service's standard input.  At end of file the service shuts down, so it ends
however the broker's process ends.  A service that does not end in time is killed.

The broker is ready only when its services are (service_output.py).  A service that ends before it
was ready makes the start of the broker fail with its last line of output.  A service that ends
later, or after a restart on new code, is restarted after a growing delay.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kafkalite.process.services.service_output import ServiceOutput
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

AGAIN_MS_MIN, AGAIN_MS_MAX = 200, 10_000
LASTED_MS = 10_000
"""A service that ran this long resets the restart delay to its minimum."""
END_MS_MAX = 10_000
START_MS_MAX = 60_000
"""Time limit for the first start of a service."""


class Side(NamedTuple):
    """A service: its command, and how its sockets are bound and described."""

    name: str
    words: Sequence[str]
    """The command and its flags, without the data directory and the sockets."""
    bind: Callable[[], list[socket.socket]]
    """Binds its listening sockets; raises Refusal."""
    where: Callable[[Sequence[socket.socket]], str]
    """Formats their addresses."""


class StartReport(NamedTuple):
    """The functions to call when the first start of a service has succeeded or failed."""

    ready: Callable[[], object]
    failed: Callable[[str], object]
    """Takes the reason as a sentence."""


class SideProcess:
    """Keeps one service running; does nothing if `side` is None."""

    def __init__(
        self, reactor: Reactor, data: Path, side: Side | None, report: StartReport
    ) -> None:
        self.reactor = reactor
        self.data = data
        self.side = side
        self.report = report
        self.ready = side is None
        """True if the broker does not wait for it: it has started once, or is not configured."""
        self._output: ServiceOutput | None = None
        self.listeners: list[socket.socket] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._leash = self._pidfd = -1
        self._began_ms = 0
        self._again_ms = AGAIN_MS_MIN
        self._timer: Timer | None = None
        self._ended: Callable[[], object] | None = None

    @property
    def where(self) -> str:
        """Addresses that it serves; empty if it is not configured."""
        return self.side.where(self.listeners) if self.side and self.listeners else ""

    def bind(self, descriptors: Sequence[int] = ()) -> None:
        """Bind the sockets, or adopt those of an earlier run; raise Refusal if that fails."""
        self.ready = self.ready or bool(descriptors)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self.listeners.append(socket.socket(fileno=descriptor))
        if self.side is not None and not descriptors:
            self.listeners = self.side.bind()

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of the sockets, to be passed to a later run."""
        return [listener.fileno() for listener in self.listeners]

    @property
    def runs(self) -> bool:
        """True if its process exists."""
        return self.process is not None

    def start(self) -> None:
        """Start it, and restart it whenever it ends."""
        self._timer = None
        self._ended = None
        if self.side is None or not self.listeners or self.process is not None:
            return
        command = [sys.executable, "-P", "-m", "kafkalite", *self.side.words]
        command += ["--data", str(self.data), "--descriptors", ",".join(map(str, self.descriptors))]
        self._began_ms = self.reactor.clock.monotonic_ms()
        try:
            self._spawn(command)
        except OSError as fault:
            log.error("the %s cannot be started: %s", self.side.name, fault.strerror)
            self._let_go()
            self._later(fault.strerror or str(fault))
            return
        if not self.ready:
            self._timer = self.reactor.call_later(START_MS_MAX, self._too_slow)

    def _spawn(self, command: Sequence[str]) -> None:
        """Start the process with its pipes; raise OSError if that fails."""
        assert self.side is not None
        self._output = ServiceOutput(self.reactor, self.side.name, self._became_ready)
        stdin = -1
        try:
            stdin, self._leash = os.pipe2(os.O_CLOEXEC)
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=self._output.written,
                stderr=self._output.written,
                pass_fds=self.descriptors,
            )
        finally:
            self._output.close_written()
            if stdin >= 0:
                os.close(stdin)
        self._pidfd = os.pidfd_open(self.process.pid)
        self.reactor.watch(self._pidfd, self._died)
        log.info("%s at %s (process %d)", self.side.name, self.where, self.process.pid)

    def _became_ready(self) -> None:
        if not self.ready and self._ended is None:
            self._cancel()
            self.ready = True
            self.report.ready()

    def _too_slow(self) -> None:
        self._timer = None
        self._let_go()
        self._later(f"it was not ready after {START_MS_MAX // 1000} s")

    def _died(self) -> None:
        assert self.process is not None and self.side is not None and self._output is not None
        pid, code = self.process.pid, self.process.wait()
        output = self._output
        self._let_go()
        if self._ended is not None:
            log.info("the %s (process %d) has ended", self.side.name, pid)
            self._over()
            return
        log.error("the %s (process %d) is gone, exit code %d", self.side.name, pid, code)
        if self.reactor.clock.monotonic_ms() - self._began_ms >= LASTED_MS:
            self._again_ms = AGAIN_MS_MIN
        self._later(output.last_line or f"it ended with exit code {code}")

    def _later(self, why: str) -> None:
        """Restart it after a delay; if it was never ready, fail the start of the broker."""
        assert self.side is not None
        self._cancel()
        if not self.ready:
            sentence = f"the {self.side.name} cannot start: {why}"
            self._timer = self.reactor.call_later(0, lambda: self.report.failed(sentence))
            return
        self._timer = self.reactor.call_later(self._again_ms, self.start)
        self._again_ms = min(2 * self._again_ms, AGAIN_MS_MAX)

    def _let_go(self) -> None:
        if self._pidfd >= 0:
            self.reactor.unwatch(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process = None
        if self._output is not None:
            self._output.close()
            self._output = None
        self._release()

    def _release(self) -> None:
        """Close the service's standard input, at whose end it shuts down."""
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._cancel()
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def end(self, ended: Callable[[], object]) -> None:
        """Shut it down, kill it after END_MS_MAX, then call `ended`; at once if it does not run.

        `start` starts it again.
        """
        first = self._ended is None
        self._ended = ended
        if self.process is None:
            self._over()
        elif first:
            self._cancel()
            self._release()
            self._timer = self.reactor.call_later(END_MS_MAX, self._give_up)

    def _give_up(self) -> None:
        assert self.side is not None
        self._timer = None
        log.error("the %s does not end, and is killed", self.side.name)
        self._let_go()
        self._over()

    def close(self) -> None:
        """Kill it and close its sockets."""
        self._cancel()
        with contextlib.suppress(OSError):
            self._let_go()
        for listener in self.listeners:
            listener.close()
        self.listeners = []
