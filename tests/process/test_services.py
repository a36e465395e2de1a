"""Services beside the broker: the table, and how their processes are started."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until


@pytest.fixture
def foreign(tmp_path):
    """A working directory with a package and a module that must not be imported from it."""
    directory = tmp_path / "project"
    (directory / "kafkalite").mkdir(parents=True)
    (directory / "kafkalite" / "__init__.py").write_text("raise ImportError('not kafkalite')\n")
    (directory / "selectors.py").write_text("raise ImportError('not the standard library')\n")
    return directory


@pytest.mark.parametrize(
    "flags", [["--metrics", "127.0.0.1:0"], ["--gateway", "tcp://127.0.0.1:0"]]
)
def test_service_imports_nothing_from_the_working_directory(tmp_path, foreign, flags):
    ready_file = tmp_path / "ready.json"
    command = [sys.executable, "-P", "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
    command += ["--workers", "0", "--data", str(tmp_path / "data"), *flags]
    command += ["--ready-file", str(ready_file)]
    process = subprocess.Popen(command, cwd=foreign, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: ready_file.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        assert flags[0].removeprefix("--") in json.loads(ready_file.read_text())
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S_MAX)


def test_testing_broker_imports_nothing_from_the_working_directory(foreign, monkeypatch):
    monkeypatch.chdir(foreign)
    with Broker() as broker:
        assert os.path.exists(broker.data)
