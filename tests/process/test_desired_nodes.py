"""Desired processes: the launcher makes the supervisor's list so, for any list and any state."""

import os
import signal
import socket

import pytest

from kafkalite.process.nodes.node_table import initial_nodes
from kafkalite.process.ports import SavedPorts, load_ports
from kafkalite.protocol.schemas.bus import DESIRED_NODES, HEARTBEAT, HELLO, write_frame
from tests.process.harness import is_refused, responds
from tests.process.waiting import until


def incarnation(harness, node_id):
    return [life for life in harness.lives("born") if life[0] == node_id][-1][2]


def test_added_node_starts_and_removed_node_ends(harness):
    harness.start()
    removed, port = harness.pid(1), harness.port(1)
    harness.desired_nodes(2, 5, 4, dedicated=[5])
    until(lambda: {node["id"] for node in harness.status()["nodes"]} == {0, 2, 4, 5})
    assert [node["role"] for node in harness.status()["nodes"]] == [
        "supervisor",
        "worker",
        "worker",
        "dedicated",
    ]
    assert responds(harness.port(4)) and responds(harness.port(5))
    until(lambda: removed not in harness.running_pids())
    assert is_refused(port)
    assert removed in [pid for _, pid, _ in harness.lives("ended")], "it was asked to end"
    until(lambda: set(harness.reported_nodes()) == {0, 2, 4, 5})
    until(lambda: set(load_ports(harness.data).ports) == {0, 2, 4, 5})
    assert load_ports(harness.data).dedicated == {5}


def test_node_added_again_while_it_ends_is_restarted(harness):
    harness.play(1, "linger")
    harness.start()
    pid, port = harness.pid(1), harness.port(1)
    harness.desired_nodes(2)
    until(lambda: pid in [pid for _, pid, _ in harness.lives("ending")])
    until(lambda: is_refused(port))
    harness.desired_nodes(1, 2, 3)
    until(lambda: harness.node(3))
    assert len(harness.lives("born")) == 4, "never two processes of one node"
    harness.play(1)
    harness.wait_restarted(1, pid)
    assert harness.port(1) == port


def test_node_added_again_may_get_another_port(harness):
    harness.listen = "127.0.0.1:0"
    harness.start()
    port = harness.port(1)
    harness.desired_nodes(2)
    until(lambda: set(harness.reported_nodes()) == {0, 2})
    with socket.create_server(("127.0.0.1", port)):
        harness.desired_nodes(1, 2)
        until(lambda: harness.node(1))
    assert harness.port(1) != port


def test_ports_of_removed_nodes_are_reused(harness):
    harness.start()
    ports = {harness.port(1), harness.port(2)}
    for node_id in (57, 60_000):
        harness.desired_nodes(2)
        until(lambda: set(harness.reported_nodes()) == {0, 2})
        harness.desired_nodes(2, node_id)
        until(lambda node_id=node_id: harness.node(node_id))
        assert {harness.port(2), harness.port(node_id)} == ports
    harness.desired_nodes(2, 60_000, 60_001)
    until(lambda: harness.node(60_001))
    assert harness.port(60_001) == max(ports) + 1


def test_port_of_a_node_removed_before_the_start_is_reused(harness):
    harness.start()
    ports = [harness.port(1), harness.port(2)]
    harness.end()
    harness.desired_nodes(1)
    harness.start(workers=1)
    harness.desired_nodes(1, 9)
    until(lambda: harness.node(9))
    assert [harness.port(1), harness.port(9)] == ports


def test_readiness_waits_for_the_desired_nodes(harness):
    (harness.script / "mute").touch()
    harness.play(3, "wait")
    harness.launch()
    until(lambda: len(harness.reported_nodes()) == 3, harness.launcher)
    until(lambda: {node["state"] for node in harness.reported_nodes().values()} == {"ready"})
    assert not harness.ready_file.exists(), "nobody has said yet which nodes there are"
    harness.desired_nodes(1, 2, 3)
    until(lambda: 3 in harness.reported_nodes(), harness.launcher)
    assert not harness.ready_file.exists()
    harness.play(3)
    until(harness.ready_file.exists, harness.launcher)
    assert [node["id"] for node in harness.status()["nodes"]] == [0, 1, 2, 3]


def test_fence_kills_only_the_given_incarnation(harness):
    harness.start()
    pid, old = harness.pid(1), incarnation(harness, 1)
    os.kill(pid, signal.SIGSTOP)
    harness.fence(1, old - 1)
    harness.fence(7, old)
    harness.fence(1, old)
    harness.wait_restarted(1, pid)
    assert incarnation(harness, 1) > old
    renewed = harness.pid(1)
    harness.fence(1, old)
    harness.desired_nodes(1, 2, 3)  # received after the fence
    until(lambda: harness.node(3))
    assert harness.pid(1) == renewed
    assert harness.log.count("Node 1 missed its heartbeat deadline") == 1


