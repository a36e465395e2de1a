"""Restart: the launcher executes itself again, on the code that is installed by then.

    SIGUSR2 → trial of the new code → exec, in the same process → nodes restarted (launcher.py)

The trial runs the same command line in a process of its own, which reads its flags and its config
file, imports every module, checks what it would take over, and ends.  Only if it succeeds does the
launcher execute itself; otherwise nothing changes, and status.json gives the reason.  From then on
the new content of the config file applies, except for what lasts as long as the launcher
(`fixed_settings`): a change of that is refused, not ignored.

The process keeps its id, its children and its descriptors.  The environment variable
KAFKALITE_CARRIED describes them as JSON; only the process named in it accepts it, and removes it
from the environment at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafkalite.config.broker import LISTENERS, LOG_DIRS, WORKERS
from kafkalite.config.key import ConfigKey
from kafkalite.config.listener import Listener
from kafkalite.config.settings import Settings
from kafkalite.errors import Refusal
from kafkalite.process.loop import SHUTDOWN_SIGNALS
from kafkalite.process.status.ready import RestartReady
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

STATE_VARIABLE = "KAFKALITE_CARRIED"
VERSION = 1
"""Version of the carried fields; fields of another version are refused."""

TRIAL_MS_MAX = 60_000
HANDLED_SIGNALS = {*SHUTDOWN_SIGNALS, signal.SIGUSR2}
OUTPUT_SIZE_MAX = 4096


class CarriedState:
    """The state that one run of the launcher passes to the next in the same process."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def take_from_environment(cls) -> CarriedState | None:
        """Remove the carried state from the environment and return it; None if there is none."""
        text = os.environ.pop(STATE_VARIABLE, None)
        try:
            fields = json.loads(text or "null")
            # A trial has the pid of its parent in it, which may have been killed meanwhile.
            is_for_us = fields["trial"] or fields["pid"] == os.getpid()
        except (ValueError, KeyError, TypeError):
            return None
        return cls(fields) if is_for_us else None

    @property
    def is_trial(self) -> bool:
        """True if this process is only a trial of the new code."""
        return bool(self.fields["trial"])

    def check(self, shape: str, configured: Mapping[str, Any]) -> None:
        """Raise Refusal if this process cannot take over the state; the trial checks it first.

        `configured` holds the configured values of what must not change (`fixed_settings`).
        """
        if self.fields.get("version") != VERSION:
            raise Refusal(
                "the new version cannot take over from the running one; stop the broker and start"
                " it"
            )
        lasting = self.fields.get("lasting", {})  # an older version did not write it
        for key, value in configured.items():
            if value is not None and lasting.get(key, value) != value:
                was = "not set" if lasting[key] is None else lasting[key]
                raise Refusal(
                    f"{key} was {was} when the broker was started and is {value} now; to"
                    " change it, stop the broker and start it"
                )
        if self.fields["shape"] != shape:
            raise Refusal(
                f"{WORKERS.name} changes from or to 0; to change it, stop the broker and start it"
            )

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def locks(self) -> list[int]:
        """The descriptors of the locks of the log directories."""
        if "locks" in self.fields:
            return list(self.fields["locks"])
        return [self.fields["lock"]]  # an older version's only directory

    def service_descriptors(self, key: str) -> list[int]:
        """Return the descriptors of a service's listening sockets; empty if there are none, as for
        a service that an older version does not have."""
        descriptors = self.fields.get(key, [])
        if isinstance(descriptors, int):  # an older version's exporter
            return [descriptors] if descriptors >= 0 else []
        return list(descriptors)


def fixed_settings(
    settings: Settings,
    address: Listener,
    directories: Sequence[Path],
    socket_keys: Iterable[ConfigKey[Any]],
) -> dict[str, Any]:
    """Return the values that no restart can change, by key: the sockets, the lock and the nodes
    depend on them.  None means that the key is not set and the value in force stays.

    `socket_keys` are the keys of the services' sockets.
    """
    return {
        LOG_DIRS.name: ",".join(map(str, directories)),
        LISTENERS.name: f"{address.host}:{address.port}",
        **{key.name: settings[key] for key in socket_keys},
        WORKERS.name: settings[WORKERS],
    }


