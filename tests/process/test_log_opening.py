"""Clients and signals while the logs are being opened: connections wait, a stop is handled."""

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys

import pytest

from tests.process.waiting import WAIT_S_MAX

SLOW_TO_OPEN = """
import pathlib, sys
from kafkalite.broker.node import Node
from kafkalite.process import launcher
from kafkalite.process.options import Options

opened = Node.open

def slowly(node):
    print(node.listener.getsockname()[1], flush=True)
    sys.stdin.readline()
    opened(node)

Node.open = slowly
data = pathlib.Path(sys.argv[1])
overrides = {"socket.listen.backlog.size": "2"}
options = Options("127.0.0.1:0", data, workers=0, durability="os", overrides=overrides)
sys.exit(launcher.start(options))
"""


@pytest.fixture
def opening(tmp_path):
    """Yield a broker that has bound its port and opens its logs once it is sent a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_OPEN, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = int(process.stdout.readline())
    yield process, port
    process.kill()
    process.communicate()


def test_early_client_is_served_after_the_logs_are_open(opening):
    process, port = opening
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX) as early:
        early.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
        process.stdin.write("open\n")
        process.stdin.flush()
        assert early.recv(10)[4:] == struct.pack(">ih", 7, 0)


def test_early_clients_over_the_backlog_do_not_prevent_readiness(opening):
    process, port = opening
    with contextlib.ExitStack() as crowd:
        for _ in range(10):
            early = crowd.enter_context(socket.socket())
            early.setblocking(False)
            early.connect_ex(("127.0.0.1", port))
        process.stdin.write("open\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], WAIT_S_MAX)[0], "it never got ready"
        assert "ready" in process.stdout.readline()


def test_sigterm_during_log_opening_ends_cleanly(opening):
    process, port = opening
    os.kill(process.pid, signal.SIGTERM)
    printed, _ = process.communicate("open\n", timeout=WAIT_S_MAX)
    assert process.returncode == 0
    assert "ready" not in printed
