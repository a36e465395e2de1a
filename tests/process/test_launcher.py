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

from kafkalite.process.run_directory import stored_path
from kafkalite.process.status.ready import is_locked, running
from tests.process.harness import descriptors, is_refused, responds
from tests.process.waiting import WAIT_S_MAX, until


def test_every_node_is_a_process_with_its_own_port(harness):
    harness.listen = "127.0.0.1:0"
    launcher = harness.start()
    ready = json.loads(harness.ready_file.read_text())
    assert ready == harness.status()
    assert ready["launcher_pid"] == launcher.pid
    assert [(node["id"], node["role"]) for node in ready["nodes"]] == [
        (0, "supervisor"),
        (1, "worker"),
        (2, "worker"),
    ]
    assert ready["bootstrap"] == f"127.0.0.1:{harness.port(0)}"
    nodes = ", ".join(f"{node['id']} (port {node['port']})" for node in ready["nodes"])
    line = f"Broker is ready. bootstrap={ready['bootstrap']} nodes='{nodes}'\n"
    until(lambda: line in harness.log, launcher)
    ports = {node["port"] for node in ready["nodes"]}
    assert len(ports) == 3 and all(map(responds, ports))
    pids = {node["id"]: node["pid"] for node in ready["nodes"]}
    assert len({*pids.values(), launcher.pid}) == 4
    for node_id, pid in pids.items():
        assert Path(f"/proc/{pid}/comm").read_text() == f"kafkalite-{node_id}\n"


def test_node_has_only_its_own_descriptors(harness):
    launcher = harness.start()
    lock = str(harness.data / ".lock")
    log = str(harness.data / "kafkalite.log")
    meeting = str(stored_path(harness.data))
    until(lambda: no_connections(harness))  # the connection of the readiness check may linger
    holders = {node_id: descriptors(harness.pid(node_id)) for node_id in (0, 1, 2)}
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


def no_connections(harness):
    """Return whether every node has as many sockets as without a client."""
    for node_id in (0, 1, 2):
        what = descriptors(harness.pid(node_id)).values()
        if sum(entry.startswith("socket:") for entry in what) > (2 if node_id == 0 else 1):
            return False
    return True


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_killed_node_is_restarted_on_its_port(harness, node_id):
    harness.start()
    before = {node["id"]: node for node in harness.status()["nodes"]}
    began = time.monotonic()
    os.kill(before[node_id]["pid"], signal.SIGKILL)
    # The launcher holds the listener: new connections wait, and are not refused.
    assert responds(before[node_id]["port"])
    assert time.monotonic() - began < 30
    harness.wait_restarted(node_id, before[node_id]["pid"])
    for other_id, node in before.items():
        if other_id != node_id:
            assert harness.node(other_id) == node
    assert harness.port(node_id) == before[node_id]["port"]
    born = [life for life in harness.lives("born") if life[0] == node_id]
    assert len(born) == 2 and born[1][2] > max(life[2] for life in harness.lives("born")[:3])
    until(lambda: harness.reported_nodes()[node_id]["incarnation"] == born[1][2])
    assert "exited: it was killed by signal 9; restarting it. node=" in harness.log


def test_failed_flush_of_one_node_restarts_every_node(harness):
    harness.play(1, "unflushed")
    harness.start()
    before = {node_id: harness.pid(node_id) for node_id in (0, 1, 2)}
    os.kill(before[1], signal.SIGTERM)
    for node_id, pid in before.items():
        harness.wait_restarted(node_id, pid)
    assert {life[1] for life in harness.lives("ending")} == {before[1]}, "the others were killed"
    assert "a flush failure that was planted" in harness.log
    for node_id in (0, 2):
        assert f"Node {node_id} is killed and recovers its logs" in harness.log


def test_node_that_exits_is_restarted(harness):
    harness.start()
    pid = harness.pid(1)
    os.kill(pid, signal.SIGTERM)
    harness.wait_restarted(1, pid)


