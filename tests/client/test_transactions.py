"""Transactions of the native producer: in version 1 of the protocol, where partitions are added by
requests, and in version 2, where they are added by what is written; `make oracle` runs the same
tests on Apache Kafka."""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from kafkalite import AsyncConsumer, AsyncProducer, Broker, Consumer, GroupMetadata, Producer
from kafkalite.client.net import cluster
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.transaction_requests import TransactionVersion
from kafkalite.errors import (
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES
from tools.apache_kafka import ApacheKafka, Unavailable

WAIT_S = 30
UNSAFE_DOWNGRADE = 3
ENABLED = {"group.initial.rebalance.delay.ms": "0"}


class Cluster:
    """A running broker, the version of its transactions, and how the native client sends."""

    def __init__(self, bootstrap: str, version: int, native: str = "auto") -> None:
        self.bootstrap = bootstrap
        self.version = TransactionVersion(version)
        self.native = native
        set_version(bootstrap, version)

    def producer(self, **settings) -> Producer:
        return Producer(self.bootstrap, native=self.native, **settings)


def ours(version: int, native: str):
    with Broker(workers=2 if native == "auto" else 0, config=ENABLED) as broker:
        yield Cluster(broker.bootstrap, version, native)


def theirs(version: int):
    with tempfile.TemporaryDirectory() as directory:
        try:
            with ApacheKafka(Path(directory)) as kafka:
                yield Cluster(kafka.bootstrap, version)
        except Unavailable as missing:
            pytest.skip(str(missing))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(partial(ours, 2, "auto"), id="ring"),
        pytest.param(partial(ours, 2, "off"), id="tcp", marks=pytest.mark.oracle),
        pytest.param(partial(ours, 1, "off"), id="version 1"),
        pytest.param(partial(theirs, 1), id="Kafka, version 1", marks=pytest.mark.oracle),
        pytest.param(partial(theirs, 2), id="Kafka, version 2", marks=pytest.mark.oracle),
    ],
)
def kafka(request):
    yield from request.param()


def set_version(bootstrap: str, level: int) -> None:
    known = cluster.Cluster(producer_settings(bootstrap, {}))
    assert known.cluster_id
    if known.feature_level("transaction.version") != level:
        update = {"feature": "transaction.version", "max_version_level": level,
                  "upgrade_type": UNSAFE_DOWNGRADE}  # fmt: skip
        response = known.request(None, UPDATE_FEATURES, {"feature_updates": [update]})
        assert not response.error_code and not any(each.error_code for each in response.results)
    known.close()


@pytest.fixture
def topic():
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def producer(kafka, topic):
    with kafka.producer(transactional_id=topic) as made:
        yield made


def committed(kafka, topic):
    """Return the committed values, once the markers of all transactions are written."""
    with (
        Consumer(kafka.bootstrap) as all_records,
        Consumer(kafka.bootstrap, isolation_level="read_committed") as consumer,
    ):
        consumer.assign([(topic, 0)])
        end_s = time.monotonic() + WAIT_S
        while consumer.watermarks((topic, 0)) != all_records.watermarks((topic, 0)):
            assert time.monotonic() < end_s
        return consumer.to_table(columns=["value"])["value"].to_pylist()


def test_committed_records_are_visible_and_aborted_ones_are_not(kafka, producer, topic):
    for number in range(6):
        try:
            with producer.transaction():
                delivery = producer.send(topic, b"%d" % number)
                if number % 3 == 1:
                    delivery.result(WAIT_S)
                    raise KeyError(number)
        except KeyError:
            pass
    assert committed(kafka, topic) == [b"0", b"2", b"3", b"5"]
    assert producer._state.transaction.version is kafka.version


def test_columns_are_part_of_the_transaction(kafka, producer, topic):
    with producer.transaction():
        producer.send_arrow(topic, pa.table({"value": [b"%d" % each for each in range(20_000)]}))
    transaction = producer.transaction()
    transaction.begin()
    producer.send_arrow(topic, pa.table({"value": [b"aborted"] * 20_000})).result(WAIT_S)
    transaction.abort()
    assert committed(kafka, topic) == [b"%d" % each for each in range(20_000)]


def test_unsent_records_of_an_aborted_transaction_fail(kafka, producer, topic):
    with producer.transaction():
        producer.send(topic, b"0")
    transaction = producer.transaction()
    transaction.begin()
    producer.partitions_for(topic)
    delivery = producer.send(topic, b"1")
    transaction.abort()
    error = delivery.exception(WAIT_S)
    assert error is None or isinstance(error, TransactionAborted)
    with producer.transaction():
        producer.send(topic, b"2")
    assert committed(kafka, topic) == [b"0", b"2"]


def test_records_sent_during_a_commit_are_refused(producer, topic, monkeypatch):
    flush = producer._lifetime.flush

    def flush_and_send(timeout_s):
        flush(timeout_s)
        for send in (producer.send, partial(producer.send_batch, topic, 0)):
            with pytest.raises(InvalidTxnState, match="being committed"):
                send(*([topic, b"late"] if send == producer.send else [bytearray(69), 8, 1, 0, 0]))

    with producer.transaction():
        producer.send(topic, b"0")
        monkeypatch.setattr(producer._lifetime, "flush", flush_and_send)
    monkeypatch.undo()


