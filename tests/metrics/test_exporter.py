"""The exporter beside a real broker, with real clients."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.configs import INCREMENTAL_ALTER_CONFIGS
from kafkalite.protocol.schemas.topics import DESCRIBE_LOG_DIRS
from tests.metrics.conftest import ScrapedBroker
from tests.process.waiting import is_gone, until

TOPIC = "kafka_server_brokertopicmetrics_{}_total"
SHAPES = [pytest.param(0, id="one process"), pytest.param(2, id="two workers")]


def produced(scraped, topic, count, partitions=1):
    admin = AdminClient({"bootstrap.servers": scraped.bootstrap})
    for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": scraped.bootstrap})
    for number in range(count):
        producer.produce(topic, b"v" * 10, partition=number % partitions)
    assert producer.flush(30) == 0


def consumed(scraped, topic, count, group):
    """Read `count` records in a group, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": scraped.bootstrap, "group.id": group,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    last = [message for message in consumer.consume(count, 30) if message.error() is None][-1]
    consumer.commit(message=last, asynchronous=False)
    return consumer


def exporter_pid(scraped):
    """Return the exporter's process id, a child of the broker's."""
    broker = scraped.broker.process.pid
    for child in Path(f"/proc/{broker}/task/{broker}/children").read_text().split():
        with suppress(OSError):  # it has ended
            if b"metrics" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
    return 0


def test_start_fails_when_the_exporter_misses_a_dependency(tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('no such package')")
    command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "d"), "--workers", "0", "--metrics", "127.0.0.1:0"]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("kafkalite: the metrics exporter cannot start: ")
    assert "no such package" in done.stderr


@pytest.mark.parametrize("workers", SHAPES)
def test_scrape_contains_client_traffic(scraped, workers):
    broker = scraped(workers=workers)
    produced(broker, "flights", 100, partitions=4)
    consumer = consumed(broker, "flights", 100, "readers")
    until(lambda: broker.total(TOPIC.format("messagesin"), topic="flights") == 100)
    until(lambda: broker.total(TOPIC.format("bytesout"), topic="flights") > 1_000)
    assert broker.total("kafka_server_replicamanager_leadercount") >= 4
    assert broker.total("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert broker.total("kafkalite_node_up") == workers + 1
    name = "kafka_network_requestmetrics_totaltimems_count"
    until(lambda: broker.total(name, request="Fetch") > 0)
    until(lambda: broker.total("kafka_coordinator_group_groupmetadatamanager_numgroups") == 1)
    assert broker.page("/healthz") == (200, "ok\n")
    assert broker.page("/readyz") == (200, "ready\n")
    assert broker.page("/else")[0] == 404
    consumer.close()


@pytest.mark.parametrize("workers", SHAPES)
def test_scrape_contains_group_lag(scraped, workers):
    broker = scraped(workers=workers)
    produced(broker, "flights", 10)
    consumer = consumed(broker, "flights", 4, "readers")
    of = {"consumergroup": "readers", "topic": "flights", "partition": "0"}
    until(lambda: broker.total("kafka_consumergroup_lag", **of) == 6)
    assert broker.total("kafka_consumergroup_current_offset", **of) == 4
    until(lambda: broker.total("kafka_consumergroup_members", consumergroup="readers") == 1)
    assert broker.total("kafkalite_group_lag_up") == 1
    consumer.close()
    until(lambda: broker.total("kafka_consumergroup_members", consumergroup="readers") == 0)


def response_to(address, api, version, **fields):
    """Send one request over a socket of its own, and return its response."""
    flexible = api.request_header_flexible(version)
    request = write_header(api.key, version, 7, "a test", flexible)
    request += api.request.write(version, fields)
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(len(request).to_bytes(4, "big") + request)
        with connection.makefile("rb") as stream:
            answer = stream.read(int.from_bytes(stream.read(4), "big"))
    return api.response.read(version, answer, 5 if api.response_header_flexible(version) else 4)


def nodes_of(scraped):
    """Return each node's address."""
    return {node["id"]: (node["host"], node["port"]) for node in scraped.broker.ready["nodes"]}


@pytest.mark.parametrize("workers", SHAPES)
def test_each_node_describes_its_own_logs(scraped, workers):
    broker = scraped(workers=workers)
    produced(broker, "flights", 8, partitions=4)
    found = {}
    for node_id, address in nodes_of(broker).items():
        (directory,) = response_to(address, DESCRIBE_LOG_DIRS, 4, topics=None).results
        for topic in directory.topics:
            for partition in topic.partitions:
                assert (topic.name, partition.partition_index) not in found
                found[topic.name, partition.partition_index] = node_id
                assert partition.partition_size > 0
    assert {key for key in found if key[0] == "flights"} == {("flights", n) for n in range(4)}
    assert len(set(found.values())) == (workers or 1)


def subscribe(scraped, **config):
    """Configure a subscription, so that clients push metrics."""
    configs = [
        {"name": key, "config_operation": 0, "value": value} for key, value in config.items()
    ]
    resource = {"resource_type": 16, "resource_name": "all", "configs": configs}
    address = nodes_of(scraped)[0]
    (answer,) = response_to(address, INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert answer.error_code == 0, answer.error_message


@pytest.mark.parametrize("workers", SHAPES)
def test_scrape_contains_librdkafka_metrics(scraped, workers):
    broker = scraped(workers=workers)
    produced(broker, "flights", 1)
    subscribe(broker, **{"metrics": "*", "interval.ms": "200"})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "teller"})

    def pushed_names():
        producer.produce("flights", b"v")
        producer.poll(0.05)
        return {key[0] for key in broker.samples if ("client_id", "teller") in key}

    until(lambda: "kafka_client_producer_connection_creation_total" in pushed_names())
    assert broker.total("kafkalite_client_pushes_total", result="refused") == 0
    assert broker.total("kafkalite_client_pushes_total", result="taken") > 0
    assert producer.flush(30) == 0


