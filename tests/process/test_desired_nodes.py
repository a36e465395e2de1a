"""Desired processes: the launcher makes the supervisor's list so, for any list and any state."""

import os
import signal
import socket

import pytest

from kafkalite.process.launcher import initial_nodes
from kafkalite.process.ports import SavedPorts, load_ports
from kafkalite.protocol.schemas.bus import HEARTBEAT, HELLO, ROSTER, write_frame
from tests.process.harness import answers, is_refused
from tests.process.waiting import until


def incarnation(stage, node_id):
    return [life for life in stage.lives("born") if life[0] == node_id][-1][2]


def test_a_node_that_is_added_is_started_and_one_that_is_removed_is_no_more(stage):
    stage.start()
    removed, port = stage.pid(1), stage.port(1)
    stage.roster(2, 5, 4, dedicated=[5])
    until(lambda: {node["id"] for node in stage.status()["nodes"]} == {0, 2, 4, 5})
    assert [node["role"] for node in stage.status()["nodes"]] == [
        "supervisor",
        "worker",
        "worker",
        "dedicated",
    ]
    assert answers(stage.port(4)) and answers(stage.port(5))
    until(lambda: removed not in stage.left())
    assert is_refused(port)
    assert removed in [pid for _, pid, _ in stage.lives("ended")], "it was asked to end"
    until(lambda: set(stage.heard()) == {0, 2, 4, 5})
    until(lambda: set(load_ports(stage.data).ports) == {0, 2, 4, 5})
    assert load_ports(stage.data).dedicated == {5}


def test_a_node_that_is_removed_and_wanted_again_while_it_ends_is_started_anew(stage):
    stage.play(1, "linger")
    stage.start()
    pid, port = stage.pid(1), stage.port(1)
    stage.roster(2)
    until(lambda: pid in [pid for _, pid, _ in stage.lives("ending")])
    until(lambda: is_refused(port))
    stage.roster(1, 2, 3)
    until(lambda: stage.node(3))
    assert len(stage.lives("born")) == 4, "never two processes of one node"
    stage.play(1)
    stage.renewed(1, pid)
    assert stage.port(1) == port


def test_a_node_that_is_added_again_need_not_have_the_port_it_had(stage):
    stage.listen = "127.0.0.1:0"
    stage.start()
    port = stage.port(1)
    stage.roster(2)
    until(lambda: set(stage.heard()) == {0, 2})
    with socket.create_server(("127.0.0.1", port)):
        stage.roster(1, 2)
        until(lambda: stage.node(1))
    assert stage.port(1) != port


def test_nodes_that_come_and_go_do_not_walk_through_the_ports(stage):
    stage.start()
    ports = {stage.port(1), stage.port(2)}
    for node_id in (57, 60_000):
        stage.roster(2)
        until(lambda: set(stage.heard()) == {0, 2})
        stage.roster(2, node_id)
        until(lambda node_id=node_id: stage.node(node_id))
        assert {stage.port(2), stage.port(node_id)} == ports
    stage.roster(2, 60_000, 60_001)
    until(lambda: stage.node(60_001))
    assert stage.port(60_001) == max(ports) + 1


def test_the_port_of_a_node_that_is_no_more_at_the_start_is_the_next_ones(stage):
    stage.start()
    ports = [stage.port(1), stage.port(2)]
    stage.end()
    stage.roster(1)
    stage.start(workers=1)
    stage.roster(1, 9)
    until(lambda: stage.node(9))
    assert [stage.port(1), stage.port(9)] == ports


def test_readiness_waits_for_the_nodes_the_supervisor_names(stage):
    (stage.script / "mute").touch()
    stage.play(3, "wait")
    stage.launch()
    until(lambda: len(stage.heard()) == 3, stage.launcher)
    until(lambda: {node["state"] for node in stage.heard().values()} == {"ready"})
    assert not stage.ready_file.exists(), "nobody has said yet which nodes there are"
    stage.roster(1, 2, 3)
    until(lambda: 3 in stage.heard(), stage.launcher)
    assert not stage.ready_file.exists()
    stage.play(3)
    until(stage.ready_file.exists, stage.launcher)
    assert [node["id"] for node in stage.status()["nodes"]] == [0, 1, 2, 3]


def test_a_silent_node_is_killed_and_its_next_incarnation_is_left_alone(stage):
    stage.start()
    pid, old = stage.pid(1), incarnation(stage, 1)
    os.kill(pid, signal.SIGSTOP)
    stage.fence(1, old - 1)
    stage.fence(7, old)
    stage.fence(1, old)
    stage.renewed(1, pid)
    assert incarnation(stage, 1) > old
    renewed = stage.pid(1)
    stage.fence(1, old)
    stage.roster(1, 2, 3)  # received after the fence
    until(lambda: stage.node(3))
    assert stage.pid(1) == renewed
    assert stage.log.count("Node 1 missed its heartbeat deadline") == 1


