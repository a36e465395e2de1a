"""F27: peers of a gateway that lie, stall, flood and send nonsense, frame by frame.

    python -m tests.gateway.hostile --frames 1e5 [--seed N]

Each peer speaks ZMTP 3.0 over a socket of its own: correctly up to some point, then not.  Beside
them a well-behaved DEALER sends a request after every few; each must get its response.  At the end
the gateway has not ended, has disconnected no peer for memory, and uses no more than before.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import struct
import sys
import time

import zmq

from tests.gateway.frames import headers, keyed_pack, pack
from tests.gateway.serving import GatewayThread, Peers

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
MORE, LARGE, COMMAND = 1, 2, 4
FRAMES_EACH = 10
GROWTH_MAX = 64 << 20


def address_of(endpoint):
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def connected(endpoint):
    peer = socket.create_connection(address_of(endpoint), timeout=10)
    peer.settimeout(10)
    return peer


def frame(content, flags=0):
    if len(content) > 255:
        return bytes([flags | LARGE]) + struct.pack(">Q", len(content)) + content
    return bytes([flags, len(content)]) + content


def message(*frames):
    return b"".join(
        frame(content, MORE if left else 0)
        for left, content in zip(range(len(frames) - 1, -1, -1), frames, strict=True)
    )


def ready(kind=b"PUSH"):
    def named(name, value):
        return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value

    return frame(b"\5READY" + named(b"Socket-Type", kind) + named(b"Identity", b""), COMMAND)


def handshaken_peer(endpoint, kind=b"PUSH"):
    """Connect a peer and complete its handshake; raise ConnectionError if it is rejected."""
    peer = connected(endpoint)
    peer.sendall(GREETING + ready(kind))
    await_ready(peer)
    return peer


def await_ready(peer):
    """Wait for the other end's handshake, before which libzmq accepts no message."""
    came = b""
    while b"\5READY" not in came:
        more = peer.recv(1 << 16)
        if not more:
            peer.close()
            raise ConnectionError("it was not let in")
        came += more


def is_closed(peer):
    """Return True when the other end has closed; a timeout of the socket is raised."""
    with contextlib.suppress(ConnectionError):
        while peer.recv(1 << 16):
            pass
    return True


def body(chance):
    """Return a message's frames, sometimes valid."""
    value = chance.randbytes(chance.choice([0, 1, 10, 300]))
    shapes = [
        [b"sensors", b"", value],
        [b"sensors", b"k", value, headers((b"a", value)), b"%d" % chance.getrandbits(40), b"0"],
        [b"sensors", pack(value, value)],
        [b"sensors", keyed_pack((b"k", value))],
        [chance.randbytes(chance.randrange(300)) for _ in range(chance.randrange(1, 12))],
        [b"sensors", b"KLV1" + chance.randbytes(20)],
        [b"sensors", b"", value, chance.randbytes(12), chance.randbytes(3), chance.randbytes(2)],
    ]
    return chance.choice(shapes)


def damaged(chance, content):
    """Return the content with random damage."""
    content = bytearray(content)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(content))
        content[place] = chance.getrandbits(8)
    if chance.random() < 0.3:
        del content[chance.randrange(len(content)) :]
    return bytes(content)


def claim(chance):
    """Return a frame with a size far larger than its content."""
    size = chance.choice([1 << 21, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1])
    flags = LARGE | chance.choice([0, MORE, COMMAND])
    return bytes([flags]) + struct.pack(">Q", size) + chance.randbytes(100)


def misbehave(chance, endpoint, kind):
    """Run one misbehaving peer; return how many frames it sent or damaged."""
    stage = chance.randrange(8)
    enter = connected if stage < 4 else lambda endpoint: handshaken_peer(endpoint, kind)
    with contextlib.suppress(OSError), enter(endpoint) as peer:
        if stage == 0:
            peer.sendall(chance.randbytes(chance.randrange(1, 200)))
        elif stage == 1:
            peer.sendall(damaged(chance, GREETING + ready(kind)))
        elif stage == 2:
            peer.sendall(GREETING + damaged(chance, ready(kind)) + message(b"sensors", b"", b"v"))
        elif stage == 3:  # without waiting for the handshake
            peer.sendall(GREETING + ready(kind) + message(*body(chance)))
        else:
            for _ in range(FRAMES_EACH):
                content = message(*body(chance))
                if stage == 7 and chance.random() < 0.3:
                    content = claim(chance) if chance.random() < 0.3 else damaged(chance, content)
                peer.sendall(content)
        if chance.random() < 0.5:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return FRAMES_EACH


def abuse(gateway, peers, frames, seed):
    """Send this many damaged frames; raise if the well-behaved peer gets no response."""
    chance = random.Random(seed)
    dealer = peers(zmq.DEALER, gateway.dealer)
    sent = asked = 0
    while sent < frames:
        endpoint, kind = chance.choice([
            *[(gateway.push, b"PUSH"), (gateway.dealer, b"DEALER"), (gateway.dealer, b"REQ")] * 3,
            (gateway.push, b"DEALER"), (gateway.dealer, b"PUSH"), (gateway.push, b"SUB"),
        ])  # fmt: skip
        sent += misbehave(chance, endpoint, kind)
        if chance.random() < 0.1:
            asked += 1
            dealer.send_multipart([b"%d" % asked, b"good", b"", b"%d" % asked])
            assert dealer.recv_multipart()[:2] == [b"%d" % asked, b"0"]
    dealer.send_multipart([b"last", b"good", b"", b"last"])
    assert dealer.recv_multipart()[:2] == [b"last", b"0"]
    assert gateway.sender.values("good") == [*(b"%d" % n for n in range(1, asked + 1)), b"last"]
    assert gateway.thread.is_alive() and gateway.metrics.full_disconnects == 0
    assert gateway.metrics.refused.total() and gateway.metrics.refused_peers.total()
    return sent


def main():
    parser = argparse.ArgumentParser(description="peers of a gateway that lie")
    parser.add_argument("--frames", type=float, default=1e5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    gateway, peers = GatewayThread(), Peers()
    began_s = time.monotonic()
    sent = abuse(gateway, peers, int(asked.frames), asked.seed)
    refused = gateway.metrics.refused.total()
    print(f"{sent} frames, {refused} messages refused, {gateway.metrics.refused_peers.total()}"
          f" peers refused, {gateway.metrics.connected.total()} let in,"
          f" {time.monotonic() - began_s:.0f} s")  # fmt: skip
    peers.close()
    gateway.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
