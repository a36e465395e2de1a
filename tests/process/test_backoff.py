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
from tests.process.harness import answers, is_refused
from tests.process.waiting import until


def births(stage, node_id):
    return [life for life in stage.lives("born") if life[0] == node_id]


def test_a_node_that_dies_three_times_is_refused_meanwhile_and_then_serves_again(stage):
    stage.start()
    pid, port = stage.pid(2), stage.port(2)
    stage.play(2, "die")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(births(stage, 2)) == 4)
    until(lambda: is_refused(port))
    until(lambda: stage.heard()[2]["state"] == "backoff")
    assert stage.node(2) is None and answers(stage.port(1))
    stage.play(2)
    stage.renewed(2, pid)
    assert stage.port(2) == port and answers(port)
    assert "Node 2 exited before it was ready: it exited with code 3; retrying." in stage.log
    # A later failure counts as the first one: the restart has no delay.
    stage.play(2, "wait")
    os.kill(stage.pid(2), signal.SIGKILL)
    until(lambda: stage.heard()[2]["state"] == "starting")
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


def test_a_port_that_was_taken_meanwhile_is_waited_for_with_one_line_in_the_log(stage):
    stage.start()
    pid, port = stage.pid(1), stage.port(1)
    stage.play(1, "die")
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
        stage.play(1)
        until(lambda: f"node 1 cannot listen on 127.0.0.1:{port}" in stage.log)
        failed = stage.log.count("cannot listen")
        born = len(births(stage, 1))
        until(lambda: stage.heard()[1]["state"] == "backoff")
        pid2 = stage.pid(2)
        os.kill(pid2, signal.SIGKILL)  # the launcher watches the other nodes all the while
        stage.renewed(2, pid2)
        assert len(births(stage, 1)) == born
    stage.renewed(1, pid)
    assert stage.port(1) == port
    assert stage.log.count("cannot listen") == failed == 1


def test_a_port_that_is_taken_before_all_was_ever_ready_ends_all_with_its_sentence(stage):
    host, _, port = stage.listen.rpartition(":")
    with socket.create_server((host, int(port) + 3)):
        stage.roster(1, 2, 3)  # one more node than the launcher starts with
        stage.launch()
        code, said = stage.refused()
    assert (code, said.count("\n")) == (1, 1)
    assert f"node 3 cannot listen on {host}:{int(port) + 3}: address already in use" in said
    stage.watch()
    assert stage.left() == [] and not is_locked(stage.data)
    (stage.script / "say").write_text("")
    stage.roster(1, 2, 3)
    stage.start()
    assert stage.port(3) == int(port) + 3


def test_a_node_killed_while_it_starts_is_tried_again_and_all_become_ready(stage):
    stage.play(1, "wait")
    stage.launch()
    until(lambda: len(stage.lives("born")) == 3, stage.launcher)
    assert not stage.ready_file.exists()
    os.kill(births(stage, 1)[0][1], signal.SIGKILL)
    until(lambda: len(births(stage, 1)) == 2, stage.launcher)
    assert not stage.ready_file.exists()
    stage.play(1)
    until(stage.ready_file.exists, stage.launcher)
    assert stage.pid(1) == births(stage, 1)[1][1]


@pytest.mark.parametrize("node_id", [0, 1])
def test_a_node_that_refuses_to_start_ends_all_and_its_sentence_is_said_once(stage, node_id):
    stage.play(node_id, "refuse")
    stage.launch()
    assert stage.refused() == (1, f"kafkalite: node {node_id} has seen enough\n")
    stage.watch()
    assert stage.left() == []
    assert not stage.ready_file.exists()


def test_when_all_refuse_one_sentence_is_said(stage):
    for node_id in (0, 1, 2):
        stage.play(node_id, "refuse")
    stage.launch()
    code, said = stage.refused()
    assert code == 1 and said.count("\n") == 1 and said.endswith("has seen enough\n")


@pytest.mark.parametrize(
    ("word", "reason"),
    [("die", "it exited with code 3"), ("fault", "ValueError: a fault that was planted")],
)
def test_a_supervisor_that_dies_before_it_was_ready_ends_all(stage, word, reason):
    stage.play(0, word)
    stage.launch()
    code, said = stage.refused()
    assert code == 1 and said.count("\n") == 1 and reason in said
    stage.watch()
    assert stage.left() == []


def test_a_supervisor_that_dies_later_is_tried_again_and_the_workers_go_on(stage):
    stage.start()
    workers = {node_id: stage.node(node_id) for node_id in (1, 2)}
    pid = stage.pid(0)
    stage.play(0, "refuse")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(births(stage, 0)) == 3)
    until(lambda: "node 0 has seen enough; retrying." in stage.log)
    stage.play(0)
    stage.renewed(0, pid)
    assert {node_id: stage.node(node_id) for node_id in (1, 2)} == workers
