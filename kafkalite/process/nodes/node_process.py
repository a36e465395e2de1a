"""NodeProcess: one node's process and listener, in the launcher.

               forked            responded
    DUE ─────────────▶ STARTING ─────────▶ READY        exited when ready: DUE, forked again at once
     ▲ ▲                  │ exited           │
     │ └──── timer ──── BACKOFF              │          100 ms, doubled with each failure
     │                                       │
     └──────── exited ─ ENDING ◀─────────────┘          SIGTERM sent, or killed

Only a node that is DUE is forked, and only the reaping of its process leaves another state: there
are never two processes of one node.  process/launcher.py decides which nodes start and end.  In
BACKOFF the node has no listener: a client that is refused tries another node at once, whereas
one in the backlog would wait for a long time.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkalite.process.nodes.child_setup import HANDLED_IN_CHILD, REASON_SIZE_MAX, run_child
from kafkalite.process.nodes.readiness_probe import ReadinessProbe
from kafkalite.process.nodes.spawn_spec import NodeMain, SpawnSpec
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

BACKOFF_MS_MIN, BACKOFF_MS_MAX = 100, 10_000


class NodeProcessState(enum.Enum):
    """State of a node's process; see the module."""

    DUE = "due"
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    BACKOFF = "backoff"


class ProcessExit(NamedTuple):
    """The exit of a process."""

    node: NodeProcess
    pid: int
    state: NodeProcessState
    """The state before the exit."""
    code: int
    reason: str
    """The reason that it sent, if any."""

    @property
    def description(self) -> str:
        """The reason in words, for the log."""
        if self.reason:
            return self.reason
        if self.code < 0:
            return f"it was killed by signal {-self.code}"
        return f"it exited with code {self.code}"


class NodeProcess:
    """One node's process, across its restarts; see the module."""

    def __init__(
        self, reactor: Reactor, node_id: int, on_exit: Callable[[ProcessExit], None]
    ) -> None:
        self.reactor = reactor
        self.node_id = node_id
        self.on_exit = on_exit
        self.state = NodeProcessState.DUE
        self.listener: socket.socket | None = None
        self.incarnation = 0
        self.pid = 0
        self.failures = 0
        """Number of exits in a row before it was ready."""
        self._pidfd = -1
        self._reason_pipe = -1
        self._probe: ReadinessProbe | None = None
        self._timer: Timer | None = None

    @property
    def is_running(self) -> bool:
        """True if there is a process that was not reaped."""
        return self.pid != 0

    # Start and exit.

    def fork(self, spec: SpawnSpec, main: NodeMain, descriptors: Sequence[int]) -> None:
        """Fork the process with these further descriptors; raise OSError if that fails."""
        assert self.state is NodeProcessState.DUE and not self.is_running
        assert self.listener is spec.listener
        reason_pipe, reason_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The probe connects first, so that it is ahead of all clients in the backlog.
        probe = ReadinessProbe(self.reactor, spec.listener, self._responded)
        launcher_pid = os.getpid()
        # Between fork and its own handlers, the child would run the launcher's signal handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_IN_CHILD)
        try:
            pid = os.fork()
            if pid == 0:
                kept = [spec.listener.fileno(), *descriptors]
                run_child(spec, main, launcher_pid, reason_writer, kept)
            self._watch(pid)
        except OSError:
            probe.cancel()
            os.close(reason_pipe)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(reason_writer)
        self.incarnation, self._reason_pipe, self._probe = spec.incarnation, reason_pipe, probe
        self.state = NodeProcessState.STARTING

    def take_over(self, pid: int, incarnation: int, state: NodeProcessState) -> None:
        """Adopt a process that was forked before the launcher executed itself."""
        self.incarnation, self.state = incarnation, state
        self._watch(pid)
        if state is NodeProcessState.STARTING:
            assert self.listener is not None
            self._probe = ReadinessProbe(self.reactor, self.listener, self._responded)

    def _watch(self, pid: int) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            # A process whose exit cannot be noticed must not run.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.pid = pid
        self.reactor.watch(self._pidfd, self._reap)

    def _responded(self) -> None:
        self._probe = None
        if self.state is NodeProcessState.STARTING:
            self.state = NodeProcessState.READY
            self.failures = 0

    def terminate(self) -> None:
        """Send SIGTERM, once."""
        if self.is_running and self.state is not NodeProcessState.ENDING:
            self.state = NodeProcessState.ENDING
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.is_running:
            self.state = NodeProcessState.ENDING
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self.reactor.unwatch(self._pidfd)
        os.close(self._pidfd)
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        code = os.waitstatus_to_exitcode(status)
        exited = ProcessExit(self, self.pid, self.state, code, self._read_reason())
        self.pid, self._pidfd = 0, -1
        if self.state is NodeProcessState.STARTING:
            self.back_off()
        else:
            self.state = NodeProcessState.DUE
        self.on_exit(exited)

    def _read_reason(self) -> str:
        reason = b""
        if self._reason_pipe >= 0:
            with contextlib.suppress(BlockingIOError):
                reason = os.read(self._reason_pipe, REASON_SIZE_MAX)
            os.close(self._reason_pipe)
            self._reason_pipe = -1
        return reason.decode(errors="replace")

    # Failed starts.

    def back_off(self) -> None:
        """Close the listener and wait before the next start."""
        self.failures += 1
        self.state = NodeProcessState.BACKOFF
        self.close_listener()
        delay_ms = min(BACKOFF_MS_MIN << min(self.failures - 1, 10), BACKOFF_MS_MAX)
        self._timer = self.reactor.call_later(delay_ms, self._end_backoff)

    def _end_backoff(self) -> None:
        self._timer = None
        self.state = NodeProcessState.DUE

    def close_listener(self) -> None:
        """Close the listener, so that clients are refused."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def close(self) -> None:
        """Close the record of a node without a process."""
        assert not self.is_running
        self.close_listener()
        if self._timer is not None:
            self._timer.cancel()
