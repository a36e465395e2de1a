"""Consumers as members of a group, against a real broker."""

from __future__ import annotations

import asyncio
import re
import time

import confluent_kafka
import pytest

from kafkalite.client.consumer.async_consumer import AsyncConsumer
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import IllegalGeneration, UnknownMemberId
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S, numbered, produce, take, until
from tests.client.group_consumers import PROTOCOLS, GroupBroker, MemberLog, poll_until


@pytest.fixture(params=PROTOCOLS)
def broker(request: pytest.FixtureRequest, group_node: Broker) -> GroupBroker:
    return GroupBroker(group_node.bootstrap, group_node.topic, request.param)


@pytest.mark.parametrize("strategy", ["range,cooperative-sticky", "cooperative-sticky"])
def test_second_member_gets_partitions_with_their_offsets(broker, native, strategy):
    topic = broker.topic(4)
    for partition in range(4):
        produce(broker.bootstrap, topic, numbered(50, 100 * partition), partition)
    options = {"native": native, "partition_assignment_strategy": strategy}
    first = MemberLog(broker, topic, f"g-{topic}", **options)
    values = [message.value for message in take(first.consumer, 120)]
    second = MemberLog(broker, topic, f"g-{topic}", **options)
    found = poll_until([first, second], [2, 2])
    assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
    second.consumer.close()
    assert second.kinds == ["assign", "revoke"]
    found += poll_until([first], [4])
    while len(values) + len(found) < 200:
        found += take(first.consumer, 1)
    values += [message.value for message in found]
    assert sorted(values) == sorted(b"%d" % (100 * p + n) for p in range(4) for n in range(50))
    first.consumer.close()
    assert first.kinds[-1] == "revoke"
    with Consumer(broker.bootstrap, group=f"g-{topic}") as reader:
        committed = reader.committed(*[(topic, partition) for partition in range(4)])
        assert set(committed.values()) == {50}


def test_only_records_returned_before_a_call_are_committed(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(10))
    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", auto_commit_interval_ms=0, **broker.fast
    ) as consumer:
        take(consumer, 3)
        until(lambda: consumer.buffer.waker.is_set, "the automatic commit")
        assert consumer.consume(2, 5) != []
        assert consumer.committed((topic, 0)) == {(topic, 0): 3}


def test_records_that_a_call_has_gathered_are_not_committed_before_it_returns(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(2))
    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", auto_commit_interval_ms=0, **broker.fast
    ) as consumer:
        messages = until(lambda: consumer.consume(3, 1))
        assert [message.value for message in messages] == numbered(2)
        assert consumer.committed((topic, 0))[TopicPartition(topic, 0)] in (None, 0)


def test_nothing_is_committed_automatically_when_it_is_off_or_after_an_exception(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(10))
    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", enable_auto_commit=False, **broker.fast
    ) as consumer:
        take(consumer, 3)
    with Consumer(broker.bootstrap, group=f"g-{topic}") as reader:
        assert reader.committed((topic, 0)) == {(topic, 0): None}
    with pytest.raises(ZeroDivisionError):
        with Consumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", **broker.fast
        ) as consumer:
            take(consumer, 3)
            raise ZeroDivisionError
    with Consumer(broker.bootstrap, group=f"g-{topic}") as reader:
        assert reader.committed((topic, 0)) == {(topic, 0): None}


def test_callback_may_seek_commit_and_pause_but_not_poll(broker):
    topic = broker.topic(2)
    produce(broker.bootstrap, topic, numbered(10), 0)
    refused: list[str] = []

    def assigned(partitions: list[TopicPartition]) -> None:
        consumer.seek((topic, 0), 7)
        consumer.pause((topic, 1))
        for call in (lambda: consumer.poll(0), lambda: next(iter(consumer))):
            with pytest.raises(RuntimeError, match="callback cannot call") as caught:
                call()
            refused.append(str(caught.value))

    def revoked(partitions: list[TopicPartition]) -> None:
        consumer.commit({(topic, 0): 9})

    consumer = Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, on_revoke=revoked,
        **broker.fast,
    )  # fmt: skip
    assert take(consumer, 1)[0].offset == 7
    assert consumer.paused == [(topic, 1)]
    assert len(refused) == 2
    consumer.close()
    with Consumer(broker.bootstrap, group=f"g-{topic}") as reader:
        assert reader.committed((topic, 0)) == {(topic, 0): 9}


