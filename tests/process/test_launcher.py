"""The launcher runs the desired processes: starts, failures and shutdown.

Its nodes are stand-ins (stand_in.py), its processes and sockets are real.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kafkalite.process.run_directory import remembered_by
from kafkalite.process.status.ready import is_locked, running
from tests.process.harness import answers, descriptors, is_refused
from tests.process.waiting import WAIT_S_MAX, until


def test_every_node_is_a_process_of_its_own_that_answers_on_its_own_port(stage):
    stage.listen = "127.0.0.1:0"
    launcher = stage.start()
    ready = json.loads(stage.ready_file.read_text())
    assert ready == stage.status()
    assert ready["launcher_pid"] == launcher.pid
    assert [(node["id"], node["role"]) for node in ready["nodes"]] == [
        (0, "supervisor"),
        (1, "worker"),
        (2, "worker"),
    ]
    assert ready["bootstrap"] == f"127.0.0.1:{stage.port(0)}"
    nodes = ", ".join(f"{node['id']} (port {node['port']})" for node in ready["nodes"])
    line = f"Broker is ready. bootstrap={ready['bootstrap']} nodes='{nodes}'\n"
    until(lambda: line in stage.log, launcher)
    ports = {node["port"] for node in ready["nodes"]}
    assert len(ports) == 3 and all(map(answers, ports))
    pids = {node["id"]: node["pid"] for node in ready["nodes"]}
    assert len({*pids.values(), launcher.pid}) == 4
    for node_id, pid in pids.items():
        assert Path(f"/proc/{pid}/comm").read_text() == f"kafkalite-{node_id}\n"


def test_a_node_has_nothing_open_that_is_not_its_own(stage):
    launcher = stage.start()
    lock = str(stage.data / ".lock")
    log = str(stage.data / "kafkalite.log")
    meeting = str(remembered_by(stage.data))
    until(lambda: no_connections(stage))  # the connection of the readiness check may linger
    holders = {node_id: descriptors(stage.pid(node_id)) for node_id in (0, 1, 2)}
    held = descriptors(launcher.pid).values()
    for node_id, found in holders.items():
        assert found.pop(0) == "/dev/null"
        assert found.pop(1) == descriptors(launcher.pid)[1]
        assert found.pop(2) == descriptors(launcher.pid)[2]
        what = sorted(found.values())
        sockets = [entry for entry in what if entry.startswith("socket:")]
        assert len(sockets) == (2 if node_id == 0 else 1), "its listener, and the orders"
        assert sum(entry in held for entry in sockets) == 1, "only the listener is the launcher's"
        others = [found for other, found in holders.items() if other != node_id]
        assert not any(entry in found.values() for entry in sockets for found in others)
        rest = {entry for entry in what if entry not in sockets}
        assert {lock, meeting} <= rest
        rest -= {lock, meeting, log, "/dev/null"}
        # its epoll; its signal pipe, and the pipe for its error message
        assert all(entry.startswith(("anon_inode:[eventpoll]", "pipe:")) for entry in rest), rest
        pipes = [entry for entry in what if entry.startswith("pipe:")]
        assert len(set(pipes)) == 2 and what.count("anon_inode:[eventpoll]") == 1


def no_connections(stage):
    """Return whether every node has as many sockets as without a client."""
    for node_id in (0, 1, 2):
        what = descriptors(stage.pid(node_id)).values()
        if sum(entry.startswith("socket:") for entry in what) > (2 if node_id == 0 else 1):
            return False
    return True


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_a_killed_node_is_back_at_once_on_its_port_and_the_others_go_on(stage, node_id):
    stage.start()
    before = {node["id"]: node for node in stage.status()["nodes"]}
    began = time.monotonic()
    os.kill(before[node_id]["pid"], signal.SIGKILL)
    # The launcher holds the listener: new connections wait, and are not refused.
    assert answers(before[node_id]["port"])
    assert time.monotonic() - began < 30
    stage.renewed(node_id, before[node_id]["pid"])
    for other_id, node in before.items():
        if other_id != node_id:
            assert stage.node(other_id) == node
    assert stage.port(node_id) == before[node_id]["port"]
    born = [life for life in stage.lives("born") if life[0] == node_id]
    assert len(born) == 2 and born[1][2] > max(life[2] for life in stage.lives("born")[:3])
    until(lambda: stage.heard()[node_id]["incarnation"] == born[1][2])
    assert "exited: it was killed by signal 9; restarting it. node=" in stage.log


def test_a_failed_flush_of_one_node_restarts_every_node(stage):
    stage.play(1, "unflushed")
    stage.start()
    before = {node_id: stage.pid(node_id) for node_id in (0, 1, 2)}
    os.kill(before[1], signal.SIGTERM)
    for node_id, pid in before.items():
        stage.renewed(node_id, pid)
    assert {life[1] for life in stage.lives("ending")} == {before[1]}, "the others were killed"
    assert "a flush failure that was planted" in stage.log
    for node_id in (0, 2):
        assert f"Node {node_id} is killed and recovers its logs" in stage.log


def test_a_node_that_ends_by_itself_is_started_again(stage):
    stage.start()
    pid = stage.pid(1)
    os.kill(pid, signal.SIGTERM)
    stage.renewed(1, pid)


def test_the_supervisor_is_told_of_all_nodes_as_they_are(stage):
    stage.start()
    until(lambda: [node["state"] for node in stage.heard().values()] == ["ready"] * 3)
    for node_id, told in stage.heard().items():
        node = stage.node(node_id)
        assert (told["pid"], told["host"], told["port"]) == (
            node["pid"],
            node["host"],
            node["port"],
        )
    pid = stage.pid(0)
    os.kill(pid, signal.SIGKILL)
    stage.renewed(0, pid)
    until(lambda: stage.heard()[0]["pid"] == stage.pid(0))
    until(lambda: {node["state"] for node in stage.heard().values()} == {"ready"})


def test_told_to_end_the_workers_end_before_the_supervisor_and_nothing_is_left(stage):
    stage.start()
    bootstrap = stage.port(0)
    assert stage.end() == 0
    assert [life[0] for life in stage.lives("ended")][-1] == 0
    assert {life[0] for life in stage.lives("ended")} == {0, 1, 2}
    events = (stage.directory / "lives").read_text().splitlines()
    assert events.index(next(line for line in events if line[0] == "0" and "ending" in line)) > max(
        number for number, line in enumerate(events) if line[0] != "0"
    )
    assert stage.left() == []
    assert not stage.ready_file.exists() and not (stage.data / "status.json").exists()
    assert not is_locked(stage.data)
    assert is_refused(bootstrap)


def test_a_node_that_dies_while_it_ends_is_not_started_again(stage):
    stage.play(1, "linger")
    stage.start()
    stage.launcher.send_signal(signal.SIGTERM)
    until(lambda: [life for life in stage.lives("ending") if life[0] == 1])
    os.kill(stage.pid(1), signal.SIGKILL)
    assert stage.launcher.wait(WAIT_S_MAX) == 0
    assert len(stage.lives("born")) == 3
    assert stage.left() == []


def test_a_second_signal_kills_those_that_do_not_end(stage):
    stage.play(1, "linger")
    stage.start()
    os.kill(stage.pid(2), signal.SIGSTOP)
    stage.launcher.send_signal(signal.SIGTERM)
    until(lambda: [life for life in stage.lives("ending") if life[0] == 1])
    assert stage.end() == 1
    assert stage.left() == []
    assert not (stage.data / "status.json").exists()


def test_two_signals_in_quick_succession_leave_nothing(stage):
    stage.start()
    stage.launcher.send_signal(signal.SIGTERM)
    stage.launcher.send_signal(signal.SIGINT)
    assert stage.launcher.wait(WAIT_S_MAX) in (0, 1)
    assert stage.left() == []
    assert not is_locked(stage.data)


@pytest.mark.parametrize("waiting", [0, 1])
def test_told_to_end_while_a_node_starts_it_ends_without_having_been_ready(stage, waiting):
    stage.play(waiting, "wait")
    stage.launch()
    until(lambda: len(stage.lives("born")) == 3, stage.launcher)
    stage.watch()
    stage.launcher.send_signal(signal.SIGTERM)
    until(lambda: "Broker shuts down." in stage.log)
    stage.play(waiting)
    printed, _ = stage.launcher.communicate(timeout=WAIT_S_MAX)
    assert stage.launcher.returncode == 0
    assert "ready" not in printed and not stage.ready_file.exists()
    assert stage.left() == []


def test_a_broker_that_is_not_ready_is_told_of_and_stopped(stage, kafkalite):
    stage.play(1, "wait")
    launcher = stage.launch()
    until(lambda: len(stage.lives("born")) == 3, launcher)
    stage.watch()
    starting = f"a broker is starting or ending on {stage.data} (process {launcher.pid})"
    told = kafkalite("status", "--data", stage.data, "--json")
    assert (told.returncode, told.stdout, told.stderr) == (1, "", f"kafkalite: {starting}\n")
    told = kafkalite("restart", "--data", stage.data)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1) and starting in told.stderr

    def let_it_end():
        until(lambda: "Broker shuts down." in stage.log)
        stage.play(1)

    letting = threading.Thread(target=let_it_end)
    letting.start()
    stopped = kafkalite("stop", "--data", stage.data)
    letting.join()
    assert stopped.stdout == f"stopped     process {launcher.pid}, which was not ready\n"
    assert launcher.wait(WAIT_S_MAX) == 0 and stage.left() == []
    told = kafkalite("stop", "--data", stage.data)
    assert (told.returncode, told.stdout) == (1, "") and "there is nothing to stop" in told.stderr


def test_a_number_in_the_lock_that_is_another_process_now_is_left_alone(stage, kafkalite):
    stage.start()
    stage.end(signal.SIGKILL)
    until(lambda: stage.left() == [])
    (stage.data / ".lock").write_text(f"{os.getpid()}\n")
    for command in ("status", "stop", "restart"):
        told = kafkalite(command, "--data", stage.data)
        assert told.returncode == 1 and f"no broker runs on {stage.data}" in told.stderr


def test_a_killed_launcher_takes_its_nodes_along_and_the_next_start_goes_on(stage):
    stage.start()
    os.kill(stage.pid(1), signal.SIGSTOP)
    cluster_id, ports = stage.status()["cluster_id"], [stage.port(node_id) for node_id in (0, 1, 2)]
    assert stage.end(signal.SIGKILL) == -signal.SIGKILL
    stage.ready_file.unlink()
    stage.start()
    assert stage.status()["cluster_id"] == cluster_id
    assert [stage.port(node_id) for node_id in (0, 1, 2)] == ports
    assert stage.left() == stage.pids()


def test_as_long_as_an_orphan_lives_nobody_else_gets_the_directory(stage):
    stage.play(1, "orphan")
    stage.start()
    orphan = stage.pid(1)
    stage.end(signal.SIGKILL)
    until(lambda: stage.left() == [orphan])
    stage.ready_file.unlink()
    stage.play(1)
    assert is_locked(stage.data) and answers(stage.port(1))
    waiting = stage.launch()
    until(lambda: str(stage.data / ".lock") in descriptors(waiting.pid).values(), waiting)
    assert waiting.poll() is None and len(stage.lives("born")) == 3
    os.kill(orphan, signal.SIGKILL)
    until(stage.ready_file.exists, waiting)
    stage.watch()
    assert stage.left() == stage.pids()


def test_what_a_killed_one_said_is_not_believed_of_the_next_before_it_is_ready(stage):
    stage.start()
    said = stage.status()
    stage.end(signal.SIGKILL)
    stage.ready_file.unlink()
    until(lambda: running(stage.data) is None)
    stage.play(1, "wait")
    stage.launch()
    until(lambda: len(stage.lives("born")) == 6, stage.launcher)
    assert running(stage.data) is None
    # as between the lock and the removal of a killed launcher's file
    (stage.data / "status.json").write_text(json.dumps(said))
    assert running(stage.data) is None
    stage.play(1)
    until(stage.ready_file.exists, stage.launcher)
    assert running(stage.data) == stage.status()


def test_a_second_start_is_refused_and_changes_nothing(stage):
    stage.start()
    first, said = stage.launcher, stage.status()
    stage.launch(ready_file=str(stage.directory / "second.json"))
    code, complaint = stage.refused()
    assert code == 1 and "in use" in complaint and complaint.count("\n") == 1
    assert stage.status() == said and all(answers(node["port"]) for node in said["nodes"])
    assert stage.left() == stage.pids()
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S_MAX) == 0


def test_it_waits_for_everything_in_one_thread(stage):
    launcher = stage.start()
    assert len(list(Path(f"/proc/{launcher.pid}/task").iterdir())) == 1
    assert not any("zmq" in what for what in descriptors(launcher.pid).values())
