"""Brokers started as a user starts them: the command line, in a process of its own."""

import json
import os
import subprocess
import sys

import pytest

from kafkalite.cli import main
from tests.process.staging import Stage, free_range
from tests.process.waiting import WAIT_S_MAX, until


class Started:
    """A broker the test started, and what its ready file said."""

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
        """Send a signal; what it printed, and its exit code."""
        os.kill(self.process.pid, number)
        printed, _ = self.process.communicate(timeout=WAIT_S_MAX)
        return printed, self.process.returncode


@pytest.fixture
def start(tmp_path):
    """Starts brokers with more flags, and kills what is left of them."""
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
    """Runs one command line to its end, in this process: none that would start a broker."""

    def run(*words):
        mask = os.umask(0o022)
        try:
            code = main([str(word) for word in words])
        finally:
            os.umask(mask)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


@pytest.fixture
def stage(tmp_path):
    """A launcher over stand-in nodes; at the end nothing of it is left, whatever was done to it."""
    stage = Stage(tmp_path, listen=f"127.0.0.1:{free_range(9)}")
    yield stage
    stage.close()
