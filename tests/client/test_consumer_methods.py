"""Methods of a Consumer known from other clients: consume, subscribe, getmany."""

from __future__ import annotations

import asyncio
import pickle
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import numpy
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kafkalite import AsyncConsumer, Consumer, Producer
from kafkalite._ext.hashing import partition_of
from kafkalite._ext.message_reader import Message
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import consumer_settings
from kafkalite.errors import InvalidConfig, UnknownTopicOrPartition
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S, delete, numbered, produce


@pytest.fixture(scope="module")
def broker():
    with Broker() as made:
        yield made


@pytest.fixture(scope="module")
def topics(broker):
    """Two topics, of 10 and of 5 records."""
    names = broker.topic(), broker.topic()
    for name, count in zip(names, (10, 5), strict=True):
        produce(broker.bootstrap, name, numbered(count))
    return names


def test_consume_returns_the_requested_number_of_messages(broker, topics):
    with Consumer(broker.bootstrap, topics=topics[0]) as consumer:
        assert [m.offset for m in consumer.consume(4, TIMEOUT_S)] == [0, 1, 2, 3]
        assert consumer.consume(0) == []
        assert [m.offset for m in consumer.consume(100, 0.3)] == [4, 5, 6, 7, 8, 9]
        assert consumer.position((topics[0], 0)) == 10
        with pytest.raises(ValueError, match="at least 0"):
            consumer.consume(-1)


def test_pattern_follows_created_and_deleted_topics(broker):
    mark = broker.topic()
    first, second, other = f"{mark}.a", f"{mark}.b", f"{mark}-c"
    produce(broker.bootstrap, first, numbered(2))
    produce(broker.bootstrap, other, numbered(1))
    pattern = "^" + re.escape(mark) + r"\.[ab]$"
    settings = {"metadata_max_age_ms": 200, "auto_offset_reset": "latest"}
    with Consumer(broker.bootstrap, topics=pattern, **settings) as consumer:
        assert consumer.consume(1, 0.5) == []
        produce(broker.bootstrap, second, numbered(3))
        found = consumer.consume(3, TIMEOUT_S)
        assert [(m.topic, m.offset) for m in found] == [(second, n) for n in range(3)]
        delete(broker.bootstrap, second)
        deadline = time.monotonic() + TIMEOUT_S
        while [p.topic for p in consumer.assignment] != [first] and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert [p.topic for p in consumer.assignment] == [first]


def test_pattern_reads_added_partitions(broker):
    topic = broker.topic()
    with Consumer(broker.bootstrap, topics=f"^{topic}$", metadata_max_age_ms=200) as consumer:
        assert consumer.consume(1, 0.3) == []
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result()
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, b"late", partition=1).result(TIMEOUT_S)
        assert [m.partition for m in consumer.consume(1, TIMEOUT_S)] == [1]


def test_subscribe_after_assign_reads_all_partitions(broker):
    topic = broker.topic(partitions=2)
    with Producer(broker.bootstrap) as producer:
        for number in (0, 1):
            producer.send(topic, b"v", partition=number).result(TIMEOUT_S)
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.poll(TIMEOUT_S).partition == 0
        consumer.subscribe(topic)
        assert consumer.poll(TIMEOUT_S).partition == 1


def test_pattern_without_match_creates_no_topic(broker):
    with Consumer(broker.bootstrap, topics=["^nothing-is-called-so$"]) as consumer:
        assert consumer.poll(0.2) is None
        assert consumer.to_table().num_rows == 0
        assert "nothing-is-called-so" not in consumer.buffer.cluster.all_topics()


def test_invalid_pattern_is_rejected():
    with pytest.raises(InvalidConfig, match="regular expression"):
        Consumer(topics="^(")


