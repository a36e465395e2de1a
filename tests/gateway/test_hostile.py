"""F27: no behaviour of a peer ends the gateway, or keeps others from it."""

import gc
import os
import random
import socket
import struct
import threading
from pathlib import Path

import pytest
import zmq

from kafkalite.gateway import gateway_main as serving
from kafkalite.gateway.curve import make_keys, own_keys
from tests.gateway import hostile
from tests.gateway.hostile import (
    GREETING,
    MORE,
    await_ready,
    connected,
    frame,
    handshaken_peer,
    is_closed,
    message,
    ready,
)
from tests.process.waiting import until

SEED = random.randrange(1 << 32)


def refused_count(gateway):
    return sum(gateway.metrics.refused_peers.values())


def resident_size():
    return serving.resident_size()


def test_thousand_malformed_frames_do_not_stop_the_gateway(start_gateway, peers):
    print("seed", SEED)
    gateway = start_gateway()
    hostile.abuse(gateway, peers, 1_000, SEED)


@pytest.mark.fuzz
def test_hundred_thousand_malformed_frames_leak_no_memory(start_gateway, peers):
    print("seed", SEED)
    gateway = start_gateway()
    hostile.abuse(gateway, peers, 10_000, SEED)
    gateway.call(gc.collect)
    before = resident_size()
    descriptors = len(os.listdir("/proc/self/fd"))
    gateway.sender.logs.clear()
    hostile.abuse(gateway, peers, 90_000, SEED + 1)
    gateway.sender.logs.clear()
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + 20)
    assert resident_size() - before < hostile.GROWTH_MAX


@pytest.mark.parametrize(
    "size", [(16 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]
)
@pytest.mark.parametrize("flags", [2, 3, 6], ids=["last", "more", "command"])
def test_oversized_frame_length_closes_the_connection(start_gateway, size, flags):
    gateway = start_gateway()
    before = resident_size()
    with handshaken_peer(gateway.push) as peer:
        peer.sendall(bytes([flags]) + struct.pack(">Q", size))
        assert is_closed(peer)
    assert resident_size() - before < 16 << 20
    with handshaken_peer(gateway.push) as peer:
        peer.sendall(message(b"sensors", b"", b"after"))
        until(lambda: gateway.sender.values("sensors") == [b"after"])


def test_oversized_message_is_rejected_counted_and_logged(start_gateway, peers, caplog):
    gateway = start_gateway()
    dealer, push = peers(zmq.DEALER, gateway.dealer), peers(zmq.PUSH, gateway.push)
    large = bytes((1 << 20) + 1)
    for frames in ([b"sensors", b"", large], [b"sensors", b"PCK\x01" + large], [large, b"", b"v"]):
        dealer.send_multipart([b"1", *frames])
        correlation, code, *_, sentence = dealer.recv_multipart()
        assert (correlation, code) == (b"1", b"10")
        assert b"gateway.message.max.bytes" in sentence
    push.send_multipart([b"sensors", b"", large])
    push.send_multipart([b"sensors", b"", b"after"])
    until(lambda: gateway.sender.values("sensors") == [b"after"])
    assert gateway.metrics.refused == {
        ("dealer", "MESSAGE_TOO_LARGE"): 3, ("push", "MESSAGE_TOO_LARGE"): 1,
    }  # fmt: skip
    assert "Message to push for topic sensors was refused: MESSAGE_TOO_LARGE" in caplog.text
    with handshaken_peer(gateway.push) as peer:
        peer.sendall(bytes([2]) + struct.pack(">Q", (16 << 20) + 1))
        assert is_closed(peer)
    until(lambda: gateway.metrics.disconnected == {"push": 1})


def test_incomplete_message_of_a_closed_connection_is_discarded(start_gateway):
    gateway = start_gateway()
    with handshaken_peer(gateway.push) as peer:
        peer.sendall(
            message(b"sensors", b"", b"whole") + frame(b"sensors", MORE) + frame(b"", MORE)
        )
        until(lambda: gateway.sender.values("sensors") == [b"whole"])
    with handshaken_peer(gateway.push) as peer:
        peer.sendall(message(b"sensors", b"", b"next"))
        until(lambda: gateway.sender.values("sensors") == [b"whole", b"next"])
    assert gateway.received["push"] == 2


def test_endless_message_is_cut_off_and_other_senders_reconnect(
    start_gateway, peers, monkeypatch, caplog
):
    gateway = start_gateway()
    good = peers(zmq.PUSH, gateway.push, RECONNECT_IVL=10)
    good.send_multipart([b"sensors", b"", b"before"])
    until(lambda: gateway.sender.values("sensors") == [b"before"])
    most = resident_size() + (100 << 20)
    monkeypatch.setattr(
        gateway.gateway.settings, "_values",
        {**gateway.gateway.settings._values, serving.GATEWAY_MEMORY_MAX_BYTES: most},
    )  # fmt: skip
    part = frame(bytes(1 << 16), MORE)
    with handshaken_peer(gateway.push) as endless:

        def send():
            with pytest.raises(OSError):
                while True:
                    endless.sendall(part)

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(60)
        assert not sender.is_alive()
    assert gateway.metrics.full_disconnects == 1

    def heard_again():
        """Send once more: a PUSH that has not noticed its disconnection yet loses messages."""
        good.send_multipart([b"sensors", b"", b"after"])
        return gateway.sender.values("sensors")[-1] == b"after"

    until(heard_again)
    assert "ZeroMQ holds too much memory" in caplog.text


def test_message_may_arrive_byte_by_byte(start_gateway):
    gateway = start_gateway()
    with connected(gateway.push) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in GREETING + ready():
            peer.sendall(bytes([byte]))
        await_ready(peer)
        for byte in message(b"sensors", b"", b"slow"):
            peer.sendall(bytes([byte]))
        until(lambda: gateway.sender.values("sensors") == [b"slow"])


@pytest.mark.parametrize("said", [b"", b"\xff", GREETING[:40], GREETING], ids=len)
def test_peer_without_handshake_is_disconnected(start_gateway, said):
    gateway = start_gateway(gateway_handshake_timeout_ms=50)
    with connected(gateway.push) as peer:
        peer.sendall(said)
        assert is_closed(peer)
    until(lambda: refused_count(gateway))


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ, zmq.SUB, zmq.PULL, zmq.PAIR, zmq.PUB])
def test_other_socket_types_are_rejected_at_the_push_endpoint(start_gateway, peers, kind, caplog):
    gateway = start_gateway()
    peers(kind, gateway.push)
    until(lambda: gateway.metrics.refused_peers["push", "handshake"])
    assert "PUSH and DEALER sockets have an endpoint each" in caplog.text
    assert gateway.metrics.connected["push"] == 0