def test_exception_of_a_callback_is_raised_once_and_the_member_goes_on(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))

    def assigned(partitions: list[TopicPartition]) -> None:
        raise ZeroDivisionError

    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
    ) as consumer:
        with pytest.raises(ZeroDivisionError):
            consumer.poll(TIMEOUT_S)
        assert [message.value for message in take(consumer, 3)] == numbered(3)


def test_coroutine_function_as_callback_is_refused(broker):
    topic = broker.topic()

    async def assigned(partitions: list[TopicPartition]) -> None:
        raise AssertionError("nothing awaits it")

    with Consumer(
        broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
    ) as consumer:
        with pytest.raises(TypeError, match="AsyncConsumer"):
            consumer.poll(TIMEOUT_S)


def test_pause_survives_a_rebalance_for_a_partition_that_is_kept(broker):
    topic = broker.topic(2)
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    first = MemberLog(broker, topic, f"g-{topic}", **options)
    poll_until([first], [2])
    first.consumer.pause()
    second = MemberLog(broker, topic, f"g-{topic}", **options)
    poll_until([first, second], [1, 1])
    assert first.consumer.paused == first.consumer.assignment
    second.consumer.close()
    poll_until([first], [2])
    assert len(first.consumer.paused) == 1, "a partition that was revoked is not paused any more"
    first.consumer.close()


def test_member_that_does_not_poll_in_time_loses_its_partitions_and_cannot_commit(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(6))
    options = {"max_poll_interval_ms": 600, "enable_auto_commit": False}
    late = MemberLog(broker, topic, f"g-{topic}", **options)
    take(late.consumer, 3)
    other = MemberLog(broker, topic, f"g-{topic}", enable_auto_commit=False)
    poll_until([other], [1])
    with pytest.raises((UnknownMemberId, IllegalGeneration), match="joins again"):
        late.consumer.commit()
    other.consumer.close()
    until(lambda: late.consumer.poll(0) is None and "lost" in late.kinds)
    assert late.kinds[:2] == ["assign", "lost"]
    assert [message.offset for message in take(late.consumer, 6)] == list(range(6))
    late.consumer.close()


def test_slow_loop_over_ready_messages_counts_as_polling(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(4))
    member = MemberLog(broker, topic, f"g-{topic}", max_poll_interval_ms=3_000)
    begun = time.monotonic()
    for message in member.consumer:
        # All are from one fetched range; the heartbeat thread has the loop show that it runs.
        until(lambda: member.consumer.buffer.waker.is_set)
        if message.value == b"3":
            break
    assert member.consumer.poll(0) is None
    duration_s = time.monotonic() - begun
    assert duration_s > 3
    # Four steps of 1 s; one of more than the interval, on a busy machine, loses the partition.
    assert member.kinds == ["assign"] or duration_s > 5
    member.consumer.close()


def test_topics_by_pattern_and_new_subscriptions(broker):
    topic = broker.topic()
    name = f"pattern-{topic}"
    group = f"g-{topic}"
    produce(broker.bootstrap, name, numbered(1))
    produce(broker.bootstrap, f"x{name}", numbered(1, 5))
    pattern = re.compile(name)
    with Consumer(broker.bootstrap, topics=pattern, group=group, **broker.fast) as consumer:
        assert take(consumer, 1)[0].topic == name
        assert [each.topic for each in consumer.assignment] == [name]
        consumer.subscribe(f"^x{name}$")
        assert take(consumer, 1)[0].topic == f"x{name}"
        consumer.unsubscribe()
        assert consumer.assignment == []
        with pytest.raises(RuntimeError, match="Nothing is subscribed"):
            consumer.poll(0)
        consumer.assign([(topic, 0)])
        consumer.subscribe([topic, name])
        until(lambda: consumer.poll(0) is None and len(consumer.assignment) == 2)
        with pytest.raises(RuntimeError, match="unsubscribe"):
            consumer.assign([(topic, 0)])


