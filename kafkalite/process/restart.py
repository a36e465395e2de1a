"""Restart: the launcher executes itself again, on the code that is installed by then.

    SIGUSR2 → trial of the new code → exec, in the same process → nodes restarted (launcher.py)

The trial runs the same command line in a process of its own, which reads its flags and its config
file, imports every module, checks what it would take over, and ends.  Only if it succeeds does the
launcher execute itself; otherwise nothing changes, and status.json gives the reason.  From then on
the new content of the config file applies, except for what lasts as long as the launcher
(`lasting`): a change of that is refused, not ignored.

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

from kafkalite.config.broker import (
    LISTENERS,
    LOG_DIRS,
    WORKERS,
    Listener,
)
from kafkalite.config.key import Key
from kafkalite.config.settings import Settings
from kafkalite.errors import Refusal
from kafkalite.process.loop import ENDING
from kafkalite.process.status.ready import RestartReady
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

CARRIED = "KAFKALITE_CARRIED"
VERSION = 1
"""Version of the carried fields; fields of another version are refused."""

TRIAL_MS_MAX = 60_000
HEARD = {*ENDING, signal.SIGUSR2}
SAID_MAX = 4096


class Carried:
    """The state that one run of the launcher passes to the next in the same process."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def taken(cls) -> Carried | None:
        """Remove the carried state from the environment and return it; None if there is none."""
        text = os.environ.pop(CARRIED, None)
        try:
            fields = json.loads(text or "null")
            # A trial has the pid of its parent in it, which may have been killed meanwhile.
            meant = fields["trial"] or fields["pid"] == os.getpid()
        except (ValueError, KeyError, TypeError):
            return None
        return cls(fields) if meant else None

    @property
    def trial(self) -> bool:
        """True if this process is only a trial of the new code."""
        return bool(self.fields["trial"])

    def check(self, shape: str, asked: Mapping[str, Any]) -> None:
        """Raise Refusal if this state cannot be taken over, which the trial finds out in time.

        `asked` holds the configured values of what must not change (`lasting`).
        """
        if self.fields.get("version") != VERSION:
            raise Refusal("this version cannot take over from the one that runs")
        lasts = self.fields.get("lasting", {})  # an older version did not write it
        for key, value in asked.items():
            if value is not None and lasts.get(key, value) != value:
                was = "not set" if lasts[key] is None else lasts[key]
                raise Refusal(
                    f"{key} was {was} when the broker was started and is {value} now, which needs"
                    " a stop and a start"
                )
        if self.fields["shape"] != shape:
            raise Refusal(f"{WORKERS.name} changes from or to 0, which needs a stop and a start")

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def service_descriptors(self, key: str) -> list[int]:
        """Return the descriptors of a service's listening sockets; empty if there are none, as for
        a service that an older version does not have."""
        descriptors = self.fields.get(key, [])
        if isinstance(descriptors, int):  # an older version's exporter
            return [descriptors] if descriptors >= 0 else []
        return list(descriptors)


def lasting(
    settings: Settings, address: Listener, data: Path, socket_keys: Iterable[Key[Any]]
) -> dict[str, Any]:
    """Return the values that no restart can change, by key: the sockets, the lock and the nodes
    depend on them.  None means that the key is not set and the value in force stays.

    `socket_keys` are the keys of the services' sockets.
    """
    return {
        LOG_DIRS.name: str(data),
        LISTENERS.name: f"{address.host}:{address.port}",
        **{key.name: settings[key] for key in socket_keys},
        WORKERS.name: settings[WORKERS],
    }


