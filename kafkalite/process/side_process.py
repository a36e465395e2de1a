"""A command line kept running beside the broker, on sockets that are the broker's.

    kafkalite metrics --data DIR --descriptors N …           exporter_process.py
    kafkalite gateway serve --data DIR --descriptors N,M …   gateway_process.py

The listening sockets are made before anything else is begun, so that their places are taken and
known, and whoever comes while the process is started again waits in their backlog.  Its standard
input is a pipe whose other end is here: at its end the process ends in its own time, so however
this one ends, that one does.  Who is told to end and does not is killed.
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

from kafkalite.process.log_file import LOG_FILE
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

AGAIN_MS_MIN, AGAIN_MS_MAX = 200, 10_000
LASTED_MS = 10_000
"""One that ran so long did start, and the next is started soon."""
END_MS_MAX = 10_000


class Side(NamedTuple):
    """What runs beside the broker."""

    name: str
    words: Sequence[str]
    """The command and its flags, but for the data directory and the sockets."""
    bind: Callable[[], list[socket.socket]]
    """Makes its listening sockets; Refusal says why not."""
    where: Callable[[Sequence[socket.socket]], str]
    """Says where they are."""


class SideProcess:
    """Keeps one running; nothing at all where none is wanted."""

    def __init__(self, reactor: Reactor, data: Path, side: Side | None) -> None:
        self.reactor = reactor
        self.data = data
        self.side = side
        self.listeners: list[socket.socket] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._leash = self._pidfd = -1
        self._began_ms = 0
        self._again_ms = AGAIN_MS_MIN
        self._timer: Timer | None = None
        self._ended: Callable[[], object] | None = None

    @property
    def where(self) -> str:
        """Where it serves; empty where there is none."""
        return self.side.where(self.listeners) if self.side and self.listeners else ""

    def bind(self, descriptors: Sequence[int] = ()) -> None:
        """Make the sockets, or take those that an earlier run left; Refusal says why not."""
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            self.listeners.append(socket.socket(fileno=descriptor))
        if self.side is not None and not descriptors:
            self.listeners = self.side.bind()

    @property
    def descriptors(self) -> list[int]:
        """The sockets, to be left to a later run."""
        return [listener.fileno() for listener in self.listeners]

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self.process is not None

    def start(self) -> None:
        """Start it, and see that it runs from now on."""
        self._timer = None
        self._ended = None
        if self.side is None or not self.listeners or self.process is not None:
            return
        command = [sys.executable, "-m", "kafkalite", *self.side.words, "--data", str(self.data)]
        command += ["--descriptors", ",".join(map(str, self.descriptors))]
        stdin, self._leash = os.pipe2(os.O_CLOEXEC)
        try:
            with open(self.data / LOG_FILE, "ab") as said:  # why it ends, should it
                self.process = subprocess.Popen(
                    command,
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    pass_fds=self.descriptors,
                )
            self._pidfd = os.pidfd_open(self.process.pid)
        except OSError as fault:
            log.error("the %s cannot be started: %s", self.side.name, fault.strerror)
            self._let_go()
            self._later()
            return
        finally:
            os.close(stdin)
        self._began_ms = self.reactor.clock.monotonic_ms()
        self.reactor.watch(self._pidfd, self._died)
        log.info("%s at %s (process %d)", self.side.name, self.where, self.process.pid)

    def _died(self) -> None:
        assert self.process is not None and self.side is not None
        pid, code = self.process.pid, self.process.wait()
        self._let_go()
        if self._ended is not None:
            log.info("the %s (process %d) has ended", self.side.name, pid)
            self._over()
            return
        log.error("the %s (process %d) is gone, exit code %d", self.side.name, pid, code)
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
        self._release()

    def _release(self) -> None:
        """Let go of the leash."""
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
        """Let it end in its own time, or kill it when that is long, and call `ended` then: at once
        where none runs.  `start` starts it again."""
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
        """End it now, and let its places go."""
        self._cancel()
        with contextlib.suppress(OSError):
            self._let_go()
        for listener in self.listeners:
            listener.close()
        self.listeners = []