def test_table_as_the_first_call_has_the_topics_of_a_pattern(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    pattern = re.compile(topic)
    with Consumer(broker.bootstrap, topics=pattern, group=f"g-{topic}", **broker.fast) as consumer:
        assert consumer.to_table(timeout=TIMEOUT_S).num_rows == 3


def test_internal_topic_is_read_by_a_pattern_that_the_broker_matches(broker):
    """As by Java's client: the consumer protocol leaves no topic out, the classic one does."""
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(1))
    pattern = re.compile(f"__consumer_offsets|{topic}")
    with Consumer(broker.bootstrap, topics=pattern, group=f"g-{topic}", **broker.fast) as consumer:
        session = consumer.buffer.group and consumer.buffer.group.member
        assert session
        expected = {topic} if broker.protocol == "classic" else {topic, "__consumer_offsets"}
        found: list[str] = []

        def settled() -> bool:
            message = consumer.poll(0)
            if message is not None:
                found.append(message.topic)
            topics = {each.topic for each in consumer.assignment}
            return session.is_stable and topics == expected and topic in found

        until(settled, f"a stable member with {expected}")


def test_static_member_returns_without_a_rebalance(broker):
    topic = broker.topic(2)
    other = MemberLog(broker, topic, f"g-{topic}", group_instance_id="a")
    static = MemberLog(broker, topic, f"g-{topic}", group_instance_id="b")
    poll_until([other, static], [1, 1])
    before, calls = static.partitions, list(other.calls)
    static.consumer.close()
    static = MemberLog(broker, topic, f"g-{topic}", group_instance_id="b")
    poll_until([other, static], [1, 1])
    assert static.partitions == before
    assert other.calls == calls
    static.consumer.close()
    other.consumer.close()


def test_batches_and_tables_of_a_member(broker, native):
    topic = broker.topic(2)
    for partition in range(2):
        produce(broker.bootstrap, topic, numbered(20, 100 * partition), partition)
    group = f"g-{topic}"
    with Consumer(
        broker.bootstrap, topics=topic, group=group, native=native, **broker.fast
    ) as consumer:
        assert consumer.to_table().num_rows == 40
        rows = 0
        for batch in consumer.batches(timeout=TIMEOUT_S):
            rows += batch.num_rows
            if rows == 40:
                break
    with Consumer(broker.bootstrap, group=group) as reader:
        assert set(reader.committed((topic, 0), (topic, 1)).values()) == {20}


def test_group_metadata_names_the_member(broker):
    topic = broker.topic()
    member = MemberLog(broker, topic, f"g-{topic}")
    poll_until([member], [1])
    reading = member.consumer.buffer.group
    assert reading is not None and reading.member.protocol == broker.protocol
    found = member.consumer.group_metadata()
    assert found.generation_id > 0 and found.member_id
    member.consumer.close()


def test_members_of_librdkafka_in_the_same_group(broker):
    topic = broker.topic(4)
    ours = MemberLog(broker, topic, f"g-{topic}", partition_assignment_strategy="range")
    poll_until([ours], [4])
    theirs = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": f"g-{topic}",
        "partition.assignment.strategy": "range", "heartbeat.interval.ms": 100,
    })  # fmt: skip
    theirs.subscribe([topic])

    def settled() -> bool:
        ours.consumer.poll(0)
        theirs.poll(0)
        return len(theirs.assignment()) == 2 and len(ours.partitions) == 2

    until(settled)
    found = ours.partitions + [each.partition for each in theirs.assignment()]
    assert sorted(found) == [0, 1, 2, 3]
    theirs.close()
    poll_until([ours], [4])
    ours.consumer.close()


def test_cooperative_members_of_librdkafka_in_the_same_group(broker):
    topic = broker.topic(4)
    theirs = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": f"g-{topic}",
        "partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 100,
    })  # fmt: skip
    theirs.subscribe([topic])
    until(lambda: (theirs.poll(0), len(theirs.assignment()) == 4)[1])
    ours = MemberLog(
        broker, topic, f"g-{topic}", partition_assignment_strategy="cooperative-sticky"
    )

    def settled() -> bool:
        ours.consumer.poll(0)
        theirs.poll(0)
        return len(theirs.assignment()) == 2 and len(ours.partitions) == 2

    until(settled)
    found = ours.partitions + [each.partition for each in theirs.assignment()]
    assert sorted(found) == [0, 1, 2, 3]
    theirs.close()
    poll_until([ours], [4])
    assert "lost" not in ours.kinds
    ours.consumer.close()


