"""PeerConnection over real sockets: frames in pieces, large frames, full sockets and lost peers."""

from __future__ import annotations

import random
import socket

import pytest

from kafkalite.clock import SystemClock
from kafkalite.transport.peer_connection import FRAME_SIZE_MAX, PeerConnection
from kafkalite.transport.reactor import Reactor


class Peer:
    """Both ends: a connection on a reactor, and the plain socket that it has reached."""

    def __init__(self, path) -> None:
        self.path = path
        self.reactor = Reactor(SystemClock())
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.responses: list[bytes] = []
        self.closed = 0
        self.connect()

    def connect(self) -> None:
        self.connection = PeerConnection(
            self.reactor, self.path, lambda frame: self.responses.append(bytes(frame)), self.lost
        )
        self.end, _ = self.listener.accept()

    def lost(self) -> None:
        self.closed += 1

    def run_until(self, is_done) -> None:
        while not is_done():
            self.reactor.tick(100)

    def close(self) -> None:
        self.connection.close()
        self.end.close()
        self.listener.close()
        self.reactor.close()


@pytest.fixture
def peer(tmp_path):
    peer = Peer(tmp_path / "peer-1")
    yield peer
    peer.close()


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def test_response_in_pieces_is_passed_on_once_it_is_whole(peer):
    for byte in framed(b"response"):
        assert peer.responses == []
        peer.end.send(bytes([byte]))
        peer.reactor.tick(100)
    assert peer.responses == [b"response"]


def test_several_responses_are_passed_on_in_order(peer):
    contents = [bytes([number]) * (4 + number) for number in range(50)]
    peer.end.sendall(b"".join(map(framed, contents)))
    peer.run_until(lambda: len(peer.responses) == 50)
    assert peer.responses == contents


def test_large_response_is_passed_on_unchanged(peer):
    content = random.Random(1).randbytes(10 << 20)
    unsent = memoryview(framed(content) + framed(b"next"))
    peer.end.setblocking(False)
    while len(peer.responses) < 2:
        if unsent:
            unsent = unsent[peer.end.send(unsent[: 64 << 10]) :]
        peer.reactor.tick(0 if unsent else 100)
    assert peer.responses == [content, b"next"]


def test_request_larger_than_the_socket_buffer_is_sent_later(peer):
    content = random.Random(2).randbytes(4 << 20)
    peer.connection.send(content)
    peer.connection.send(b"next")
    expected = framed(content) + framed(b"next")
    received = bytearray()
    peer.end.setblocking(False)
    while len(received) < len(expected):
        try:
            received += peer.end.recv(1 << 20)
        except BlockingIOError:
            peer.reactor.tick(100)
    assert received == expected


def test_close_within_a_response_is_reported_once(peer):
    peer.end.sendall(framed(b"response")[:-1])
    peer.end.close()
    peer.run_until(lambda: peer.closed)
    peer.reactor.tick(0)
    assert (peer.closed, peer.responses, peer.connection.is_open) == (1, [], False)
    peer.connect()
    peer.end.sendall(framed(b"again"))
    peer.run_until(lambda: peer.responses)
    assert peer.responses == [b"again"]


@pytest.mark.parametrize("size", [-1, 0, 3, FRAME_SIZE_MAX + 1])
def test_malformed_size_closes_the_connection(peer, size):
    peer.end.sendall(size.to_bytes(4, "big", signed=True))
    peer.run_until(lambda: peer.closed)
    assert not peer.connection.is_open


def test_missing_peer_is_reported(tmp_path):
    reactor, closed = Reactor(SystemClock()), []
    PeerConnection(reactor, tmp_path / "peer-9", lambda _: None, lambda: closed.append(True))
    assert closed == []
    while not closed:
        reactor.tick(100)
    reactor.close()
