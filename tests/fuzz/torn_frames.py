"""Fuzz target for the event loop: a stream of frames over a socket, in arbitrary pieces.

The first byte is the number of pieces, the next ones the size of each; the rest is the stream,
whose last piece is the remainder.  A frame's first byte selects its handling: a response at once,
none, a later one, an exception, or closing the connection.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from kafkalite._ext.loop import Channel, DeferredResponse, Loop

FRAME_SIZE_MAX = 1000
IN_FLIGHT_MAX = 4
TICKS_MAX = 2_000
IDLE_TICKS = 3
AT_ONCE, SILENT, LATER, FAULT, CLOSE, FINISH = range(6)


class World:
    """A loop with one channel, and the other end of its socket."""

    def __init__(self) -> None:
        self.loop = Loop(
            self.fault, self.refused, FRAME_SIZE_MAX, IN_FLIGHT_MAX, 1 << 16, 1 << 20, 1 << 17
        )
        self.channel = Channel()
        self.seen: list[bytes] = []
        self.pending: list[DeferredResponse] = []
        self.refusals: list[int] = []
        self.abandoned = 0

    def serve(self, channel: Any, frame: memoryview) -> Any:
        self.seen.append(bytes(frame))
        match frame[0] % 8:
            case 1:
                return None
            case 2:
                answer = channel.defer()
                answer.abandoned = self.leave
                self.pending.append(answer)
                return answer
            case 3:
                raise ValueError("a fault in a handler")
            case 4:
                channel.close()
                return [b"too late"]
            case 5:
                channel.finish()
        return [bytes(frame)]

    def leave(self) -> None:
        self.abandoned += 1

    def fault(self, channel: Any, _: Exception) -> None:
        channel.close()

    def refused(self, _: Any, size: int) -> None:
        self.refusals.append(size)

    def tick(self) -> None:
        """Run one tick; of the pending responses, the latest is sent first."""
        self.loop.read_requests(0)
        for answer in reversed(self.pending):
            answer.send([b"later"])
        self.pending.clear()
        self.loop.write_responses()


def pieces(given: memoryview) -> Iterator[memoryview]:
    sizes, stream = given[1 : 1 + given[0] % 16], given[1 + given[0] % 16 :]
    for size in sizes:
        yield stream[:size]
        stream = stream[size:]
    yield stream


def expected(stream: bytes) -> tuple[list[bytes], list[int]]:
    """Return the frames of a stream up to the one that ends it, and the invalid size if any."""
    found: list[bytes] = []
    while len(stream) >= 4:
        (size,) = struct.unpack_from(">i", stream)
        if not 0 < size <= FRAME_SIZE_MAX:
            return found, [size]
        if len(stream) < 4 + size:
            break
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
        if found[-1][0] % 8 in (FAULT, CLOSE, FINISH):
            break
    return found, []


def loop(given: memoryview) -> int:
    if not given:
        return 0
    world = World()
    with ExitStack() as ending:
        ending.callback(world.loop.close)
        ours, theirs = socket.socketpair()
        ending.callback(theirs.close)
        ours.setblocking(False)
        theirs.setblocking(False)
        world.loop.adopt(world.channel, os.dup(ours.fileno()), world.serve)
        ours.close()
        ending.callback(world.channel.close)
        for piece in pieces(given):
            send(theirs, piece)
            world.tick()
            world.tick()
        idle = 0
        for _ in range(TICKS_MAX):
            before = len(world.seen)
            world.tick()
            drained = drain(theirs)
            # A tick may only read, and handle what it read in the next.
            idle = 0 if drained or len(world.seen) > before else idle + 1
            if idle == IDLE_TICKS:
                break
        stream = b"".join(pieces(given))
        assert (world.seen, world.refusals) == expected(stream)
    assert not world.channel.open
    return 1 + min(len(world.seen), 9) + 10 * len(world.refusals)


def send(peer: socket.socket, piece: memoryview) -> None:
    try:
        while piece:
            piece = piece[peer.send(piece) :]
    except (BlockingIOError, ConnectionError):
        pass


def drain(peer: socket.socket) -> bool:
    try:
        return bool(peer.recv(1 << 16))
    except (BlockingIOError, ConnectionError):
        return False


def loop_seeds() -> Iterator[bytes]:
    for kind in range(8):
        stream = b"".join(
            struct.pack(">i", size) + bytes((kind if size == 5 else 0,)) * size
            for size in (1, 5, 9, 300, 5, 2)
        )
        yield bytes((0,)) + stream
        yield bytes((3, 2, 7, 100)) + stream
    yield bytes((2, 1, 1)) + struct.pack(">i", 0)
    yield bytes((0,)) + (struct.pack(">i", 1) + b"\2") * 200