def test_async_members_share_partitions_and_await_their_callbacks(broker):
    topic = broker.topic(2)
    for partition in range(2):
        produce(broker.bootstrap, topic, numbered(20, 100 * partition), partition)
    calls: list[tuple[str, list[TopicPartition]]] = []

    async def assigned(partitions: list[TopicPartition]) -> None:
        await asyncio.sleep(0)
        for partition in partitions:
            await first.seek(partition, 5)
        calls.append(("assign", partitions))

    async def revoked(partitions: list[TopicPartition]) -> None:
        await first.commit()
        calls.append(("revoke", partitions))

    async def run() -> None:
        nonlocal first
        first = AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned,
            on_revoke=revoked, **broker.fast,
        )  # fmt: skip
        seen = [await first.poll(TIMEOUT_S) for _ in range(30)]
        assert {message.offset for message in seen if message} == set(range(5, 20))
        assert (await first.to_table()).num_rows == 40
        async with AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", **broker.fast
        ) as second:
            while len(second.assignment) != 1 or len(first.assignment) != 1:
                await asyncio.gather(first.poll(0.05), second.poll(0.05))
        await first.close()
        assert [kind for kind, _ in calls][:2] == ["assign", "revoke"]
        assert calls[-1][0] == "revoke"

    first: AsyncConsumer
    asyncio.run(run())


def test_async_batches_of_members_are_read_once_and_committed(broker, native):
    topic = broker.topic(2)
    for partition in range(2):
        produce(broker.bootstrap, topic, numbered(20, 100 * partition), partition)
    options = {"topics": topic, "group": f"g-{topic}", "native": native, **broker.fast}

    async def rows(consumer: AsyncConsumer, count: int) -> set[tuple[int, int]]:
        found: set[tuple[int, int]] = set()
        async for batch in consumer.batches(timeout=TIMEOUT_S):
            columns = batch.to_pydict()
            new = {*zip(columns["partition"], columns["offset"], strict=True)}
            assert not new & found
            found |= new
            if len(found) >= count:
                break
        return found

    async def run() -> None:
        async with AsyncConsumer(broker.bootstrap, **options) as first:
            everything = {(partition, offset) for partition in range(2) for offset in range(20)}
            assert await rows(first, 40) == everything
            async with AsyncConsumer(broker.bootstrap, **options) as second:
                while len(second.assignment) != 1 or len(first.assignment) != 1:
                    await asyncio.gather(first.poll(0.05), second.poll(0.05))
                for partition in range(2):
                    produce(broker.bootstrap, topic, numbered(10), partition)
                (mine,), (others,) = first.assignment, second.assignment
                for member, at in ((first, mine), (second, others)):
                    expected = {(at.partition, offset) for offset in range(20, 30)}
                    assert await rows(member, 10) == expected

    asyncio.run(run())
    with Consumer(broker.bootstrap, group=options["group"]) as reader:
        assert set(reader.committed((topic, 0), (topic, 1)).values()) == {30}


def test_async_call_that_is_cancelled_in_a_callback_ends_it(broker):
    topic = broker.topic()
    produce(broker.bootstrap, topic, numbered(3))
    begun = asyncio.Event()

    async def assigned(partitions: list[TopicPartition]) -> None:
        begun.set()
        await asyncio.sleep(TIMEOUT_S)

    async def run() -> None:
        async with AsyncConsumer(
            broker.bootstrap, topics=topic, group=f"g-{topic}", on_assign=assigned, **broker.fast
        ) as consumer:
            polling = asyncio.create_task(consumer.poll(TIMEOUT_S))
            await begun.wait()
            polling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await polling
            message = await consumer.poll(TIMEOUT_S)
            assert message is not None and message.value == b"0"

    asyncio.run(run())
