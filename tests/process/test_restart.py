"""`kafkalite restart`: new code is tried and takes over, without a refused connection."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kafkalite.clock import SystemClock
from kafkalite.process.nodes.node_process import NodeProcess, NodeProcessState
from kafkalite.process.restart import RestartManager
from kafkalite.process.status.ready import is_locked
from kafkalite.transport.reactor import Reactor
from tests.process.harness import descriptors, responds
from tests.process.waiting import WAIT_S_MAX, is_gone, until


class ConnectionProbe(threading.Thread):
    """A client that connects to a port every 5 ms and sends a request."""

    def __init__(self, port):
        super().__init__()
        self.port = port
        self.answered = 0
        self.refused = []
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.wait(0.005):
            try:
                self.answered += responds(self.port)
            except OSError as fault:
                self.refused.append(fault)

    def __enter__(self):
        until(lambda: self.answered)
        return self

    def __exit__(self, *_):
        before = self.answered
        until(lambda: self.answered > before or self.refused)
        self.ended.set()
        self.join()


def born_on(pid):
    """Return the start time of a process, in clock ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_restart_replaces_nodes_one_by_one_without_refused_connections(harness, kafkalite):
    launcher = harness.start()
    before = harness.status()
    held = set(descriptors(launcher.pid).values())
    with ConnectionProbe(harness.port(0)) as first, ConnectionProbe(harness.port(1)) as second:
        done = kafkalite("restart", "--data", harness.data)
    assert done.returncode == 0, done.stderr
    # Never refused; a connection that an ending node had accepted may be reset.
    for probe in (first, second):
        assert not [fault for fault in probe.refused if isinstance(fault, ConnectionRefusedError)]
    now = harness.status()
    *renewed, restarted = done.stdout.splitlines()
    said = {f"restarted   node {node['id']}, pid {node['pid']}" for node in now["nodes"]}
    assert set(renewed) == said and restarted == f"restarted   {now['bootstrap']}"
    assert [node_id for node_id, _, _ in harness.lives("born")[3:]] == [1, 2, 0]
    assert now["launcher_pid"] == before["launcher_pid"] == launcher.pid
    assert now["restarts"] == 1 and now["restart"] == {"asked": 1, "renewing": [], "failed": ""}
    pids = {node["pid"] for node in before["nodes"]}
    assert pids.isdisjoint(node["pid"] for node in now["nodes"])
    assert [node["port"] for node in now["nodes"]] == [node["port"] for node in before["nodes"]]
    harness.watch()
    assert harness.running_pids() == harness.pids()
    assert harness.lives("born")[2][2] < harness.lives("born")[3][2], "incarnations only rise"
    assert {what for what in held if what.startswith("socket:[")} & set(
        descriptors(launcher.pid).values()
    ), "the same listeners"
    assert harness.end() == 0
    assert harness.running_pids() == [] and not is_locked(harness.data)


def test_repeated_restarts_leave_no_descriptor_open(harness, kafkalite):
    launcher = harness.start()
    assert kafkalite("restart", "--data", harness.data).returncode == 0
    once = len(descriptors(launcher.pid))
    for _ in range(2):
        assert kafkalite("restart", "--data", harness.data).returncode == 0
    assert len(descriptors(launcher.pid)) == once
    assert harness.status()["restarts"] == 3
    os.kill(harness.pid(1), signal.SIGKILL)
    until(lambda: harness.node(1), launcher)
    harness.end(signal.SIGKILL)
    until(lambda: harness.running_pids() == [])


def test_restart_with_broken_code_changes_nothing(harness, kafkalite):
    harness.start()
    before = harness.status()
    (harness.script / "broken").touch()
    done = kafkalite("restart", "--data", harness.data)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the new code does not start: ImportError: the new code is broken" in done.stderr
    assert "the broker continues on the old code" in done.stderr
    now = harness.status()
    assert now["nodes"] == before["nodes"] and now["restarts"] == 0
    (harness.script / "broken").unlink()
    assert kafkalite("restart", "--data", harness.data).returncode == 0
    assert harness.status()["restart"]["failed"] == ""


