"""Invalid frames: each gets a response or its connection is closed; the node is not affected."""

from __future__ import annotations

import random

import pytest

from kafkalite.broker.served_apis import SERVED, Handler
from kafkalite.coordination import topics as topic_decisions
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.transport.connection import Disconnect
from tests.protocol.values import filled

EVERY = [
    pytest.param(handler, version, id=f"{handler.api.name}-{version}")
    for handler in SERVED.values()
    for version in range(handler.low, handler.high + 1)
]


@pytest.fixture(scope="module")
def node(lasting):
    """Return one node for all tests: after any frame it must still serve the next one."""
    lasting.create("a", 2)
    lasting.append("a", [1, 2, 3])
    return lasting


def frame_of(handler: Handler, version: int, seed: int) -> bytes:
    """Return a request with every field present, most of them with invalid values."""
    flexible = handler.api.request_header_flexible(version)
    body = handler.api.request.write(version, filled(handler.api.request, version, seed))
    return write_header(handler.api.key, version, seed, "a test", flexible) + body


def outcome(node, handler: Handler, version: int, frame: bytes) -> str:
    """Return the outcome of a frame: answered, silent (waiting, or acks=0), or closed."""
    try:
        wire = node.send_frame(frame)
    except Disconnect:
        return "closed"
    if handler.codec is not None:
        return "answered" if wire.sent is not None else "silent"
    node.until(lambda: wire.sent is not None or wire.closed)
    if wire.closed:
        return "closed"
    begin = 5 if handler.api.response_header_flexible(version) else 4
    handler.api.response.read(version, b"".join(wire.sent), begin)
    return "answered"


def still_serves(node) -> bool:
    """Return whether the node still serves a client, which may have to create its topic again."""
    (topic,) = node.request(METADATA, 12, topics=[{"name": "a"}]).topics
    return topic.error_code == 0


@pytest.fixture(autouse=True)
def few_partitions(monkeypatch):
    monkeypatch.setattr(topic_decisions, "NEW_PARTITIONS_MAX", 3)


@pytest.mark.parametrize(("handler", "version"), EVERY)
def test_request_with_random_values_gets_a_response(node, handler, version):
    for seed in range(8):
        fared = outcome(node, handler, version, frame_of(handler, version, seed))
        # Produce and Fetch may send no response: acks=0, or too few bytes yet.
        assert fared == "answered" or handler.codec is not None
    assert still_serves(node)


@pytest.mark.parametrize(("handler", "version"), EVERY)
def test_truncated_frame_closes_the_connection(node, handler, version):
    whole = frame_of(handler, version, seed=1)
    dice = random.Random(version)
    for size in {len(whole) - 1, *(dice.randrange(8, len(whole)) for _ in range(10))}:
        assert outcome(node, handler, version, whole[:size]) == "closed"


@pytest.mark.parametrize(("handler", "version"), EVERY)
def test_frame_with_changed_bytes_does_not_affect_the_node(node, handler, version):
    dice = random.Random(version)
    for seed in range(8):
        frame = bytearray(frame_of(handler, version, seed))
        for _ in range(dice.randint(1, 4)):
            frame[dice.randrange(8, len(frame))] = dice.randrange(256)
        outcome(node, handler, version, bytes(frame))
    assert still_serves(node)
