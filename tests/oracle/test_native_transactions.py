"""`make oracle`: transactions of the native producer on Apache Kafka, in both protocol versions:
with `transaction.version` 1 partitions are added by requests, with 2 by what is written."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from kafkalite import AsyncConsumer, AsyncProducer, Consumer, GroupMetadata, Producer
from kafkalite.client.net.cluster import Cluster
from kafkalite.client.net.settings import producer_settings
from kafkalite.client.net.transaction_requests import TransactionVersion
from kafkalite.errors import (
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    MessageTooLarge,
    ProducerFenced,
    TransactionAborted,
    UnknownMemberId,
)
from kafkalite.protocol.schemas.cluster import UPDATE_FEATURES
from tools.apache_kafka import ApacheKafka, Unavailable

pytestmark = pytest.mark.oracle

WAIT_S = 30
UNSAFE_DOWNGRADE = 3


@pytest.fixture(scope="module", params=[1, 2], ids=["version 1", "version 2"])
def kafka(request, tmp_path_factory):
    try:
        with ApacheKafka(tmp_path_factory.mktemp("kafka")) as started:
            set_version(started.bootstrap, request.param)
            started.version = TransactionVersion(request.param)
            yield started
    except Unavailable as missing:
        pytest.skip(str(missing))


def set_version(bootstrap: str, level: int) -> None:
    cluster = Cluster(producer_settings(bootstrap, {}))
    if cluster.feature_level("transaction.version") != level:
        update = {"feature": "transaction.version", "max_version_level": level,
                  "upgrade_type": UNSAFE_DOWNGRADE}  # fmt: skip
        response = cluster.request(None, UPDATE_FEATURES, {"feature_updates": [update]})
        assert not response.error_code and not any(each.error_code for each in response.results)
    cluster.close()


@pytest.fixture
def topic():
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def producer(kafka, topic):
    with Producer(kafka.bootstrap, transactional_id=topic) as made:
        yield made


def committed(kafka, topic):
    with Consumer(
        kafka.bootstrap, topics=[topic], isolation_level="read_committed", consumer_timeout_ms=1_000
    ) as consumer:
        return [message.value for message in consumer]


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
    pa = pytest.importorskip("pyarrow")
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
    with Producer(kafka.bootstrap, transactional_id=topic) as second:
        with second.transaction():
            second.send(topic, b"second")
        with pytest.raises(ProducerFenced):
            first.commit()
        with pytest.raises(ProducerFenced):
            producer.transaction().begin()
        with second.transaction():
            second.send(topic, b"third")
    assert committed(kafka, topic) == [b"second", b"third"]


def test_fenced_producer_that_writes_is_told_so(kafka, producer, topic):
    with (
        Producer(kafka.bootstrap, transactional_id=topic) as second,
        pytest.raises(ProducerFenced),
        producer.transaction(),
    ):
        producer.send(topic, b"first").result(WAIT_S)
        second.init_transactions()
        producer.send(topic, b"after")
    assert committed(kafka, topic) == []


def test_transaction_that_takes_too_long_is_aborted(kafka, topic):
    with (
        Producer(kafka.bootstrap, transactional_id=topic, transaction_timeout_ms=1_000) as producer,
        Producer(kafka.bootstrap) as others,
        pytest.raises((ProducerFenced, InvalidTxnState)),  # in version 1, in version 2
        producer.transaction(),
    ):
        producer.send(topic, b"late").result(WAIT_S)
        others.send(topic, b"behind it").result(WAIT_S)
        with Consumer(kafka.bootstrap, topics=[topic], isolation_level="read_committed") as waiting:
            assert waiting.poll(WAIT_S).value == b"behind it"


def test_transaction_timeout_above_the_brokers_is_fatal(kafka, topic):
    with Producer(kafka.bootstrap, transactional_id=topic, transaction_timeout_ms=10**9) as made:
        for _ in range(2):
            with pytest.raises(InvalidTransactionTimeout):
                made.transaction().begin()


def test_close_aborts_the_open_transaction(kafka, topic):
    with Producer(kafka.bootstrap, transactional_id=topic) as producer:
        producer.transaction().begin()
        producer.send(topic, b"0").result(WAIT_S)
    with Producer(kafka.bootstrap) as others:
        others.send(topic, b"1").result(WAIT_S)
    assert committed(kafka, topic) == [b"1"]


def test_offsets_are_committed_with_the_records(kafka, producer, topic):
    source = f"{topic}-in"
    with Producer(kafka.bootstrap) as others:
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
    with Producer(kafka.bootstrap, transactional_id=topic) as owner:
        for number, commits in enumerate([True, False, True]):
            transaction = owner.transaction(shared=True)
            transaction.begin()
            identity = transaction.identity
            for other in others:
                with Producer(kafka.bootstrap, transactional_id=topic) as writer:
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


def test_asyncio(kafka, topic):
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
