"""kafkalite node, against a fake supervisor: only a bus and a list of nodes.

The supervisor runs in a thread and records its commands; the data directory is like that of a
running broker: a status file and a lock that is held.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkalite.cli import main, node
from kafkalite.clock import SystemClock
from kafkalite.errors import InvalidRequest
from kafkalite.process.run_directory import RunDirectory
from kafkalite.process.status.ready import STATUS_FILE
from kafkalite.protocol.schemas.bus import HEARTBEAT, NODE_REPORT
from kafkalite.storage.files.layout import LOCK
from kafkalite.testing import Broker
from kafkalite.transport.bus import BusServer
from kafkalite.transport.reactor import Reactor
from kafkalite.transport.run_directory import BUS

SEEN_S_MAX = 20
LOOK_S = 0.01
LAUNCHER = 17
CLUSTER_ID = "node-command-test"


def entry(node_id, led_count=0, **changed):
    role = "worker" if node_id else "supervisor"
    return {
        "node_id": node_id, "role": role, "host": "127.0.0.1", "port": 9092 + node_id,
        "pid": 100 + node_id, "state": "ready", "led_count": led_count, "size": led_count << 20,
        "draining": False, **changed,
    }  # fmt: skip


class SupervisorClient:
    """A fake that executes commands; each listing completes one partition move."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = {0: entry(0), 1: entry(1, 3), 2: entry(2, 2)}
        self.orders: list[tuple[str, int, bool]] = []
        self.left = 0
        self.moving = True
        self.ignored_count = 0
        """Number of commands to ignore."""
        self.error = ""
        self.role_of_added = "worker"
        self.added = "ready"
        """The final state of an added node."""
        self.dies_with = ""
        """The command at which it restarts without executing it."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        reactor = Reactor(SystemClock())
        self._bus = BusServer(reactor, self.path, self._ordered)
        while not self._over.is_set():
            reactor.tick(20)
            if self.dies_with == "now":
                self.dies_with = ""
                self._bus.close()
                self._bus = BusServer(reactor, self.path, self._ordered)
        self._bus.close()
        reactor.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _ordered(self, connection, message) -> None:
        if self.ignored_count:
            self.ignored_count -= 1
            return
        order = message.fields
        if order["verb"] == self.dies_with:
            self.dies_with = "now"
            return
        self.orders.append((order["verb"], order["node_id"], order["dry_run"]))
        moves = []
        if self.error and order["verb"] != "list":
            self._report(connection, order["request_id"], [], InvalidRequest.code, self.error)
            return
        if order["verb"] == "list":
            self.left -= 1 if self.left and self.moving else 0
        elif order["verb"] == "drain":
            moves = self._drained(order["node_id"])
        elif order["verb"] == "undrain":
            self.nodes[order["node_id"]]["draining"] = False
        elif order["verb"] == "add":
            self.nodes[3] = entry(3, state="starting", role=self.role_of_added)
            threading.Timer(0.1, self.nodes[3].update, [{"state": self.added}]).start()
        elif order["verb"] == "remove":
            del self.nodes[order["node_id"]]
        elif order["verb"] == "rebalance":
            moves = [{"topic": "flights", "partition": 4, "from_node": 1, "to_node": 2}]
        # Other nodes send on the bus as well, and old responses may be late.
        beat = HEARTBEAT(image_offset=1, led_count=1, size=1, unserved=[])
        self._bus.send(connection, beat)
        self._report(
            connection, order["request_id"] - 1, [], InvalidRequest.code, "of another order"
        )
        self._report(connection, order["request_id"], moves)

    def _drained(self, node_id):
        moved = self.nodes[node_id]
        count, moved["led_count"], moved["draining"] = moved["led_count"], 0, True
        self.left += count
        return [
            {"topic": "flights", "partition": index, "from_node": node_id, "to_node": 3 - node_id}
            for index in range(count)
        ]

    def _report(self, connection, request_id, moves, code=0, sentence=None) -> None:
        self._bus.send(
            connection,
            NODE_REPORT(
                request_id=request_id, error_code=code, error_message=sentence,
                nodes=list(self.nodes.values()), moves=moves, moves_left=self.left,
            ),
        )  # fmt: skip


@pytest.fixture
def directory(tmp_path) -> Iterator[Path]:
    """A data directory whose lock is held."""
    lock = os.open(tmp_path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    write_status(tmp_path, pid=LAUNCHER + 1)
    yield tmp_path
    os.close(lock)


def write_status(directory: Path, pid: int) -> dict:
    ready = {
        "bootstrap": "127.0.0.1:9092", "cluster_id": CLUSTER_ID, "data": str(directory),
        "durability": "os", "launcher_pid": LAUNCHER,
        "nodes": [{"id": 0, "role": "supervisor", "host": "127.0.0.1", "port": 9092, "pid": pid}],
        "restarts": 0,
    }  # fmt: skip
    (directory / STATUS_FILE).write_text(json.dumps(ready))
    return ready


@pytest.fixture
def supervisor(directory) -> Iterator[SupervisorClient]:
    meeting = RunDirectory(CLUSTER_ID, directory)
    supervisor = SupervisorClient(meeting.path / BUS)
    yield supervisor
    supervisor.end()
    meeting.remove()


@pytest.fixture
def ordered(directory, capsys):
    """Run `kafkalite node` with these words; return exit code, stdout and stderr."""

    def ordered(*words):
        code = main(["node", *words, "--data", str(directory)])
        result = capsys.readouterr()
        return code, result.out, result.err

    return ordered


def test_node_list_shows_each_node(supervisor, ordered):
    supervisor.nodes[1]["replica_count"] = 5
    supervisor.nodes[2].update(draining=True, state="backoff", port=0, pid=0)
    code, out, err = ordered("list")
    assert (code, err) == (0, "")
    titles, first, second, third = (line.split() for line in out.splitlines())
    assert titles[:4] == ["NODE", "ROLE", "STATE", "ADDRESS"]
    assert first == ["0", "supervisor", "ready", "127.0.0.1:9092", "100", "0", "0", "0", "B", "-"]
    assert second == ["1", "worker", "ready", "127.0.0.1:9093", "101", "3", "5", "3.0", "MiB", "-"]
    assert third == ["2", "worker", "backoff", "-", "-", "2", "2", "2.0", "MiB", "yes"]


def test_node_list_shows_partitions_still_to_move(supervisor, ordered):
    supervisor.left = 2
    assert ordered("list")[2] == "1 partition left to move\n"
    listed = json.loads(ordered("list", "--json")[1])
    assert listed["moves_left"] == 0
    assert [node["id"] for node in listed["nodes"]] == [0, 1, 2]


def test_drain_waits_until_all_partitions_moved(supervisor, ordered):
    supervisor.nodes[1]["replica_count"] = 5
    assert ordered("drain", "1") == (0, "node 1 drained, 5 replicas moved away\n", "")
    assert supervisor.left == 0
    assert supervisor.orders[:2] == [("list", -1, False), ("drain", 1, False)]
    assert len(supervisor.orders) == 2 + 3
    assert supervisor.nodes[1]["draining"]


def test_drain_undo_does_not_wait_for_moves(supervisor, ordered):
    supervisor.nodes[1]["draining"] = True
    supervisor.left, supervisor.moving = 2, False
    assert ordered("drain", "1", "--undo") == (0, "node 1 accepts partitions again\n", "")
    assert not supervisor.nodes[1]["draining"]


def test_remove_drains_the_node_first(supervisor, ordered):
    code, out, _ = ordered("remove", "2")
    assert (code, out) == (0, "node 2 removed, 2 replicas moved away\n")
    verbs = [verb for verb, _, _ in supervisor.orders]
    assert verbs == ["list", "drain", "list", "list", "remove", "list"]
    assert 2 not in supervisor.nodes


def test_remove_of_a_drained_node_does_not_drain_it(supervisor, ordered):
    supervisor.nodes[2].update(draining=True, led_count=0)
    assert ordered("remove", "2", "--json")[1] == '{"node": 2, "removed": true, "moves": []}\n'
    assert "drain" not in [verb for verb, _, _ in supervisor.orders]


def test_remove_of_a_drained_node_waits_for_its_followed_replicas(supervisor, ordered):
    supervisor.nodes[2].update(draining=True, led_count=0, replica_count=1)
    assert ordered("remove", "2")[:2] == (0, "node 2 removed, 1 replica moved away\n")
    assert "drain" in [verb for verb, _, _ in supervisor.orders]


def test_add_waits_until_the_node_is_ready(supervisor, ordered):
    code, out, _ = ordered("add")
    assert (code, out) == (0, "node 3 added, listening at 127.0.0.1:9095\n")
    assert supervisor.nodes[3]["state"] == "ready"


def test_add_of_a_standby_node_explains_rebalance(supervisor, ordered):
    supervisor.role_of_added = "standby"
    code, out, err = ordered("add")
    assert (code, out) == (0, "node 3 added, listening at 127.0.0.1:9095\n")
    assert "workers.leading" in err and "rebalance" in err


def test_added_node_that_does_not_start_is_reported(supervisor, ordered, directory):
    supervisor.added = "backoff"
    code, out, err = ordered("add")
    assert (code, out) == (1, "")
    assert err.startswith("kafkalite: node 3 was added but failed to start, ")
    assert f"see {directory}/kafkalite.log" in err
    assert err.count("\n") == 1


def test_dry_run_prints_moves_and_moves_nothing(supervisor, ordered):
    code, out, _ = ordered("rebalance", "--dry-run")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "PARTITION", "FROM", "TO"],
        ["flights", "4", "1", "2"],
    ]
    assert supervisor.orders == [("rebalance", -1, True)]
    supervisor.left = 2
    assert ordered("rebalance")[1] == "1 partition moved\n"
    assert supervisor.left == 0


def test_list_is_repeated_if_the_supervisor_died(supervisor, ordered, monkeypatch):
    monkeypatch.setattr(node, "RETRY_INTERVAL_S", 0.05)
    supervisor.ignored_count = 2
    assert ordered("list")[0] == 0
    assert supervisor.orders[0] == ("list", -1, False)


@pytest.mark.parametrize("words", [("list",), ("add",), ("drain", "1"), ("remove", "1")])
def test_silent_supervisor_is_one_line(supervisor, ordered, monkeypatch, words):
    """All begin with the list of nodes, so nothing can have been done."""
    monkeypatch.setattr(node, "RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(node, "REQUEST_TIMEOUT_S", 0.2)
    supervisor.ignored_count = 1_000
    assert ordered(*words) == (1, "", "kafkalite: request to the supervisor timed out after 0 s\n")
    assert supervisor.orders == []


def test_order_is_not_repeated(supervisor, ordered, monkeypatch):
    monkeypatch.setattr(node, "RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(node, "REQUEST_TIMEOUT_S", 0.3)
    supervisor.ignored_count = 1
    code, _, err = ordered("rebalance")
    assert code == 1
    assert "check with kafkalite node list whether it was done" in err
    assert supervisor.orders == []


def test_supervisor_error_is_printed(supervisor, ordered):
    supervisor.error = "Node 2 is the last worker; add one before."
    assert ordered("drain", "2") == (
        1,
        "",
        "kafkalite: Node 2 is the last worker; add one before.\n",
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("remove", "7"), "node 7 does not exist; the nodes are 0, 1, 2"),
        (("drain", "0"), "node 0 is the supervisor; it has no partitions and cannot be removed"),
        (
            ("remove", "2"),
            "node 2 is dedicated to one partition; delete its topic to remove the node",
        ),
    ],
)
def test_invalid_node_order_is_one_line(supervisor, ordered, words, sentence):
    supervisor.nodes[2]["role"] = "dedicated"
    assert ordered(*words) == (1, "", f"kafkalite: {sentence}\n")
    assert [verb for verb, _, _ in supervisor.orders] == ["list"]


def test_broker_of_one_process_has_no_nodes(ordered, directory):
    write_status(directory, pid=LAUNCHER)
    code, _, err = ordered("list")
    assert code == 1
    assert "runs as one process (workers=0)" in err
    assert err.count("\n") == 1


def test_missing_broker_is_one_line(tmp_path, capsys):
    assert main(["node", "list", "--data", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"kafkalite: no broker runs on {tmp_path}\n"


def test_interrupt_reports_that_moves_continue(supervisor, directory):
    supervisor.moving = False
    words = ["node", "drain", "1", "--data", str(directory)]
    command = subprocess.Popen(
        [sys.executable, "-m", "kafkalite", *words], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + SEEN_S_MAX
    while ("drain", 1, False) not in supervisor.orders or supervisor.orders[-1][0] != "list":
        assert time.monotonic() < deadline
        time.sleep(LOOK_S)
    command.send_signal(signal.SIGINT)
    _, result = command.communicate(timeout=SEEN_S_MAX)
    assert command.returncode == 130
    assert result == "the broker continues the 3 remaining moves (see: kafkalite node list)\n"


def test_stalled_moves_name_the_node_in_backoff(supervisor, ordered, monkeypatch):
    monkeypatch.setattr(node, "STALL_S", 0.0)
    supervisor.moving = False
    supervisor.nodes[2]["state"] = "backoff"
    threading.Timer(0.5, setattr, [supervisor, "moving", True]).start()
    code, _, err = ordered("drain", "1")
    assert code == 0
    assert err.startswith("no partition has moved for 0 s: node 2 is backoff; ")


def test_nodes_are_added_and_removed_without_losing_records(capsys):
    def node(*words):
        assert main(["node", *words, "--data", str(broker.data), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def led():
        return {each["id"]: each["partitions"] for each in node("list")["nodes"]}

    with Broker(workers=2) as broker:
        name = broker.topic(partitions=6)
        lines = "".join(f"{number}\n" for number in range(600)).encode()
        given = ["produce", "-b", broker.bootstrap, "-t", name]
        subprocess.run([sys.executable, "-m", "kafkalite", *given], input=lines, check=True)
        assert led() == {0: 0, 1: 3, 2: 3}
        assert node("add")["id"] == 3
        planned = node("rebalance", "--dry-run")["moves"]
        assert led() == {0: 0, 1: 3, 2: 3, 3: 0}
        assert len(node("rebalance")["moves"]) == len(planned) == 2
        assert led() == {0: 0, 1: 2, 2: 2, 3: 2}
        assert len(node("drain", "1")["moves"]) == 2
        assert led() == {0: 0, 1: 0, 2: 3, 3: 3}
        assert len(node("remove", "2")["moves"]) == 3
        assert led() == {0: 0, 1: 0, 3: 6}
        assert main(["node", "remove", "3", "--data", str(broker.data)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
        options = ["consume", "-b", broker.bootstrap, "-t", name, "-o", "beginning", "-e"]
        read = subprocess.run(
            [sys.executable, "-m", "kafkalite", *options], capture_output=True, check=True
        ).stdout
    assert sorted(map(int, read.split())) == list(range(600))


def test_order_of_a_killed_supervisor_is_executed_once(supervisor, ordered):
    supervisor.dies_with = "add"
    code, out, _ = ordered("add")
    assert (code, out) == (0, "node 3 added, listening at 127.0.0.1:9095\n")
    assert [verb for verb, *_ in supervisor.orders].count("add") == 1