def beat():
    return write_frame(HEARTBEAT(image_offset=0, led_count=0, size=0, unserved=[]))


def test_stopped_supervisor_is_killed_and_restarted(harness):
    harness.start(overrides={"broker.session.timeout.ms": "400"})
    pid = harness.pid(0)
    harness.send(beat())
    until(lambda: "Supervisor misses its heartbeats, but its process runs" in harness.log)
    assert harness.pid(0) == pid
    os.kill(pid, signal.SIGSTOP)
    harness.wait_restarted(0, pid)
    assert harness.log.count("Supervisor missed its heartbeats and is killed") == 1


def test_supervisor_that_runs_without_a_tick_is_killed_after_the_tick_timeout(harness):
    overrides = {"broker.session.timeout.ms": "100", "broker.tick.timeout.ms": "600"}
    harness.start(overrides=overrides)
    pid = harness.pid(0)
    harness.send(beat())
    harness.wait_restarted(0, pid)
    assert "running=True" in harness.log


def test_fence_kills_a_node_that_is_ending(harness):
    harness.start()
    pid = harness.pid(1)
    os.kill(pid, signal.SIGSTOP)
    harness.watch()
    harness.launcher.send_signal(signal.SIGTERM)
    until(lambda: 2 in [node_id for node_id, _, _ in harness.lives("ended")])
    harness.fence(1, incarnation(harness, 1))
    assert harness.launcher.wait() == 0
    assert harness.running_pids() == []


def test_restarted_supervisor_knows_removed_nodes_that_still_run(harness):
    """Otherwise it would take that node's directory for one that no process writes to."""
    harness.play(2, "linger")
    harness.start(workers=2)
    harness.desired_nodes(1)
    until(lambda: harness.lives("ending"), harness.launcher)
    pid = harness.pid(0)
    os.kill(pid, signal.SIGKILL)
    harness.wait_restarted(0, pid)
    assert (harness.directory / "company").read_text().splitlines()[-1] == "[0, 1, 2]"


@pytest.mark.parametrize(
    "frame",
    [
        b"\0",
        b"no frame",
        write_frame(HELLO(image_offset=1)),
        write_frame(DESIRED_NODES(node_ids=[-1, 1], dedicated=[])),
        write_frame(DESIRED_NODES(node_ids=list(range(5000)), dedicated=[])),
    ],
)
def test_invalid_message_is_ignored(harness, frame):
    harness.start()
    before = harness.status()
    harness.send(frame, frame, write_frame(DESIRED_NODES(node_ids=[1, 2, 3], dedicated=[])))
    until(lambda: harness.node(3))
    assert [node for node in harness.status()["nodes"] if node["id"] != 3] == before["nodes"]
    assert harness.log.count("ignores an invalid message") == 1


def test_workers_are_restarted_while_the_supervisor_is_stopped(harness):
    harness.start()
    supervisor = harness.pid(0)
    os.kill(supervisor, signal.SIGSTOP)
    for _ in range(3):
        pid = harness.pid(1)
        os.kill(pid, signal.SIGKILL)
        harness.wait_restarted(1, pid)
    os.kill(supervisor, signal.SIGCONT)
    until(lambda: harness.reported_nodes()[1]["pid"] == harness.pid(1))
    assert harness.pid(0) == supervisor


def test_resumed_supervisor_gets_the_last_node_states(harness):
    harness.start()
    os.kill(harness.pid(0), signal.SIGSTOP)
    harness.play(1, "die")
    os.kill(harness.pid(1), signal.SIGKILL)
    until(lambda: harness.log.count("exited before it was ready") == 2)
    os.kill(harness.pid(0), signal.SIGCONT)
    until(lambda: harness.reported_nodes()[1]["state"] == "backoff")


SAVED = SavedPorts({0: 9092, 1: 9093, 3: 9095, 4: 9096}, frozenset({4}))


@pytest.mark.parametrize(
    ("workers", "saved", "desired"),
    [
        (2, None, {0, 1, 2}),
        (None, None, {0, 1, 2, 3}),
        (None, SAVED, {0, 1, 3, 4}),
        (2, SAVED, {0, 1, 3, 4}),
        (1, SAVED, {0, 1, 4}),
        (4, SAVED, {0, 1, 2, 3, 4, 5}),
        (3, SavedPorts({0: 9092}), {0, 1, 2, 3}),
    ],
)
def test_initial_nodes_are_the_saved_or_configured_ones(workers, saved, desired):
    assert initial_nodes(workers, 3, saved) == desired
