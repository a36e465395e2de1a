"""NodeProcess: one node's process and listener, in the launcher.

               forked            responded
    DUE ─────────────▶ STARTING ─────────▶ READY        exited when ready: DUE, forked again at once
     ▲ ▲                  │ exited           │
     │ └──── timer ──── BACKOFF              │          100 ms, doubled with each failure
     │                                       │
     └──────── exited ─ ENDING ◀─────────────┘          told to shut down, or killed

Only a node that is DUE is forked, and only the reaping of its process leaves another state: there
are never two processes of one node.  The launcher decides which nodes start and end (launcher.py).
In BACKOFF the node has no listener: a client that is refused tries another node at once, whereas
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

from kafkalite.process.nodes import child_setup as child
from kafkalite.process.nodes.readiness_probe import Question
from kafkalite.process.nodes.spawn_spec import Birth, Run
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

BACKOFF_MS_MIN, BACKOFF_MS_MAX = 100, 10_000


class State(enum.Enum):
    """State of a node's process; see the module."""

    DUE = "due"
    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    BACKOFF = "backoff"


class Death(NamedTuple):
    """The exit of a process."""

    node: NodeProcess
    pid: int
    state: State
    """The state before the exit."""
    code: int
    words: str
    """The reason that it sent, if any."""

    @property
    def how(self) -> str:
        """The reason in words, for the log."""
        if self.words:
            return self.words
        if self.code < 0:
            return f"it was ended by signal {-self.code}"
        return f"it ended with exit code {self.code}"


class NodeProcess:
    """One node's process, across its restarts; see the module."""

    def __init__(
        self, reactor: Reactor, node_id: int, died: Callable[[Death], None]
    ) -> None:
        self.reactor = reactor
        self.node_id = node_id
        self.died = died
        self.state = State.DUE
        self.listener: socket.socket | None = None
        self.incarnation = 0
        self.pid = 0
        self.failures = 0
        """Number of exits in a row before it was ready."""
        self._pidfd = -1
        self._words = -1
        self._question: Question | None = None
        self._timer: Timer | None = None

    @property
    def runs(self) -> bool:
        """True if there is a process that was not reaped."""
        return self.pid != 0

    # Start and exit.

    def bear(self, birth: Birth, run: Run, kept: Sequence[int]) -> None:
        """Fork the process; raise OSError if that fails."""
        assert self.state is State.DUE and not self.runs and self.listener is birth.listener
        words, said = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The probe connects first, so that it is ahead of all clients in the backlog.
        question = Question(self.reactor, birth.listener, self._answered)
        launcher_pid = os.getpid()
        # Between fork and its own handlers, the child would run the launcher's signal handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, child.HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                child.live(birth, run, launcher_pid, said, [birth.listener.fileno(), *kept])
            self._watch(pid)
        except OSError:
            question.withdraw()
            os.close(words)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(said)
        self.incarnation, self._words, self._question = birth.incarnation, words, question
        self.state = State.STARTING

    def take_over(self, pid: int, incarnation: int, state: State) -> None:
        """Adopt a process that was forked before the launcher executed itself."""
        self.incarnation, self.state = incarnation, state
        self._watch(pid)
        if state is State.STARTING:
            assert self.listener is not None
            self._question = Question(self.reactor, self.listener, self._answered)

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

    def _answered(self) -> None:
        self._question = None
        if self.state is State.STARTING:
            self.state = State.READY
            self.failures = 0

    def end(self) -> None:
        """Send SIGTERM, once."""
        if self.runs and self.state is not State.ENDING:
            self.state = State.ENDING
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        if self.runs:
            self.state = State.ENDING
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self.reactor.unwatch(self._pidfd)
        os.close(self._pidfd)
        if self._question is not None:
            self._question.withdraw()
            self._question = None
        code = os.waitstatus_to_exitcode(status)
        death = Death(self, self.pid, self.state, code, self._sentence())
        self.pid, self._pidfd = 0, -1
        if self.state is State.STARTING:
            self.fail()
        else:
            self.state = State.DUE
        self.died(death)

    def _sentence(self) -> str:
        said = b""
        if self._words >= 0:
            with contextlib.suppress(BlockingIOError):
                said = os.read(self._words, child.SAID_MAX)
            os.close(self._words)
            self._words = -1
        return said.decode(errors="replace")

    # Failed starts.

    def fail(self) -> None:
        """Close the listener and wait before the next start."""
        self.failures += 1
        self.state = State.BACKOFF
        self.close_listener()
        delay_ms = min(BACKOFF_MS_MIN << min(self.failures - 1, 10), BACKOFF_MS_MAX)
        self._timer = self.reactor.call_later(delay_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self.state = State.DUE

    def close_listener(self) -> None:
        """Close the listener, so that clients are refused."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def close(self) -> None:
        """Close the record of a node without a process."""
        assert not self.runs
        self.close_listener()
        if self._timer is not None:
            self._timer.cancel()