def test_interrupted_consume_loses_no_message(broker, topics, monkeypatch):
    with Consumer(broker.bootstrap, topics=topics[0]) as consumer:
        fill, calls = consumer.buffer.fill, []

        def interrupted(deadline):
            calls.append(deadline)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return fill(deadline)

        monkeypatch.setattr(consumer.buffer, "fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.consume(100, TIMEOUT_S)
        assert [m.offset for m in consumer.consume(10, TIMEOUT_S)] == list(range(10))


def test_subscribe_replaces_the_subscription(broker, topics):
    with Consumer(broker.bootstrap) as consumer:
        consumer.subscribe([topics[0]])
        assert len(consumer.consume(4, TIMEOUT_S)) == 4
        consumer.subscribe(topics)
        found = consumer.consume(11, TIMEOUT_S)
        assert sorted((m.topic, m.offset) for m in found) == sorted(
            [(topics[0], n) for n in range(4, 10)] + [(topics[1], n) for n in range(5)]
        )
        consumer.subscribe(topics[1])
        assert consumer.consume(1, 0.2) == []
        assert consumer.assignment == [(topics[1], 0)]


def test_getmany_returns_messages_by_partition(broker, topics):
    async def main():
        async with AsyncConsumer(broker.bootstrap) as consumer:
            await consumer.subscribe(topics[:1])
            found = await consumer.getmany(TIMEOUT_S, max_records=3)
            assert [m.offset for m in found[topics[0], 0]] == [0, 1, 2]
            rest = await consumer.getmany(TIMEOUT_S)
            assert [m.offset for m in rest[topics[0], 0]] == list(range(3, 10))
            assert await consumer.getmany(0.05) == {}

    asyncio.run(main())


def test_async_consumer_closes_while_the_default_executor_is_full(broker, topics):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        over = threading.Event()
        loop.run_in_executor(None, over.wait)
        try:
            consumer = AsyncConsumer(broker.bootstrap, topics=topics[0])
            assert (await consumer.poll(TIMEOUT_S)).offset == 0
            await asyncio.wait_for(consumer.close(), TIMEOUT_S)
        finally:
            over.set()

    asyncio.run(main())


def test_async_consumer_names_getmany_for_consume():
    with pytest.raises(AttributeError, match=r"AsyncConsumer has no consume\(\): use getmany"):
        AsyncConsumer.consume  # noqa: B018


@pytest.mark.parametrize("call", ["to_table", "lag", "watermarks", "offsets_for_times"])
def test_lookup_of_unknown_topic_raises_and_creates_none(broker, call):
    name = f"misspelled-{call}"
    arguments = {"watermarks": ((name, 0),), "offsets_for_times": ({(name, 0): 0},)}
    with Consumer(broker.bootstrap, topics=name) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match=name):
            getattr(consumer, call)(*arguments.get(call, ()))
    cluster = Cluster(consumer_settings(broker.bootstrap, {}))
    assert name not in cluster.all_topics()
    cluster.close()


@pytest.mark.parametrize("offset", [-5, (-1, "words")])
def test_commit_rejects_negative_offsets(offset):
    with Consumer("127.0.0.1:1", group="g") as consumer:
        with pytest.raises(ValueError, match="at least 0, not -"):
            consumer.commit({("t", 0): offset})


def test_consumer_accepts_settings_in_a_dictionary():
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    with Consumer(settings) as consumer:
        assert consumer.buffer.settings.addresses == [("127.0.0.1", 1)]
        with pytest.raises(AttributeError, match=r"no store_offsets\(\): use commit"):
            consumer.store_offsets()


def test_topic_recreated_with_fewer_partitions_is_written_at_once(broker):
    topic = broker.topic(4)
    with Producer(broker.bootstrap, linger_ms=0, retry_backoff_max_ms=200) as producer:
        producer.send(topic, b"x", partition=3).result(TIMEOUT_S)
        delete(broker.bootstrap, topic)
        broker.topic(1, name=topic)
        sent = [producer.send(topic, b"y", key=b"%d" % n) for n in range(20)]
        errors = [each.exception(TIMEOUT_S) for each in sent]
        assert {type(error) for error in errors} <= {type(None), UnknownTopicOrPartition}
        assert producer.partitions_for(topic) == 1
        again = [producer.send(topic, b"z", key=b"%d" % n) for n in range(20)]
        assert {each.result(TIMEOUT_S).partition for each in again} == {0}


def test_record_whose_partition_disappears_goes_to_another(broker, monkeypatch):
    topic = broker.topic(4)
    key = next(b"%d" % n for n in range(100) if partition_of(b"%d" % n, 4) == 3)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"x", partition=0).result(TIMEOUT_S)
        known, open_batch = producer.topics[topic], producer._waiter.open_batch

        def drop_first(queue, *arguments):
            monkeypatch.undo()
            assert known.drop_queues(3) == [queue]
            return open_batch(queue, *arguments)

        monkeypatch.setattr(producer._waiter, "open_batch", drop_first)
        assert producer.send(topic, b"y", key=key).result(TIMEOUT_S).partition < 3


