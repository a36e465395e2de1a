"""Nodes that die before they are ready: backoff, refused connections, and the end of the broker."""

import os
import signal
import socket

import pytest

from kafkalite.process.nodes.node_process import (
    BACKOFF_MS_MAX,
    BACKOFF_MS_MIN,
    NodeProcess,
    NodeProcessState,
)
from kafkalite.process.status.ready import is_locked
from kafkalite.transport.reactor import Reactor
from tests.process.harness import is_refused, responds
from tests.process.waiting import until


def births(harness, node_id):
    return [life for life in harness.lives("born") if life[0] == node_id]


def test_node_that_exits_repeatedly_is_retried_after_backoff(harness):
    harness.start()
    pid, port = harness.pid(2), harness.port(2)
    harness.play(2, "die")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(births(harness, 2)) == 4)
    until(lambda: is_refused(port))
    until(lambda: harness.reported_nodes()[2]["state"] == "backoff")
    assert harness.node(2) is None and responds(harness.port(1))
    harness.play(2)
    harness.wait_restarted(2, pid)
    assert harness.port(2) == port and responds(port)
    assert "Node 2 exited before it was ready: it exited with code 3; retrying." in harness.log
    # A later failure counts as the first one: the restart has no delay.
    harness.play(2, "wait")
    os.kill(harness.pid(2), signal.SIGKILL)
    until(lambda: harness.reported_nodes()[2]["state"] == "starting")
    assert not is_refused(port)


def test_backoff_doubles_up_to_its_maximum(manual_reactor):
    clock, reactor = manual_reactor
    node = NodeProcess(reactor, 1, on_exit=None)
    waited = []
    for _ in range(12):
        node.back_off()
        assert node.state is NodeProcessState.BACKOFF
        began = clock.monotonic_ms()
        while node.state is NodeProcessState.BACKOFF:
            clock.advance(1)
            reactor.tick(0)
        waited.append(clock.monotonic_ms() - began)
    assert waited[:4] == [BACKOFF_MS_MIN, 200, 400, 800]
    assert waited[-3:] == [BACKOFF_MS_MAX] * 3


@pytest.fixture
def manual_reactor():
    from kafkalite.clock import ManualClock

    clock = ManualClock()
    reactor = Reactor(clock)
    yield clock, reactor
    reactor.close()


def test_restarted_node_waits_for_its_port_in_use(harness):
    harness.start()
    pid, port = harness.pid(1), harness.port(1)
    harness.play(1, "die")
    os.kill(pid, signal.SIGKILL)

    def taken():
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("127.0.0.1", port))
                other.listen()
            except OSError:
                return None
            return other.dup()

    other = []
    until(lambda: bool(other.append(held) if (held := taken()) else other))
    with other[0]:
        harness.play(1)
        until(lambda: f"node 1 cannot listen on 127.0.0.1:{port}" in harness.log)
        failed = harness.log.count("cannot listen")
        born = len(births(harness, 1))
        until(lambda: harness.reported_nodes()[1]["state"] == "backoff")
        pid2 = harness.pid(2)
        os.kill(pid2, signal.SIGKILL)  # the launcher watches the other nodes all the while
        harness.wait_restarted(2, pid2)
        assert len(births(harness, 1)) == born
    harness.wait_restarted(1, pid)
    assert harness.port(1) == port
    assert harness.log.count("cannot listen") == failed == 1


def test_port_in_use_before_ready_ends_the_broker(harness):
    host, _, port = harness.listen.rpartition(":")
    with socket.create_server((host, int(port) + 3)):
        harness.desired_nodes(1, 2, 3)  # one more node than the launcher starts with
        harness.launch()
        code, said = harness.wait_refused()
    assert (code, said.count("\n")) == (1, 1)
    assert f"node 3 cannot listen on {host}:{int(port) + 3}: address already in use" in said
    harness.watch()
    assert harness.running_pids() == [] and not is_locked(harness.data)
    (harness.script / "say").write_text("")
    harness.desired_nodes(1, 2, 3)
    harness.start()
    assert harness.port(3) == int(port) + 3


def test_worker_killed_before_ready_is_retried(harness):
    harness.play(1, "wait")
    harness.launch()
    until(lambda: len(harness.lives("born")) == 3, harness.launcher)
    assert not harness.ready_file.exists()
    os.kill(births(harness, 1)[0][1], signal.SIGKILL)
    until(lambda: len(births(harness, 1)) == 2, harness.launcher)
    assert not harness.ready_file.exists()
    harness.play(1)
    until(harness.ready_file.exists, harness.launcher)
    assert harness.pid(1) == births(harness, 1)[1][1]


@pytest.mark.parametrize("node_id", [0, 1])
def test_refusal_of_a_node_ends_the_broker(harness, node_id):
    harness.play(node_id, "refuse")
    harness.launch()
    assert harness.wait_refused() == (1, f"kafkalite: node {node_id} has seen enough\n")
    harness.watch()
    assert harness.running_pids() == []
    assert not harness.ready_file.exists()


def test_refusals_of_all_nodes_print_one_error(harness):
    for node_id in (0, 1, 2):
        harness.play(node_id, "refuse")
    harness.launch()
    code, said = harness.wait_refused()
    assert code == 1 and said.count("\n") == 1 and said.endswith("has seen enough\n")


@pytest.mark.parametrize(
    ("word", "reason"),
    [("die", "it exited with code 3"), ("fault", "ValueError: a fault that was planted")],
)
def test_supervisor_that_exits_before_ready_ends_the_broker(harness, word, reason):
    harness.play(0, word)
    harness.launch()
    code, said = harness.wait_refused()
    assert code == 1 and said.count("\n") == 1 and reason in said
    harness.watch()
    assert harness.running_pids() == []


def test_supervisor_that_exits_after_ready_is_retried(harness):
    harness.start()
    workers = {node_id: harness.node(node_id) for node_id in (1, 2)}
    pid = harness.pid(0)
    harness.play(0, "refuse")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(births(harness, 0)) == 3)
    until(lambda: "node 0 has seen enough; retrying." in harness.log)
    harness.play(0)
    harness.wait_restarted(0, pid)
    assert {node_id: harness.node(node_id) for node_id in (1, 2)} == workers
