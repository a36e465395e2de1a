"""The command line as its users run it: a process, its streams and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kafkalite.cli import main
from kafkalite.testing import Broker

TIMEOUT_S = 60

Ended = subprocess.CompletedProcess[bytes]
Run = Callable[..., Ended]


class CommandResult(NamedTuple):
    """A command's exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def table(self) -> list[list[str]]:
        """The rows of its output, including the header."""
        assert self.code == 0, self.err
        return [line.split() for line in self.out.splitlines()]


RunCommand = Callable[..., CommandResult]


@pytest.fixture
def run(kafka_broker: Broker) -> Run:
    """A function that runs `kafkalite` in a process against the session's broker."""

    def run(*words: str, given: bytes = b"", bootstrap: str = "") -> Ended:
        env = {**os.environ, "KAFKALITE_BOOTSTRAP": bootstrap or kafka_broker.bootstrap}
        return subprocess.run(
            [sys.executable, "-m", "kafkalite", *words],
            input=given,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            env=env,
        )

    return run


@pytest.fixture
def run_command(kafka_broker: Broker, monkeypatch, capsys) -> RunCommand:
    """The same in this process, for commands that need none of their own."""
    monkeypatch.setenv("KAFKALITE_BOOTSTRAP", kafka_broker.bootstrap)

    def run_command(*words: str) -> CommandResult:
        capsys.readouterr()
        code = main(words)
        return CommandResult(code, *capsys.readouterr())

    return run_command