class Restarts:
    """The requested restarts, tried one at a time; `changed` is called after a trial."""

    def __init__(
        self,
        reactor: Reactor,
        shape: str,
        lasting: Mapping[str, Any],
        changed: Callable[[], None],
    ) -> None:
        self.reactor = reactor
        self.shape = shape
        self.lasting = lasting
        self.changed = changed
        self.asked = self.tried = self.done = 0
        self.failed = ""
        self.passed = False
        """True if the new code has passed its trial."""
        self.trial: Trial | None = None

    def take_over(self, carried: Carried) -> None:
        """Continue the counts of the earlier run."""
        self.asked, self.tried = carried["asked"], carried["tried"]
        self.done = carried["done"] + 1

    @property
    def under_way(self) -> bool:
        """True if a restart was requested and its trial has not ended."""
        return self.trial is not None or self.tried < self.asked

    def settle(self) -> None:
        """Start a trial of the new code if a restart was requested since the last trial."""
        if self.trial is None and self.tried < self.asked:
            self.tried = self.asked
            self.failed = ""
            log.info("a restart was asked for: trying the new code")
            try:
                carried = self.left(trial=True, pid=os.getpid())
                self.trial = Trial(self.reactor, carried, self.judge)
            except OSError as fault:
                self.fail(f"the new code does not start: {fault.strerror}")

    def judge(self, complaint: str) -> None:
        """Handle the end of the trial; `complaint` is its error, or empty if it passed."""
        self.trial = None
        if complaint:
            self.fail(f"the new code does not start: {complaint}")
        else:
            self.passed = True
        self.changed()

    def fail(self, sentence: str) -> None:
        """Note why the restart failed."""
        log.error("no restart: %s", sentence)
        self.failed = f"{sentence}; the broker goes on as it was"

    def withdraw(self) -> None:
        """Cancel all requested restarts, because the broker shuts down."""
        self.tried = self.asked
        if self.trial is not None:
            self.trial.withdraw()
            self.trial = None

    def told(self, renewing: list[int]) -> RestartReady:
        """Return the restart fields of status.json."""
        return RestartReady(asked=self.asked, renewing=renewing, failed=self.failed)

    def left(self, **fields: Any) -> str:
        """Return the carried state as JSON."""
        said = {"version": VERSION, "shape": self.shape, "lasting": self.lasting, "trial": False}
        counted = {"asked": self.asked, "tried": self.tried, "done": self.done}
        return json.dumps(said | counted | fields)

    def execute(
        self, unless: Callable[[], bool], descriptors: Sequence[int], **fields: Any
    ) -> None:
        """Execute the new code with these descriptors.

        Returns only if that fails, or if `unless` is true because of a signal received meanwhile.
        """
        self.passed = False
        log.info("executing %s", " ".join(command()))
        # A signal from now on stays pending until the new code handles it; otherwise it would end
        # the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        if not unless():
            for descriptor in descriptors:
                os.set_inheritable(descriptor, True)
            os.environ[CARRIED] = self.left(pid=os.getpid(), **fields)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            try:
                os.execv(sys.executable, command())
            except OSError as fault:
                self.fail(f"the new code cannot be executed: {fault.strerror}")
            del os.environ[CARRIED]
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
        hear_again()


def hear_again() -> None:
    """Unblock signals after an exec, once they have handlers, and so receive the pending ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def command() -> list[str]:
    """Return this process's own command line."""
    return [sys.executable, *sys.orig_argv[1:]]


class Trial:
    """The same command line in a process of its own, which ends before it changes anything."""

    def __init__(self, reactor: Reactor, carried: str, ended: Callable[[str], None]) -> None:
        import subprocess
        import tempfile

        self.reactor = reactor
        self.ended = ended
        self.said = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                command(),
                stdout=subprocess.DEVNULL,
                stderr=self.said,
                env={**os.environ, CARRIED: carried},
            )
        except OSError:
            self.said.close()
            raise
        self.pidfd = os.pidfd_open(self.process.pid)
        reactor.watch(self.pidfd, self.over)
        self.timer: Timer = reactor.call_later(TRIAL_MS_MAX, self.process.kill)

    def withdraw(self) -> None:
        """Kill and reap it without calling `ended`."""
        self.process.kill()
        self.reap()

    def reap(self) -> int:
        self.reactor.unwatch(self.pidfd)
        os.close(self.pidfd)
        self.timer.cancel()
        return self.process.wait()

    def over(self) -> None:
        code = self.reap()
        self.said.seek(0)
        lines = self.said.read(SAID_MAX).decode(errors="replace").strip().splitlines()
        self.said.close()
        if code == 0:
            self.ended("")
        else:
            last = lines[-1].removeprefix("kafkalite: ") if lines else ""
            self.ended(last or f"it ended with exit code {code}")