def test_restart_with_an_invalid_config_file_changes_nothing(harness, kafkalite, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=2\n")
    harness.start(config=str(config))
    before = harness.pids()
    config.write_text("num.partitions=many\n")
    done = kafkalite("restart", "--data", harness.data)
    assert done.returncode == 1 and "num.partitions" in done.stderr and "many" in done.stderr
    assert harness.pids() == before
    config.write_text("workers=0\nnum.partitions=2\n")
    harness.end()
    harness.start(config=str(config), workers=None)


def test_restart_refuses_changes_of_static_keys(harness, kafkalite, tmp_path):
    config = tmp_path / "server.properties"
    stays = f"listeners=PLAINTEXT://{harness.listen}\nworkers=1\n"
    config.write_text(stays)
    harness.start(config=str(config), listen=None, workers=None)
    before = harness.pids()
    for line, was, now in (
        ("workers=2", "1", "2"),
        ("workers=0", "1", "0"),
        ("listeners=PLAINTEXT://127.0.0.1:1", harness.listen, "127.0.0.1:1"),
    ):
        config.write_text(f"{stays}{line}\n")
        done = kafkalite("restart", "--data", harness.data)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        key = line.partition("=")[0]
        assert f"{key} was {was} when the broker was started and is {now} now" in done.stderr
        assert "stop the broker and start it; the broker continues on the old code" in done.stderr
    assert harness.pids() == before
    config.write_text(f"{stays.replace('workers=1', '')}durability=os\n")  # does not set workers
    assert kafkalite("restart", "--data", harness.data).returncode == 0
    config.write_text(f"{stays}num.partitions=2\nworkers=3\n")
    done = kafkalite("restart", "--data", harness.data)
    assert "workers was not set when the broker was started and is 3 now" in done.stderr


def test_restart_keeps_flags_over_the_config_file(harness, kafkalite, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("")
    harness.start(config=str(config))
    config.write_text(
        f"workers=0\nlisteners=PLAINTEXT://127.0.0.1:1\nlog.dirs={tmp_path / 'other'}\n"
    )
    assert kafkalite("restart", "--data", harness.data).returncode == 0


def test_restart_refuses_another_data_directory(start, kafkalite, tmp_path):
    first, config = tmp_path / "first", tmp_path / "server.properties"
    config.write_text(f"log.dirs={first}\n")
    broker = start("--config", str(config), data=None)
    config.write_text(f"log.dirs={tmp_path / 'second'}\n")
    done = kafkalite("restart", "--data", first)
    assert done.returncode == 1 and f"log.dirs was {first} when" in done.stderr
    assert not (tmp_path / "second").exists()
    config.write_text(f"log.dirs={first}\nnum.partitions=3\n")
    assert kafkalite("restart", "--data", first).returncode == 0
    assert responds(broker.ready["nodes"][0]["port"])


def test_restart_stops_at_the_first_node_that_does_not_start(harness, kafkalite):
    harness.start()
    before = {node["id"]: node["pid"] for node in harness.status()["nodes"]}
    harness.play(1, "refuse")
    done = kafkalite("restart", "--data", harness.data)
    assert done.returncode == 1
    assert "node 1 does not start on the new code: node 1 has seen enough" in done.stderr
    assert {node["id"]: node["pid"] for node in harness.status()["nodes"]} == {
        0: before[0],
        2: before[2],
    }
    harness.play(1)
    done = kafkalite("restart", "--data", harness.data)
    assert done.returncode == 0, done.stderr
    assert not {node["pid"] for node in harness.status()["nodes"]} & set(before.values())
    assert len(harness.status()["nodes"]) == 3


def test_sigterm_during_the_exec_is_handled(harness):
    for _ in range(2):
        harness.start()
        harness.launcher.send_signal(signal.SIGUSR2)
        until(lambda: "executes the new code" in harness.log, harness.launcher)
        harness.launcher.send_signal(signal.SIGTERM)
        assert harness.launcher.wait(WAIT_S_MAX) == 0
        harness.watch()
        assert harness.running_pids() == []
        (harness.data / "kafkalite.log").unlink()


def test_sigterm_during_the_trial_ends_the_broker(harness):
    harness.start()
    harness.launcher.send_signal(signal.SIGUSR2)
    until(lambda: "trying the new code" in harness.log)
    assert harness.end() == 0
    assert harness.running_pids() == []


@pytest.fixture
def reactor():
    reactor = Reactor(SystemClock())
    yield reactor
    reactor.close()


@pytest.fixture
def restarts(reactor):
    return RestartManager(reactor, "many", {}, lambda: None)


def test_node_that_exits_during_the_exec_is_reaped(reactor):
    node = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
    until(lambda: is_gone(node.pid))  # and not reaped yet
    exits = []
    adopted = NodeProcess(reactor, 1, exits.append)
    adopted.take_over(node.pid, incarnation=7, state=NodeProcessState.READY)
    until(lambda: reactor.tick(10) or exits)
    (exited,) = exits
    assert (exited.pid, exited.state, exited.code) == (node.pid, NodeProcessState.READY, 5)
    assert adopted.state is NodeProcessState.DUE and not adopted.is_running
    node.returncode = 5  # another than its Popen has reaped it


def test_signal_before_the_exec_cancels_it(restarts, monkeypatch):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it did not end"))
    restarts.execute(lambda: True, [])
    assert "KAFKALITE_CARRIED" not in os.environ and restarts.failed == ""


def test_failed_exec_changes_nothing(restarts, monkeypatch):
    def execv(path, words):
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        assert os.get_inheritable(held) and "KAFKALITE_CARRIED" in os.environ
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "execv", execv)
    with open(os.devnull) as file:
        held = file.fileno()
        restarts.execute(lambda: False, [held])
        assert not os.get_inheritable(held)
    assert "KAFKALITE_CARRIED" not in os.environ
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert "cannot be executed: No such file" in restarts.failed


def test_trial_of_a_killed_launcher_starts_nothing(harness):
    harness.start()
    harness.launcher.send_signal(signal.SIGUSR2)
    children = Path(f"/proc/{harness.launcher.pid}/task/{harness.launcher.pid}/children")
    until(lambda: len(children.read_text().split()) == 4, harness.launcher)
    (trial,) = set(map(int, children.read_text().split())) - set(harness.pids())
    os.kill(trial, signal.SIGSTOP)
    harness.end(signal.SIGKILL)
    until(lambda: harness.running_pids() == [])
    os.kill(trial, signal.SIGCONT)
    until(lambda: is_gone(trial))
    assert len(harness.lives("born")) == 3 and not is_locked(harness.data)


def test_carried_state_of_another_process_is_ignored(harness):
    os.environ["KAFKALITE_CARRIED"] = '{"pid": 1, "trial": false}'
    try:
        harness.start()
    finally:
        del os.environ["KAFKALITE_CARRIED"]
    assert len(harness.status()["nodes"]) == 3


def test_restart_of_one_process_keeps_data_and_connections_wait(start, kafkalite):
    broker = start()
    bootstrap = broker.ready["bootstrap"]
    port = broker.ready["nodes"][0]["port"]
    assert kafkalite("topic", "create", "kept", "-b", bootstrap).returncode == 0
    began = born_on(broker.process.pid)
    with ConnectionProbe(port) as probe:
        done = kafkalite("restart", "--data", broker.data)
        assert done.returncode == 0, done.stderr
        done = kafkalite("restart", "--data", broker.data)
    assert done.stdout == f"restarted   {bootstrap}\n"
    assert not [f for f in probe.refused if isinstance(f, ConnectionRefusedError)]
    assert born_on(broker.process.pid) == began
    assert "kept" in kafkalite("topic", "list", "-b", bootstrap).stdout
    log = (broker.data / "kafkalite.log").read_text()
    assert log.count("executes the new code") == 2 and log.count("has shut down") == 2
    printed, code = broker.end(signal.SIGTERM)
    assert code == 0 and printed.count("is ready") == 1
    assert not broker.ready_file.exists() and not is_locked(broker.data)


def test_restart_of_one_process_with_invalid_config_is_refused(start, kafkalite, tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("num.partitions=2\n")
    broker = start("--config", str(config))
    config.write_text("num.partitions=0\n")
    done = kafkalite("restart", "--data", broker.data)
    assert done.returncode == 1 and "num.partitions" in done.stderr
    assert responds(broker.ready["nodes"][0]["port"])
    config.write_text("num.partitions=3\n")
    assert kafkalite("restart", "--data", broker.data).returncode == 0


def test_restart_without_a_broker_is_refused(kafkalite, tmp_path):
    done = kafkalite("restart", "--data", tmp_path)
    assert done.returncode == 1 and "nothing to restart" in done.stderr