def test_push_socket_is_rejected_at_the_dealer_endpoint(start_gateway, peers):
    gateway = start_gateway()
    peers(zmq.PUSH, gateway.dealer)
    until(lambda: gateway.metrics.refused_peers["dealer", "handshake"])


def test_messages_of_many_closed_senders_are_all_written(start_gateway, peers):
    gateway = start_gateway()
    count, each = 100, 50
    for sender in range(count):
        with handshaken_peer(gateway.push) as peer:
            peer.sendall(b"".join(
                message(b"sensors", b"", b"%d-%d" % (sender, number)) for number in range(each)
            ))  # fmt: skip
            peer.shutdown(socket.SHUT_WR)
    until(lambda: len(gateway.sender.values("sensors")) == count * each)
    assert len(set(gateway.sender.values("sensors"))) == count * each


def test_dealer_takes_over_the_identity_of_another(start_gateway, peers):
    gateway = start_gateway()
    first = peers(zmq.DEALER, gateway.dealer, ROUTING_ID=b"sensor-7")
    first.send_multipart([b"1", b"sensors", b"", b"v"])
    assert first.recv_multipart()[1] == b"0"
    second = peers(zmq.DEALER, gateway.dealer, ROUTING_ID=b"sensor-7")
    second.send_multipart([b"2", b"sensors", b"", b"v"])
    assert second.recv_multipart()[:2] == [b"2", b"0"]


# Authentication by key.


