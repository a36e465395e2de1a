"""Requests of share groups with many partitions, in steps through the dispatcher of a real node."""

from __future__ import annotations

import pytest

from kafkalite.broker import stepping
from kafkalite.broker.replica import purgatory
from kafkalite.broker.share.led_share_partition import LedSharePartition
from kafkalite.coordination.share.share_partition import SharePartition
from kafkalite.coordination.share.state_requests import StateInitialization
from kafkalite.protocol.schemas.share import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kafkalite.protocol.schemas.share_records import SharePartitionKey
from tests.handlers.conftest import Wire
from tests.handlers.test_share_fetches import (
    ACCEPT,
    Member,
    member,
    open_state_topic,
    produce,
    topic_id,
    wait_for_load,
)

assert member, topic_id

COUNT = 70
SCATTERED = 12


@pytest.fixture
def wide_id(broker):
    """A topic with many partitions, whose share partitions start at offset 0."""
    topic_id = broker.create("wide", COUNT)
    open_state_topic(broker)
    keys = [SharePartitionKey("g", topic_id, index) for index in range(COUNT)]
    done = broker.node.share_coordinators.outcomes([StateInitialization(key, 1, 0) for key in keys])
    broker.until(lambda: done.settled)
    return topic_id


def member_with_records(broker, wide_id):
    """Return a member with a session of all partitions, each of which has a record."""
    member = Member(broker, wide_id)
    member.poll(*range(COUNT))
    wait_for_load(broker, wide_id, *range(COUNT))
    for index in range(COUNT):
        produce(broker, "wide", b"a", partition=index)
    return member


def test_fetch_that_waits_measures_only_what_changes(broker, wide_id, monkeypatch):
    looks = []
    available = LedSharePartition.available
    monkeypatch.setattr(
        LedSharePartition,
        "available",
        lambda self, size: looks.append(self) or available(self, size),
    )
    member = Member(broker, wide_id)
    wire = member.begin_fetch(*range(COUNT), wait_ms=10_000)
    wait_for_load(broker, wide_id, *range(COUNT))
    broker.reactor.tick(0)
    assert len(looks) <= 3 * COUNT
    assert wire.sent is None
    produce(broker, "wide", b"a", partition=COUNT - 1)
    response = member.respond(wire, SHARE_FETCH, 2)
    acquired = [
        each.partition_index for each in response.responses[0].partitions if each.acquired_records
    ]
    assert acquired == [COUNT - 1]


def test_fetch_of_many_partitions_acquires_in_steps(broker, wide_id, monkeypatch):
    acquired = []
    acquire = SharePartition.acquire
    monkeypatch.setattr(
        SharePartition, "acquire", lambda *args: acquired.append(args) or acquire(*args)
    )
    member = member_with_records(broker, wide_id)
    wire = member.begin_fetch(wait_ms=10_000)
    assert 0 < len(acquired) < COUNT
    response = member.respond(wire, SHARE_FETCH, 2)
    assert len(response.responses[0].partitions) == len(acquired) == COUNT


def test_locks_that_expire_together_are_released_in_steps(broker, wide_id, monkeypatch):
    expired = []
    expire = SharePartition.expire
    monkeypatch.setattr(
        SharePartition, "expire", lambda *args: expired.append(args) or expire(*args)
    )
    member = member_with_records(broker, wide_id)
    assert len(member.poll(wait_ms=10_000)) == COUNT
    broker.clock.advance(30_000)
    broker.reactor.tick(0)
    assert 0 < len(expired) < COUNT
    broker.until(lambda: len(expired) == COUNT)
    assert len(member.poll(wait_ms=10_000)) == COUNT


@pytest.fixture
def holder(broker, wide_id):
    """A member that has acquired a record of each of many partitions."""
    member = member_with_records(broker, wide_id)
    assert len(member.poll(wait_ms=10_000)) == COUNT
    return member


def test_records_of_a_session_that_ends_are_released_in_steps(broker, wide_id, holder, monkeypatch):
    other = Member(broker, wide_id, "b")
    assert other.poll(*range(COUNT)) == {index: [] for index in range(COUNT)}
    released = []
    release = SharePartition.release
    monkeypatch.setattr(
        SharePartition, "release", lambda *args: released.append(args) or release(*args)
    )
    monkeypatch.setattr(purgatory, "UNITS_PER_TICK", 1)
    holder.wire.disconnect()
    broker.reactor.tick(0)
    assert 0 < len(released) < COUNT
    broker.until(lambda: len(released) == COUNT)
    assert other.poll() == {index: [(0, 0, 2)] for index in range(COUNT)}


