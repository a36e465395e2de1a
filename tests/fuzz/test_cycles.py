"""No request leaves a reference cycle.

The collector runs after a number of new objects, not of bytes: a cycle that holds a request of a
hundred megabytes may stay for thousands of requests.
"""

from __future__ import annotations

import gc
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafkalite.broker.security import CREATE
from kafkalite.broker.served_apis import SERVED
from kafkalite.ids import NO_ID
from kafkalite.protocol.frame import write_header
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.fetch import FETCH
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.protocol.schemas.produce import PRODUCE
from kafkalite.records.batch import Record, build
from kafkalite.transport.connection import Disconnect
from tests.fuzz.requests import TOPICS, Read, Sparing, World, request
from tests.handlers.conftest import InProcess
from tests.handlers.denying import Denying

REQUESTS = 4


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = InProcess(tmp_path_factory.mktemp("node") / "data")
    for name in TOPICS[:2]:
        node.create(name, 2)
    node.request(FIND_COORDINATOR, 4, coordinator_keys=["group-0"])
    yield node
    node.close()


@contextmanager
def collector_off() -> Iterator[None]:
    """Turn the collector off; `gc.collect()` then visits only objects made since, not all."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def cycles() -> Counter[str]:
    """Return the types of the objects in reference cycles, which are freed."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(found).__qualname__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def serve(node, frame):
    """Send a frame, and wait for its response or abandon it."""
    try:
        wire = node.send_frame(frame)
    except Disconnect:
        return
    for _ in range(20):
        if wire.sent is not None or wire.closed:
            break
        node.reactor.tick(5)
    node.reactor.tick(0)


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: SERVED[key].api.name)
def test_requests_leave_no_reference_cycle(node, key):
    handler, sparing = SERVED[key], Sparing()
    for version in range(handler.low, handler.high + 1):
        dice = random.Random(version)
        made = [request(dice, handler, version, 7, World()) for _ in range(REQUESTS)]
        spared = [frame for frame in made if sparing.spares(Read(frame))]
        with collector_off():
            for frame in spared:
                serve(node, frame)
            assert cycles() == Counter(), f"version {version}"


def assert_no_cycle(node, frame):
    """Send a frame twice, and check that the second one left no reference cycle."""
    serve(node, frame)
    with collector_off():
        serve(node, frame)
        assert gc.collect() == 0


def test_refused_transactional_records_leave_no_reference_cycle(node):
    batches = [
        build([Record(timestamp=1, value=b"v")], producer_id=producer_id, transactional=True)
        for producer_id in (1, 2)
    ]
    partitions = [{"index": index, "records": batch} for index, batch in enumerate(batches)]
    body = {
        "transactional_id": "id", "acks": -1, "timeout_ms": 1_000,
        "topic_data": [{"name": TOPICS[0], "partition_data": partitions}],
    }  # fmt: skip
    frame = bytes(write_header(PRODUCE.key, 12, 0, "c", True) + PRODUCE.request.write(12, body))
    assert_no_cycle(node, frame)


def test_refused_creation_of_topics_leaves_no_reference_cycle(node, monkeypatch):
    monkeypatch.setattr(node.node, "authorizer", Denying(CREATE))
    body = {"topics": [{"topic_id": NO_ID, "name": "none"}], "allow_auto_topic_creation": True}
    frame = bytes(write_header(METADATA.key, 12, 0, "c", True) + METADATA.request.write(12, body))
    assert_no_cycle(node, frame)


def visit(node, frame):
    """Connect, send a request that waits, and disconnect."""
    purgatory = node.node.replicas.purgatory
    before = purgatory.size
    with socket.create_connection(node.listener.getsockname()) as client:
        client.sendall(struct.pack(">i", len(frame)) + frame)
        for _ in range(5):
            node.reactor.tick(1)
        assert purgatory.size == before + 1
    node.until(lambda: purgatory.size == before)


def test_waiting_clients_that_disconnect_leave_no_reference_cycle(node):
    node.create("waited-for", 2)
    partitions = [{"partition": index, "partition_max_bytes": 1} for index in range(2)]
    topics = [{"topic": "waited-for", "partitions": partitions}]
    body = {"max_wait_ms": 60_000, "min_bytes": 1 << 20, "max_bytes": 1 << 20, "topics": topics}
    frame = bytes(write_header(FETCH.key, 11, 0, "c", False) + FETCH.request.write(11, body))
    visit(node, frame)
    with collector_off():
        for _ in range(3):
            visit(node, frame)
        assert gc.collect() == 0
