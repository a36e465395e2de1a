"""The exporter as the broker's process sees it: a command line beside it, started again and again.

    kafkalite metrics --data DIR --descriptor N

The listening socket is the broker's, so that its port is taken before anything else is begun, and
a scrape that comes while the exporter is started again waits.  The exporter ends with its standard
input, a pipe whose other end is here: however this process ends, the exporter does.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from kafkalite.config.broker import Listener
from kafkalite.errors import Refusal
from kafkalite.process.log_file import LOG_FILE
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

AGAIN_MS_MIN, AGAIN_MS_MAX = 200, 10_000
LASTED_MS = 10_000
"""One that ran so long did start, and the next is started soon."""
BACKLOG = 16


def bind_metrics(address: Listener, flag: str = "--metrics") -> socket.socket:
    """The exporter's listening socket, or one sentence on why there is none."""
    host = address.host or "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        where = socket.getaddrinfo(host, address.port, family, socket.SOCK_STREAM)[0][4]
        return socket.create_server(where, family=family, backlog=BACKLOG)
    except OSError as fault:
        taken = isinstance(fault, OSError) and fault.errno == errno.EADDRINUSE
        why = "address already in use" if taken else (fault.strerror or str(fault)).lower()
        raise Refusal(
            f"cannot serve metrics on {host}:{address.port}: {why}; choose another with"
            f" {flag} HOST:PORT (port 0 takes a free one)"
        ) from None


class ExporterProcess:
    """Keeps an exporter running; nothing at all where none is wanted."""

    def __init__(self, reactor: Reactor, address: Listener | None, data: Path) -> None:
        self.reactor = reactor
        self.address = address
        self.data = data
        self.listener: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._leash = self._pidfd = -1
        self._began_ms = 0
        self._again_ms = AGAIN_MS_MIN
        self._timer: Timer | None = None

    @property
    def where(self) -> str:
        """HOST:PORT; empty where there is none."""
        if self.listener is None:
            return ""
        host, port = self.listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def bind(self, descriptor: int = -1) -> None:
        """Take the port, or the socket that an earlier run left; Refusal says why not."""
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
            self.listener = socket.socket(fileno=descriptor)
        elif self.address is not None:
            self.listener = bind_metrics(self.address)

    @property
    def descriptor(self) -> int:
        """The socket, to be left to a later run; -1 where there is none."""
        return -1 if self.listener is None else self.listener.fileno()

    def start(self) -> None:
        """Start it, and see that it runs from now on."""
        self._timer = None
        if self.listener is None or self.process is not None:
            return
        descriptor = self.listener.fileno()
        command = [sys.executable, "-m", "kafkalite", "metrics", "--data", str(self.data)]
        stdin, self._leash = os.pipe2(os.O_CLOEXEC)
        try:
            with open(self.data / LOG_FILE, "ab") as said:  # why it ends, should it
                self.process = subprocess.Popen(
                    [*command, "--descriptor", str(descriptor)],
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    pass_fds=[descriptor],
                )
            self._pidfd = os.pidfd_open(self.process.pid)
        except OSError as fault:
            log.error("the metrics exporter cannot be started: %s", fault.strerror)
            self._let_go()
            self._later()
            return
        finally:
            os.close(stdin)
        self._began_ms = self.reactor.clock.monotonic_ms()
        self.reactor.watch(self._pidfd, self._died)
        log.info("metrics at http://%s/metrics (process %d)", self.where, self.process.pid)

    def _died(self) -> None:
        assert self.process is not None
        pid, code = self.process.pid, self.process.wait()
        self._let_go()
        log.error("the metrics exporter (process %d) is gone, exit code %d", pid, code)
        if self.reactor.clock.monotonic_ms() - self._began_ms >= LASTED_MS:
            self._again_ms = AGAIN_MS_MIN
        self._later()

    def _later(self) -> None:
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
        if self._leash >= 0:
            os.close(self._leash)
            self._leash = -1

    def end(self) -> None:
        """End it; it has nothing to lose."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with contextlib.suppress(OSError):
            self._let_go()

    def close(self) -> None:
        """End it, and let the port go."""
        self.end()
        if self.listener is not None:
            self.listener.close()
            self.listener = None
