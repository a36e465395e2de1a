"""Members that are closed, interrupted, cancelled or forked; failing callbacks; hostile brokers."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import select
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from kafkalite.client.consumer import group_reading
from kafkalite.client.consumer.async_consumer import AsyncConsumer
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.consumer.tables import next_columns
from kafkalite.client.group import classic_protocol_member, shared_membership
from kafkalite.client.group.assignment_bytes import (
    read_assignment,
    read_subscription,
    write_subscription,
)
from kafkalite.client.group.client_assignors import ASSIGNORS, Assignments, assign_range
from kafkalite.client.group.heartbeat_thread import HeartbeatThread
from kafkalite.client.group.membership import MembershipState
from kafkalite.client.net.deadline import Deadline
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.share.share_consumer import ShareConsumer
from kafkalite.errors import GroupAuthorizationFailed, InvalidRequest
from kafkalite.protocol.schemas.cluster import METADATA
from kafkalite.protocol.schemas.groups import JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S, in_thread, numbered, produce, take, until
from tests.client.group_consumers import (
    PROTOCOLS,
    GroupBroker,
    HostileGroup,
    MemberLog,
    poll_until,
)
from tests.client.scripted_broker import CloseConnection, ReceivedRequest, metadata


@pytest.fixture(params=PROTOCOLS)
def broker(request: pytest.FixtureRequest, group_node: Broker) -> GroupBroker:
    return GroupBroker(group_node.bootstrap, group_node.topic, request.param)


# The end.


def test_close_from_another_thread_leaves_the_group_to_its_session(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    member = MemberLog(broker, topic, f"g-{topic}")
    take(member.consumer, 1)
    closing = threading.Thread(target=member.consumer.close)
    closing.start()
    closing.join(TIMEOUT_S)
    assert member.kinds == ["assign"]
    with Consumer(broker.bootstrap, group=f"g-{topic}") as reader:
        assert reader.committed((topic, 0)) == {(topic, 0): None}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_consumer_that_is_collected_ends_its_thread(broker):
    topic = broker.topic()
    member = MemberLog(broker, topic, f"g-{topic}")
    poll_until([member], [1])
    name = f"kafkalite-group-g-{topic}"
    assert name in [thread.name for thread in threading.enumerate()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del member
        gc.collect()
        until(lambda: name not in [thread.name for thread in threading.enumerate()])
        gc.collect()


def test_forked_child_may_only_close_and_the_member_goes_on(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    member = MemberLog(broker, topic, f"g-{topic}")
    take(member.consumer, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            member.consumer.poll(0)
        except RuntimeError:
            member.consumer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert [message.value for message in take(member.consumer, 2)] == [b"1", b"2"]
    assert member.kinds == ["assign"]
    member.consumer.commit()
    member.consumer.close()


@pytest.mark.parametrize("ends", [Consumer.close, Consumer.unsubscribe])
def test_member_leaves_also_if_its_callback_raises(broker, ends):
    topic = broker.topic()

    def revoked(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", on_revoke=revoked, **broker.fast
    ) as consumer:
        until(lambda: consumer.poll(0) or consumer.assignment)
        session: Any = consumer.buffer.group and consumer.buffer.group.member
        with pytest.raises(ZeroDivisionError):
            ends(consumer)
        with session._shared.locked() as membership:
            assert membership.state is MembershipState.UNSUBSCRIBED
        if ends is Consumer.unsubscribe:
            with pytest.raises(RuntimeError, match="Nothing is subscribed"):
                consumer.poll(0)


def test_async_member_leaves_also_if_its_callback_raises(broker):
    topic = broker.topic()

    async def revoked(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    async def run() -> None:
        async with AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_revoke=revoked, **broker.fast
        ) as consumer:
            while not consumer.assignment:
                await consumer.poll(0.05)
            with pytest.raises(ZeroDivisionError):
                await consumer.unsubscribe()
            with pytest.raises(RuntimeError, match="Nothing is subscribed"):
                await consumer.poll(0)

    asyncio.run(run())


def test_unsubscribe_in_another_thread_than_the_last_poll_commits_and_leaves(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    member = MemberLog(broker, topic, f"g-{topic}")
    polling, found = in_thread(lambda: take(member.consumer, 2))
    polling.join(TIMEOUT_S)
    assert len(found[0]) == 2
    member.consumer.unsubscribe()
    assert member.kinds == ["assign", "revoke"]
    assert member.consumer.committed((topic, 0)) == {(topic, 0): 2}
    member.consumer.close()


def test_unsubscribe_in_a_callback_is_refused_and_changes_nothing(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(1))
    refused = []

    def assigned(partitions: list[TopicPartition]) -> None:
        with pytest.raises(RuntimeError, match="callback cannot") as caught:
            consumer.unsubscribe()
        refused.append(caught)

    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
    ) as consumer:
        assert take(consumer, 1)[0].value == b"0"
        assert refused and consumer.assignment


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_close_without_a_time_limit_leaves_the_group(broker, timeout):
    topic = broker.topic()
    member = MemberLog(broker, topic, f"g-{topic}")
    poll_until([member], [1])
    member.consumer.close(timeout)
    assert member.kinds == ["assign", "revoke"]


def test_subscription_of_a_member_needs_a_topic(broker):
    topic = broker.topic()
    member = MemberLog(broker, topic, f"g-{topic}")
    with pytest.raises(ValueError, match="unsubscribe"):
        member.consumer.subscribe([])
    member.consumer.close()


def test_close_in_a_forked_child_does_not_wake_the_parent():
    with Consumer("127.0.0.1:1", topics="t") as consumer:
        pid = os.fork()
        if pid == 0:
            try:
                consumer.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        poll = select.poll()
        poll.register(consumer.buffer.waker, select.POLLIN)
        assert not poll.poll(0), "the parent's calls would no longer wait"


# Interrupts, and threads that wait for each other.


def test_interrupt_of_a_commit_leaves_the_change_to_the_next_call(broker, monkeypatch):
    topic, other = broker.topic(), broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    produce(broker.bootstrap, other, numbered(1, 7))
    member = MemberLog(broker, topic, f"g-{topic}", auto_commit_interval_ms=600_000)
    take(member.consumer, 3)
    commit, interrupts = group_reading.commit_as_member, [KeyboardInterrupt]

    def interrupted(*arguments: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        commit(*arguments)

    monkeypatch.setattr(group_reading, "commit_as_member", interrupted)
    member.consumer.subscribe(other)
    with pytest.raises(KeyboardInterrupt):
        take(member.consumer, 1)
    assert take(member.consumer, 1)[0].value == b"7"
    assert member.kinds == ["assign", "revoke", "assign"]
    assert member.consumer.committed((topic, 0)) == {(topic, 0): 3}
    member.consumer.close()


def test_table_as_the_first_call_waits_only_for_the_assignment(broker, monkeypatch):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(5))
    step = HeartbeatThread._step

    def late_step(thread: HeartbeatThread) -> None:
        time.sleep(0.05)  # the application waits before the member is stable
        step(thread)

    monkeypatch.setattr(HeartbeatThread, "_step", late_step)
    options = {**broker.fast, "enable_auto_commit": False}
    with Consumer(broker.bootstrap, topics=topic, group=f"g-{topic}", **options) as consumer:
        assert consumer.to_table(timeout=20).num_rows == 5


def test_poll_wakes_the_heartbeat_thread_only_for_what_is_due_sooner(broker):
    topic = broker.topic()
    member = MemberLog(broker, topic, f"g-{topic}", auto_commit_interval_ms=600_000)
    poll_until([member], [1])
    session: Any = member.consumer.buffer.group and member.consumer.buffer.group.member
    woken = []
    wake = session._shared.wake_heartbeat
    session._shared.wake_heartbeat = lambda: (woken.append(1), wake())
    until(lambda: session.is_stable)
    for _ in range(100):
        member.consumer.poll(0)
    assert len(woken) < 10
    member.consumer.close()


def test_concurrent_tasks_run_a_callback_once_and_wait_for_its_end(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(10))
    calls = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        with pytest.raises(RuntimeError, match="callback cannot"):
            await consumer.poll(0)
        await asyncio.sleep(0.2)
        calls.append([])

    async def run() -> None:
        nonlocal consumer
        async with AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
        ) as consumer:
            found = await asyncio.gather(*[consumer.poll(TIMEOUT_S) for _ in range(4)])
            assert sorted(each.offset for each in found if each) == [0, 1, 2, 3]
            assert calls == [[TopicPartition(topic, 0)], []]

    consumer: AsyncConsumer
    asyncio.run(run())


def test_close_waits_for_the_callback_of_another_task(broker):
    topic = broker.topic()
    events: list[str] = []

    async def run() -> None:
        begun = asyncio.Event()

        async def assigned(partitions: list[TopicPartition]) -> None:
            begun.set()
            await asyncio.sleep(0.2)
            events.append("assigned")

        async def revoked(partitions: list[TopicPartition]) -> None:
            events.append("revoked")

        consumer = AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned,
            on_revoke=revoked, **broker.fast,
        )  # fmt: skip
        polling = asyncio.create_task(consumer.poll(TIMEOUT_S))
        await begun.wait()
        await consumer.close()
        await asyncio.wait([polling])
        polling.exception()

    asyncio.run(run())
    assert events == ["assigned", "revoked"]


def test_second_cancellation_does_not_leave_a_callback_open(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(1))
    begun, gate = asyncio.Event(), threading.Event()

    async def assigned(partitions: list[TopicPartition]) -> None:
        begun.set()
        await asyncio.sleep(TIMEOUT_S)

    async def run() -> None:
        async with AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
        ) as consumer:
            polling = asyncio.create_task(consumer.poll(TIMEOUT_S))
            await begun.wait()
            consumer._thread.submit(gate.wait, TIMEOUT_S)  # the end of the callback has to wait
            for _ in range(2):
                polling.cancel()
                for _ in range(5):
                    await asyncio.sleep(0)
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await polling
            message = await consumer.poll(TIMEOUT_S)
            assert message is not None and message.value == b"0"

    asyncio.run(run())


def test_exception_that_ends_the_heartbeat_thread_is_raised_by_the_next_call(monkeypatch):
    def failing(*_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(HeartbeatThread, "_step", failing)
    monkeypatch.setattr(HeartbeatThread, "_disconnect", failing)
    with Consumer("127.0.0.1:1", topics="t", group="g") as consumer:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="heartbeat thread") as caught:
                consumer.poll(TIMEOUT_S)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        monkeypatch.undo()
        consumer.unsubscribe()
        consumer.subscribe("t")
        assert consumer.poll(0) is None
    with monkeypatch.context() as patched:
        patched.setattr(HeartbeatThread, "_step", failing)
        patched.setattr(HeartbeatThread, "_disconnect", failing)
        sharing = ShareConsumer("127.0.0.1:1", topics="t", group="g")
        with sharing, pytest.raises(RuntimeError, match="heartbeat thread"):
            sharing.poll(TIMEOUT_S)


def test_table_that_is_read_for_long_counts_as_polling(monkeypatch):
    """Each step of the table takes 20 s; max.poll.interval.ms is 30 s."""
    now_s = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr(shared_membership, "time", clock)
    states = []

    class SlowReader:
        """Finds nothing, in each call for 20 s, and is interrupted at last."""

        def next_range(self, deadline: Deadline) -> None:
            nonlocal now_s
            now_s += 20.0
            with session._shared.locked() as membership:
                membership.next_request(now_s)
                states.append(membership.state)
            if len(states) == 5:
                raise KeyboardInterrupt

    with Consumer(
        "127.0.0.1:1", topics="t", group="g", max_poll_interval_ms=30_000
    ) as consumer:
        session: Any = consumer.buffer.group and consumer.buffer.group.member
        reader: Any = SlowReader()
        columns = consumer.column_reader(None, "ms")
        with pytest.raises(KeyboardInterrupt):
            next_columns(consumer.buffer, reader, columns, Deadline(TIMEOUT_S))
    assert states == [MembershipState.JOINING] * 5


def test_poll_does_not_wait_while_the_leader_assigns(monkeypatch):
    begun, polled = threading.Event(), threading.Event()
    were_in_time = []

    def assign(*arguments: Any) -> Assignments:
        begun.set()
        were_in_time.append(polled.wait(TIMEOUT_S / 3))
        return assign_range(*arguments)

    monkeypatch.setattr(classic_protocol_member, "ASSIGNORS", {**ASSIGNORS, "range": assign})
    subscription = write_subscription("range", ["t"], (), 0)
    there = HostileGroup(join={
        "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range",
        "leader": "m", "member_id": "m", "members": [{"member_id": "m", "metadata": subscription}],
    })  # fmt: skip
    with (
        there.broker,
        Consumer(there.broker.address, topics="t", group="g", group_protocol="classic") as consumer,
    ):
        until(lambda: consumer.poll(0) is None and begun.is_set())
        assert consumer.poll(0) is None
        polled.set()
        until(lambda: there.broker.count(SYNC_GROUP))
        assert were_in_time == [True]


# Hostile brokers.


@pytest.mark.parametrize(
    ("responses", "error"),
    [
        ({"join": {"generation_id": -5, "member_id": "m"}}, InvalidRequest),
        ({"join": {"generation_id": 1, "member_id": ""}}, InvalidRequest),
        (
            {"join": {"generation_id": 1, "member_id": "m", "leader": "m", "protocol_name": "x"}},
            InvalidRequest,
        ),
        (
            {"join": {
                "generation_id": 1, "member_id": "m", "leader": "m", "protocol_name": "range",
                "members": [{"member_id": "m", "metadata": b"\1"}],
            }},
            InvalidRequest,
        ),
        ({"sync": {"assignment": b"\0\0\0\0\0\7"}}, InvalidRequest),
        ({"join": {"error_code": 30}}, GroupAuthorizationFailed),
        (
            {"find": {"coordinators": [{
                "key": "g", "error_code": 30, "node_id": -1, "host": "", "port": -1,
            }]}},
            GroupAuthorizationFailed,
        ),
        ({"join": b"\0\0\0\4junk"}, InvalidRequest),
    ],
)  # fmt: skip
def test_invalid_response_is_an_error_of_the_next_call_and_close_returns(responses, error):
    there = HostileGroup(**responses)
    with (
        there.broker,
        Consumer(there.broker.address, topics="t", group="g", group_protocol="classic") as consumer,
    ):
        for _ in range(2):  # the error lasts
            with pytest.raises(error):
                consumer.poll(TIMEOUT_S)


def test_patterns_are_matched_again_after_a_failed_metadata_request():
    refused = []

    def respond(request: ReceivedRequest) -> dict[str, Any]:
        if request.body.topics is None and not refused:
            refused.append(request)
            raise CloseConnection
        return metadata({0: there.broker.port}, {"t": {0: (0, 0)}})

    def subscribed() -> set[str]:
        consumer.poll(0)
        return {
            topic
            for request in there.broker.requests
            if request.api is JOIN_GROUP
            for each in request.body.protocols
            for topic in read_subscription(each.name, "m", None, each.metadata).topics
        }

    there = HostileGroup()
    there.broker.responders[METADATA] = respond
    with (
        there.broker,
        Consumer(
            there.broker.address, topics="^t", group="g", group_protocol="classic"
        ) as consumer,
    ):
        assert until(subscribed) == {"t"}
        assert refused


def test_leader_assigns_a_topic_that_appears_after_its_assignment():
    def respond(request: ReceivedRequest) -> dict[str, Any]:
        exists = there.broker.count(SYNC_GROUP) > 0
        return metadata({0: there.broker.port}, {"t": {0: (0, 0)}} if exists else {})

    def assigned() -> set[TopicPartition]:
        consumer.poll(0)
        return {
            partition
            for request in there.broker.requests
            if request.api is SYNC_GROUP
            for each in request.body.assignments
            for partition in read_assignment(each.assignment)
        }

    subscription = write_subscription("range", ["t"], (), 0)
    there = HostileGroup(join={
        "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range",
        "leader": "m", "member_id": "m", "members": [{"member_id": "m", "metadata": subscription}],
    })  # fmt: skip
    there.broker.responders[METADATA] = respond
    with (
        there.broker,
        Consumer(there.broker.address, topics="t", group="g", group_protocol="classic") as consumer,
    ):
        assert until(assigned) == {TopicPartition("t", 0)}
        consumer.close()
        assert there.broker.count(LEAVE_GROUP) == 1
