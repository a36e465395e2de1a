"""Changes of topics under a stream, made with confluent-kafka."""

import time

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

TIMEOUT_S = 30


def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def done(futures):
    for future in futures.values():
        future.result(TIMEOUT_S)


def delete(broker, topic):
    """Delete a topic, and wait until Metadata does not list it any more."""
    client = admin(broker)
    done(client.delete_topics([topic]))
    until_s = time.monotonic() + TIMEOUT_S
    while topic in client.list_topics(timeout=10).topics:
        assert time.monotonic() < until_s


def grow(broker, topic, count):
    """Increase a topic to `count` partitions, and wait until all have leaders."""
    client = admin(broker)
    done(client.create_partitions([NewPartitions(topic, count)]))
    until_s = time.monotonic() + TIMEOUT_S
    while True:
        told = client.list_topics(topic, timeout=10).topics[topic].partitions
        if len(told) == count and all(each.leader >= 0 for each in told.values()):
            return
        assert time.monotonic() < until_s


def trim(broker, topic, firsts):
    """Delete the records of each partition before its new first offset."""
    wanted = [TopicPartition(topic, partition, first) for partition, first in firsts.items()]
    client = admin(broker)
    done(client.delete_records(wanted))
