"""Scenarios of topics: create, list, describe, grow, empty, delete; and their offsets."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicCollection

from tests.conformance.table import (
    ANSWER_S_MAX,
    NO_RESET,
    YOUNGEST,
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


@scenario("create_topic", "list_topics", "describe_topic")
def a_topic_made_is_listed_and_described(client: Client, kafka: Kafka) -> None:
    topic = kafka.name()
    client.ask(kafka, "create_topic", name=topic, partitions=3)
    until(lambda: kafka.led(topic) == 3)
    assert topic in client.ask(kafka, "list_topics")
    described = client.ask(kafka, "describe_topic", name=topic)
    assert not described["internal"]
    assert sorted(partition["id"] for partition in described["partitions"]) == [0, 1, 2]
    for partition in described["partitions"]:
        assert partition["replicas"] == partition["isr"] == [partition["leader"]]


@scenario("create_topic", "delete_topic")
def two_topics_of_one_name_never_share_an_id(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    first = topic_id(kafka, topic)
    client.ask(kafka, "delete_topic", name=topic)
    until(lambda: made(client, kafka, topic))
    until(lambda: kafka.led(topic) == 1)
    assert topic_id(kafka, topic) != first


def topic_id(kafka: Kafka, topic: str) -> str:
    (described,) = done(kafka.admin.describe_topics(TopicCollection([topic])))
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    return str(described.topic_id)


def made(client: Client, kafka: Kafka, topic: str) -> bool:
    """Create the topic; return False while a deleted one of its name still exists."""
    try:
        client.ask(kafka, "create_topic", name=topic)
    except Refused as refused:
        assert "already exists" in str(refused)
        return False
    return True


@scenario("create_topic")
def a_topic_that_exists_is_not_made_again(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    with pytest.raises(Refused, match="Topic already exists"):
        client.ask(kafka, "create_topic", name=topic)


@scenario("create_topic", "list_topics")
def a_trial_run_makes_nothing(client: Client, kafka: Kafka) -> None:
    topic = kafka.name()
    client.ask(kafka, "create_topic", name=topic, trial=True)
    assert topic not in client.ask(kafka, "list_topics")


@scenario("create_topic", "list_topics", wrong=[*WRONG])
def a_topic_asked_for_wrongly_is_refused_and_not_made(
    client: Client, kafka: Kafka, wrong: str
) -> None:
    name, partitions, replicas, config, sentence = WRONG[wrong]
    name = name or kafka.name()
    with pytest.raises(Refused, match=sentence):
        client.ask(
            kafka,
            "create_topic",
            name=name,
            partitions=partitions,
            replicas=replicas,
            config=config,
        )
    assert name not in client.ask(kafka, "list_topics")


@scenario("create_topic", "delete_topic", "list_topics")
def a_topic_deleted_is_gone_with_its_records(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    client.ask(kafka, "delete_topic", name=topic)
    until(lambda: topic not in client.ask(kafka, "list_topics"))
    with pytest.raises(Refused, match="Unknown topic"):
        client.ask(kafka, "delete_topic", name=topic)
    until(lambda: made(client, kafka, topic))
    until(lambda: kafka.led(topic) == 1)
    assert client.consume(kafka, topic) == []


@scenario("grow_topic")
def a_topic_grows_and_keeps_what_it_has(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    client.produce(kafka, topic, TEN, partition=1)
    client.ask(kafka, "grow_topic", name=topic, partitions=5)
    until(lambda: kafka.led(topic) == 5)
    client.produce(kafka, topic, TEN, partition=4)
    found = [len(client.consume(kafka, topic, partition)) for partition in range(5)]
    assert found == [0, 10, 0, 0, 10]


@scenario("grow_topic", count=[1, 2])
def a_topic_does_not_shrink_nor_grow_by_nothing(client: Client, kafka: Kafka, count: int) -> None:
    topic = kafka.topic(partitions=2)
    with pytest.raises(Refused, match="Invalid number of partitions"):
        client.ask(kafka, "grow_topic", name=topic, partitions=count)
    assert kafka.led(topic) == 2


@scenario("delete_records", "offset")
def records_deleted_are_gone_and_the_others_keep_their_offsets(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    client.ask(kafka, "delete_records", topic=topic, partition=0, before=4)
    assert client.ask(kafka, "offset", topic=topic, partition=0, at="earliest") == 4
    assert [record.offset for record in client.consume(kafka, topic)] == [*range(4, 10)]


@scenario("delete_records", NO_RESET)
def a_record_deleted_cannot_be_asked_for(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    client.ask(kafka, "delete_records", topic=topic, partition=0, before=4)
    with pytest.raises(Refused, match="Offset out of range"):
        client.consume(kafka, topic, start=3)


@scenario("delete_records")
def all_records_can_be_deleted_and_offsets_go_on(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    client.ask(kafka, "delete_records", topic=topic, partition=0, before=-1)
    client.produce(kafka, topic, [Sent(b"next")])
    assert [record.offset for record in client.consume(kafka, topic)] == [10]


@scenario("delete_records")
def records_that_do_not_exist_yet_cannot_be_deleted(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    client.produce(kafka, topic, TEN)
    with pytest.raises(Refused, match="Offset out of range"):
        client.ask(kafka, "delete_records", topic=topic, partition=0, before=11)
    assert len(client.consume(kafka, topic)) == 10


@scenario("offset")
def offsets_are_found_at_both_ends_and_by_time(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    client.produce(kafka, topic, TEN, partition=1)

    def offset(at: str | int, partition: int = 1) -> int:
        return int(client.ask(kafka, "offset", topic=topic, partition=partition, at=at))

    assert offset("earliest") == 0
    assert offset("latest") == 10
    assert offset("latest", partition=0) == 0
    assert offset(3000) == 2
    assert offset(3001) == 3


@scenario("offset", YOUNGEST)
def the_youngest_record_is_found_wherever_it_stands(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    for timestamp_ms in (1000, 9000, 2000):
        client.produce(kafka, topic, [Sent(b"v", timestamp_ms=timestamp_ms)])
    empty = kafka.topic()
    assert client.ask(kafka, "offset", topic=topic, partition=0, at=YOUNGEST) == 1
    assert client.ask(kafka, "offset", topic=empty, partition=0, at=YOUNGEST) == -1


@scenario("describe_cluster")
def the_cluster_names_its_controller_and_its_nodes(client: Client, kafka: Kafka) -> None:
    cluster = client.ask(kafka, "describe_cluster")
    assert len(cluster["id"]) == 22
    assert cluster["controller"] in cluster["nodes"]
    metadata = kafka.admin.list_topics(timeout=ANSWER_S_MAX)
    assert metadata.cluster_id == cluster["id"]
    assert sorted(metadata.brokers) == sorted(cluster["nodes"])
