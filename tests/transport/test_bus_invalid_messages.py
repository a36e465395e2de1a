"""Invalid data on the bus: it is dropped and counted, and other connections are not affected."""

import random
import socket
import struct

import pytest
import xxhash
import zmq

from kafkalite.protocol.schemas.bus import FORWARD, HELLO, WELCOME, write_frame
from kafkalite.transport import bus as module

GOOD = HELLO(image_offset=1)
FRAME = write_frame(GOOD)


def sealed(said):
    return said + xxhash.xxh3_64_digest(said)


def truncations():
    return [FRAME[:size] for size in range(len(FRAME))]


def flips():
    return [
        FRAME[:at] + bytes((FRAME[at] ^ 1 << bit,)) + FRAME[at + 1 :]
        for at in range(len(FRAME))
        for bit in range(8)
    ]


def noise():
    dice = random.Random(4)
    return [dice.randbytes(dice.randrange(200)) for _ in range(300)]


GARBAGE = {
    "cut short": truncations(),
    "one bit changed": flips(),
    "noise": noise(),
    "sealed noise": [sealed(some) for some in noise() if some[:1] != b"\x01"],
    "a kind that nobody knows": [sealed(bytes((kind, 0))) for kind in (0, 14, 99, 255)],
    "a version that nobody knows": [sealed(b"\x01" + bytes((n,))) for n in range(1, 256)],
    "a count of more than there is": [sealed(b"\x06\x00" + bytes(16) + b"\xff\xff\xff\xff\x0f")],
    "a string longer than the rest": [sealed(b"\x09\x00" + bytes(8) + b"\xff\x7f" + b"list")],
    "a string that is not UTF-8": [
        sealed(b"\x09\x00" + bytes(8) + b"\x02\xff" + bytes(4) + b"\x00\x00")
    ],
    "a tag larger than the rest": [sealed(b"\x01\x00" + bytes(8) + b"\x01\x00\xff\xff\xff\x0f")],
}
each_garbage = pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)


@each_garbage
def test_server_drops_and_counts_invalid_messages(bus, garbage):
    server = bus.server()
    hostile, honest = bus.bare(identity=b"1.5"), bus.client((2, 7))
    for frame in garbage:
        hostile.send(frame)
    hostile.send(FRAME)
    honest.send(GOOD)
    bus.until(lambda: len(bus.received) == 2)
    assert sorted(bus.received) == [(b"1.5", GOOD), (b"2.7", GOOD)]
    assert (server.refused, server.errors) == (len(garbage), 0)


@each_garbage
def test_client_drops_and_counts_invalid_messages(bus, garbage):
    hostile, worker = bus.bare(zmq.ROUTER), bus.client((1, 5))
    worker.send(GOOD)
    assert hostile.recv_multipart() == [b"1.5", FRAME]
    good = write_frame(WELCOME(image_offset=1, heartbeat_ms=1, incarnation=1))
    for frame in (*garbage, good):
        hostile.send_multipart([b"1.5", frame])
    bus.until(lambda: bus.received)
    assert (worker.refused, worker.errors) == (len(garbage), 0)


@pytest.mark.parametrize(
    "parts", [[FRAME, FRAME], [b"", FRAME], [FRAME, b""], [b""] * 1000], ids=len
)
def test_multipart_message_is_refused(bus, parts):
    server, hostile = bus.server(), bus.bare(identity=b"1.5")
    hostile.send_multipart(parts)
    hostile.send(FRAME)
    bus.until(lambda: bus.received)
    assert (bus.received, server.refused) == ([(b"1.5", GOOD)], 1)


def test_many_invalid_messages_are_logged_once(bus, caplog):
    server, hostile = bus.server(), bus.bare(identity=b"1.5")
    for _ in range(3_000):
        hostile.send(b"garbage")
    bus.until(lambda: server.refused == 3_000)
    # On a busy machine a slow tick may log a line of its own.
    (line,) = [each.getMessage() for each in caplog.records if each.module != "slow_ticks"]
    assert line == (
        "Message is dropped: Checksum mismatch in a message of the bus. peer=node-1.5 suppressed=0"
    )


def test_identity_of_a_peer_is_not_trusted(bus, caplog):
    server = bus.server()
    names = [b"1.5\n", b"\xff" * 255, b"../..", b"1.99999999999999999999", "ä.1".encode()]
    for name in names:
        bus.bare(identity=name).send(FRAME)
    bus.until(lambda: len(bus.received) == len(names))
    assert {identity for identity, _ in bus.received} == set(names)
    assert not any(map(module.peer_of, names))
    assert not server.send(b"", GOOD)
    assert not server.send(b"x" * 300, GOOD)


# The largest frame.


