"""Reading of a topic with confluent-kafka."""

from __future__ import annotations

import time

import confluent_kafka

READ_S_MAX = 60


def read_back(broker, topic: str, count: int | None = None) -> list[confluent_kafka.Message]:
    """Return all of a topic's messages, by partition and offset; wait for `count`."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "reads back",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = confluent_kafka.Consumer(settings)
    try:
        partitions = sorted(consumer.list_topics(topic, READ_S_MAX).topics[topic].partitions)
        places = [confluent_kafka.TopicPartition(topic, index, 0) for index in partitions]
        consumer.assign(places)
        ends = [consumer.get_watermark_offsets(place, READ_S_MAX)[1] for place in places]
        wanted = max(sum(ends), count or 0)
        found: list[confluent_kafka.Message] = []
        give_up = time.monotonic() + READ_S_MAX
        while len(found) < wanted:
            assert time.monotonic() < give_up, f"{len(found)} of {wanted} messages were read"
            for message in consumer.consume(min(wanted - len(found), 10_000), 0.2):
                assert message.error() is None, message.error()
                found.append(message)
        return sorted(found, key=lambda message: (message.partition(), message.offset()))
    finally:
        consumer.close()