SENDS = {
    "send": lambda producer, topic: producer.send(topic, b"late"),
    "send_batch": lambda producer, topic: producer.send_batch(topic, 0, bytearray(69), 8, 1, 0, 0),
    "a few rows": lambda producer, topic: producer.send_arrow(topic, pa.table({"value": ["late"]})),
    "many rows": lambda producer, topic: producer.send_arrow(
        topic, pa.table({"value": [bytes(1_000)] * 400})
    ),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_record_that_waits_while_its_transaction_ends_is_in_none(
    kafka, producer, topic, monkeypatch, send
):
    first, following = producer.transaction(), producer.transaction()
    first.begin()
    producer.send(topic, b"0").result(WAIT_S)

    def await_memory(*_):
        monkeypatch.undo()
        first.commit()
        following.begin()

    monkeypatch.setattr(producer._state.accumulator, "reserve", lambda size: False)
    monkeypatch.setattr(producer._columns, "_may_send", lambda run: False)
    monkeypatch.setattr(producer._waiter, "await_memory", await_memory)
    with pytest.raises(InvalidTxnState, match="has ended while the call waited"):
        send(producer, topic)
    producer.send(topic, b"1")
    following.commit()
    assert committed(kafka, topic) == [b"0", b"1"]


def test_records_outside_of_a_transaction_are_refused(kafka, producer, topic):
    with pytest.raises(InvalidTxnState, match="only inside a transaction"):
        producer.send(topic, b"0")
    with producer.transaction():
        producer.send(topic, b"1")
    with pytest.raises(InvalidTxnState, match="only inside a transaction"):
        producer.send(topic, b"2")
    assert committed(kafka, topic) == [b"1"]


def test_empty_transactions_commit_and_abort(kafka, producer, topic):
    for commits in (True, False, True, False):
        transaction = producer.transaction()
        transaction.begin()
        transaction.commit() if commits else transaction.abort()
    with producer.transaction():
        producer.send(topic, b"0")
    assert committed(kafka, topic) == [b"0"]


def test_failed_record_fails_its_transaction_and_the_next_one_works(kafka, producer, topic):
    with producer.transaction():
        producer.send(topic, b"0")
    with pytest.raises(MessageTooLarge), producer.transaction():
        producer.send(topic, b"1")
        producer._state.fail_unsent(MessageTooLarge("refused"))
    with pytest.raises(TransactionAborted), producer.transaction():
        delivery = producer.send(topic, b"2")
        producer._sender.locked(producer._state.transaction.failed, KafkaError("refused"))
        producer._state.wakeup.set()
        delivery.result(WAIT_S)
    with producer.transaction():
        producer.send(topic, b"3")
    assert committed(kafka, topic) == [b"0", b"3"]


def test_second_producer_fences_the_first(kafka, producer, topic):
    first = producer.transaction()
    first.begin()
    producer.send(topic, b"first").result(WAIT_S)
    with kafka.producer(transactional_id=topic) as second:
        with second.transaction():
            second.send(topic, b"second")
        with pytest.raises(ProducerFenced):
            first.commit()
        with pytest.raises(ProducerFenced):
            producer.transaction().begin()
        with second.transaction():
            second.send(topic, b"third")
    assert committed(kafka, topic) == [b"second", b"third"]


def test_fenced_producer_that_writes_gets_producer_fenced(kafka, producer, topic):
    with (
        kafka.producer(transactional_id=topic) as second,
        pytest.raises(ProducerFenced),
        producer.transaction(),
    ):
        producer.send(topic, b"first").result(WAIT_S)
        second.init_transactions()
        producer.send(topic, b"after")
    assert committed(kafka, topic) == []


def test_transaction_that_takes_too_long_is_aborted(kafka, topic):
    with (
        kafka.producer(transactional_id=topic, transaction_timeout_ms=1_000) as producer,
        kafka.producer() as others,
        pytest.raises((ProducerFenced, InvalidTxnState)),  # in version 1, in version 2
        producer.transaction(),
    ):
        producer.send(topic, b"late").result(WAIT_S)
        others.send(topic, b"behind it").result(WAIT_S)
        with Consumer(kafka.bootstrap, topics=[topic], isolation_level="read_committed") as waiting:
            assert waiting.poll(WAIT_S).value == b"behind it"


def test_transaction_timeout_above_the_brokers_is_fatal(kafka, topic):
    with kafka.producer(transactional_id=topic, transaction_timeout_ms=10**9) as made:
        for _ in range(2):
            with pytest.raises(InvalidTransactionTimeout):
                made.transaction().begin()


def test_close_aborts_the_open_transaction(kafka, topic):
    with kafka.producer(transactional_id=topic) as producer:
        producer.transaction().begin()
        producer.send(topic, b"0").result(WAIT_S)
    with kafka.producer() as others:
        others.send(topic, b"1").result(WAIT_S)
    assert committed(kafka, topic) == [b"1"]


def test_offsets_are_committed_with_the_records(kafka, producer, topic):
    source = f"{topic}-in"
    with kafka.producer() as others:
        for number in range(10):
            others.send(source, b"%d" % number)
    with Consumer(kafka.bootstrap, group=topic) as consumer:
        consumer.assign([(source, 0)])
        for first, aborts in ((0, False), (4, True), (4, False)):
            consumer.seek((source, 0), first)
            try:
                with producer.transaction() as transaction:
                    for message in consumer.consume(4, WAIT_S):
                        producer.send(topic, message.value)
                    transaction.commit_offsets(consumer)
                    if aborts:
                        raise KeyError
            except KeyError:
                pass
            wanted = first if aborts else first + 4
            assert consumer.committed((source, 0)) == {(source, 0): wanted}
    assert committed(kafka, topic) == [b"%d" % number for number in range(8)]


def test_offsets_of_an_open_transaction_are_waited_for(kafka, producer, topic):
    with Consumer(kafka.bootstrap, group=topic) as consumer:
        transaction = producer.transaction()
        transaction.begin()
        producer.send(topic, b"0")
        transaction.commit_offsets({(topic, 0): (7, "read")}, topic)
        with pytest.raises((UnstableOffsetCommit, RequestTimedOut)):
            consumer.committed((topic, 0), timeout=0.3)
        transaction.commit()
        assert consumer.committed((topic, 0)) == {(topic, 0): 7}


def test_offsets_of_a_member_that_is_unknown_are_refused(kafka, producer, topic):
    group = GroupMetadata(topic, 7, "nobody")
    with pytest.raises(KafkaError) as refused, producer.transaction() as transaction:
        producer.send(topic, b"0")
        transaction.commit_offsets({(topic, 0): 1}, group)
    assert type(refused.value).__name__ in ("IllegalGeneration", UnknownMemberId.__name__)
    with producer.transaction() as transaction:
        producer.send(topic, b"1")
        transaction.commit_offsets({(topic, 0): 1}, topic)
    assert committed(kafka, topic) == [b"1"]


def test_several_producers_write_in_one_transaction(kafka, topic):
    others = [f"{topic}-{number}" for number in range(3)]
    with kafka.producer(transactional_id=topic) as owner:
        for number, commits in enumerate([True, False, True]):
            transaction = owner.transaction(shared=True)
            transaction.begin()
            identity = transaction.identity
            for other in others:
                with kafka.producer(transactional_id=topic) as writer:
                    with writer.transaction(identity=identity):
                        writer.send(other, b"%d" % number)
            owner.send(topic, b"%d" % number)
            owner.flush()
            transaction.commit() if commits else transaction.abort()
    for each in (topic, *others):
        assert committed(kafka, each) == [b"0", b"2"]


def test_empty_shared_transactions_end(kafka, producer, topic):
    for commits in (True, False, True):
        transaction = producer.transaction(shared=True)
        transaction.begin()
        transaction.commit() if commits else transaction.abort()
    with producer.transaction():
        producer.send(topic, b"0")
    assert committed(kafka, topic) == [b"0"]


def test_async_transactions_commit_abort_and_commit_offsets(kafka, topic):
    async def main():
        async with AsyncProducer(kafka.bootstrap, transactional_id=topic) as producer:
            async with AsyncConsumer(kafka.bootstrap, group=topic) as consumer:
                await consumer.assign([(topic, 0)])
                async with producer.transaction() as transaction:
                    await producer.send(topic, b"0")
                with pytest.raises(KeyError):
                    async with producer.transaction() as transaction:
                        await (await producer.send(topic, b"1"))
                        raise KeyError
                message = await consumer.poll(WAIT_S)
                async with producer.transaction() as transaction:
                    await producer.send(topic, message.value)
                    await transaction.commit_offsets(consumer)
                assert await consumer.committed((topic, 0)) == {(topic, 0): 1}

    asyncio.run(main())
    assert committed(kafka, topic) == [b"0", b"0"]


def test_async_record_that_waits_while_its_transaction_ends_is_in_none(kafka, topic):
    async def scenario():
        async with AsyncProducer(
            kafka.bootstrap, native=kafka.native, transactional_id=topic
        ) as producer:
            first, following = producer.transaction(), producer.transaction()
            await first.begin()
            await producer.send(topic, b"0")
            await producer.flush()
            accumulator = producer._producer._state.accumulator
            memory, accumulator.memory_left = accumulator.memory_left, 0
            late = asyncio.create_task(producer.send(topic, b"late"))
            while producer._room is None:
                await asyncio.sleep(0)
            accumulator.memory_left = memory
            await first.commit()
            await following.begin()
            await producer.send(topic, b"1")
            await producer.flush()
            with pytest.raises(InvalidTxnState, match="has ended while the call waited"):
                await late
            await following.commit()

    asyncio.run(scenario())
    assert committed(kafka, topic) == [b"0", b"1"]
