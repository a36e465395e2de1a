"""The command line as a person meets it: a process, its streams and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from kafkalite.testing import Broker

TIMEOUT_S = 60

Ended = subprocess.CompletedProcess[bytes]
Run = Callable[..., Ended]


@pytest.fixture
def run(kafka_broker: Broker) -> Run:
    """Run `kafkalite` with these words against the session's broker."""

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
