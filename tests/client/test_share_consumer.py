"""Share consumers against a real broker."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from kafkalite.client.admin.admin import Admin
from kafkalite.client.net.cluster import ClientClosed
from kafkalite.client.net.topology import TopicPartition
from kafkalite.client.share import adaptive_record_count
from kafkalite.client.share.async_share_consumer import AsyncShareConsumer
from kafkalite.client.share.share_consumer import ShareConsumer
from kafkalite.client.share.share_messages import ShareMessage
from kafkalite.errors import InvalidConfig, InvalidRecordState
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S, in_thread, numbered, until
from tests.client.sharing import SHORT_TIMES, SharingCluster, collect, values

NOWHERE = "127.0.0.1:1"
EXPLICIT = "explicit"
LOCK_S = 1.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SharingCluster]:
    with Broker(config=SHORT_TIMES) as broker:
        yield SharingCluster(broker.bootstrap, broker.topic)


def await_no_lag(cluster: SharingCluster, group: str, topic: str) -> None:
    """Wait until all records of partition 0 are processed.

    The start offset does not show that: Kafka stores it with the next acknowledgement.
    """
    with Admin(cluster.bootstrap) as admin:

        def reached() -> bool:
            offset = admin.share_offsets(group).get(TopicPartition(topic, 0))
            return offset is not None and offset.lag == 0

        until(reached, "the lag of 0")


# Acknowledgements.


def test_next_step_accepts_a_message(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(10))
    with cluster.consumer(topic, group) as consumer:
        for found in consumer:
            assert found.delivery_count == 1
            assert (found.topic, found.partition) == (topic, 0)
            if found.offset == 9:
                break
    await_no_lag(cluster, group, topic)


def test_exception_releases_the_message_of_its_step(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(5))
    with pytest.raises(ZeroDivisionError), cluster.consumer(topic, group) as consumer:
        for message in consumer:
            assert message.offset != 2 or 1 / 0
    with cluster.consumer(topic, group) as consumer:
        found = collect(consumer, 3)
    assert [message.offset for message in found] == [2, 3, 4]
    assert found[0].delivery_count == 2


def test_released_message_comes_again_and_rejected_one_does_not(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(4))
    with cluster.consumer(topic, group) as consumer:
        found = collect(consumer, 4)
        found[0].accept()
        found[1].release()
        found[2].reject()
        (again,) = collect(consumer, 1)
        assert (again.offset, again.delivery_count) == (1, 2)
        assert found[3].is_acknowledged, "accepted by the second call"
    await_no_lag(cluster, group, topic)


def test_message_is_acknowledged_once(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(1))
    with cluster.consumer(topic, group) as consumer:
        (message,) = collect(consumer, 1)
        message.accept()
        with pytest.raises(RuntimeError, match="acknowledged already"):
            message.release()


def test_commit_returns_the_outcome_by_partition(cluster):
    topic, group = cluster.topic(partitions=2), cluster.group()
    outcomes = []
    cluster.produce(topic, numbered(3), partition=0)
    cluster.produce(topic, numbered(3), partition=1)
    with cluster.consumer(topic, group, on_acknowledge=lambda *each: outcomes.append(each)) as it:
        collect(it, 6)
        assert it.commit(TIMEOUT_S) == {(topic, 0): None, (topic, 1): None}
        assert it.commit(TIMEOUT_S) == {}
    offsets = {partition: ranges for partition, ranges, error in outcomes if error is None}
    assert offsets[topic, 1][-1].stop == 3
    assert sum(len(each) for _, ranges, _ in outcomes for each in ranges) == 6


def test_explicit_mode_accepts_nothing_by_itself(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(3))
    with cluster.consumer(topic, group, share_acknowledgement_mode=EXPLICIT) as consumer:
        first, *_ = collect(consumer, 3)
        first.accept()
        assert consumer.poll(0.2) is None
        assert consumer.commit(TIMEOUT_S) == {(topic, 0): None}
    with cluster.consumer(topic, group) as consumer:
        assert [(m.offset, m.delivery_count) for m in collect(consumer, 2)] == [(1, 2), (2, 2)]


def test_other_threads_acknowledge_messages(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(20))
    with cluster.consumer(topic, group, share_acknowledgement_mode=EXPLICIT) as consumer:
        messages = collect(consumer, 20)
        threads = [threading.Thread(target=message.accept) for message in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert consumer.commit(TIMEOUT_S) == {(topic, 0): None}
    await_no_lag(cluster, group, topic)


def test_lock_that_has_ended_fails_the_acknowledgement(cluster):
    topic = cluster.topic()
    group = cluster.group(share_record_lock_duration_ms=1000)
    cluster.produce(topic, numbered(2))
    outcomes = []
    with cluster.consumer(
        topic, group, share_acknowledgement_mode=EXPLICIT,
        on_acknowledge=lambda *each: outcomes.append(each),
    ) as consumer:  # fmt: skip
        first = collect(consumer, 2)
        again = collect(consumer, 2)
        assert [message.delivery_count for message in again] == [2, 2]
        first[0].accept()
        found = consumer.commit(TIMEOUT_S)[topic, 0]
        assert isinstance(found, InvalidRecordState)
        assert [(ranges, type(error)) for _, ranges, error in outcomes] == [
            ([range(1)], InvalidRecordState)
        ]


def test_renewed_message_is_not_delivered_again(cluster):
    topic = cluster.topic()
    group = cluster.group(share_record_lock_duration_ms=1000)
    cluster.produce(topic, numbered(1))
    with cluster.consumer(topic, group, share_acknowledgement_mode=EXPLICIT) as consumer:
        (kept,) = collect(consumer, 1)
        with Admin(cluster.bootstrap) as admin:
            admin.alter_config("group", group, {"share.record.lock.duration.ms": 60_000})
        locked_s = time.monotonic()
        while not is_renewed(consumer, kept):
            (kept,) = collect(consumer, 1)  # its lock had ended, so it comes again
        while time.monotonic() < locked_s + 2 * LOCK_S:  # the lock of 1 s would have ended
            assert consumer.poll(LOCK_S / 2) is None
        kept.accept()
        assert consumer.commit(TIMEOUT_S) == {(topic, 0): None}
        with pytest.raises(ValueError, match="acknowledged"):
            consumer.renew(kept)


def is_renewed(consumer: ShareConsumer, message: ShareMessage) -> bool:
    """Renew the lock of a message; return False if it had ended."""
    try:
        consumer.renew(message, timeout=TIMEOUT_S)
    except InvalidRecordState:
        return False
    return True


def test_offsets_without_a_record_are_acknowledged(cluster):
    topic, group = cluster.topic(), cluster.group()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"id of {topic}"}
    )
    producer.init_transactions(TIMEOUT_S)
    for number in range(3):  # each ends with a marker, at offsets 1, 3 and 5
        producer.begin_transaction()
        producer.produce(topic, str(number), partition=0)
        producer.commit_transaction(TIMEOUT_S)
    with cluster.consumer(topic, group) as consumer:
        assert [message.offset for message in collect(consumer, 3)] == [0, 2, 4]
        consumer.commit(TIMEOUT_S)
        assert consumer.poll(0.2) is None
    await_no_lag(cluster, group, topic)


# Records.


def test_members_share_the_records_of_one_partition(cluster):
    topic = cluster.topic()
    group = cluster.group()
    options = {"max_poll_records": 5, "share_acquire_mode": "record_limit"}
    with (
        cluster.consumer(topic, group, **options) as first,
        cluster.consumer(topic, group, **options) as second,
    ):
        until(lambda: first.poll(0.05) or first.assignment, "the first assignment")
        until(lambda: second.poll(0.05) or second.assignment, "the second assignment")
        cluster.produce(topic, numbered(100))
        found = values(collect(first, 5)) + values(collect(second, 5))
        while len(found) < 100:
            for member in (first, second):
                found += values(member.consume(5, 0.05))
    assert sorted(found) == sorted(numbered(100))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_consume_returns_each_record_once(cluster, codec):
    topic, group = cluster.topic(partitions=3), cluster.group()
    for partition in range(3):
        rows = numbered(700, 1000 * partition)
        cluster.produce(topic, rows, partition=partition, compression_type=codec)
    with cluster.consumer(topic, group) as consumer:
        found = collect(consumer, 2100)
        assert consumer.poll(0.2) is None
    assert len(set(values(found))) == 2100


def test_batches_are_acknowledged_as_a_whole(cluster):
    pytest.importorskip("pyarrow")
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(50))
    with cluster.consumer(topic, group) as consumer:
        (batch,) = [next(consumer.batches(["value"], TIMEOUT_S))]
        assert (batch.topic, batch.partition, len(batch)) == (topic, 0, 50)
        assert batch.records.schema.names == ["value"]
        assert batch.records["value"].to_pylist() == numbered(50)
        batch.release()
        batch = next(consumer.batches(timeout=TIMEOUT_S))
        assert batch.delivery_count == 2
        assert batch.records["offset"].to_pylist() == list(range(50))
        assert consumer.commit(TIMEOUT_S) == {(topic, 0): None}
    await_no_lag(cluster, group, topic)


def test_rows_and_batches_return_each_record_once(cluster):
    pytest.importorskip("pyarrow")
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(30))
    with cluster.consumer(topic, group) as consumer:
        rows = collect(consumer, 10)
        batch = next(consumer.batches(["offset"], TIMEOUT_S))
        assert [message.offset for message in rows] == list(range(10))
        assert batch.records["offset"].to_pylist() == list(range(10, 30))
        assert consumer.poll(0.2) is None


@pytest.mark.parametrize(
    ("quick_s", "options", "grows"),
    [
        (math.inf, {}, True),
        (-1.0, {}, False),
        (math.inf, {"max_poll_records": 500}, False),
        (math.inf, {"share_acquire_mode": "record_limit"}, False),
    ],
    ids=["quick", "slow", "given", "exact"],
)
def test_batches_acquire_more_while_the_program_is_quick(
    cluster, monkeypatch, quick_s, options, grows
):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(adaptive_record_count, "QUICK_S", quick_s)
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(5_000), batch_num_messages=100)
    with cluster.consumer(topic, group, **options) as consumer:
        sizes = []
        for batch in consumer.batches(["offset"], TIMEOUT_S):
            sizes.append(len(batch))
            if sum(sizes) >= 5_000:
                break
        assert consumer.commit(TIMEOUT_S) == {(topic, 0): None}
    assert sum(sizes) == 5_000
    # 500 records and the rest of a batch, which has at most 100.
    assert (max(sizes) >= 600) is grows


# Calls.


def test_close_from_another_thread_ends_the_iteration(cluster):
    topic, group = cluster.topic(), cluster.group()
    consumer = cluster.consumer(topic, group)
    thread, outcome = in_thread(lambda: list(consumer))
    until(lambda: consumer.assignment, "the assignment")
    consumer.close()
    thread.join(TIMEOUT_S)
    assert outcome == [[]]
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    consumer.close()


def test_subscription_can_be_replaced_and_ended(cluster):
    topics, group = [cluster.topic(), cluster.topic()], cluster.group()
    for topic in topics:
        cluster.produce(topic, numbered(1))
    with cluster.consumer(topics[0], group) as consumer:
        assert collect(consumer, 1)[0].topic == topics[0]
        consumer.subscribe(topics[1])
        assert collect(consumer, 1)[0].topic == topics[1]
        assert consumer.subscription == [topics[1]]
        consumer.unsubscribe()
        assert consumer.assignment == []
        with pytest.raises(RuntimeError, match="Nothing is subscribed"):
            consumer.poll(0)


def test_iteration_ends_after_the_consumer_timeout(cluster):
    with cluster.consumer(cluster.topic(), cluster.group(), consumer_timeout_ms=100) as consumer:
        assert list(consumer) == []


def test_async_consumer_reads_and_acknowledges(cluster):
    topic, group = cluster.topic(), cluster.group()
    cluster.produce(topic, numbered(20))

    async def read() -> list[bytes]:
        found = []
        async with AsyncShareConsumer(cluster.bootstrap, topics=topic, group=group) as consumer:
            async for message in consumer:
                found.append(message.value)
                if len(found) == 10:
                    break
            while len(found) < 20:
                found += values(await consumer.consume(3, TIMEOUT_S))
            assert set((await consumer.commit(TIMEOUT_S)).values()) == {None}
        return found

    assert asyncio.run(read()) == numbered(20)
    await_no_lag(cluster, group, topic)


def test_cancelled_call_of_an_async_consumer_loses_nothing(cluster):
    topic, group = cluster.topic(), cluster.group()

    async def read() -> list[bytes]:
        async with AsyncShareConsumer(cluster.bootstrap, topics=topic, group=group) as consumer:
            task = asyncio.create_task(consumer.poll())
            while not consumer.assignment:
                await asyncio.sleep(0.01)
            assert await consumer.commit(TIMEOUT_S) == {}, "it does not wait for the poll"
            await asyncio.to_thread(cluster.produce, topic, numbered(5))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            found = [] if task.cancelled() else [task.result().value]
            while len(found) < 5:
                message = await consumer.poll(TIMEOUT_S)
                assert message is not None
                found.append(message.value)
            return found

    assert asyncio.run(read()) == numbered(5)


# Without a broker.


def test_consumer_needs_a_group_and_names_of_topics():
    with pytest.raises(InvalidConfig, match=r"group\.id"):
        ShareConsumer(NOWHERE, topics="t")
    with pytest.raises(InvalidConfig, match="no patterns"):
        ShareConsumer(NOWHERE, topics="^t", group="g")
    with pytest.raises(InvalidConfig, match="configuration of the group"):
        ShareConsumer(NOWHERE, topics="t", group="g", auto_offset_reset="earliest")
    with ShareConsumer(NOWHERE, group="g") as consumer:
        with pytest.raises(RuntimeError, match="Nothing is subscribed"):
            consumer.poll(0)
        with pytest.raises(ValueError, match="at least 1"):
            consumer.consume(0)
