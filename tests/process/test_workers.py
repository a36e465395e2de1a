"""`kafkalite start --workers 2` with real processes: starts, kills, restarts, and shutdown."""

import contextlib
import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka
import pytest

from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.testing import Broker
from tests.process.harness import free_range, is_refused, responds
from tests.process.waiting import WAIT_S_MAX, is_gone, until

WORKERS = 2


@pytest.fixture
def broker():
    with Broker(workers=WORKERS, listen=f"127.0.0.1:{free_range(4)}") as broker:
        yield broker


def pids(broker):
    return {node["id"]: node["pid"] for node in broker.status["nodes"]}


def wait_restarted(broker, before, node_id):
    """Wait until a killed node is ready again."""
    until(lambda: pids(broker).get(node_id, before[node_id]) != before[node_id])


def produce(broker, topic, count, partitions):
    """Write `count` records spread over the partitions; fail if one is not acknowledged."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    faults = []
    for number in range(count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % partitions,
            on_delivery=lambda fault, _: fault and faults.append(fault),
        )
    assert producer.flush(30) == 0 and faults == []


def ends(broker, topic, partitions):
    """Return the end offsets of a topic's partitions, once each has a leader."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    found = []

    def asked():
        asking = confluent_kafka.TopicPartition(topic, len(found))
        with contextlib.suppress(confluent_kafka.KafkaException):
            found.append(consumer.get_watermark_offsets(asking, 30)[1])
        return len(found) == partitions

    try:
        until(asked)
        return found
    finally:
        consumer.close()


def test_broker_with_workers_starts_serves_and_stops(broker):
    assert [(node["id"], node["role"]) for node in broker.nodes] == [
        (0, "supervisor"),
        (1, "worker"),
        (2, "worker"),
    ]
    topic = broker.topic(partitions=4)
    produce(broker, topic, 8, partitions=4)
    assert ends(broker, topic, 4) == [2] * 4
    alive = [broker.pid, *pids(broker).values()]
    broker.stop()
    assert all(map(is_gone, alive))
    broker.start()
    assert ends(broker, topic, 4) == [2] * 4


@pytest.mark.parametrize("node_id", [0, 1, 2])
def test_killed_node_is_restarted_without_loss(broker, node_id):
    topic = broker.topic(partitions=4)
    produce(broker, topic, 4, partitions=4)
    before = pids(broker)
    broker.kill(node_id)
    produce(broker, topic, 4, partitions=4)
    wait_restarted(broker, before, node_id)
    assert {n: pid for n, pid in pids(broker).items() if n != node_id} == {
        n: pid for n, pid in before.items() if n != node_id
    }
    assert ends(broker, topic, 4) == [2] * 4


def test_killed_launcher_ends_all_nodes_and_can_restart(broker):
    topic = broker.topic(partitions=2)
    produce(broker, topic, 2, partitions=2)
    alive, ports = pids(broker), {node["id"]: node["port"] for node in broker.nodes}
    broker.kill()
    until(lambda: all(map(is_gone, alive.values())))
    broker.start()
    assert {node["id"]: node["port"] for node in broker.nodes} == ports
    assert ends(broker, topic, 2) == [1, 1]


def test_stopped_worker_is_fenced_and_replaced():
    config = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "100"}
    with Broker(workers=WORKERS, config=config) as broker:
        before = pids(broker)
        os.kill(before[1], signal.SIGSTOP)
        wait_restarted(broker, before, 1)
        assert is_gone(before[1])
        assert responds(broker.nodes[1]["port"])


def test_restart_replaces_all_nodes_and_keeps_records(broker, kafkalite):
    topic = broker.topic(partitions=4)
    before = pids(broker)
    produce(broker, topic, 4, partitions=4)
    done = kafkalite("restart", "--data", broker.data)
    assert done.returncode == 0, done.stderr
    produce(broker, topic, 4, partitions=4)
    assert not set(before.values()) & set(pids(broker).values())
    assert ends(broker, topic, 4) == [2] * 4
    broker.stop()


def test_first_metadata_of_any_node_lists_all_nodes():
    port = free_range(WORKERS + 1)
    ports = list(range(port, port + WORKERS + 1))
    with ThreadPoolExecutor(len(ports)) as pool:
        first = pool.map(listed_nodes, ports)
        with Broker(workers=WORKERS, listen=f"127.0.0.1:{ports[0]}"):
            assert list(first) == [list(enumerate(ports))] * len(ports)


def listed_nodes(port):
    """Return the nodes and ports in the Metadata of a listener, once it accepts connections."""
    asked = struct.pack(">ihhihi", 14, METADATA.key, 1, 0, -1, 0)
    until(lambda: not is_refused(port))
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX) as client:
        client.sendall(asked)
        with client.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)[4:]
    brokers = METADATA.response.read(1, answer).brokers
    return sorted((broker.node_id, broker.port) for broker in brokers)


def test_chosen_free_ports_may_change_after_one_process():
    with Broker(workers=1) as broker, contextlib.ExitStack() as held:
        port = broker.nodes[0]["port"]
        for workers in (0, 1):
            broker.stop()
            broker.workers = workers
            with contextlib.suppress(OSError):  # otherwise the port is in use already
                held.enter_context(socket.create_server(("127.0.0.1", port + 1)))
            broker.start()
        assert broker.nodes[0]["port"] == port


def test_records_survive_a_change_of_the_number_of_workers():
    with Broker(workers=WORKERS) as broker:
        topic = broker.topic(partitions=4)
        produce(broker, topic, 4, partitions=4)
        for workers in (0, 1, 3):
            broker.stop()
            broker.workers = workers
            broker.start()
            assert len(broker.nodes) == 1 + workers
            assert ends(broker, topic, 4) == [1] * 4


def test_saved_ports_are_used_without_a_configured_listener(broker):
    nodes = [(node["id"], node["port"]) for node in broker.nodes]
    broker.stop()
    broker.workers = None
    broker.start()
    assert [(node["id"], node["port"]) for node in broker.nodes] == nodes


def test_launcher_has_one_thread_and_one_process_loads_no_zeromq(broker):
    assert len(list(Path(f"/proc/{broker.pid}/task").iterdir())) == 1
    assert "zmq" in Path(f"/proc/{broker.pid}/maps").read_text(), "its nodes share it"
    for process in (broker.pid, *pids(broker).values()):
        loaded = Path(f"/proc/{process}/maps").read_text()
        assert not any(name in loaded for name in ("_asyncio", "numpy", "confluent_kafka"))
    broker.stop()
    broker.workers = 0
    broker.start()
    assert "zmq" not in Path(f"/proc/{broker.pid}/maps").read_text()


def test_broker_with_three_workers_becomes_ready():
    began = time.monotonic()
    with Broker(workers=3):
        assert time.monotonic() - began < 30


def test_stopped_supervisor_is_killed_and_replaced():
    config = {"broker.session.timeout.ms": "600", "broker.heartbeat.interval.ms": "100"}
    with Broker(workers=1, config=config) as broker:
        before = pids(broker)
        os.kill(before[0], signal.SIGSTOP)
        wait_restarted(broker, before, 0)
        assert is_gone(before[0])
        assert broker.topic()
