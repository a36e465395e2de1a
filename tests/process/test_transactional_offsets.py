"""Consume, transform, produce exactly once, with confluent-kafka: the input position is committed
with the output, whatever becomes of the application in between."""

from __future__ import annotations

import itertools
import threading

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

import kafkalite
from kafkalite.errors import RequestTimedOut, UnstableOffsetCommit
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

INPUTS, CHUNK = 40, 10


@pytest.fixture(scope="module")
def broker():
    with Broker(workers=1) as broker:
        yield broker


class Copier:
    """An application that copies a topic to another, in transactions of CHUNK records."""

    def __init__(self, broker: Broker, source: str, sink: str) -> None:
        self.source, self.sink = source, sink
        self.consumer = confluent_kafka.Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": f"{source}-group",
            "isolation.level": "read_committed", "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        self.consumer.subscribe([source])
        self.producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{source}-copier"}
        )
        self.producer.init_transactions(WAIT_S_MAX)

    def copy(self) -> list[bytes]:
        """Copy CHUNK records in an open transaction; return them."""
        self.producer.begin_transaction()
        values = []
        while len(values) < CHUNK:
            message = self.consumer.poll(WAIT_S_MAX)
            assert message is not None and message.error() is None
            self.producer.produce(self.sink, b"copy of " + message.value())
            values.append(message.value())
        self.producer.send_offsets_to_transaction(
            self.consumer.position(self.consumer.assignment()),
            self.consumer.consumer_group_metadata(),
            WAIT_S_MAX,
        )
        return values

    def commit(self) -> None:
        self.producer.commit_transaction(WAIT_S_MAX)

    def abort(self) -> None:
        """Abort the transaction, and go back to the committed position."""
        self.producer.abort_transaction(WAIT_S_MAX)
        for position in self.consumer.committed(self.consumer.assignment(), WAIT_S_MAX):
            position.offset = max(position.offset, 0)
            self.consumer.seek(position)


def committed(broker: Broker, topic: str, count: int) -> list[bytes]:
    """Return the values of the first committed records."""
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with kafkalite.Consumer(broker.bootstrap, topic, **settings) as consumer:
        return [message.value for message in itertools.islice(consumer, count)]


def test_copy_is_exact_after_an_abort_and_a_crash(broker):
    source, sink = broker.topic(), broker.topic()
    given = [b"%d" % number for number in range(INPUTS)]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for value in given:
        producer.produce(source, value)
    assert producer.flush(WAIT_S_MAX) == 0

    first = Copier(broker, source, sink)
    assert first.copy() == given[:CHUNK]
    first.commit()
    second = given[CHUNK : 2 * CHUNK]
    assert first.copy() == second
    first.abort()
    assert first.copy() == second
    first.commit()
    # It crashes with its offsets pending: another instance aborts them.
    third = given[2 * CHUNK : 3 * CHUNK]
    assert first.copy() == third
    assert first.producer.flush(WAIT_S_MAX) == 0
    again = Copier(broker, source, sink)
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        first.commit()
    assert fenced.value.args[0].code() == confluent_kafka.KafkaError._FENCED
    first.consumer.close()
    assert again.copy() == third
    again.commit()
    assert again.copy() == given[3 * CHUNK :]
    again.commit()
    again.consumer.close()
    assert committed(broker, sink, INPUTS) == [b"copy of " + value for value in given]


def test_consumer_that_starts_during_a_transaction_waits_for_its_offset(broker):
    topic, group = broker.topic(), "waiting"
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    )
    producer.init_transactions(WAIT_S_MAX)
    offsets = [TopicPartition(topic, 0, 5)]
    with (
        kafkalite.Consumer(bootstrap=broker.bootstrap, group=group) as ours,
        kafkalite.Admin(broker.bootstrap) as admin,
    ):
        theirs = confluent_kafka.Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": group,
            "isolation.level": "read_committed",
        })  # fmt: skip
        producer.begin_transaction()
        member = theirs.consumer_group_metadata()
        producer.send_offsets_to_transaction(offsets, member, WAIT_S_MAX)
        found = []

        def read_theirs():
            (position,) = theirs.committed([TopicPartition(topic, 0)], WAIT_S_MAX)
            found.append(position.offset)

        def read_ours():
            found.extend(ours.committed((topic, 0)).values())

        # The committed offset as it was is no help to one who starts to read there.
        assert [*admin.committed_offsets(group, [(topic, 0)]).values()] == [None]
        with pytest.raises((UnstableOffsetCommit, RequestTimedOut)):
            ours.committed((topic, 0), timeout=0.2)
        readers = [threading.Thread(target=each) for each in (read_theirs, read_ours)]
        for each in readers:
            each.start()
        assert found == []
        producer.commit_transaction(WAIT_S_MAX)
        for each in readers:
            each.join()
        assert found == [5, 5]
        theirs.close()
        until(lambda: [*admin.committed_offsets(group, [(topic, 0)]).values()] == [5])