def beat():
    return write_frame(HEARTBEAT(image_offset=0, led_count=0, size=0, unmade=[]))


def test_stopped_supervisor_is_killed_and_started_again(stage):
    stage.start(overrides={"broker.session.timeout.ms": "400"})
    pid = stage.pid(0)
    stage.say(beat())
    until(lambda: "Supervisor misses its heartbeats, but its process runs" in stage.log)
    assert stage.pid(0) == pid
    os.kill(pid, signal.SIGSTOP)
    stage.renewed(0, pid)
    assert stage.log.count("Supervisor missed its heartbeats and is killed") == 1


def test_supervisor_that_runs_without_a_tick_is_killed_after_the_tick_timeout(stage):
    overrides = {"broker.session.timeout.ms": "100", "broker.tick.timeout.ms": "600"}
    stage.start(overrides=overrides)
    pid = stage.pid(0)
    stage.say(beat())
    stage.renewed(0, pid)
    assert "running=True" in stage.log


def test_a_silent_node_is_killed_even_while_it_ends(stage):
    stage.start()
    pid = stage.pid(1)
    os.kill(pid, signal.SIGSTOP)
    stage.watch()
    stage.launcher.send_signal(signal.SIGTERM)
    until(lambda: 2 in [node_id for node_id, _, _ in stage.lives("ended")])
    stage.fence(1, incarnation(stage, 1))
    assert stage.launcher.wait() == 0
    assert stage.left() == []


def test_a_supervisor_is_born_knowing_of_a_removed_node_that_has_not_ended(stage):
    """Otherwise it would take that node's directory for one that no process writes to."""
    stage.play(2, "linger")
    stage.start(workers=2)
    stage.roster(1)
    until(lambda: stage.lives("ending"), stage.launcher)
    pid = stage.pid(0)
    os.kill(pid, signal.SIGKILL)
    stage.renewed(0, pid)
    assert (stage.directory / "company").read_text().splitlines()[-1] == "[0, 1, 2]"


@pytest.mark.parametrize(
    "frame",
    [
        b"\0",
        b"no frame",
        write_frame(HELLO(image_offset=1)),
        write_frame(ROSTER(node_ids=[-1, 1], dedicated=[])),
        write_frame(ROSTER(node_ids=list(range(5000)), dedicated=[])),
    ],
)
def test_what_cannot_be_meant_is_not_obeyed(stage, frame):
    stage.start()
    before = stage.status()
    stage.say(frame, frame, write_frame(ROSTER(node_ids=[1, 2, 3], dedicated=[])))
    until(lambda: stage.node(3))
    assert [node for node in stage.status()["nodes"] if node["id"] != 3] == before["nodes"]
    assert stage.log.count("ignores an invalid message") == 1


def test_a_stopped_supervisor_keeps_nobody_from_being_started_again(stage):
    stage.start()
    supervisor = stage.pid(0)
    os.kill(supervisor, signal.SIGSTOP)
    for _ in range(3):
        pid = stage.pid(1)
        os.kill(pid, signal.SIGKILL)
        stage.renewed(1, pid)
    os.kill(supervisor, signal.SIGCONT)
    until(lambda: stage.heard()[1]["pid"] == stage.pid(1))
    assert stage.pid(0) == supervisor


def test_a_supervisor_that_hears_nothing_for_long_is_told_the_last_word(stage):
    stage.start()
    os.kill(stage.pid(0), signal.SIGSTOP)
    stage.play(1, "die")
    os.kill(stage.pid(1), signal.SIGKILL)
    until(lambda: stage.log.count("exited before it was ready") == 2)
    os.kill(stage.pid(0), signal.SIGCONT)
    until(lambda: stage.heard()[1]["state"] == "backoff")


REMEMBERED = SavedPorts({0: 9092, 1: 9093, 3: 9095, 4: 9096}, frozenset({4}))


@pytest.mark.parametrize(
    ("workers", "remembered", "roster"),
    [
        (2, None, {0, 1, 2}),
        (None, None, {0, 1, 2, 3}),
        (None, REMEMBERED, {0, 1, 3, 4}),
        (2, REMEMBERED, {0, 1, 3, 4}),
        (1, REMEMBERED, {0, 1, 4}),
        (4, REMEMBERED, {0, 1, 2, 3, 4, 5}),
        (3, SavedPorts({0: 9092}), {0, 1, 2, 3}),
    ],
)
def test_it_begins_with_the_nodes_there_were_or_were_asked_for(workers, remembered, roster):
    assert initial_nodes(workers, 3, remembered) == roster