class RestartManager:
    """The requested restarts, tried one at a time; `on_change` is called after a trial."""

    def __init__(
        self,
        reactor: Reactor,
        shape: str,
        fixed: Mapping[str, Any],
        on_change: Callable[[], None],
    ) -> None:
        self.reactor = reactor
        self.shape = shape
        self.fixed = fixed
        self.on_change = on_change
        self.requested = self.tried = self.completed = 0
        self.failed = ""
        self.passed = False
        """True if the new code has passed its trial."""
        self.trial: RestartTrial | None = None

    def take_over(self, carried: CarriedState) -> None:
        """Continue the counts of the earlier run."""
        self.requested, self.tried = carried["asked"], carried["tried"]
        self.completed = carried["done"] + 1

    @property
    def is_in_progress(self) -> bool:
        """True if a restart was requested and its trial has not ended."""
        return self.trial is not None or self.tried < self.requested

    def start_trial(self) -> None:
        """Start a trial of the new code if a restart was requested since the last trial."""
        if self.trial is None and self.tried < self.requested:
            self.tried = self.requested
            self.failed = ""
            log.info("Restart was requested; trying the new code.")
            try:
                carried = self.carried_text(trial=True, pid=os.getpid())
                self.trial = RestartTrial(self.reactor, carried, self.end_trial)
            except OSError as error:
                self.fail(f"the new code does not start: {error.strerror}")

    def end_trial(self, error: str) -> None:
        """Handle the end of the trial; `error` is empty if it passed."""
        self.trial = None
        if error:
            self.fail(f"the new code does not start: {error}")
        else:
            self.passed = True
        self.on_change()

    def fail(self, reason: str) -> None:
        """Note why the restart failed."""
        log.error("Restart failed; the broker continues on the old code. reason=%r", reason)
        self.failed = f"{reason}; the broker continues on the old code"

    def cancel(self) -> None:
        """Cancel all requested restarts, because the broker shuts down."""
        self.tried = self.requested
        if self.trial is not None:
            self.trial.cancel()
            self.trial = None

    def status(self, nodes_to_restart: list[int]) -> RestartReady:
        """Return the restart fields of status.json."""
        return RestartReady(asked=self.requested, renewing=nodes_to_restart, failed=self.failed)

    def carried_text(self, **fields: Any) -> str:
        """Return the carried state as JSON."""
        state = {"version": VERSION, "shape": self.shape, "lasting": self.fixed, "trial": False}
        counts = {"asked": self.requested, "tried": self.tried, "done": self.completed}
        return json.dumps(state | counts | fields)

    def execute(
        self, is_cancelled: Callable[[], bool], descriptors: Sequence[int], **fields: Any
    ) -> None:
        """Execute the new code with these descriptors.

        Returns only if that fails, or if `is_cancelled` returns True because of a signal received
        meanwhile.
        """
        self.passed = False
        log.info("Launcher executes the new code. command=%r", " ".join(command()))
        # A signal from now on stays pending until the new code handles it; otherwise it would end
        # the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        if not is_cancelled():
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.environ[STATE_VARIABLE] = self.carried_text(pid=os.getpid(), **fields)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            try:
                os.execv(sys.executable, command())
            except OSError as error:
                self.fail(f"the new code cannot be executed: {error.strerror}")
            del os.environ[STATE_VARIABLE]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
        unblock_signals()


def unblock_signals() -> None:
    """Unblock signals after an exec, once they have handlers, and so receive the pending ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED_SIGNALS)


def command() -> list[str]:
    """Return this process's own command line."""
    return [sys.executable, *sys.orig_argv[1:]]


class RestartTrial:
    """The same command line in a process of its own, which ends before it changes anything."""

    def __init__(self, reactor: Reactor, carried: str, on_end: Callable[[str], None]) -> None:
        import subprocess
        import tempfile

        self.reactor = reactor
        self.on_end = on_end
        self.output = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                command(),
                stdout=subprocess.DEVNULL,
                stderr=self.output,
                env={**os.environ, STATE_VARIABLE: carried},
            )
        except OSError:
            self.output.close()
            raise
        self.pidfd = os.pidfd_open(self.process.pid)
        reactor.watch(self.pidfd, self.exited)
        self.timer: Timer = reactor.call_later(TRIAL_MS_MAX, self.process.kill)

    def cancel(self) -> None:
        """Kill and reap it without calling `on_end`."""
        self.process.kill()
        self.reap()

    def reap(self) -> int:
        self.reactor.unwatch(self.pidfd)
        os.close(self.pidfd)
        self.timer.cancel()
        return self.process.wait()

    def exited(self) -> None:
        code = self.reap()
        self.output.seek(0)
        lines = self.output.read(OUTPUT_SIZE_MAX).decode(errors="replace").strip().splitlines()
        self.output.close()
        if code == 0:
            self.on_end("")
        else:
            last = lines[-1].removeprefix("kafkalite: ") if lines else ""
            self.on_end(last or f"it exited with code {code}")
