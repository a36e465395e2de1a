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


class Door:
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

    def heard(self):
        return read_packet(self.socket.recv(65536)).fields

    def say(self, packet, *descriptors):
        socket.send_fds(self.socket, [packet], descriptors)

    def grant(self, *descriptors, **said):
        self.say(write_packet(granted(**said)), *descriptors)


def granted(**said):
    return GRANTED(**{
        "request_id": 0, "error_code": 0, "error_message": None, "high_watermark": 10,
        "last_stable_offset": 10, "log_start_offset": 0, "file": -1, "fresh": False,
        "position": 0, "size": 0, "end_offset": -1, "dropped": [], "aborted": [], **said,
    })  # fmt: skip


@pytest.fixture
def door(place):
    door = Door(place)
    yield door
    door.close()


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


def test_segment_grant_is_a_range_up_to_its_end(door, file):
    here = position(2)
    door.transport.fetch([here])
    door.transport.fetch([here])
    asked = door.heard()
    assert (asked["offset"], asked["partition"], asked["topic_id"]) == (2, 0, here.topic_id)
    door.grant(file, **READABLE)
    (outcome,) = door.transport.receive()
    assert outcome.position is here
    assert (outcome.record_range.first_offset, outcome.record_range.end_offset) == (2, 5)
    assert door.transport.receive() == []


def test_response_from_before_a_seek_is_discarded(door, file):
    here = position(2)
    door.transport.fetch([here])
    here.seek(7)
    door.transport.fetch([here])
    assert [door.heard()["offset"] for _ in range(2)] == [2, 7]
    door.grant(file, **READABLE)
    assert door.transport.receive() == []
    door.grant(request_id=1, file=0, size=10, end_offset=9)
    (outcome,) = door.transport.receive()
    assert outcome.record_range.first_offset == 7


def test_partition_error_is_an_outcome_with_its_message(door):
    door.transport.fetch([position()])
    door.grant(error_code=NotLeaderOrFollower.code, error_message="not here")
    (outcome,) = door.transport.receive()
    assert (outcome.error_code, outcome.message, outcome.record_range) == (6, "not here", None)


@pytest.mark.parametrize(
    "fault", [KafkaStorageError, ThrottlingQuotaExceeded, ClusterAuthorizationFailed]
)
def test_fatal_error_closes_the_transport(door, fault):
    door.transport.fetch([position()])
    door.grant(error_code=fault.code, error_message="not like this")
    with pytest.raises(NetworkException, match="not like this"):
        door.transport.receive()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


LIES = {
    "a descriptor that was not told of": ({**READABLE, "fresh": False}, 1),
    "no descriptor though it was told of": (READABLE, 0),
    "two descriptors": (READABLE, 2),
    "a file that was never lent": ({"file": 3, "size": 10, "end_offset": 5}, 0),
    "a request that nobody made": ({**READABLE, "request_id": 8}, 1),
    "an empty stretch": ({**READABLE, "size": 0}, 1),
    "a stretch that ends before it begins": ({**READABLE, "size": -5}, 1),
    "a place before the file": ({**READABLE, "position": -1}, 1),
    "an end before the offset": ({**READABLE, "end_offset": 2}, 1),
    "a descriptor with an empty answer": ({"fresh": True}, 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_invalid_grant_closes_the_transport_and_its_descriptors(door, file, lie):
    said, count = LIES[lie]
    door.transport.fetch([position(2)])
    before = descriptors()
    door.grant(*[file] * count, **said)
    if lie == "a descriptor with an empty answer":
        door.transport.receive()
    else:
        with pytest.raises(NetworkException):
            door.transport.receive()
    door.transport.close()
    assert descriptors() == before - 1  # the transport's own socket


def test_descriptor_of_a_pipe_is_rejected(door):
    ends = os.pipe()
    door.transport.fetch([position(2)])
    door.grant(ends[0], **READABLE)
    with pytest.raises(NetworkException, match="not a new regular file"):
        door.transport.receive()
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    "packet",
    [b"\x06", b"\x06\x00garbage", bytes(300), b"\xff" * 70_000],
    ids=["short", "garbage", "zeros", "huge"],
)
def test_invalid_packet_closes_the_transport(door, packet):
    door.transport.fetch([position()])
    try:
        door.say(packet)
    except OSError:
        door.say(packet[:60_000])
    with pytest.raises(NetworkException):
        door.transport.receive()


def test_unexpected_packet_kind_closes_the_transport(door):
    welcome = WELCOME(
        error_code=0, error_message=None, cluster_id="", node_id=0, port=1, generation=1, reads=True
    )
    door.transport.fetch([position()])
    door.say(write_packet(welcome))
    with pytest.raises(NetworkException, match="instead of GRANTED"):
        door.transport.receive()


def test_closed_socket_closes_the_transport(door):
    door.transport.fetch([position()])
    door.socket.close()
    with pytest.raises(NetworkException):
        door.transport.receive()
        door.transport.receive()


def test_dropped_file_is_closed_after_it_is_read(door, file):
    here = position()
    door.transport.fetch([here])
    before = descriptors()
    door.grant(file, **READABLE)
    (outcome,) = door.transport.receive()
    assert descriptors() == before + 1
    here.ahead = 5
    door.transport.fetch([here])
    door.grant(request_id=1, dropped=[0, 77])
    door.transport.receive()
    assert descriptors() == before + 1
    outcome.record_range.close()
    assert descriptors() == before


def test_partitions_above_the_request_limit_take_turns(door):
    many = [position(partition=number) for number in range(OUTSTANDING_MAX + 50)]
    heard = []

    def listen():
        while len(heard) < 3 * len(many):
            asked = door.heard()
            heard.append(asked["partition"])
            door.grant(request_id=asked["request_id"])

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    while listening.is_alive():
        door.transport.fetch(many)
        assert len(door.transport._outstanding) <= OUTSTANDING_MAX
        door.transport.receive()
        listening.join(0.001)
    assert set(heard[: 2 * len(many)]) == set(range(len(many)))


# Finding the local listener.


def welcome(**said):
    return WELCOME(**{
        "error_code": 0, "error_message": None, "cluster_id": CLUSTER, "node_id": 4, "port": 9092,
        "generation": 1, "reads": True, **said,
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
    ids=["it", "cluster", "node", "port", "refused", "kind", "garbage", "hangs up", "silent"],
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
            said = read_packet(met.recv(65536)).fields
            assert (said["cluster_id"], said["node_id"]) == (CLUSTER, 4)
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
