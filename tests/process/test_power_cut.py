"""A power cut that removes the end of a log: consumers that had read it notice (KIP-320).

The cut is staged on the files of a killed broker: batches are cut off, and the boot ids under which
they were written are changed.
"""

import os

import confluent_kafka
import pytest

from kafkalite.records.batch import batches
from kafkalite.storage.files import checkpoint, layout
from kafkalite.storage.manager import partition_transfer
from kafkalite.storage.manager.recovery_points import BOOT_ID
from kafkalite.testing import Broker
from tests.process.waiting import WAIT_S_MAX, until

COUNT, KEPT = 30, 20


@pytest.fixture(params=[0, 2], ids=["alone", "workers"])
def broker(request):
    with Broker(workers=request.param) as broker:
        yield broker


def cut_power(broker, topic, kept):
    """Kill the broker, and leave of a topic's one partition what a power cut would leave."""
    broker.kill()
    for path in broker.data.rglob(f"{layout.RECOVERY_CHECKPOINT}*"):
        content = checkpoint.unsealed(path.read_bytes())
        path.write_bytes(checkpoint.sealed({**content, BOOT_ID: "an earlier one"}))
    (path,) = broker.data.rglob(f"{topic}-0/*{layout.LOG}")
    content = path.read_bytes()
    position = 0
    while size := int.from_bytes(content[position + 8 : position + 12], "big"):
        if int.from_bytes(content[position : position + 8], "big") == kept:
            break
        position += 12 + size
    os.truncate(path, position)


def written_epochs(broker, topic):
    """Return the leader epoch of each batch in the log of a topic's one partition."""
    (path,) = broker.data.rglob(f"{topic}-0/*{layout.LOG}")
    return [batch.header.leader_epoch for batch in batches(path.read_bytes())]


def boots(broker):
    """Return the boot ids in the checkpoints of its nodes."""
    paths = broker.data.rglob(layout.RECOVERY_CHECKPOINT)
    return {checkpoint.read(path)[BOOT_ID] for path in paths}


def produce(broker, topic, values):
    """Write each value in a batch of its own."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1}
    )
    faults = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda fault, _: fault and faults.append(fault))
    assert producer.flush(WAIT_S_MAX) == 0 and faults == []


def consumer_of(broker, topic):
    """Return a consumer of the topic's partition, from its beginning."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 100,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    return consumer


def read_until(consumer, value):
    """Read up to a value; return (value, leader epoch) of each record."""
    found = []

    def came():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append((message.value(), message.leader_epoch()))
        return found and found[-1][0] == value

    until(came)
    return found


def test_consumer_detects_truncation_of_records_it_read(broker):
    topic = broker.topic()
    old = [b"old %d" % number for number in range(COUNT)]
    new = [b"new %d" % number for number in range(COUNT - KEPT)]
    produce(broker, topic, old)
    consumer = consumer_of(broker, topic)
    assert read_until(consumer, old[-1]) == [(value, 0) for value in old]
    cut_power(broker, topic, KEPT)
    broker.start()
    # As many as were lost: the log then ends at the consumer's position.
    produce(broker, topic, new)
    found = read_until(consumer, new[-1])
    assert written_epochs(broker, topic) == [0] * KEPT + [1] * len(new)
    assert found[-len(new) :] == [(value, 1) for value in new], found
    consumer.close()


def test_restart_in_the_same_boot_keeps_the_leader_epoch(broker):
    topic = broker.topic()
    produce(broker, topic, [b"0"])
    broker.kill()
    broker.start()
    produce(broker, topic, [b"1"])
    consumer = consumer_of(broker, topic)
    assert read_until(consumer, b"1") == [(b"0", 0), (b"1", 0)]
    consumer.close()
    cut_power(broker, topic, 2)
    broker.start()
    produce(broker, topic, [b"2"])
    until(lambda: boots(broker) == {partition_transfer.boot_id()})
    broker.kill()
    broker.start()
    produce(broker, topic, [b"3"])
    consumer = consumer_of(broker, topic)
    assert read_until(consumer, b"3") == [(b"0", 0), (b"1", 0), (b"2", 1), (b"3", 1)]
    consumer.close()
    broker.stop()
    broker.start()
    produce(broker, topic, [b"4"])
    consumer = consumer_of(broker, topic)
    assert read_until(consumer, b"4")[-1] == (b"4", 1)
    consumer.close()