def test_supervisor_gets_the_states_of_all_nodes(harness):
    harness.start()
    until(lambda: [node["state"] for node in harness.reported_nodes().values()] == ["ready"] * 3)
    for node_id, told in harness.reported_nodes().items():
        node = harness.node(node_id)
        assert (told["pid"], told["host"], told["port"]) == (
            node["pid"],
            node["host"],
            node["port"],
        )
    pid = harness.pid(0)
    os.kill(pid, signal.SIGKILL)
    harness.wait_restarted(0, pid)
    until(lambda: harness.reported_nodes()[0]["pid"] == harness.pid(0))
    until(lambda: {node["state"] for node in harness.reported_nodes().values()} == {"ready"})


def test_sigterm_ends_the_workers_before_the_supervisor(harness):
    harness.start()
    bootstrap = harness.port(0)
    assert harness.end() == 0
    assert [life[0] for life in harness.lives("ended")][-1] == 0
    assert {life[0] for life in harness.lives("ended")} == {0, 1, 2}
    events = (harness.directory / "lives").read_text().splitlines()
    assert events.index(next(line for line in events if line[0] == "0" and "ending" in line)) > max(
        number for number, line in enumerate(events) if line[0] != "0"
    )
    assert harness.running_pids() == []
    assert not harness.ready_file.exists() and not (harness.data / "status.json").exists()
    assert not is_locked(harness.data)
    assert is_refused(bootstrap)


def test_node_killed_during_shutdown_is_not_restarted(harness):
    harness.play(1, "linger")
    harness.start()
    harness.launcher.send_signal(signal.SIGTERM)
    until(lambda: [life for life in harness.lives("ending") if life[0] == 1])
    os.kill(harness.pid(1), signal.SIGKILL)
    assert harness.launcher.wait(WAIT_S_MAX) == 0
    assert len(harness.lives("born")) == 3
    assert harness.running_pids() == []


def test_second_signal_kills_nodes_that_do_not_end(harness):
    harness.play(1, "linger")
    harness.start()
    os.kill(harness.pid(2), signal.SIGSTOP)
    harness.launcher.send_signal(signal.SIGTERM)
    until(lambda: [life for life in harness.lives("ending") if life[0] == 1])
    assert harness.end() == 1
    assert harness.running_pids() == []
    assert not (harness.data / "status.json").exists()


def test_two_signals_in_quick_succession_leave_no_process(harness):
    harness.start()
    harness.launcher.send_signal(signal.SIGTERM)
    harness.launcher.send_signal(signal.SIGINT)
    assert harness.launcher.wait(WAIT_S_MAX) in (0, 1)
    assert harness.running_pids() == []
    assert not is_locked(harness.data)


@pytest.mark.parametrize("waiting", [0, 1])
def test_sigterm_while_a_node_starts_ends_before_ready(harness, waiting):
    harness.play(waiting, "wait")
    harness.launch()
    until(lambda: len(harness.lives("born")) == 3, harness.launcher)
    harness.watch()
    harness.launcher.send_signal(signal.SIGTERM)
    until(lambda: "Broker shuts down." in harness.log)
    harness.play(waiting)
    printed, _ = harness.launcher.communicate(timeout=WAIT_S_MAX)
    assert harness.launcher.returncode == 0
    assert "ready" not in printed and not harness.ready_file.exists()
    assert harness.running_pids() == []


