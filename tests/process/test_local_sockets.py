"""Local listeners of whole brokers, and their programs' connections when processes are killed,
restarted and stopped, and when partitions move."""

import json
import select
import signal
import subprocess
import sys

import pytest

from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import producer_settings
from kafkalite.errors import NotLeaderOrFollower
from kafkalite.records.batch import batches
from kafkalite.testing import Broker
from kafkalite.transport.ring import RingError
from kafkalite.transport.run_directory import local_sockets
from tests.broker.local_harness import LocalClient, batch_of
from tests.process.waiting import WAIT_S_MAX, until

OK = 0


class Brokers:
    """A broker, and the test's local programs that use it."""

    def __init__(self, broker):
        self.broker = broker
        self.cluster = Cluster(producer_settings(broker.bootstrap, {}))
        self.local_clients = []
        self.topic = broker.topic(partitions=1)
        self.topic_id = self.cluster.topic(self.topic).topic_id

    @property
    def leader(self):
        self.cluster.refresh(self.topic)
        return self.cluster.topic(self.topic).partitions[0].leader

    def connect_client(self, node_id):
        """Return a connection that completed the handshake with a node, which may be starting."""
        until(lambda: self._met(node_id))
        return self.local_clients[-1]

    def _met(self, node_id):
        for path in local_sockets(self.cluster.cluster_id, node_id):
            try:
                local_client = LocalClient(path, until, self.cluster.cluster_id, node_id)
            except ConnectionRefusedError:
                return False  # of a process that was killed a moment ago
            self.local_clients.append(local_client)
            try:
                local_client.welcome = local_client.hello().fields
            except ConnectionError:
                return False  # it was killed before it read our message
            except AssertionError:
                if not local_client.ended:
                    raise
                return False
            assert local_client.welcome["error_code"] == OK
            return True
        return False

    def kafkalite(self, *words):
        command = [sys.executable, "-m", "kafkalite", *words, "--data", str(self.broker.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self):
        for local_client in self.local_clients:
            local_client.close()
        self.cluster.close()


@pytest.fixture(params=[0, 2], ids=["one process", "workers"])
def brokers(request):
    with Broker(workers=request.param) as broker:
        made = Brokers(broker)
        yield made
        made.close()


@pytest.fixture
def among_workers():
    with Broker(workers=2) as broker:
        made = Brokers(broker)
        yield made
        made.close()


def read_all(local_client, topic_id):
    grant = local_client.read(topic_id)
    assert grant["error_code"] == OK
    return [row.value for batch in batches(local_client.content(grant)) for row in batch]


def put_and_read(local_client, topic_id, value):
    local_client.attach()
    local_client.put(batch_of(value), topic_id, acks=-1)
    assert local_client.wait_for_acks()[0][1] == OK
    return read_all(local_client, topic_id)


def test_every_node_has_a_local_listener_once_ready(brokers):
    for node in brokers.broker.nodes:
        (path,) = local_sockets(brokers.cluster.cluster_id, node["id"])
        local_client = LocalClient(path, until, brokers.cluster.cluster_id, node["id"])
        brokers.local_clients.append(local_client)
        welcome = local_client.hello().fields
        assert (welcome["node_id"], welcome["port"]) == (node["id"], node["port"])


def test_records_written_through_a_ring_are_read_by_a_grant(brokers):
    local_client = brokers.connect_client(brokers.leader)
    assert put_and_read(local_client, brokers.topic_id, b"v") == [b"v"]


def test_local_client_of_a_killed_node_reconnects_without_duplicates(brokers):
    leader = brokers.leader
    local_client = brokers.connect_client(leader)
    local_client.attach()
    once = batch_of(b"once", producer_id=7, producer_epoch=0, base_sequence=0)
    local_client.put(once, brokers.topic_id)
    assert local_client.wait_for_acks()[0][1] == OK
    waiting = brokers.connect_client(leader)
    waiting.send_read(brokers.topic_id, offset=1, wait_ms=60_000)
    if leader:
        brokers.broker.kill(leader)
    else:
        brokers.broker.kill()
        brokers.broker.start()
        brokers.cluster.close()
        brokers.cluster = Cluster(producer_settings(brokers.broker.bootstrap, {}))
        brokers.cluster.topic(brokers.topic)
    for each in (local_client, waiting):
        assert each.is_disconnected()
    with pytest.raises(RingError):
        while True:
            select.select([local_client.ring], [], [], WAIT_S_MAX)
            local_client.ring.clear()
    again = brokers.connect_client(leader)
    assert again.welcome["generation"] != local_client.welcome["generation"]
    again.attach()
    again.put(once, brokers.topic_id)
    assert again.wait_for_acks()[0][1:3] == (OK, 0)
    assert read_all(again, brokers.topic_id) == [b"once"]


def test_local_clients_reconnect_after_a_restart(brokers):
    before = {node["id"]: brokers.connect_client(node["id"]) for node in brokers.broker.nodes}
    local_client = before[brokers.leader]
    local_client.attach()
    local_client.put(batch_of(b"kept"), brokers.topic_id)
    assert local_client.wait_for_acks()[0][1] == OK
    brokers.kafkalite("restart")
    for node_id, local_client in before.items():
        assert local_client.is_disconnected()
        assert (
            brokers.connect_client(node_id).welcome["generation"]
            != local_client.welcome["generation"]
        )
    assert read_all(brokers.connect_client(brokers.leader), brokers.topic_id) == [b"kept"]


def test_moved_partition_is_written_and_read_at_its_new_leader(among_workers):
    brokers = among_workers
    old = brokers.leader
    local_client = brokers.connect_client(old)
    assert put_and_read(local_client, brokers.topic_id, b"a") == [b"a"]
    local_client.send_read(brokers.topic_id, offset=1, wait_ms=60_000)
    brokers.kafkalite("node", "drain", str(old))
    told = local_client.receive_grant()
    assert (told["error_code"], told["dropped"]) == (NotLeaderOrFollower.code, [0])
    local_client.put(batch_of(b"b"), brokers.topic_id)
    assert local_client.wait_for_acks(2)[-1][1] == NotLeaderOrFollower.code
    until(lambda: brokers.leader != old)
    there = brokers.connect_client(brokers.leader)
    until(lambda: there.read(brokers.topic_id)["error_code"] == OK)
    assert put_and_read(there, brokers.topic_id, b"b") == [b"a", b"b"]


def test_removed_node_removes_its_socket(among_workers):
    brokers = among_workers
    local_client = brokers.connect_client(2)
    brokers.kafkalite("node", "remove", "2")
    assert local_client.is_disconnected()
    until(lambda: not local_sockets(brokers.cluster.cluster_id, 2))


def test_stopped_broker_removes_its_run_directory(brokers):
    local_client = brokers.connect_client(brokers.leader)
    local_client.attach()
    (path,) = local_sockets(brokers.cluster.cluster_id, brokers.leader)
    brokers.broker.stop()
    assert local_client.is_disconnected()
    assert not path.parent.exists()


def test_idle_ring_uses_little_processor_time(brokers):
    """The node polls the ring at intervals, which takes a small part of the time."""
    leader = brokers.leader
    local_client = brokers.connect_client(leader)
    local_client.attach()
    pid = next(node["pid"] for node in brokers.broker.status["nodes"] if node["id"] == leader)
    before = slept(pid)
    until(lambda: slept(pid) >= before + 10)
    used = ran_s(pid)
    count = slept(pid)
    until(lambda: slept(pid) >= count + 10)
    assert ran_s(pid) - used < 0.05, "ten looks"


def slept(pid):
    """Return how often a process has slept voluntarily."""
    with open(f"/proc/{pid}/status") as status:
        (line,) = [line for line in status if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


def ran_s(pid):
    """Return the CPU time of a process's main thread."""
    with open(f"/proc/{pid}/schedstat") as schedule:
        return int(schedule.read().split()[0]) / 1e9


def test_native_enable_false_opens_no_local_sockets(tmp_path):
    with Broker(workers=0, config={"native.enable": "false"}) as broker:
        cluster = Cluster(producer_settings(broker.bootstrap, {}))
        assert cluster.topic(broker.topic()).led
        assert local_sockets(cluster.cluster_id, 0) == []
        cluster.close()


def test_stopped_program_does_not_delay_others(brokers):
    """Its full ring stays as it is, and the node serves other programs."""
    leader = brokers.leader
    (path,) = local_sockets(brokers.cluster.cluster_id, leader)
    words = json.dumps([str(path), brokers.cluster.cluster_id, leader, brokers.topic_id.hex()])
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.process.local_writer", words],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert program.stdout.readline() == "writing\n"
        program.send_signal(signal.SIGSTOP)
        local_client = brokers.connect_client(leader)
        local_client.attach()
        local_client.put(batch_of(b"other"), brokers.topic_id)
        assert local_client.wait_for_acks()[0][1] == OK
    finally:
        program.kill()
        program.communicate()
