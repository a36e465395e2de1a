"""Requests with thousands of entries: handled in steps, with ticks between them."""

from __future__ import annotations

import pytest

from kafkalite.broker.security import Authorizer
from kafkalite.broker.stepping import STEP_MS, STEP_PAUSE_MS
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    OFFSET_COMMIT,
)
from kafkalite.protocol.schemas.offsets import (
    DELETE_RECORDS,
    LATEST,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)
from kafkalite.protocol.schemas.topics import ELECT_LEADERS
from kafkalite.protocol.schemas.transactions import DESCRIBE_PRODUCERS
from tests.handlers.grouping import find

COUNT = 60
CALLS_MAX = 2
"""Calls to the authorizer for one entry."""


class SlowAuthorizer(Authorizer):
    """An authorizer that takes a millisecond for each decision."""

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
    "DeleteGroups": (DELETE_GROUPS, 2, {"groups_names": GROUPS}),
    "DescribeProducers": (
        DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "a", "partition_indexes": [*range(COUNT)]}]},
    ),
    "ElectLeaders": (
        ELECT_LEADERS, 2, {"topic_partitions": [{"topic": "a", "partitions": [*range(COUNT)]}]},
    ),
    "ElectLeaders of all": (ELECT_LEADERS, 2, {"topic_partitions": None}),
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


def slow_down(many, api, monkeypatch):
    """Make an entry take a millisecond or two, in its authorization or its look-up."""

    def slowed(call):
        return lambda *asked: many.clock.advance(1) or call(*asked)

    node = many.node
    if api == "FindCoordinator":
        monkeypatch.setattr(node.metadata, "advertised", slowed(node.metadata.advertised))
    elif api == "ElectLeaders":
        monkeypatch.setattr(node.replicas, "is_offline", slowed(node.replicas.is_offline))
    else:
        monkeypatch.setattr(node, "authorizer", SlowAuthorizer(many.clock))


@pytest.mark.parametrize("name", [*REQUESTS])
def test_request_of_many_entries_runs_in_steps(many, name, monkeypatch):
    api, version, fields = REQUESTS[name]
    expected = many.request(api, version, **fields)
    slow_down(many, name.split()[0], monkeypatch)
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
    assert many.response(wire, api, version) == expected
    assert len(lengths) >= COUNT // 2 // STEP_MS
    assert max(lengths) <= STEP_MS + CALLS_MAX


@pytest.mark.parametrize("name", ["DeleteRecords", "Metadata"])
def test_steps_are_cancelled_when_the_client_disconnects(many, name, monkeypatch):
    api, version, fields = REQUESTS[name]
    slow = SlowAuthorizer(many.clock)
    monkeypatch.setattr(many.node, "authorizer", slow)
    wire = many.send(api, version, **fields)
    assert wire.sent is None
    wire.disconnect()
    before = many.clock.monotonic_ms()
    for _ in range(COUNT):
        many.clock.advance(STEP_PAUSE_MS)
        many.reactor.tick(0)
    assert many.clock.monotonic_ms() - before == COUNT * STEP_PAUSE_MS
    assert wire.sent is None


class FailingAuthorizer(SlowAuthorizer):
    """A slow authorizer that raises an unexpected error after half of the entries."""

    def __init__(self, clock):
        super().__init__(clock)
        self.calls_left = COUNT // 2

    def allows(self, *asked):
        self.calls_left -= 1
        if not self.calls_left:
            raise OSError("an error that no handler expects")
        return super().allows(*asked)


@pytest.mark.parametrize("name", ["ListOffsets", "DeleteRecords", "DescribeGroups"])
def test_unexpected_error_in_a_later_step_closes_only_the_connection(many, name, monkeypatch):
    api, version, fields = REQUESTS[name]
    expected = many.request(api, version, **fields)
    with monkeypatch.context() as patch:
        patch.setattr(many.node, "authorizer", FailingAuthorizer(many.clock))
        errors = many.reactor.errors
        wire = many.send(api, version, **fields)
        assert (wire.sent, wire.closed) == (None, False)
        go_on(many, lambda: wire.closed)
    assert many.reactor.errors == errors + 1
    assert many.request(api, version, **fields) == expected


@pytest.fixture
def slow_commits(many, monkeypatch):
    """Return a function that begins a commit in which each topic takes a millisecond."""
    monkeypatch.setattr(many.node, "authorizer", SlowAuthorizer(many.clock))

    def begin(names, offset):
        parts = [{"partition_index": 0, "committed_offset": offset}]
        return many.send(
            OFFSET_COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": name, "partitions": parts} for name in names],
        )  # fmt: skip

    return begin


def committed(many, name):
    found = many.node.groups.host_of("g").machine.fetch_offsets("g", {name: [0]})
    return found[name][0].offset


def go_on(many, done):
    for _ in range(COUNT):
        if done():
            return
        many.clock.advance(STEP_PAUSE_MS)
        many.reactor.tick(0)
    raise AssertionError("the steps never ended")


def test_commits_of_a_group_are_handled_in_order(many, slow_commits):
    names = [f"t{number}" for number in range(COUNT // 2)]
    wires = [slow_commits(names, 1), slow_commits(names[-1:], 2), slow_commits(names[-2:-1], 3)]
    assert [wire.sent for wire in wires] == [None] * 3
    go_on(many, lambda: all(wire.sent is not None for wire in wires))
    assert [committed(many, name) for name in names] == [1] * (len(names) - 2) + [3, 2]
    assert not many.node.groups.commit_queues


def test_commit_completes_when_the_client_disconnects(many, slow_commits):
    names = [f"t{number}" for number in range(COUNT // 2)]
    wire = slow_commits(names, 7)
    assert wire.sent is None
    wire.disconnect()
    go_on(many, lambda: not many.node.groups.commit_queues)
    assert committed(many, names[-1]) == 7