def test_message_without_timestamp_has_none():
    message = Message("t", 0, 7, -1, 0, None, b"x")
    assert message.timestamp is None
    assert message == Message("t", 0, 7, value=b"x") == pickle.loads(pickle.dumps(message))
    assert Message("t", 0, 7, 5).timestamp == 5


def test_calling_a_message_attribute_names_the_attribute():
    with pytest.raises(AttributeError, match=r"message\.value, not message\.value\(\)"):
        Message("t", 0, 7).error()
    assert not hasattr(Message("t", 0, 7), "other")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.seek(("t", 0), 1.5), "an offset must be an integer, not 1.5"),
        (lambda c: c.seek(("t", 0), True), "an offset must be an integer, not True"),
        (lambda c: c.seek("t", 0), r"a partition must be \(topic, number\).* not 't'"),
        (lambda c: c.assign([("t", 0.0)]), "number must be an integer, not 0.0"),
        (lambda c: c.assign([("t", "0")]), "number must be an integer, not '0'"),
        (lambda c: c.assign([(5, 0)]), r"a partition must be \(topic, number\).* not \(5, 0\)"),
        (lambda c: c.assign(["t"]), r"a partition must be \(topic, number\).* not 't'"),
        (lambda c: c.pause(5), r"a partition must be \(topic, number\).* not 5"),
        (lambda c: c.watermarks("t"), r"a partition must be \(topic, number\).* not 't'"),
        (lambda c: c.committed(("t", 0.0)), "number must be an integer, not 0.0"),
        (lambda c: c.commit({("t", 0): 1.5}), "committed offset must be an integer, not 1.5"),
        (lambda c: c.commit({("t", 0): (1, 5)}), r"integer or \(integer, text\), not \(1, 5\)"),
        (lambda c: c.commit({("t", 0): (1,)}), r"integer or \(integer, text\), not \(1,\)"),
        (lambda c: c.commit([("t", 0)]), r"offsets must be \{\(topic, number\): offset\}"),
        (lambda c: c.consume(1.5), "num_messages must be an integer, not 1.5"),
        (lambda c: c.poll("1"), "timeout must be a number of seconds or None, not '1'"),
        (lambda c: c.to_table(start=True), "a bound must be an offset, a datetime or None"),
        (lambda c: c.seek_to_time(1.5, ("t", 0)), "a datetime or an integer of milliseconds"),
        (lambda c: c.subscribe(5), "a name or a list of names, not 5"),
        (lambda c: c.subscribe(b"t"), "a name or a list of names, not b't'"),
        (lambda c: c.subscribe(["t", None]), "a topic name must be text, not None"),
    ],
)
def test_arguments_of_wrong_type_are_rejected_by_name(broker, topics, call, words):
    with Consumer(broker.bootstrap, group="g") as consumer:
        consumer.assign([(topics[0], 0)])
        with pytest.raises(TypeError, match=words):
            call(consumer)
        assert consumer.assignment == [(topics[0], 0)]


def test_offsets_above_64_bits_are_rejected(broker, topics):
    place = (topics[0], 0)
    with Consumer(broker.bootstrap, group="g") as consumer:
        consumer.assign([place])
        with pytest.raises(ValueError, match="an offset must be at most 9223372036854775807"):
            consumer.seek(place, 1 << 70)
        with pytest.raises(ValueError, match="a committed offset must be at most"):
            consumer.commit({place: 1 << 70})
        with pytest.raises(ValueError, match="seconds from 0 on"):
            consumer.to_table(timeout=-1)
        assert consumer.poll(TIMEOUT_S).offset == 0


def test_numpy_integers_are_accepted(broker, topics):
    place = (topics[0], numpy.int64(0))
    with Consumer(broker.bootstrap, topics=topics[0]) as consumer:
        consumer.seek(place, numpy.int64(3))
        assert consumer.poll(numpy.float64(TIMEOUT_S)).offset == 3
        assert consumer.to_table(start=numpy.int64(8)).num_rows == 2


@pytest.mark.parametrize("year", [1, 1960])
def test_times_before_1970_precede_all_records(broker, topics, year):
    place, when = (topics[0], 0), datetime(year, 1, 1, tzinfo=UTC)
    with Consumer(broker.bootstrap, topics=topics[0]) as consumer:
        assert consumer.to_table(start=when).num_rows == 10
        assert consumer.to_table(end=when).num_rows == 0
        assert consumer.offsets_for_times({place: when})[place].offset == 0
        last_ms_before_1970 = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
        consumer.seek_to_time(last_ms_before_1970)
        assert consumer.position(place) == 0
