"""Dead letters of share groups (KIP-1191) against a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from kafkalite.client.admin.admin import Admin
from kafkalite.client.consumer.consumer import Consumer
from kafkalite.client.share.share_messages import ShareMessage
from kafkalite.testing import Broker
from tests.client.consuming import TIMEOUT_S
from tests.client.sharing import SHORT_TIMES, SharingCluster, collect

NUMBERS = count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SharingCluster]:
    # The dead letters of several workers go to one partition.
    with Broker(workers=2, config=SHORT_TIMES) as broker:
        yield SharingCluster(broker.bootstrap, broker.topic)


def dead_letter_topic(cluster: SharingCluster) -> str:
    name = f"dlq.{next(NUMBERS)}"
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(
            name, 1, configs={"errors.deadletterqueue.group.enable": "true"}, timeout=TIMEOUT_S
        )
    return name


def letters(cluster: SharingCluster, topic: str, number: int) -> list[tuple[object, ...]]:
    """Return key, value and headers of this many dead letters."""
    found: list[tuple[object, ...]] = []
    with Consumer(cluster.bootstrap, topics=topic, auto_offset_reset="earliest") as consumer:
        while len(found) < number:
            for message in consumer.consume(number - len(found), TIMEOUT_S):
                found.append((message.key, message.value, tuple(message.headers)))
    return found


def headers(topic: str, partition: int, offset: int, group: str, times: int, reason: str):
    texts = {
        "topic": topic, "partition": partition, "offset": offset, "group": group,
        "delivery.count": times, "message": reason,
    }  # fmt: skip
    return tuple((f"__dlq.errors.{name}", str(text).encode()) for name, text in texts.items())


def test_dead_letters_have_the_headers_of_kafka(cluster):
    queue = dead_letter_topic(cluster)
    topic = cluster.topic()
    group = cluster.group(
        errors_deadletterqueue_topic_name=queue, share_delivery_count_limit=2
    )
    cluster.produce(topic, [b"a", b"b", b"c"])
    with cluster.consumer(topic, group) as consumer:
        for act in (ShareMessage.reject, ShareMessage.accept, ShareMessage.release):
            (message,) = collect(consumer, 1)
            act(message)
        (again,) = collect(consumer, 1)
        assert (again.offset, again.delivery_count) == (2, 2)
        again.release()
        consumer.commit(TIMEOUT_S)
    assert sorted(letters(cluster, queue, 2), key=str) == [
        (None, None, headers(topic, 0, 0, group, 1, "Offset rejected by client.")),
        (
            None,
            None,
            headers(topic, 0, 2, group, 2, "Offset delivery count exceeded the threshold."),
        ),
    ]


def test_dead_letters_of_all_partitions_have_copies(cluster):
    queue = dead_letter_topic(cluster)
    topic = cluster.topic(2)
    group = cluster.group(
        errors_deadletterqueue_topic_name=queue, errors_deadletterqueue_copy_record_enable="true"
    )
    for partition in range(2):
        cluster.produce(topic, [b"value %d" % partition], partition=partition)
    with cluster.consumer(topic, group) as consumer:
        for _ in range(2):
            (message,) = collect(consumer, 1)
            message.reject()
        consumer.commit(TIMEOUT_S)
    reason = "Offset rejected by client."
    assert sorted(letters(cluster, queue, 2), key=str) == [
        (None, b"value %d" % partition, headers(topic, partition, 0, group, 1, reason))
        for partition in range(2)
    ]
