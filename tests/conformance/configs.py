"""Scenarios of configurations: described, altered, rejected, and effective at once."""

from __future__ import annotations

import pytest

from tests.conformance.table import ANSWER_S_MAX, Client, Kafka, Refused, Sent, scenario, until

LARGE = [Sent(b"x" * 5_000, b"k")]


@scenario("describe_config")
def a_topic_tells_what_was_set_on_it_and_what_holds_by_default(
    client: Client, kafka: Kafka
) -> None:
    topic = kafka.topic(retention_ms="123456", cleanup_policy="delete")
    found = client.ask(kafka, "describe_config", kind="topic", name=topic)
    assert found["retention.ms"] == ["123456", False]
    assert found["segment.bytes"] == [str(1 << 30), True]
    assert {"cleanup.policy", "max.message.bytes", "min.insync.replicas"} <= set(found)


@scenario("describe_config")
def the_topic_that_is_not_there_has_no_settings(client: Client, kafka: Kafka) -> None:
    try:
        found = client.ask(kafka, "describe_config", kind="topic", name=kafka.name())
    except Refused as refused:
        assert "Unknown topic" in str(refused)
    else:
        # kafka-python does not check the error code.
        assert found == {}


@scenario("describe_config")
def a_node_tells_where_it_is_reached_and_what_it_goes_by(client: Client, kafka: Kafka) -> None:
    for node in kafka.admin.list_topics(timeout=ANSWER_S_MAX).brokers.values():
        found = client.ask(kafka, "describe_config", kind="broker", name=str(node.id))
        # Apache Kafka lists advertised.listeners only where it is set.
        where = found["advertised.listeners"][0] or found["listeners"][0]
        assert f"://{node.host}:{node.port}" in where
        assert {"log.retention.hours", "num.partitions", "message.max.bytes"} <= set(found)


@scenario("describe_config", "alter_config")
def a_key_that_is_set_and_unset_goes_back_to_its_default(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic(retention_ms="123456")
    alter(client, kafka, topic, {"max.message.bytes": "1000"})
    until(lambda: described(client, kafka, topic)["max.message.bytes"] == ["1000", False])
    # Keys that are not in the request do not change.
    assert described(client, kafka, topic)["retention.ms"] == ["123456", False]
    with pytest.raises(Refused, match="Message size too large"):
        client.produce(kafka, topic, LARGE)
    alter(client, kafka, topic, {"max.message.bytes": None})
    until(lambda: described(client, kafka, topic)["max.message.bytes"][1])
    until(lambda: taken(client, kafka, topic))


def alter(client: Client, kafka: Kafka, topic: str, changes: dict[str, str | None]) -> None:
    client.ask(kafka, "alter_config", kind="topic", name=topic, changes=changes)


def described(client: Client, kafka: Kafka, topic: str) -> dict[str, list]:
    return client.ask(kafka, "describe_config", kind="topic", name=topic)


def taken(client: Client, kafka: Kafka, topic: str) -> bool:
    """Return True if a large record is accepted; a new limit reaches the leader after a delay."""
    try:
        client.produce(kafka, topic, LARGE)
    except Refused as refused:
        assert "Message size too large" in str(refused)
        return False
    return True


@scenario("describe_config", "replace_config")
def a_key_replaced_is_set(client: Client, kafka: Kafka) -> None:
    topic = kafka.topic()
    changes = {"retention.ms": "99999"}
    client.ask(kafka, "replace_config", kind="topic", name=topic, changes=changes)
    until(lambda: described(client, kafka, topic)["retention.ms"] == ["99999", False])


@scenario("alter_config", wrong=["no.such.key=1", "retention.ms=soon", "cleanup.policy=burn"])
def a_wrong_setting_is_refused_and_changes_nothing(
    client: Client, kafka: Kafka, wrong: str
) -> None:
    topic = kafka.topic()
    key, _, value = wrong.partition("=")
    with pytest.raises(Refused, match="Configuration is invalid"):
        alter(client, kafka, topic, {"max.message.bytes": "1000", key: value})
    assert described(client, kafka, topic)["max.message.bytes"][1]


@scenario("replace_config", wrong=["no.such.key=1", "retention.ms=soon"])
def a_wrong_replacement_is_refused(client: Client, kafka: Kafka, wrong: str) -> None:
    topic = kafka.topic()
    key, _, value = wrong.partition("=")
    with pytest.raises(Refused, match="Configuration is invalid"):
        client.ask(kafka, "replace_config", kind="topic", name=topic, changes={key: value})


@scenario("alter_config", "describe_config")
def what_is_set_for_a_node_holds_there_until_it_is_unset(client: Client, kafka: Kafka) -> None:
    node = str(min(kafka.admin.list_topics(timeout=ANSWER_S_MAX).brokers))

    def goes_by(value: str) -> bool:
        found = client.ask(kafka, "describe_config", kind="broker", name=node)
        return bool(found["log.cleaner.delete.retention.ms"][0] == value)

    for value, meant in (("4711", "4711"), (None, "86400000")):
        changes = {"log.cleaner.delete.retention.ms": value}
        client.ask(kafka, "alter_config", kind="broker", name=node, changes=changes)
        until(lambda: goes_by(meant))  # noqa: B023
