"""FrameReader: responses are cut from the bytes of a connection, however these arrive."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest

from kafkalite.client.net.frame_reader import ROOM_SIZE, FrameReader
from kafkalite.errors import InvalidRequest
from tests.client.scripted_broker import framed


def test_announced_response_size_allocates_no_memory():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = FrameReader()
        theirs.sendall(struct.pack(">i", 1 << 28) + b"abc")
        inbox.fill(ours)
        assert inbox.take() is None
        assert inbox.has_part
        assert len(inbox._large) <= ROOM_SIZE


@pytest.mark.parametrize("seed", range(20))
def test_responses_are_split_regardless_of_arrival(seed):
    chance = random.Random(seed)
    sizes = [chance.choice([4, 5, 90, ROOM_SIZE - 4, ROOM_SIZE, 300_000]) for _ in range(12)]
    answers = [chance.randbytes(size) for size in sizes]
    stream = b"".join(map(framed, answers))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox, found, sent = FrameReader(), [], 0
        theirs.setblocking(False)
        ours.setblocking(False)
        while len(found) < len(answers):
            if sent < len(stream):
                with contextlib.suppress(BlockingIOError):
                    sent += theirs.send(stream[sent : sent + chance.randrange(1, 90_000)])
            inbox.fill(ours)
            while (respond := inbox.take()) is not None:
                found.append(bytes(respond))
    assert found == answers
    assert not inbox.has_part


@pytest.mark.parametrize("seed", range(20))
def test_single_responses_are_received_whole_regardless_of_arrival(seed):
    chance = random.Random(seed)
    sizes = [4, 59, 60, 61, 90, ROOM_SIZE - 4, ROOM_SIZE - 3, ROOM_SIZE, 200_000, 300_000]
    inbox, held = FrameReader(), []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        ours.setblocking(False)
        for size in chance.choices(sizes, k=30):
            content = chance.randbytes(size)
            left, found = memoryview(framed(content)), None
            while found is None:
                with contextlib.suppress(BlockingIOError):
                    left = left[theirs.send(left[: chance.choice((1, 3, 64, 70, 400_000))]) :]
                with contextlib.suppress(BlockingIOError):
                    inbox.fill(ours, is_last=True)
                found = inbox.take()
            assert found == content
            assert not inbox.has_part
            # Kept buffers are reused only once nothing refers to them.
            held = [*held[-chance.randrange(3) :], (found, content)]
            assert all(view == content for view, content in held)


def test_more_than_the_last_response_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = FrameReader()
        theirs.sendall(framed(bytes(ROOM_SIZE)))
        while inbox.take() is None:
            inbox.fill(ours, is_last=True)
        theirs.sendall(2 * framed(bytes(100)))
        with pytest.raises(InvalidRequest, match="a response without a request"):
            inbox.fill(ours, is_last=True)


def test_invalid_size_of_the_last_response_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = FrameReader()
        theirs.sendall(framed(bytes(ROOM_SIZE)))
        while inbox.take() is None:
            inbox.fill(ours, is_last=True)
        theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100))
        inbox.fill(ours, is_last=True)
        with pytest.raises(InvalidRequest, match="'HTTP'"):
            inbox.take()


def test_large_response_is_received_by_one_call_into_a_kept_buffer():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = FrameReader()
        content = bytes(2 * ROOM_SIZE)
        theirs.sendall(framed(content))
        while inbox.take() is None:
            inbox.fill(ours, is_last=True)
        theirs.sendall(framed(content))
        assert inbox.take() is None
        assert inbox.fill(ours, is_last=True) == 4 + len(content)
        assert inbox.take() == content
