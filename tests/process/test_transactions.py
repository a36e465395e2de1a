"""A transaction whose coordinator is killed between its decision and the markers: real processes.

The workers are stopped while the transaction is decided, so that no marker is written before the
supervisor is killed.
"""

import os
import signal
import threading

import confluent_kafka
import pytest

from kafkalite.protocol.schemas import transaction_records
from kafkalite.protocol.schemas.transaction_records import TransactionState
from kafkalite.records.batch import batches
from kafkalite.storage.files import layout
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

PARTITIONS = 3
CONFIG = {"workers.leading": "2"}


@pytest.fixture
def broker():
    with Broker(workers=2, config=CONFIG) as broker:
        yield broker


def stored_states(broker):
    """Return the states in the records of the transactional id, in order."""
    found = broker.data.rglob(f"__transaction_state-0/*{layout.LOG}")
    content = b"".join(path.read_bytes() for path in sorted(found))
    records = [
        transaction_records.read(record.key, record.value)
        for batch in batches(content)
        for record in batch
    ]
    return [record.transaction.state for record in records]


def committed_values(broker, topic):
    """Return what a reader of committed records finds in each partition, up to its end."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": "g",
        "isolation.level": "read_committed", "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    values, ended = [], set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(WAIT_S_MAX)
        assert message is not None, "the last stable offset does not move"
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended.add((message.partition(), message.offset()))
        else:
            values.append((message.partition(), message.value()))
    consumer.close()
    return sorted(values), sorted(ended)


def test_transaction_completes_when_its_coordinator_is_killed_after_the_decision(broker):
    topic = broker.topic(PARTITIONS)
    producer = confluent_kafka.Producer({
        "bootstrap.servers": broker.bootstrap, "transactional.id": "id",
        "reconnect.backoff.max.ms": 100,
    })  # fmt: skip
    producer.init_transactions(WAIT_S_MAX)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(WAIT_S_MAX) == 0
    pids = {node["id"]: node["pid"] for node in broker.status["nodes"]}
    for node_id in (1, 2):
        os.kill(pids[node_id], signal.SIGSTOP)
    committing = threading.Thread(target=producer.commit_transaction, args=(WAIT_S_MAX,))
    committing.start()
    until(lambda: stored_states(broker)[-1] is TransactionState.PREPARE_COMMIT)
    broker.kill(0)
    for node_id in (1, 2):
        os.kill(pids[node_id], signal.SIGCONT)
    committing.join()
    until(lambda: stored_states(broker)[-1] is TransactionState.COMPLETE_COMMIT)
    values, ended = committed_values(broker, topic)
    assert values == [(partition, b"v") for partition in range(PARTITIONS)]
    # Each partition is readable to its end: the record and its marker.
    assert [partition for partition, offset in ended if offset >= 2] == [*range(PARTITIONS)]
    # One decision, once completed: the supervisor's death is not seen by the client.
    assert stored_states(broker)[-2:] == [
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    ]


def test_transactions_over_two_workers_are_verified(broker):
    """Several requests are in flight, and each transaction begins in the partitions of both."""
    topic = broker.topic(PARTITIONS)
    producer = confluent_kafka.Producer({
        "bootstrap.servers": broker.bootstrap, "transactional.id": "id", "linger.ms": 0,
        "batch.num.messages": 2,
    })  # fmt: skip
    producer.init_transactions(WAIT_S_MAX)
    expected = []
    for number in range(20):
        producer.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(30)]
        for each, value in enumerate(values):
            producer.produce(topic, value, partition=each % PARTITIONS)
            producer.poll(0)
        if number % 3:
            producer.commit_transaction(WAIT_S_MAX)
            expected += [(each % PARTITIONS, value) for each, value in enumerate(values)]
        else:
            producer.flush(WAIT_S_MAX)
            producer.abort_transaction(WAIT_S_MAX)
    values, _ = committed_values(broker, topic)
    assert values == sorted(expected)