def test_commands_report_and_stop_a_broker_that_is_not_ready(harness, kafkalite):
    harness.play(1, "wait")
    launcher = harness.launch()
    until(lambda: len(harness.lives("born")) == 3, launcher)
    harness.watch()
    starting = f"a broker is starting or ending on {harness.data} (process {launcher.pid})"
    told = kafkalite("status", "--data", harness.data, "--json")
    assert (told.returncode, told.stdout, told.stderr) == (1, "", f"kafkalite: {starting}\n")
    told = kafkalite("restart", "--data", harness.data)
    assert (told.returncode, told.stderr.count("\n")) == (1, 1) and starting in told.stderr

    def let_it_end():
        until(lambda: "Broker shuts down." in harness.log)
        harness.play(1)

    letting = threading.Thread(target=let_it_end)
    letting.start()
    stopped = kafkalite("stop", "--data", harness.data)
    letting.join()
    assert stopped.stdout == f"stopped     process {launcher.pid} (was not ready)\n"
    assert launcher.wait(WAIT_S_MAX) == 0 and harness.running_pids() == []
    told = kafkalite("stop", "--data", harness.data)
    assert (told.returncode, told.stdout) == (1, "") and "nothing to stop" in told.stderr


def test_commands_ignore_a_stale_pid_in_the_lock(harness, kafkalite):
    harness.start()
    harness.end(signal.SIGKILL)
    until(lambda: harness.running_pids() == [])
    (harness.data / ".lock").write_text(f"{os.getpid()}\n")
    for command in ("status", "stop", "restart"):
        told = kafkalite(command, "--data", harness.data)
        assert told.returncode == 1 and f"no broker runs on {harness.data}" in told.stderr


def test_kill_of_the_launcher_ends_the_nodes_and_allows_a_start(harness):
    harness.start()
    os.kill(harness.pid(1), signal.SIGSTOP)
    cluster_id, ports = (
        harness.status()["cluster_id"],
        [harness.port(node_id) for node_id in (0, 1, 2)],
    )
    assert harness.end(signal.SIGKILL) == -signal.SIGKILL
    harness.ready_file.unlink()
    harness.start()
    assert harness.status()["cluster_id"] == cluster_id
    assert [harness.port(node_id) for node_id in (0, 1, 2)] == ports
    assert harness.running_pids() == harness.pids()


def test_next_start_waits_for_an_orphaned_node(harness):
    harness.play(1, "orphan")
    harness.start()
    orphan = harness.pid(1)
    harness.end(signal.SIGKILL)
    until(lambda: harness.running_pids() == [orphan])
    harness.ready_file.unlink()
    harness.play(1)
    assert is_locked(harness.data) and responds(harness.port(1))
    waiting = harness.launch()
    until(lambda: str(harness.data / ".lock") in descriptors(waiting.pid).values(), waiting)
    assert waiting.poll() is None and len(harness.lives("born")) == 3
    os.kill(orphan, signal.SIGKILL)
    until(harness.ready_file.exists, waiting)
    harness.watch()
    assert harness.running_pids() == harness.pids()


def test_status_of_a_killed_broker_is_ignored_until_the_next_is_ready(harness):
    harness.start()
    said = harness.status()
    harness.end(signal.SIGKILL)
    harness.ready_file.unlink()
    until(lambda: running(harness.data) is None)
    harness.play(1, "wait")
    harness.launch()
    until(lambda: len(harness.lives("born")) == 6, harness.launcher)
    assert running(harness.data) is None
    # as between the lock and the removal of a killed launcher's file
    (harness.data / "status.json").write_text(json.dumps(said))
    assert running(harness.data) is None
    harness.play(1)
    until(harness.ready_file.exists, harness.launcher)
    assert running(harness.data) == harness.status()


def test_second_start_on_the_same_data_is_refused(harness):
    harness.start()
    first, said = harness.launcher, harness.status()
    harness.launch(ready_file=str(harness.directory / "second.json"))
    code, complaint = harness.wait_refused()
    assert code == 1 and "in use" in complaint and complaint.count("\n") == 1
    assert harness.status() == said and all(responds(node["port"]) for node in said["nodes"])
    assert harness.running_pids() == harness.pids()
    first.send_signal(signal.SIGTERM)
    assert first.wait(WAIT_S_MAX) == 0


def test_launcher_has_one_thread(harness):
    launcher = harness.start()
    assert len(list(Path(f"/proc/{launcher.pid}/task").iterdir())) == 1
    assert not any("zmq" in what for what in descriptors(launcher.pid).values())