def test_frame_above_the_limit_closes_its_connection(bus, monkeypatch):
    where = {"peer_host": "", "peer_port": 0, "local_host": "", "local_port": 0}
    large = FORWARD(request_id=1, frame=bytes(1 << 20), **where)
    frame = write_frame(large)
    monkeypatch.setattr(module, "FRAME_SIZE_MAX", len(frame))
    server, honest = bus.server(), bus.client((2, 7))
    hostile = bus.bare(identity=b"1.5")
    hostile.send(frame)
    bus.until(lambda: bus.received)
    assert bus.received.pop() == (b"1.5", large)
    ended = hostile.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    bus.bare_sockets.append(ended)
    hostile.send(frame + b"\0")
    assert ended.poll(20_000)
    honest.send(GOOD)
    hostile.send(FRAME)  # over its next connection
    bus.until(lambda: len(bus.received) == 2)
    assert sorted(bus.received) == [(b"1.5", GOOD), (b"2.7", GOOD)]
    assert server.refused == 0
    hostile.disable_monitor()


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL" + bytes(16) + b"\0" + bytes(31)


def command(name, **properties):
    body = bytes((len(name),)) + name
    for key, value in properties.items():
        key = key.replace("_", "-").encode()
        body += bytes((len(key),)) + key + struct.pack(">I", len(value)) + value
    return b"\x04" + bytes((len(body),)) + body


READY = command(b"READY", Socket_Type=b"DEALER", Identity=b"1.5")


def long_frame(size):
    """Return the ZMTP header of a frame of this size."""
    return b"\x02" + struct.pack(">Q", size)


class RawPeer:
    """A ZMTP connection made by hand."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.came = b""

    def handshake(self):
        for said, size in ((GREETING, len(GREETING)), (READY, len(GREETING) + len(READY) - 3)):
            self.send(said)
            while len(self.came) < size:
                self.came += self.socket.recv(1 << 16)

    def send(self, some):
        self.socket.sendall(some)

    def is_disconnected(self):
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


@pytest.fixture
def raw_peer(bus):
    raw_peers = []

    def make_peer():
        raw_peers.append(RawPeer(bus.path))
        return raw_peers[-1]

    yield make_peer
    for made in raw_peers:
        made.socket.close()


def test_messages_over_a_raw_socket_are_received(bus, raw_peer):
    """The same steps are refused below only because of the change each test makes."""
    bus.server()
    by_hand = raw_peer()
    by_hand.handshake()
    by_hand.send(b"\x00" + bytes((len(FRAME),)) + FRAME)
    by_hand.send(long_frame(len(FRAME)) + FRAME)
    bus.until(lambda: len(bus.received) == 2)
    assert bus.received == [(b"1.5", GOOD)] * 2


@pytest.mark.parametrize("size", [module.FRAME_SIZE_MAX + 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1])
def test_frame_length_above_the_limit_closes_its_connection(bus, raw_peer, resident_bytes, size):
    server, honest = bus.server(), bus.client((2, 7))
    bus.until(lambda: honest.connected)
    before = resident_bytes()
    liar = raw_peer()
    liar.handshake()
    liar.send(long_frame(size))
    assert liar.is_disconnected()
    honest.send(GOOD)
    bus.until(lambda: bus.received)
    assert bus.received == [(b"2.7", GOOD)]
    assert server.send(b"2.7", GOOD)
    assert resident_bytes() - before < 64 << 20


@pytest.mark.parametrize(
    "said",
    [
        command(b"READY", Socket_Type=b"PUB"),
        command(b"READY", Socket_Type=b"x" * 200),
        command(b"NOTHING"),
        b"\x04\x05\x05RE",
        b"\x04\x06\x05READY\xff",
        b"\x06" + struct.pack(">Q", 1 << 40),
    ],
    ids=["a publisher", "no type", "no command", "half a command", "half a name", "1 TiB"],
)
def test_peer_with_an_invalid_handshake_is_disconnected(bus, raw_peer, said):
    bus.server()
    stranger, honest = raw_peer(), bus.client((2, 7))
    stranger.send(GREETING)
    stranger.send(said)
    stranger.socket.shutdown(socket.SHUT_WR)
    assert stranger.is_disconnected()
    honest.send(GOOD)
    bus.until(lambda: bus.received)
    assert bus.received == [(b"2.7", GOOD)]


@pytest.mark.parametrize(
    "said",
    [
        GREETING.replace(b"NULL", b"NONE"),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10,
        b"\x00\x00\x00\x0c\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff\x00\x00" * 8,
        random.Random(5).randbytes(4096),
    ],
    ids=["another mechanism", "HTTP", "Kafka", "noise"],
)
def test_peer_with_another_protocol_is_disconnected(bus, raw_peer, said):
    bus.server()
    stranger, honest = raw_peer(), bus.client((2, 7))
    stranger.send(said)
    stranger.socket.shutdown(socket.SHUT_WR)
    assert stranger.is_disconnected()
    honest.send(GOOD)
    bus.until(lambda: (b"2.7", GOOD) in bus.received)
    # ZMTP 1.0 has no handshake: what parses as its messages is received, and refused.
    assert bus.received == [(b"2.7", GOOD)]


def test_unfinished_frame_does_not_delay_other_peers(bus, raw_peer):
    bus.server()
    honest, slow = bus.client((2, 7)), raw_peer()
    slow.handshake()
    slow.send(long_frame(100 << 20) + bytes(1000))
    honest.send(GOOD)
    bus.until(lambda: bus.received)
    assert bus.received == [(b"2.7", GOOD)]
