"""Scenarios of topics: made, listed, described, grown, emptied, removed; and where offsets lie."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec

from tests.conformance.table import (
    ADMIN,
    Client,
    Kafka,
    Refused,
    Sent,
    done,
    scenario,
    until,
)

TEN = [Sent(b"%d" % i, b"k", timestamp_ms=1000 * (i + 1)) for i in range(10)]
WRONG: dict[str, tuple[str, int, int, dict[str, str], str]] = {
    "a slash in its name": ("bad/name", 1, 1, {}, "Invalid topic"),
    "dots for a name": ("..", 1, 1, {}, "Invalid topic"),
    "a long name": ("x" * 250, 1, 1, {}, "Invalid topic"),
    "no partitions": ("", 0, 1, {}, "Invalid number of partitions"),
    "more replicas than nodes": ("", 1, 9, {}, "Invalid replication factor"),
    "an unknown key": ("", 1, 1, {"no.such.key": "1"}, "Configuration is invalid"),
    "a word for a number": ("", 1, 1, {"retention.ms": "soon"}, "Configuration is invalid"),
    "a segment too small": ("", 1, 1, {"segment.bytes": "1"}, "Configuration is invalid"),
}

MAX_TIMESTAMP = OffsetSpec.max_timestamp()
EARLIEST = OffsetSpec.earliest()
LATEST = OffsetSpec.latest()


def offset(kafka: Kafka, topic: str, spec: OffsetSpec, partition: int = 0) -> int:
    (found,) = done(kafka.admin.list_offsets({TopicPartition(topic, partition): spec}))
    return found.offset


@scenario(ADMIN)
def a_topic_made_is_listed_and_described(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=3)
    assert topic in kafka.admin.list_topics(timeout=10).topics
    (described,) = done(kafka.admin.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    assert not described.is_internal
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    for partition in described.partitions:
        assert [node.id for node in partition.replicas] == [partition.leader.id]
        assert [node.id for node in partition.isr] == [partition.leader.id]


@scenario(ADMIN)
def two_topics_of_one_name_never_share_an_id(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    (first,) = done(kafka.admin.describe_topics(TopicCollection([topic])))
    done(kafka.admin.delete_topics([topic]))
    until(lambda: made(kafka, topic))
    until(lambda: kafka.led(topic) == 1)
    (second,) = done(kafka.admin.describe_topics(TopicCollection([topic])))
    assert str(first.topic_id) != str(second.topic_id)


def made(kafka: Kafka, topic: str) -> bool:
    """Make the topic; not yet, while the one deleted is still there."""
    try:
        done(kafka.admin.create_topics([NewTopic(topic, 1, 1)]))
    except Refused as refused:
        assert "already exists" in str(refused)
        return False
    return True


@scenario(ADMIN)
def a_topic_that_exists_is_not_made_again(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with pytest.raises(Refused, match="Topic already exists"):
        done(kafka.admin.create_topics([NewTopic(topic, 1, 1)]))


@scenario(ADMIN)
def a_trial_run_makes_nothing(client: Client, kafka: Kafka) -> None:
    topic = kafka.name()
    done(kafka.admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True))
    assert topic not in kafka.admin.list_topics(timeout=10).topics


@scenario(
    ADMIN,
    wrong=[
        "a slash in its name",
        "dots for a name",
        "a long name",
        "no partitions",
        "more replicas than nodes",
        "an unknown key",
        "a word for a number",
        "a segment too small",
    ],
)
def a_topic_asked_for_wrongly_is_refused_and_not_made(
    client: Client, kafka: Kafka, wrong: str
) -> None:
    name, partitions, replicas, config, sentence = WRONG[wrong]
    name = name or kafka.name()
    with pytest.raises(Refused, match=sentence):
        done(kafka.admin.create_topics([NewTopic(name, partitions, replicas, config=config)]))
    assert name not in kafka.admin.list_topics(timeout=10).topics


@scenario(ADMIN)
def a_topic_deleted_is_gone_with_its_records(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    done(kafka.admin.delete_topics([topic]))
    until(lambda: topic not in kafka.admin.list_topics(timeout=10).topics)
    with pytest.raises(Refused, match="Unknown topic"):
        done(kafka.admin.delete_topics([topic]))
    until(lambda: made(kafka, topic))
    until(lambda: kafka.led(topic) == 1)
    assert offset(kafka, topic, LATEST) == 0


@scenario(ADMIN)
def a_topic_grows_and_keeps_what_it_has(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    client.produce(kafka, topic, TEN, partition=1)
    done(kafka.admin.create_partitions([NewPartitions(topic, 5)]))
    until(lambda: kafka.led(topic) == 5)
    client.produce(kafka, topic, TEN, partition=4)
    assert [len(client.consume(kafka, topic, partition)) for partition in range(5)] == [
        0,
        10,
        0,
        0,
        10,
    ]


@scenario(ADMIN, count=[1, 2])
def a_topic_does_not_shrink_nor_grow_by_nothing(client: Client, kafka: Kafka, count: int) -> None:
    topic = kafka.topic(partitions=2)
    with pytest.raises(Refused, match="Invalid number of partitions"):
        done(kafka.admin.create_partitions([NewPartitions(topic, count)]))
    assert kafka.led(topic) == 2


@scenario(ADMIN)
def records_deleted_are_gone_and_the_others_keep_their_offsets(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    (result,) = done(kafka.admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert result.low_watermark == 4
    assert offset(kafka, topic, EARLIEST) == 4
    assert [record.offset for record in client.consume(kafka, topic)] == [*range(4, 10)]
    with pytest.raises(Refused, match="Offset out of range"):
        client.consume(kafka, topic, start=3)


@scenario(ADMIN)
def all_records_can_be_deleted_and_offsets_go_on(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    (result,) = done(kafka.admin.delete_records([TopicPartition(topic, 0, -1)]))
    assert result.low_watermark == 10
    client.produce(kafka, topic, [Sent(b"next")])
    assert [record.offset for record in client.consume(kafka, topic)] == [10]


@scenario(ADMIN)
def records_that_do_not_exist_yet_cannot_be_deleted(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with pytest.raises(Refused, match="Offset out of range"):
        done(kafka.admin.delete_records([TopicPartition(topic, 0, 11)]))
    assert offset(kafka, topic, EARLIEST) == 0


@scenario(ADMIN)
def offsets_are_found_at_both_ends_and_by_time(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    client.produce(kafka, topic, TEN, partition=1)
    assert offset(kafka, topic, EARLIEST, 1) == 0
    assert offset(kafka, topic, LATEST, 1) == 10
    assert offset(kafka, topic, LATEST, 0) == 0
    assert offset(kafka, topic, OffsetSpec.for_timestamp(3000), 1) == 2
    assert offset(kafka, topic, OffsetSpec.for_timestamp(3001), 1) == 3
    assert offset(kafka, topic, OffsetSpec.for_timestamp(99_000), 1) == -1


@scenario(ADMIN)
def the_youngest_record_is_found_wherever_it_stands(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    for timestamp_ms in (1000, 9000, 2000):
        client.produce(kafka, topic, [Sent(b"v", timestamp_ms=timestamp_ms)])
    assert offset(kafka, topic, MAX_TIMESTAMP) == 1
    assert offset(kafka, kafka.topic(), MAX_TIMESTAMP) == -1


@scenario(ADMIN)
def the_cluster_names_its_controller_and_its_nodes(client: Client, kafka: Kafka) -> None:
    cluster = kafka.admin.describe_cluster().result(30)
    assert len(cluster.cluster_id) == 22
    assert cluster.controller.id in [node.id for node in cluster.nodes]
    metadata = kafka.admin.list_topics(timeout=10)
    assert metadata.cluster_id == cluster.cluster_id
    assert sorted(metadata.brokers) == sorted(node.id for node in cluster.nodes)