@pytest.fixture
def locked(start_gateway, tmp_path):
    """A gateway that accepts only peers with known keys, and the directory for keys."""
    make_keys(tmp_path, "server")
    make_keys(tmp_path / "clients", "attic")
    gateway = start_gateway(
        gateway_curve_key_file=tmp_path / "server.key_secret",
        gateway_curve_clients=tmp_path / "clients",
    )
    gateway.keys_directory = tmp_path
    return gateway


def curve(directory, name, server=None):
    """Return the socket options of a client with this key."""
    public, secret = own_keys(Path(directory) / f"{name}.key_secret")
    server = server or own_keys(Path(directory).parent / "server.key_secret")[0]
    return {"CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret, "CURVE_SERVERKEY": server}


def test_peer_with_a_known_key_is_accepted(locked, peers):
    options = curve(locked.keys_directory / "clients", "attic")
    push = peers(zmq.PUSH, locked.push, **options)
    push.send_multipart([b"sensors", b"", b"21.5"])
    dealer = peers(zmq.DEALER, locked.dealer, **options)
    dealer.send_multipart([b"1", b"sensors", b"", b"22"])
    assert dealer.recv_multipart()[:2] == [b"1", b"0"]
    until(lambda: sorted(locked.sender.values("sensors")) == [b"21.5", b"22"])


def test_peer_without_a_key_is_rejected(locked, peers):
    # libzmq has no pipe to send to once the peer rejected it: send before the handshake.
    with locked.paused():
        push = peers(zmq.PUSH, locked.push)
        push.send_multipart([b"sensors", b"", b"21.5"])
    until(lambda: refused_count(locked))
    with connected(locked.push) as peer:
        peer.sendall(GREETING + ready() + message(b"sensors", b"", b"21.5"))
        assert is_closed(peer)
    assert locked.received["push"] == 0 and not locked.metrics.connected


def test_unknown_key_is_rejected_until_it_is_added(locked, peers, caplog):
    strangers = locked.keys_directory / "strangers"
    make_keys(strangers, "spy")
    with locked.paused():
        push = peers(zmq.PUSH, locked.push, **curve(strangers, "spy"), RECONNECT_IVL=20)
        push.send_multipart([b"sensors", b"", b"21.5"])
    until(lambda: locked.metrics.refused_peers["push", "key"])
    assert locked.received["push"] == 0
    until(lambda: "was refused" in caplog.text)
    clients = locked.keys_directory / "clients"
    (strangers / "spy.key").rename(clients / "spy.key")
    # libzmq does not reconnect by itself after a rejection of its key.
    again = peers(zmq.PUSH, locked.push, **curve(strangers, "spy"))
    again.send_multipart([b"sensors", b"", b"22"])
    until(lambda: b"22" in locked.sender.values("sensors"))
    (clients / "spy.key").unlink()
    refused = locked.metrics.refused_peers["push", "key"]
    peers(zmq.PUSH, locked.push, **curve(strangers, "spy"))
    until(lambda: locked.metrics.refused_peers["push", "key"] > refused)


def test_peer_with_the_wrong_server_key_is_rejected(locked, peers):
    wrong, _ = zmq.curve_keypair()
    options = curve(locked.keys_directory / "clients", "attic", server=wrong)
    with locked.paused():
        peers(zmq.PUSH, locked.push, **options).send_multipart([b"sensors", b"", b"21.5"])
    until(lambda: refused_count(locked))
    assert locked.received["push"] == 0


def test_invalid_key_file_is_logged_and_ignored(locked, peers, caplog):
    clients = locked.keys_directory / "clients"
    (clients / "note.key").write_text("to do: make keys\n")
    push = peers(zmq.PUSH, locked.push, **curve(clients, "attic"))
    push.send_multipart([b"sensors", b"", b"21.5"])
    until(lambda: locked.sender.values("sensors") == [b"21.5"])
    until(lambda: "note.key is not a ZeroMQ certificate" in caplog.text)


def test_disconnected_peers_are_not_counted_as_refused(start_gateway, peers):
    gateway = start_gateway()
    for number in range(20):
        push = peers(zmq.PUSH, gateway.push)
        push.send_multipart([b"sensors", b"", b"%d" % number])
        until(lambda: gateway.received["push"] == number + 1)  # noqa: B023
        push.close(0)
    until(lambda: gateway.metrics.connected["push"] == 20)
    assert not refused_count(gateway)