def test_sessions_that_end_together_are_released_in_steps(broker, wide_id, holder, monkeypatch):
    led, sessions = broker.node.share_partitions.led, broker.node.share_partitions.sessions
    wire = Wire(broker.local)
    for index in range(COUNT):
        session = sessions.begin(("g", f"member {index}"), wire, 2 * COUNT)
        session.acquired[led.find("g", wide_id, index)] = None
    released = []
    release = LedSharePartition.release_leaving
    monkeypatch.setattr(
        LedSharePartition, "release_leaving", lambda self: released.append(self) or release(self)
    )
    wire.disconnect()
    assert len(sessions) == 1
    broker.reactor.tick(0)
    assert len(released) < COUNT
    broker.until(lambda: len(released) == COUNT)


def test_share_partitions_are_dropped_once_all_records_are_released(broker, wide_id, holder):
    other = Member(broker, wide_id, "b")
    assert other.poll() == {}
    holder.wire.disconnect()
    other.wire.disconnect()  # the last session ends before all steps of the release
    broker.until(lambda: not len(broker.node.share_partitions.led))
    again = Member(broker, wide_id)
    again.poll(*range(COUNT))
    wait_for_load(broker, wide_id, *range(COUNT))
    assert again.poll() == {index: [(0, 0, 2)] for index in range(COUNT)}


def test_member_that_begins_another_session_loses_what_it_had_acquired(broker, wide_id, holder):
    holder.wire.disconnect()
    again = Member(broker, wide_id)
    # Its first fetch runs before all steps of the release.
    assert again.poll(*range(COUNT)) == {index: [(0, 0, 2)] for index in range(COUNT)}
    broker.until(lambda: not broker.node.replicas.purgatory.steps)
    acks = [(0, 0, ACCEPT)]
    wire = again.send(SHARE_ACKNOWLEDGE, [*range(COUNT)], acks, 2)
    response = again.respond(wire, SHARE_ACKNOWLEDGE, 2)
    assert {each.error_code for each in response.responses[0].partitions} == {0}


@pytest.fixture
def scattered(broker, wide_id):
    """A member that has acquired every second record of some partitions."""
    member = Member(broker, wide_id)
    member.poll(*range(SCATTERED))
    wait_for_load(broker, wide_id, *range(SCATTERED))
    for index in range(SCATTERED):
        produce(broker, "wide", *[b"a"] * 200, partition=index)
    assert len(member.poll(records=200 * SCATTERED)) == SCATTERED
    acks = [(at, at, ACCEPT) for at in range(0, 200, 2)]
    wire = member.send(SHARE_ACKNOWLEDGE, [*range(SCATTERED)], acks, 2)
    response = member.respond(wire, SHARE_ACKNOWLEDGE, 2)
    assert {each.error_code for each in response.responses[0].partitions} == {0}
    return member


def test_scattered_records_of_a_session_are_released_in_steps(
    broker, wide_id, scattered, monkeypatch
):
    other = Member(broker, wide_id, "b")
    other.poll(0)
    released = []
    release = SharePartition.release
    monkeypatch.setattr(
        SharePartition, "release", lambda *args: released.append(args) or release(*args)
    )
    scattered.wire.disconnect()
    broker.reactor.tick(0)
    assert 0 < len(released) < SCATTERED
    broker.until(lambda: len(released) == SCATTERED)


def test_scattered_locks_are_released_in_steps(broker, wide_id, scattered, monkeypatch):
    expired = []
    expire = SharePartition.expire
    monkeypatch.setattr(
        SharePartition, "expire", lambda *args: expired.append(args) or expire(*args)
    )
    broker.clock.advance(30_000)
    broker.reactor.tick(0)
    assert 0 < len(expired) < SCATTERED
    broker.until(lambda: len(expired) == SCATTERED)


def test_partitions_are_acknowledged_in_steps(broker, topic_id, member, monkeypatch):
    for index in range(2):
        produce(broker, "t", b"a", partition=index)
    assert len(member.poll()) == 2
    begun = []
    acknowledge = SharePartition.acknowledge
    with monkeypatch.context() as patched:
        patched.setattr(
            SharePartition, "acknowledge", lambda *args: begun.append(args) or acknowledge(*args)
        )
        patched.setattr(stepping, "STEP_MS", 0)
        wire = member.send(SHARE_ACKNOWLEDGE, [0, 1], [(0, 0, ACCEPT)], 2)
        assert len(begun) == 1
        for _ in range(4):
            broker.clock.advance(stepping.STEP_PAUSE_MS)
            broker.reactor.tick(0)
        response = member.respond(wire, SHARE_ACKNOWLEDGE, 2)
        codes = [each.error_code for each in response.responses[0].partitions]
        assert codes == [0, 0]
    assert member.poll() == {}
