"""Requests about thousands of things: answered in steps, with ticks between them."""

from __future__ import annotations

import pytest

from kafkalite.broker.security import Authorizer
from kafkalite.broker.stepping import STEP_MS, STEP_PAUSE_MS
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import DESCRIBE_GROUPS, FIND_COORDINATOR
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    LATEST,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from tests.handlers.grouping import find

COUNT = 60
CALLS_MAX = 2
"""Calls to the authorizer for one entry."""


class SlowAuthorizer(Authorizer):
    """Takes a millisecond for each answer."""

    def __init__(self, clock):
        self.clock = clock

    def allows(self, *asked):
        self.clock.advance(1)
        return super().allows(*asked)


def partitions(**fields):
    return [{**fields, "partition_index": number} for number in range(COUNT)]


GROUPS = [f"g{number}" for number in range(COUNT)]
REQUESTS = {
    "ListOffsets": (
        LIST_OFFSETS, 7,
        {"topics": [{"name": "a", "partitions": partitions(timestamp=LATEST)}]},
    ),
    "DeleteRecords": (
        DELETE_RECORDS, 2,
        {"topics": [{"name": "a", "partitions": partitions(offset=0)}], "timeout_ms": 1_000},
    ),
    "OffsetForLeaderEpoch": (
        OFFSET_FOR_LEADER_EPOCH, 4,
        {
            "topics": [
                {
                    "topic": "a",
                    "partitions": [{"partition": n, "leader_epoch": 0} for n in range(COUNT)],
                }
            ]
        },
    ),
    "Metadata": (METADATA, 12, {"topics": None}),
    "Metadata of some": (
        METADATA, 12,
        {
            "topics": [{"name": f"t{n}"} for n in range(COUNT)],
            "allow_auto_topic_creation": False,
        },
    ),
    "DescribeGroups": (DESCRIBE_GROUPS, 5, {"groups": GROUPS}),
    "FindCoordinator": (
        FIND_COORDINATOR, 4, {"coordinator_keys": GROUPS, "key_type": 0},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def many(lasting):
    find(lasting)
    lasting.create("a", COUNT)
    for number in range(COUNT // 2):
        lasting.create(f"t{number}")
    yield lasting


@pytest.mark.parametrize("name", [*REQUESTS])
def test_a_request_about_many_entries_is_answered_in_steps(many, name, monkeypatch):
    api, version, fields = REQUESTS[name]
    expected = many.ask(api, version, **fields)
    advertised = many.node.advertised

    def slow(*asked):
        many.clock.advance(1)
        return advertised(*asked)

    if name == "FindCoordinator":  # where the coordinator is takes time, not who may know of it
        monkeypatch.setattr(many.node, "advertised", slow)
    else:
        monkeypatch.setattr(many.node, "authorizer", SlowAuthorizer(many.clock))
    lengths = []

    def timed(call):
        began_ms = many.clock.monotonic_ms()
        came = call()
        lengths.append(many.clock.monotonic_ms() - began_ms)
        return came

    wire = timed(lambda: many.send(api, version, **fields))
    for _ in range(COUNT * CALLS_MAX):
        if wire.sent is not None:
            break
        many.clock.advance(STEP_PAUSE_MS)
        timed(lambda: many.reactor.tick(0))
    assert many.answer(wire, api, version) == expected
    assert len(lengths) >= COUNT // 2 // STEP_MS
    assert max(lengths) <= STEP_MS + CALLS_MAX


@pytest.mark.parametrize("name", ["DeleteRecords", "Metadata"])
def test_the_rest_of_a_request_is_left_when_its_client_is_gone(many, name, monkeypatch):
    api, version, fields = REQUESTS[name]
    slow = SlowAuthorizer(many.clock)
    monkeypatch.setattr(many.node, "authorizer", slow)
    wire = many.send(api, version, **fields)
    assert wire.sent is None
    wire.gone()
    before = many.clock.monotonic_ms()
    for _ in range(COUNT):
        many.clock.advance(STEP_PAUSE_MS)
        many.reactor.tick(0)
    assert many.clock.monotonic_ms() - before == COUNT * STEP_PAUSE_MS
    assert wire.sent is None
