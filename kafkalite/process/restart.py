"""Restart: the launcher executes itself anew, on the code that is installed by then.

    SIGUSR2 → the new code is tried → exec, in the same process → nodes renewed (launcher.py)

Tried means: the same command line runs in a process of its own, reads its flags and its config
file, imports all there is, looks at what it would take over, and ends.  Only if that goes well the
launcher executes itself; else all stays as it is, and status.json says why.  What the config file
says then counts, but for what lasts as long as the launcher (`lasting`): that it has changed is
refused, not passed over.

The process goes on with its id, its children and its descriptors.  What they are stands in the
environment variable KAFKALITE_CARRIED, as JSON; it is taken over only by the process it was meant
for, and taken out of the environment at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kafkalite.config.broker import (
    GATEWAY_DEALER_LISTENER,
    GATEWAY_LISTENER,
    LISTENERS,
    LOG_DIRS,
    METRICS_LISTENER,
    WORKERS,
    Listener,
)
from kafkalite.config.settings import Settings
from kafkalite.errors import Refusal
from kafkalite.process.loop import ENDING
from kafkalite.process.ready import RestartReady
from kafkalite.transport.reactor import Reactor, Timer

log = logging.getLogger("kafkalite.process")

CARRIED = "KAFKALITE_CARRIED"
VERSION = 1
"""Of what is carried; another version is not taken over from."""

TRIAL_MS_MAX = 60_000
HEARD = {*ENDING, signal.SIGUSR2}
SAID_MAX = 4096


class Carried:
    """What one run of the launcher leaves to the next in the same process."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = fields

    @classmethod
    def taken(cls) -> Carried | None:
        """What was left to this process, once; None in one that begins by itself."""
        text = os.environ.pop(CARRIED, None)
        try:
            fields = json.loads(text or "null")
            # A trial is one whoever its parent is by now: that may have been killed meanwhile.
            meant = fields["trial"] or fields["pid"] == os.getpid()
        except (ValueError, KeyError, TypeError):
            return None
        return cls(fields) if meant else None

    @property
    def trial(self) -> bool:
        """Whether this only is the trial of the new code."""
        return bool(self.fields["trial"])

    def check(self, shape: str, asked: Mapping[str, Any]) -> None:
        """Refusal, if it cannot be taken over here; heard in the trial, before it is too late.

        `asked` is what would have to last (`lasting`) as it is asked for now.
        """
        if self.fields.get("version") != VERSION:
            raise Refusal("this version cannot take over from the one that runs")
        lasts = self.fields.get("lasting", {})  # an older one did not say
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

    @property
    def metrics(self) -> list[int]:
        """The exporter's listening socket, if there is one."""
        found = self.fields.get("metrics", [])
        if isinstance(found, int):  # an older version's
            return [found] if found >= 0 else []
        return list(found)

    @property
    def gateway(self) -> list[int]:
        """The gateway's listening sockets, if there is one; older versions had none."""
        return list(self.fields.get("gateway", []))


def lasting(settings: Settings, address: Listener, data: Path) -> dict[str, Any]:
    """What no restart can change, by its key: it is in the sockets, in the lock, in the cluster.
    None where nothing is asked for, so that it is as it was."""
    return {
        LOG_DIRS.name: str(data),
        LISTENERS.name: f"{address.host}:{address.port}",
        METRICS_LISTENER.name: settings[METRICS_LISTENER],
        GATEWAY_LISTENER.name: settings[GATEWAY_LISTENER],
        GATEWAY_DEALER_LISTENER.name: settings[GATEWAY_DEALER_LISTENER],
        WORKERS.name: settings[WORKERS],
    }


class Restarts:
    """The restarts that were asked for, tried one at a time; `changed` is called after a trial."""

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
        """Whether the new code was tried and is good."""
        self.trial: Trial | None = None

    def take_over(self, carried: Carried) -> None:
        """Go on counting."""
        self.asked, self.tried = carried["asked"], carried["tried"]
        self.done = carried["done"] + 1

    @property
    def under_way(self) -> bool:
        """Whether the next one was asked for and its code is not judged yet."""
        return self.trial is not None or self.tried < self.asked

    def settle(self) -> None:
        """Try the new code, if somebody asked since it was tried last."""
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
        """The trial has ended, with a complaint or well."""
        self.trial = None
        if complaint:
            self.fail(f"the new code does not start: {complaint}")
        else:
            self.passed = True
        self.changed()

    def fail(self, sentence: str) -> None:
        """It comes to nothing."""
        log.error("no restart: %s", sentence)
        self.failed = f"{sentence}; the broker goes on as it was"

    def withdraw(self) -> None:
        """The broker ends instead."""
        self.tried = self.asked
        if self.trial is not None:
            self.trial.withdraw()
            self.trial = None

    def told(self, renewing: list[int]) -> RestartReady:
        """What status.json says of it."""
        return RestartReady(asked=self.asked, renewing=renewing, failed=self.failed)

    def left(self, **fields: Any) -> str:
        """What the next run is told."""
        said = {"version": VERSION, "shape": self.shape, "lasting": self.lasting, "trial": False}
        counted = {"asked": self.asked, "tried": self.tried, "done": self.done}
        return json.dumps(said | counted | fields)

    def execute(
        self, unless: Callable[[], bool], descriptors: Sequence[int], **fields: Any
    ) -> None:
        """Become the new code, with these descriptors; returns only if that fails, or if a signal
        that came meanwhile speaks against it."""
        self.passed = False
        log.info("executing %s", " ".join(command()))
        # A signal from now on waits until the new code hears it; else it would end the process.
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
    """After an exec, once signals are heard: those that came meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)


def command() -> list[str]:
    """This process's own command line."""
    return [sys.executable, *sys.orig_argv[1:]]


class Trial:
    """The same command line in a process of its own, which ends before it does anything."""

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
        """End it and forget it."""
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
