"""What a request made is gone with it.

The collector of cycles looks after so many new objects, not after so many bytes: a cycle that holds
a request of a hundred megabytes may stay for thousands of requests.  So no request makes one.
"""

from __future__ import annotations

import gc
import random

import pytest

from kafkalite.broker.handlers import SERVED
from kafkalite.protocol.schemas.groups import FIND_COORDINATOR
from kafkalite.transport.connection import Disconnect
from tests.fuzz.requests import TOPICS, Read, Sparing, World, request
from tests.handlers.conftest import InProcess

REQUESTS = 8


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    node = InProcess(tmp_path_factory.mktemp("node") / "data")
    for name in TOPICS[:2]:
        node.create(name, 2)
    node.ask(FIND_COORDINATOR, 4, coordinator_keys=["group-0"])
    yield node
    node.close()


def serve(node, frame):
    """Have the frame answered, or left waiting."""
    try:
        wire = node.begin(frame)
    except Disconnect:
        return
    for _ in range(20):
        if wire.sent is not None or wire.closed:
            break
        node.reactor.tick(5)
    node.reactor.tick(0)


@pytest.mark.parametrize("key", sorted(SERVED), ids=lambda key: SERVED[key].api.name)
def test_no_request_leaves_a_cycle_behind(node, key):
    handler, sparing = SERVED[key], Sparing()
    for version in range(handler.low, handler.high + 1):
        dice = random.Random(version)
        made = [request(dice, handler, version, 7, World()) for _ in range(REQUESTS)]
        spared = [frame for frame in made if sparing.spares(Read(frame))]
        gc.collect()
        gc.disable()
        try:
            for frame in spared:
                serve(node, frame)
            assert gc.collect() == 0, f"version {version}"
        finally:
            gc.enable()
