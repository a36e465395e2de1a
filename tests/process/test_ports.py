"""Listen addresses of the nodes: by rule, as remembered, and when a port is in use elsewhere."""

import contextlib
import json
import socket
import threading

import pytest

from kafkalite.config.listener import Listener
from kafkalite.errors import Refusal
from kafkalite.process.ports import (
    LISTENERS_FILE,
    Ports,
    SavedPorts,
    load_ports,
    save_ports,
)
from kafkalite.storage.files import checkpoint
from tests.process.harness import LauncherHarness, free_range
from tests.process.waiting import until


def bound(address, remembered, node_ids, first=True):
    """Return the ports that the nodes are bound to."""
    ports = Ports(address, remembered, backlog=5)
    with contextlib.ExitStack() as held:
        for node_id in node_ids:
            held.enter_context(ports.bind_first(node_id) if first else ports.bind(node_id))
    return ports.ports


def test_nodes_take_the_ports_after_the_configured_one():
    port = free_range(4)
    found = bound(Listener("127.0.0.1", port), None, (0, 1, 2, 3))
    assert found == {0: port, 1: port + 1, 2: port + 2, 3: port + 3}


def test_new_node_takes_the_lowest_free_port():
    ports = Ports(Listener("127.0.0.1", 9092), SavedPorts({0: 9092, 1: 9093, 4: 9095}), backlog=5)
    assert [ports.of(node_id) for node_id in (60_000, 60_001, 4)] == [9094, 9096, 9095]
    assert ports.of(60_000) == 9094, "it is its own before it is bound"
    ports.release(1)
    assert [ports.of(node_id) for node_id in (60_002, 60_000)] == [9093, 9094]
    ports.release_all_but({0, 60_001})
    assert ports.ports == {0: 9092, 60_001: 9096}


def test_port_0_gives_every_node_a_free_port():
    ports = bound(Listener("127.0.0.1", 0), None, (0, 1, 2))
    assert len(set(ports.values())) == 3 and all(ports.values())


def test_configured_port_of_node_0_restores_all_saved_ports():
    port = free_range(5)
    ports = {0: port, 1: port + 4, 2: port + 2}
    remembered = SavedPorts(ports, free=True)
    assert bound(Listener("127.0.0.1", ports[0]), remembered, (0, 1, 2)) == ports


def test_another_configured_port_discards_the_saved_ports():
    port = free_range(3)
    remembered = SavedPorts({0: port - 1, 1: 1234, 2: 1235})
    found = bound(Listener("127.0.0.1", port), remembered, (0, 1, 2))
    assert found == {0: port, 1: port + 1, 2: port + 2}
    assert bound(Listener("127.0.0.1", 0), remembered, (0, 1))[1] != 1234


def test_only_chosen_free_ports_may_change():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = free_range(1)
        address = Listener("127.0.0.1", first)
        found = bound(address, SavedPorts({0: first, 1: port}, free=True), (0, 1))
        assert found[0] == first and found[1] not in (0, port)
        with pytest.raises(Refusal, match=f"node 1 cannot listen on 127.0.0.1:{port}"):
            bound(address, SavedPorts({0: first, 1: port}), (0, 1))
        with pytest.raises(Refusal, match=f"cannot listen on 127.0.0.1:{port}"):
            bound(Listener("127.0.0.1", port), SavedPorts({0: port}, free=True), (0,))
        # Once started, its clients know the node by this port.
        with pytest.raises(Refusal, match="node 1"):
            bound(address, SavedPorts({0: first, 1: port}, free=True), (1,), first=False)


def test_port_that_is_released_soon_is_waited_for():
    port = free_range(1)
    held = socket.create_server(("127.0.0.1", port))
    leaving = threading.Timer(0.05, held.close)
    leaving.start()
    assert bound(Listener("127.0.0.1", port), None, (0,)) == {0: port}
    leaving.join()


def test_ports_end_at_65535():
    with pytest.raises(Refusal, match="node 2 cannot listen on port 65536"):
        bound(Listener("127.0.0.1", 65534), SavedPorts({0: 65534, 1: 65535}), (2,))


def test_saved_ports_are_loaded(tmp_path):
    assert load_ports(tmp_path) is None
    for remembered in (
        SavedPorts({0: 9092, 1: 9093}),
        SavedPorts({0: 1, 7: 65535}, frozenset({7}), free=True),
    ):
        save_ports(tmp_path, remembered)
        assert load_ports(tmp_path) == remembered


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"ports": {"0": 9092}, "free": False},
        {"ports": {"1": 9092}, "free": False, "dedicated": []},
        {"ports": {"0": 0}, "free": False, "dedicated": []},
        {"ports": {"0": 65536}, "free": False, "dedicated": []},
        {"ports": {"0": 9092, "-1": 5}, "free": False, "dedicated": []},
        {"ports": {"0": "many"}, "free": False, "dedicated": []},
        {"ports": [9092], "free": False, "dedicated": []},
        {"ports": {"0": 9092}, "free": False, "dedicated": 5},
    ],
)
def test_invalid_saved_ports_are_ignored(tmp_path, content):
    (tmp_path / LISTENERS_FILE).write_bytes(checkpoint.sealed(content))
    assert load_ports(tmp_path) is None


def test_damaged_saved_ports_are_ignored(tmp_path):
    save_ports(tmp_path, SavedPorts({0: 9092}))
    file = tmp_path / LISTENERS_FILE
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert load_ports(tmp_path) is None
    file.write_bytes(b"")
    assert load_ports(tmp_path) is None
    file.unlink()
    file.mkdir()
    assert load_ports(tmp_path) is None


def test_port_in_use_is_an_error_that_names_node_and_port(tmp_path):
    port = free_range(3)
    harness = LauncherHarness(tmp_path, listen=f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port + 2)):
        harness.launch()
        code, said = harness.wait_refused()
        assert code == 1 and said.count("\n") == 1
        assert f"node 2 cannot listen on 127.0.0.1:{port + 2}: address already in use" in said
        assert "--listen" in said
        assert harness.lives("born") == []
    harness.start()
    assert [harness.port(node_id) for node_id in (0, 1, 2)] == [port, port + 1, port + 2]
    harness.close()


def test_restart_keeps_the_nodes_and_their_ports(harness):
    harness.start()
    harness.desired_nodes(1, 2, 3)
    until(lambda: harness.node(3) and 3 in load_ports(harness.data).ports)
    ports = {node["id"]: node["port"] for node in harness.status()["nodes"]}
    harness.end()
    (harness.script / "say").unlink()
    harness.start(workers=None)
    assert {node["id"]: node["port"] for node in harness.status()["nodes"]} == ports
    harness.end()
    file = harness.data / LISTENERS_FILE
    file.write_bytes(file.read_bytes()[:-3])
    harness.start()
    assert {node["id"] for node in harness.status()["nodes"]} == {0, 1, 2}
    assert json.loads(harness.ready_file.read_text())["bootstrap"] == harness.listen