@pytest.mark.parametrize("workers", SHAPES)
def test_killed_exporter_restarts_on_the_same_port(scraped, workers):
    broker = scraped(workers=workers)
    until(lambda: exporter_pid(broker))
    first = exporter_pid(broker)
    until(lambda: broker.page("/healthz")[0] == 200)
    os.kill(first, signal.SIGKILL)
    until(lambda: exporter_pid(broker) not in (0, first))
    until(lambda: broker.page("/healthz")[0] == 200)
    until(lambda: broker.page("/readyz")[0] == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
@pytest.mark.parametrize("workers", SHAPES)
def test_exporter_ends_with_its_broker(scraped, workers, number):
    broker = scraped(workers=workers)
    until(lambda: exporter_pid(broker))
    pid = exporter_pid(broker)
    os.kill(broker.broker.process.pid, number)
    until(lambda: is_gone(pid))


@pytest.mark.parametrize("workers", SHAPES)
def test_exporter_keeps_its_port_over_restart_command(scraped, workers):
    broker = scraped(workers=workers)
    until(lambda: broker.page("/healthz")[0] == 200)
    first = exporter_pid(broker)
    command = [sys.executable, "-m", "kafkalite", "restart", "--data", str(broker.broker.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    until(lambda: broker.page("/readyz")[0] == 200)
    assert exporter_pid(broker) not in (0, first)


def test_port_in_use_is_rejected_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for words in (
            ["start", "--listen", "127.0.0.1:0", "--metrics", where, "--workers", "0"],
            ["start", "--listen", "127.0.0.1:0", "--metrics", where, "--workers", "1"],
            ["metrics", "--listen", where],
        ):
            command = [sys.executable, "-m", "kafkalite", *words, "--data", str(tmp_path / "d")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1
            assert done.stderr.count("\n") == 1
            assert f"cannot serve metrics on {where}: address already in use" in done.stderr
            assert f"with --{'metrics' if words[0] == 'start' else 'listen'} HOST" in done.stderr


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("0.0.0.0:0", "add --insecure"),
        (":9308", "add --insecure"),
        ("here", "HOST:PORT"),
        ("127.0.0.1:99999", "HOST:PORT"),
        ("127.0.0.1:-1", "HOST:PORT"),
    ],
)
def test_invalid_metrics_address_is_rejected(tmp_path, where, words):
    command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "d"), "--metrics", where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_missing_data_directory_is_rejected(tmp_path):
    command = [sys.executable, "-m", "kafkalite", "metrics", "--data", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "none does not exist; specify the broker's data directory with --data" in done.stderr


def test_exporter_without_broker_reports_not_ready(tmp_path):
    command = [sys.executable, "-m", "kafkalite", "metrics", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as alone:
        where = re.search(r"http://(\S+)/metrics", alone.stderr.readline())[1]
        scraped = ScrapedBroker.__new__(ScrapedBroker)
        scraped.where = where
        assert scraped.page("/healthz") == (200, "ok\n")
        assert scraped.page("/readyz") == (503, "no broker is ready\n")
        assert ("kafkalite_group_lag_up",) in scraped.samples
        alone.terminate()
        assert alone.wait(30) == 0


def test_counters_of_a_killed_worker_restart_at_zero(scraped):
    broker = scraped(workers=1)
    produced(broker, "flights", 50)
    name = TOPIC.format("messagesin")
    until(lambda: broker.total(name, topic="flights") == 50)
    (worker,) = (node["pid"] for node in broker.broker.ready["nodes"] if node["id"] == 1)
    os.kill(worker, signal.SIGKILL)
    up = ("kafkalite_node_up", ("broker", "1"))
    start_time = ("process_start_time_seconds", ("broker", "1"))
    before = broker.samples.get(start_time)
    until(lambda: up in (now := broker.samples) and now.get(start_time) != before)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for _ in range(7):
        producer.produce("flights", b"v")
    assert producer.flush(30) == 0
    until(lambda: broker.total(name, topic="flights") == 7)
