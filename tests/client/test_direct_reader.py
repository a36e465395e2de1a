"""The direct transport over a local listener that misbehaves: the consumer falls back to TCP."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
import threading
from pathlib import Path

import pytest

from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.consumer.direct_reader import OUTSTANDING_MAX, DirectReader
from kafkalite.client.consumer.positions import Position
from kafkalite.client.consumer.record_range import ReadWindow
from kafkalite.client.net.local_socket import LocalSocket, open_local
from kafkalite.client.net.settings import consumer_settings
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    ClusterAuthorizationFailed,
    KafkaStorageError,
    NetworkException,
    NotLeaderOrFollower,
    ThrottlingQuotaExceeded,
)
from kafkalite.protocol.schemas.local import GRANTED, WELCOME, read_packet, write_packet
from kafkalite.protocol.schemas.offsets import EARLIEST
from tests.client.consuming import produce, take

CLUSTER = "kl-test-cluster"


@pytest.fixture
def place():
    """A directory whose name is short enough for a socket."""
    path = Path(tempfile.mkdtemp(prefix="kl-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


class FakeNode:
    """The node's end of one local socket, and the consumer's transport at the other."""

    def __init__(self, place):
        path = place / "local-0"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.local = LocalSocket(str(path))
        self.socket, _ = self.listener.accept()
        self.socket.settimeout(10)
        self.transport = DirectReader(0, self.local, ReadWindow(), consumer_settings(None, {}), 0)

    def close(self):
        self.transport.close()
        self.socket.close()
        self.listener.close()

    def received(self):
        return read_packet(self.socket.recv(65536)).fields

    def send_packet(self, packet, *descriptors):
        socket.send_fds(self.socket, [packet], descriptors)

    def grant(self, *descriptors, **fields):
        self.send_packet(write_packet(granted(**fields)), *descriptors)


def granted(**fields):
    return GRANTED(**{
        "request_id": 0, "error_code": 0, "error_message": None, "high_watermark": 10,
        "last_stable_offset": 10, "log_start_offset": 0, "file": -1, "fresh": False,
        "position": 0, "size": 0, "end_offset": -1, "dropped": [], "aborted": [], **fields,
    })  # fmt: skip


@pytest.fixture
def node(place):
    node = FakeNode(place)
    yield node
    node.close()


@pytest.fixture
def file(place):
    (place / "segment").write_bytes(bytes(1000))
    descriptor = os.open(place / "segment", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def position(offset=0, partition=0):
    made = Position(TopicPartition("t", partition), EARLIEST)
    made.topic_id = bytes(range(16))
    made.seek(offset)
    made.leader = 0
    return made


READABLE = {"file": 0, "fresh": True, "size": 100, "end_offset": 5}


def test_segment_grant_is_a_range_up_to_its_end(node, file):
    here = position(2)
    node.transport.fetch([here])
    node.transport.fetch([here])
    request = node.received()
    assert (request["offset"], request["partition"], request["topic_id"]) == (2, 0, here.topic_id)
    node.grant(file, **READABLE)
    (outcome,) = node.transport.receive()
    assert outcome.position is here
    assert (outcome.record_range.first_offset, outcome.record_range.end_offset) == (2, 5)
    assert node.transport.receive() == []


def test_response_from_before_a_seek_is_discarded(node, file):
    here = position(2)
    node.transport.fetch([here])
    here.seek(7)
    node.transport.fetch([here])
    assert [node.received()["offset"] for _ in range(2)] == [2, 7]
    node.grant(file, **READABLE)
    assert node.transport.receive() == []
    node.grant(request_id=1, file=0, size=10, end_offset=9)
    (outcome,) = node.transport.receive()
    assert outcome.record_range.first_offset == 7


def test_partition_error_is_an_outcome_with_its_message(node):
    node.transport.fetch([position()])
    node.grant(error_code=NotLeaderOrFollower.code, error_message="not here")
    (outcome,) = node.transport.receive()
    assert (outcome.error_code, outcome.message, outcome.record_range) == (6, "not here", None)


@pytest.mark.parametrize(
    "fault", [KafkaStorageError, ThrottlingQuotaExceeded, ClusterAuthorizationFailed]
)
def test_fatal_error_closes_the_transport(node, fault):
    node.transport.fetch([position()])
    node.grant(error_code=fault.code, error_message="not like this")
    with pytest.raises(NetworkException, match="not like this"):
        node.transport.receive()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


INVALID_GRANTS = {
    "a descriptor that was not announced": ({**READABLE, "fresh": False}, 1),
    "no descriptor although it was announced": (READABLE, 0),
    "two descriptors": (READABLE, 2),
    "a file that was never granted": ({"file": 3, "size": 10, "end_offset": 5}, 0),
    "a request that was not sent": ({**READABLE, "request_id": 8}, 1),
    "an empty range": ({**READABLE, "size": 0}, 1),
    "a range that ends before it begins": ({**READABLE, "size": -5}, 1),
    "a position before the file": ({**READABLE, "position": -1}, 1),
    "an end before the offset": ({**READABLE, "end_offset": 2}, 1),
    "a descriptor with an empty response": ({"fresh": True}, 1),
}


@pytest.mark.parametrize("case", INVALID_GRANTS)
def test_invalid_grant_closes_the_transport_and_its_descriptors(node, file, case):
    fields, count = INVALID_GRANTS[case]
    node.transport.fetch([position(2)])
    before = descriptors()
    node.grant(*[file] * count, **fields)
    with pytest.raises(NetworkException):
        node.transport.receive()
    node.transport.close()
    assert descriptors() == before - 1  # the transport's own socket


def test_descriptor_of_a_pipe_is_rejected(node):
    ends = os.pipe()
    node.transport.fetch([position(2)])
    node.grant(ends[0], **READABLE)
    with pytest.raises(NetworkException, match="not a new regular file"):
        node.transport.receive()
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    "packet",
    [b"\x06", b"\x06\x00garbage", bytes(300), b"\xff" * 70_000],
    ids=["short", "garbage", "zeros", "huge"],
)
def test_invalid_packet_closes_the_transport(node, packet):
    node.transport.fetch([position()])
    try:
        node.send_packet(packet)
    except OSError:
        node.send_packet(packet[:60_000])
    with pytest.raises(NetworkException):
        node.transport.receive()


def test_unexpected_packet_kind_closes_the_transport(node):
    welcome = WELCOME(
        error_code=0, error_message=None, cluster_id="", node_id=0, port=1, generation=1, reads=True
    )
    node.transport.fetch([position()])
    node.send_packet(write_packet(welcome))
    with pytest.raises(NetworkException, match="instead of GRANTED"):
        node.transport.receive()


def test_closed_socket_closes_the_transport(node):
    node.transport.fetch([position()])
    node.socket.close()
    with pytest.raises(NetworkException):
        node.transport.receive()
        node.transport.receive()


def test_dropped_file_is_closed_after_it_is_read(node, file):
    here = position()
    node.transport.fetch([here])
    before = descriptors()
    node.grant(file, **READABLE)
    (outcome,) = node.transport.receive()
    assert descriptors() == before + 1
    here.ahead = 5
    node.transport.fetch([here])
    node.grant(request_id=1, dropped=[0, 77])
    node.transport.receive()
    assert descriptors() == before + 1
    outcome.record_range.close()
    assert descriptors() == before


def test_partitions_above_the_request_limit_take_turns(node):
    many = [position(partition=number) for number in range(OUTSTANDING_MAX + 50)]
    partitions = []

    def listen():
        while len(partitions) < 3 * len(many):
            request = node.received()
            partitions.append(request["partition"])
            node.grant(request_id=request["request_id"])

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    while listening.is_alive():
        node.transport.fetch(many)
        assert len(node.transport._outstanding) <= OUTSTANDING_MAX
        node.transport.receive()
        listening.join(0.001)
    assert set(partitions[: 2 * len(many)]) == set(range(len(many)))


# Finding the local listener.


def welcome(**fields):
    return WELCOME(**{
        "error_code": 0, "error_message": None, "cluster_id": CLUSTER, "node_id": 4, "port": 9092,
        "generation": 1, "reads": True, **fields,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("response", "found"),
    [
        (welcome(), True),
        (welcome(cluster_id="another"), False),
        (welcome(node_id=5), False),
        (welcome(port=9093), False),
        (welcome(error_code=58, error_message="go away"), False),
        (granted(), False),
        (b"garbage", False),
        (b"", False),
        (None, False),
    ],
    ids=["expected", "cluster", "node", "port", "rejected", "kind", "garbage", "closes", "silent"],
)
def test_local_transport_opens_to_the_expected_node_only(place, monkeypatch, response, found):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    directory = place / "kafkalite" / f"{CLUSTER}-0123456789ab"
    for level in (directory.parent, directory):
        level.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(directory / "local-4"))
    listener.listen()
    before = descriptors()

    def serve():
        met, _ = listener.accept()
        with met:
            fields = read_packet(met.recv(65536)).fields
            assert (fields["cluster_id"], fields["node_id"]) == (CLUSTER, 4)
            if response is None:
                met.recv(1)
            elif response:
                met.send(response if isinstance(response, bytes) else write_packet(response))

    serving = threading.Thread(target=serve)
    serving.start()
    transport = open_local(CLUSTER, 4, 9092, "me", timeout_s=0.3 if response is None else 10)
    assert (transport is not None) is found
    if transport is not None:
        transport.close()
    serving.join(10)
    assert descriptors() == before
    listener.close()
    assert open_local(CLUSTER, 4, 9092, "me") is None


def test_consumer_closed_during_a_file_read_leaves_no_descriptor(served):
    topic = served.topic()
    for number in range(2):
        produce(served.bootstrap, topic, [b"%d" % number * 200_000] * 4)
    before = descriptors()
    gc.disable()
    try:
        consumer = Consumer(served.bootstrap, topics=[topic])
        take(consumer, 1)
        assert list(consumer.metrics()["transports"].values()) == ["direct"]
        consumer.close()
        assert descriptors() <= before
    finally:
        gc.enable()
