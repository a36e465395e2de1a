"""Services beside the broker: the table, and how their processes are started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from kafkalite.process.services.service_group import ServiceGroup
from kafkalite.process.services.service_process import StartReport
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


THIRD_SERVICE = """
import sys
from kafkalite.process.services import table
from kafkalite.process.services.exporter_service import EXPORTER
from kafkalite.process.services.service import ServicePlan
from kafkalite.process.services.service_sockets import bind_tcp

table.SERVICES += (
    EXPORTER._replace(
        name="third service", key="third", socket_keys=(),
        plan=lambda settings, insecure: ServicePlan(
            ["metrics"], lambda: [bind_tcp("127.0.0.1", 0, 16)]
        ),
    ),
)
from kafkalite.cli import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_third_service_is_one_entry_of_the_table(tmp_path, workers):
    ready_file, data = tmp_path / "ready.json", tmp_path / "data"
    command = [sys.executable, "-c", THIRD_SERVICE, "start", "--listen", "127.0.0.1:0"]
    command += ["--workers", workers, "--data", str(data), "--ready-file", str(ready_file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(ready_file.exists, process)
        address = json.loads(ready_file.read_text())["third"]
        assert is_healthy(address)
        process.send_signal(signal.SIGUSR2)

        def is_restarted():
            status = json.loads((data / "status.json").read_text())
            return status["restarts"] == 1 and status["third"] == address

        until(is_restarted, process)
        until(lambda: is_healthy(address), process)
        process.terminate()
        output, errors = process.communicate(timeout=WAIT_S_MAX)
        assert (process.returncode, errors) == (0, "")
        assert f"  third       http://{address}/metrics\n" in output
        assert not is_healthy(address)
    finally:
        process.kill()
        process.communicate()


def is_healthy(address):
    """Return True if the service at this address responds."""
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=10) as response:
            return response.status == 200
    except OSError:
        return False


def test_services_shut_down_in_reverse_order(tmp_path):
    order = []
    group = ServiceGroup(None, tmp_path, [], StartReport(lambda: None, order.append))
    group.processes = [StandIn(name, order) for name in ("exporter", "gateway", "third")]
    group.shut_down(lambda: order.append("broker"))
    assert order == ["third", "gateway", "exporter", "broker"]


class StandIn:
    """A service that exits at once."""

    def __init__(self, name, order):
        self.name = name
        self.order = order

    def shut_down(self, on_exit):
        self.order.append(self.name)
        on_exit()


def test_sockets_of_a_service_that_is_not_configured_any_more_are_closed(tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    address, descriptor = listener.getsockname(), listener.detach()
    group = ServiceGroup(None, tmp_path, [], StartReport(lambda: None, lambda reason: None))
    group.take_over(lambda key: [descriptor] if key == "metrics" else [])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert group.is_ready and not group.is_running and group.descriptors == {}
