"""ServiceProcess: the process of a configured service, on sockets bound by the broker.

    python -P -m kafkalite metrics --data DIR --descriptors N …
    python -P -m kafkalite gateway serve --data DIR --descriptors N,M …

-P keeps the working directory out of `sys.path`: a folder `kafkalite` in it would be imported.

The listening sockets are bound first, so that their addresses are reserved and known, and clients
that connect while the service is restarted wait in the backlog.  The broker holds the write end of
the pipe that is the service's standard input.  At end of file the service shuts down, so it ends
however the broker's process ends.  A service that does not shut down in time is killed.

The broker is ready only when its services are (service_output.py).  A service that exits before it
was ready makes the start of the broker fail with its last line of output.  A service that exits
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
from typing import Any, NamedTuple

from kafkalite.process.services.service import Service, ServicePlan
from kafkalite.process.services.service_output import ServiceOutput
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

RESTART_DELAY_MS_MIN, RESTART_DELAY_MS_MAX = 200, 10_000
STABLE_MS = 10_000
"""A service that ran this long resets the restart delay to its minimum."""
SHUTDOWN_TIMEOUT_MS = 10_000
START_TIMEOUT_MS = 60_000
"""Time limit for the first start of a service."""


class StartReport(NamedTuple):
    """The functions to call when the first start of a service has succeeded or failed."""

    ready: Callable[[], object]
    failed: Callable[[str], object]
    """Takes the reason as a sentence."""


class ServiceProcess:
    """Keeps the process of one service running."""

    def __init__(
        self,
        reactor: Reactor,
        data: Path,
        service: Service,
        plan: ServicePlan,
        report: StartReport,
    ) -> None:
        self.reactor = reactor
        self.data = data
        self.service = service
        self.plan = plan
        self.report = report
        self.is_demanded = not service.is_on_demand
        """False for a service that was not needed yet."""
        self.is_ready = not self.is_demanded
        """True once it has started, so that the broker does not wait for it."""
        self.listeners: list[socket.socket] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._output: ServiceOutput | None = None
        self._stdin = self._pidfd = -1
        self._started_ms = 0
        self._restart_delay_ms = RESTART_DELAY_MS_MIN
        self._timer: Timer | None = None
        self._on_exit: Callable[[], object] | None = None
        """Set while the service shuts down."""

    @property
    def status(self) -> Any:
        """Its entry in status.json."""
        return self.service.status(self.listeners)

    def bind(self) -> None:
        """Bind the sockets; raise Refusal if that fails."""
        self.listeners = self.plan.bind()

    def adopt(self, listeners: Sequence[socket.socket]) -> None:
        """Take over the sockets that were bound before a restart on new code."""
        self.listeners = list(listeners)
        self.is_ready = True

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of the sockets."""
        return [listener.fileno() for listener in self.listeners]

    @property
    def is_running(self) -> bool:
        """True if its process exists."""
        return self.process is not None

    def start(self) -> None:
        """Start it, and restart it whenever it exits."""
        self._timer = None
        self._on_exit = None
        if self.is_running or not self.is_demanded:
            return
        command = [sys.executable, "-P", "-m", "kafkalite", *self.plan.arguments]
        command += ["--data", str(self.data), "--descriptors", ",".join(map(str, self.descriptors))]
        self._started_ms = self.reactor.clock.monotonic_ms()
        try:
            self._spawn(command)
        except OSError as error:
            log.error("%s cannot be started. error=%r", self._subject, error.strerror)
            self._kill()
            self._retry(error.strerror or str(error))
            return
        if not self.is_ready:
            self._timer = self.reactor.call_later(START_TIMEOUT_MS, self._start_timed_out)

    @property
    def _subject(self) -> str:
        """The first words of its log lines."""
        return self.service.name.capitalize()

    def _spawn(self, command: Sequence[str]) -> None:
        """Start the process with its pipes; raise OSError if that fails."""
        self._output = ServiceOutput(self.reactor, self.service.name, self._became_ready)
        stdin = -1
        try:
            stdin, self._stdin = os.pipe2(os.O_CLOEXEC)
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
        self.reactor.watch(self._pidfd, self._exited)
        address = f" at {self.service.describe(self.status)}" if self.listeners else ""
        log.info("%s started%s. pid=%d", self._subject, address, self.process.pid)

    def _became_ready(self) -> None:
        if not self.is_ready and self._on_exit is None:
            self._cancel_timer()
            self.is_ready = True
            self.report.ready()

    def _start_timed_out(self) -> None:
        self._timer = None
        self._kill()
        self._retry(f"it was not ready after {START_TIMEOUT_MS // 1000} s")

    def _exited(self) -> None:
        assert self.process is not None and self._output is not None
        pid, code = self.process.pid, self.process.wait()
        output = self._output
        self._kill()
        if self._on_exit is not None:
            log.info("%s has shut down. pid=%d exit_code=%d", self._subject, pid, code)
            self._finish_shutdown()
            return
        log.error("%s exited. pid=%d exit_code=%d", self._subject, pid, code)
        if self.reactor.clock.monotonic_ms() - self._started_ms >= STABLE_MS:
            self._restart_delay_ms = RESTART_DELAY_MS_MIN
        self._retry(output.last_line or f"it exited with code {code}")

    def _retry(self, reason: str) -> None:
        """Restart it after a delay; if it was never ready, fail the start of the broker."""
        self._cancel_timer()
        if not self.is_ready:
            sentence = f"the {self.service.name} cannot start: {reason}"
            self._timer = self.reactor.call_later(0, lambda: self.report.failed(sentence))
            return
        self._timer = self.reactor.call_later(self._restart_delay_ms, self.start)
        self._restart_delay_ms = min(2 * self._restart_delay_ms, RESTART_DELAY_MS_MAX)

    def _kill(self) -> None:
        """Kill the process if it still runs, and release its descriptors."""
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
        self._close_stdin()

    def _close_stdin(self) -> None:
        """Close the service's standard input, at whose end it shuts down."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish_shutdown(self) -> None:
        self._cancel_timer()
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit()

    def shut_down(self, on_exit: Callable[[], object]) -> None:
        """Shut it down, kill it after SHUTDOWN_TIMEOUT_MS, then call `on_exit`; at once if it does
        not run.

        `start` starts it again.
        """
        is_first = self._on_exit is None
        self._on_exit = on_exit
        if self.process is None:
            self._finish_shutdown()
        elif is_first:
            self._cancel_timer()
            self._close_stdin()
            self._timer = self.reactor.call_later(SHUTDOWN_TIMEOUT_MS, self._shutdown_timed_out)

    def _shutdown_timed_out(self) -> None:
        self._timer = None
        log.error(
            "%s did not shut down in time; killing it. timeout_ms=%d",
            self._subject, SHUTDOWN_TIMEOUT_MS,
        )  # fmt: skip
        self._kill()
        self._finish_shutdown()

    def close(self) -> None:
        """Kill it, and close its sockets and remove their files."""
        self._cancel_timer()
        self.service.remove_files(self.listeners)
        with contextlib.suppress(OSError):
            self._kill()
        for listener in self.listeners:
            listener.close()
        self.listeners = []
