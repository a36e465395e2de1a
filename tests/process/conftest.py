"""Fixtures: brokers started as a user starts them, by command line in a process of their own."""

import json
import os
import subprocess
import sys

import pytest

from kafkalite.cli import main
from tests.process.harness import LauncherHarness, free_range
from tests.process.waiting import WAIT_S_MAX, until


class Started:
    """A broker that the test started, and the contents of its ready file."""

    def __init__(self, directory, flags, workers=0, data="data", **options):
        self.ready_file = directory / "ready.json"
        self.data = directory / data if data else None
        command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
        command += ["--durability", "os", "--ready-file", str(self.ready_file)]
        command += ["--workers", str(workers), *flags]
        command += ["--data", str(self.data)] if self.data else []
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        self.process = subprocess.Popen(command, text=True, **streams)
        until(self.ready_file.exists, self.process)
        self.ready = json.loads(self.ready_file.read_text())

    def end(self, number):
        """Send a signal; return the output and the exit code."""
        os.kill(self.process.pid, number)
        printed, _ = self.process.communicate(timeout=WAIT_S_MAX)
        return printed, self.process.returncode


@pytest.fixture
def start(tmp_path):
    """Return a function that starts brokers with more flags; those still running are killed."""
    started = []

    def make(*flags, directory=tmp_path, **options):
        started.append(Started(directory, flags, **options))
        return started[-1]

    yield make
    for broker in started:
        if broker.process.poll() is None:
            broker.process.kill()
        broker.process.communicate()


@pytest.fixture
def kafkalite(capsys):
    """Return a function that runs one command line in this process, to its end; not for `start`."""

    def run(*words):
        mask = os.umask(0o022)
        try:
            code = main([str(word) for word in words])
        finally:
            os.umask(mask)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@pytest.fixture
def harness(tmp_path):
    """Yield a launcher over stand-in nodes; its processes are killed at the end."""
    harness = LauncherHarness(tmp_path, listen=f"127.0.0.1:{free_range(9)}")
    yield harness
    harness.close()
