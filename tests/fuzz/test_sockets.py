"""Twelve thousand fuzzed frames against brokers of both shapes; and self-tests of the checks.

More frames, and other ones: python -m tests.fuzz.sockets.
"""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from kafkalite.protocol.schemas.cluster import API_VERSIONS
from tests.fuzz import conversations, sockets
from tests.fuzz.conversations import Conversation, Fault, Talk, Tally
from tests.fuzz.requests import World

FRAMES = 6_000
SEED = 1


@pytest.mark.parametrize("workers", [0, 2])
def test_broker_survives_random_bytes_on_sockets(workers):
    tally = sockets.fuzz(workers, SEED, FRAMES)
    assert tally.frames >= FRAMES
    assert tally.unanswered() == []


# Self-tests: a peer with the responses of the test, and the outcome of its checks.

ASKED = struct.pack(">hhih", API_VERSIONS.key, 0, 7, -1)
GOOD = struct.pack(">i", 7) + API_VERSIONS.response.write(0, {"error_code": 0, "api_keys": []})


def heard(stream: bytes, *answers: bytes, stays: bool = False) -> Tally:
    """Check a conversation with a peer that sends these responses to `stream`, and closes."""
    tally = Tally()
    sent = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                peer.recv(len(stream), socket.MSG_WAITALL)
                sent.wait()
                framed = [struct.pack(">i", len(answer)) + answer for answer in answers]
                peer.sendall(b"".join(framed))  # at once: a client with all responses stops reading
                if stays:
                    peer.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        talk = Talk(at_once(stream), server.getsockname(), tally)
        try:
            while talk.turn():
                if not talk.sending:
                    sent.set()
        finally:
            sent.set()
            talk.close()
            serving.join()
    return tally


def at_once(stream: bytes) -> Conversation:
    conversation = Conversation("a test", World(), stream)
    conversation.manner, conversation.stream = 0, stream
    conversation.reads = Conversation("0", World(), stream).reads
    return conversation


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def test_valid_response_is_accepted():
    assert heard(framed(ASKED), GOOD).answered == {(API_VERSIONS.key, 0): 1}


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([struct.pack(">i", 8) + GOOD[4:]], "not its correlation id"),
        ([GOOD[:-1]], "are not a valid"),
        ([GOOD + b"\0"], "bytes behind its end"),
        ([b"\0"], "an answer of 1 bytes"),
        ([GOOD, GOOD], "an answer to nothing"),
        ([], "closed instead of answering ApiVersions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reordered_response_is_reported(answers, complaint):
    with pytest.raises(Fault, match=complaint):
        heard(framed(ASKED), *answers)


def test_response_to_invalid_bytes_is_reported():
    assert heard(framed(ASKED, b"\0"), GOOD).outcomes == {"closed": 1}
    with pytest.raises(Fault, match="an answer to nothing"):
        heard(framed(ASKED, b"\0"), GOOD, GOOD)


def test_connection_left_open_after_invalid_bytes_is_reported(monkeypatch):
    monkeypatch.setattr(conversations, "LOST_S", 0.2)
    with pytest.raises(Fault, match="still open"):
        heard(framed(ASKED, b"\0"), GOOD, stays=True)


def test_conversation_is_determined_by_its_seed():
    first, second = (Conversation("1 17", World([bytes(16)])) for _ in range(2))
    assert first.stream == second.stream
    assert list(first.pieces()) == list(second.pieces())
