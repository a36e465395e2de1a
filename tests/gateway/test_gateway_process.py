"""The gateway process beside a real broker: its address, its lifetime, its orderly shutdown."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from confluent_kafka import Consumer, TopicPartition

from tests.metrics.conftest import ScrapedBroker
from tests.process.conftest import start  # noqa: F401
from tests.process.waiting import is_gone, until

SHAPES = [pytest.param(0, id="one process"), pytest.param(2, id="two workers")]


class GatewayBroker:
    """A broker with its own processes, and its gateway."""

    def __init__(self, begin, *flags, endpoint="tcp://127.0.0.1:0", workers=0):
        self.broker = begin("--gateway", endpoint, *flags, workers=workers)
        self.push = self.broker.ready["gateway"]["push"]
        self.dealer = self.broker.ready["gateway"]["dealer"]

    @property
    def pid(self):
        """The gateway's process id, a child of the broker's; 0 while there is none."""
        broker = self.broker.process.pid
        for child in Path(f"/proc/{broker}/task/{broker}/children").read_text().split():
            with suppress(OSError):  # it has ended
                if b"gateway" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                    return int(child)
        return 0

    def values(self, topic):
        """Return the values that a Kafka consumer reads."""
        consumer = Consumer({"bootstrap.servers": self.broker.ready["bootstrap"], "group.id": "g"})
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        found = []
        while len(found) < end:
            found += [message.value() for message in consumer.consume(end - len(found), 30)]
        consumer.close()
        return found


@pytest.fixture
def start_broker(start):  # noqa: F811
    """A factory of brokers with a gateway."""
    return lambda *flags, **options: GatewayBroker(start, *flags, **options)


def response_to(dealer, number):
    """Send one message; return its response without the text."""
    dealer.send_multipart([b"%d" % number, b"sensors", b"attic", b"%d" % number])
    while True:
        which, *response = dealer.recv_multipart()
        if which == b"%d" % number:
            return response[:3]


@pytest.mark.parametrize("workers", SHAPES)
def test_received_messages_are_produced_before_shutdown(start_broker, peers, workers):
    gate = start_broker(workers=workers)
    dealer, push = peers(zmq.DEALER, gate.dealer), peers(zmq.PUSH, gate.push)
    assert response_to(dealer, 1) == [b"0", b"0", b"0"]
    for number in range(500):
        push.send_multipart([b"sensors", b"", b"pushed %d" % number])
    # The first response may precede the pushed records; a second's comes after they were received,
    # because the gateway reads both listeners in each tick.
    until(lambda: len(gate.values("sensors")) >= 501)
    assert gate.broker.end(signal.SIGTERM)[1] == 0
    lines = (gate.broker.data / "kafkalite.log").read_text().splitlines()
    # Other load on the machine makes ticks slow, which is logged.
    said = "".join(line for line in lines if "Event loop was not free" not in line)
    assert "ERROR" not in said and "WARNING" not in said


@pytest.mark.parametrize("workers", SHAPES)
def test_killed_gateway_restarts_on_the_same_endpoints(start_broker, peers, workers):
    gate = start_broker(workers=workers)
    dealer = peers(zmq.DEALER, gate.dealer, RECONNECT_IVL=10)
    assert response_to(dealer, 1)[0] == b"0"
    first = gate.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: gate.pid not in (0, first))
    assert response_to(dealer, 2)[0] == b"0"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
@pytest.mark.parametrize("workers", SHAPES)
def test_gateway_ends_with_its_broker(start_broker, workers, number):
    gate = start_broker(workers=workers)
    until(lambda: gate.pid)
    pid = gate.pid
    os.kill(gate.broker.process.pid, number)
    until(lambda: is_gone(pid))


@pytest.mark.parametrize("workers", SHAPES)
def test_senders_continue_over_restart_command(start_broker, peers, workers):
    gate = start_broker(workers=workers)
    dealer = peers(zmq.DEALER, gate.dealer, RECONNECT_IVL=10)
    assert response_to(dealer, 1)[0] == b"0"
    first = gate.pid
    command = [sys.executable, "-m", "kafkalite", "restart", "--data", str(gate.broker.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    until(lambda: gate.pid not in (0, first))
    assert response_to(dealer, 2)[0] == b"0"
    assert gate.values("sensors") == [b"1", b"2"]


def test_ipc_endpoint_is_private_and_removed_on_shutdown(start_broker, peers, tmp_path):
    path = tmp_path / "gate.sock"
    gate = start_broker(endpoint=f"ipc://{path}")
    assert (gate.push, gate.dealer) == (f"ipc://{path}", f"ipc://{path}-dealer")
    assert path.stat().st_mode & 0o077 == 0
    assert response_to(peers(zmq.DEALER, gate.dealer), 1)[0] == b"0"
    gate.broker.end(signal.SIGTERM)
    assert not path.exists() and not Path(f"{path}-dealer").exists()


def test_socket_file_of_a_killed_broker_is_replaced(start_broker, tmp_path):
    path = tmp_path / "gate.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert start_broker(endpoint=f"ipc://{path}").push == f"ipc://{path}"


def test_status_and_banner_show_the_endpoints(start_broker):
    gate = start_broker()
    command = [sys.executable, "-m", "kafkalite", "status", "--data", str(gate.broker.data)]
    status = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert f"gateway     {gate.push} (PUSH), {gate.dealer} (DEALER)" in status
    banner, _ = gate.broker.end(signal.SIGTERM)
    assert f"gateway     {gate.push} (PUSH), {gate.dealer} (DEALER)" in banner


def test_exporter_scrape_contains_gateway_metrics(start_broker, peers):
    gate = start_broker("--metrics", "127.0.0.1:0")
    dealer = peers(zmq.DEALER, gate.dealer)
    assert response_to(dealer, 1)[0] == b"0"
    dealer.send_multipart([b"2", b"a/b", b"", b""])
    assert dealer.recv_multipart()[1] == b"17"
    scraped = ScrapedBroker.__new__(ScrapedBroker)
    scraped.where = gate.broker.ready["metrics"]
    name = "kafkalite_gateway_{}_total"
    until(lambda: scraped.samples.get((name.format("records"),)) == 1)
    of = (("error", "INVALID_TOPIC_EXCEPTION"), ("socket", "dealer"))
    assert scraped.samples[(name.format("refused_messages"), *of)] == 1
    assert scraped.samples[(name.format("received_messages"), ("socket", "dealer"))] == 2


def start_error(tmp_path, *flags):
    command = [sys.executable, "-m", "kafkalite", "start", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "d"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    return done.stderr


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("tcp://0.0.0.0:0", "add --insecure"),
        ("tcp://*:0", "every address can be reached"),
        ("127.0.0.1:5555", "tcp://HOST:PORT or ipc://PATH"),
        ("tcp://127.0.0.1", "tcp://HOST:PORT"),
        ("tcp://127.0.0.1:99999", "tcp://HOST:PORT"),
        ("tcp://127.0.0.1:65535", "Port 65535 is the highest"),
        ("tcp://::1:5555", "must be in brackets"),
        ("udp://127.0.0.1:5555", "tcp://HOST:PORT or ipc://PATH"),
        ("ipc://@abstract", "must name a file"),
        ("ipc://" + "/long" * 30, "can have 100 bytes"),
        ("ipc:///there/is/no/such/directory", "cannot listen"),
    ],
)
def test_invalid_endpoint_is_rejected(tmp_path, endpoint, words):
    assert words in start_error(tmp_path, "--gateway", endpoint)


def test_endpoint_in_use_is_rejected(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        said = start_error(tmp_path, "--gateway", endpoint)
        assert f"cannot listen on {endpoint}: address already in use" in said
        said = start_error(
            tmp_path, "--gateway", "tcp://127.0.0.1:0", "-o", f"gateway.dealer.listener={endpoint}"
        )
        assert "gateway.dealer.listener=" in said
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "sock"))
        taken.listen()
        assert "already in use" in start_error(tmp_path, "--gateway", f"ipc://{tmp_path}/sock")
    (tmp_path / "file").touch()
    assert "not a socket" in start_error(tmp_path, "--gateway", f"ipc://{tmp_path}/file")


def test_incomplete_curve_settings_are_rejected(tmp_path):
    flags = ["--gateway", "tcp://127.0.0.1:0", "-o", f"gateway.curve.clients={tmp_path}"]
    assert "CURVE needs both" in start_error(tmp_path, *flags)


@pytest.mark.parametrize("workers", [0, 1])
def test_start_fails_when_the_gateway_cannot_read_its_key(tmp_path, workers):
    flags = ["--gateway", "tcp://127.0.0.1:0", "-o", f"gateway.curve.clients={tmp_path}"]
    flags += ["-o", f"gateway.curve.key.file={tmp_path}/none", "--workers", str(workers)]
    ready_file = tmp_path / "ready.json"
    said = start_error(tmp_path, *flags, "--ready-file", str(ready_file))
    assert f"the gateway cannot start: {tmp_path}/none is not a ZeroMQ certificate" in said
    assert not ready_file.exists() and not (tmp_path / "d/status.json").exists()
    assert "ready:" not in (tmp_path / "d/kafkalite.log").read_text()


def test_keys_are_created_once_and_secret_keys_are_private(tmp_path):
    command = [sys.executable, "-m", "kafkalite", "gateway", "keys", "server", "--directory"]
    for code in (0, 1):
        done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == code
    assert "exists already" in done.stderr
    assert (tmp_path / "server.key_secret").stat().st_mode & 0o077 == 0


def test_gateway_serve_runs_beside_a_broker_without_gateway(start, peers):  # noqa: F811
    broker = start()
    command = [sys.executable, "-m", "kafkalite", "gateway", "serve", "--data", str(broker.data)]
    command += ["--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as alone:
        try:
            words = alone.stderr.readline().split()
            assert words[:2] == ["gateway", "at"]
            assert response_to(peers(zmq.DEALER, words[4]), 1)[0] == b"0"
            alone.terminate()
            assert alone.wait(30) == 0
        finally:
            alone.kill()
