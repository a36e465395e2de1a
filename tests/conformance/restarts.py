"""Scenarios of a broker that ends while records come in: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaError, Message, Producer

from tests.conformance.table import (
    COMMAND,
    LONG_LIVED,
    Client,
    Kafka,
    Lifetime,
    Sent,
    scenario,
    until,
)

PARTITIONS = 3
RESTARTS = 2


@scenario(LONG_LIVED, restarts=True)
def a_clean_restart_under_load_loses_and_doubles_nothing(client: Client, kafka: Kafka) -> None:
    under_load(client, kafka, restarted)


@scenario(LONG_LIVED, restarts=True)
def a_killed_broker_under_load_loses_and_doubles_nothing(client: Client, kafka: Kafka) -> None:
    under_load(client, kafka, killed)


def restarted(lifetime: Lifetime) -> None:
    lifetime.stop()
    lifetime.start()


def killed(lifetime: Lifetime) -> None:
    lifetime.kill()
    lifetime.start()


def under_load(client: Client, kafka: Kafka, end_and_start: Callable[[Lifetime], None]) -> None:
    """One idempotent producer sends on while the broker ends; then the log is what it was told."""
    assert kafka.lifetime is not None
    topic = kafka.topic(partitions=PARTITIONS)
    acked: dict[int, dict[int, bytes | None]] = {index: {} for index in range(PARTITIONS)}
    faults: list[KafkaError] = []

    def heard(fault: KafkaError | None, message: Message) -> None:
        if fault is not None:
            faults.append(fault)
        else:
            acked[message.partition() or 0][message.offset() or 0] = message.value()

    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 1,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "retry.backoff.ms": 10,
            "log_level": 0,
        }
    )
    sent = 0

    def more(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            producer.produce(topic, b"%d" % sent, partition=sent % PARTITIONS, on_delivery=heard)
            sent += 1
        producer.poll(0)

    def answers() -> int:
        more(10)
        return sum(map(len, acked.values()))

    for _ in range(RESTARTS):
        seen = answers()
        until(lambda: answers() > seen + 500)  # noqa: B023
        more(500)
        end_and_start(kafka.lifetime)
    assert producer.flush(30) == 0
    assert faults == []
    for index in range(PARTITIONS):
        got = client.consume(kafka, topic, index)
        assert {record.offset: record.value for record in got} == acked[index]
        assert [record.value for record in got] == [
            b"%d" % i for i in range(index, sent, PARTITIONS)
        ]


@scenario(COMMAND, restarts=True)
def what_was_in_before_a_restart_is_there_after_it(client: Client, kafka: Kafka) -> None:
    assert kafka.lifetime is not None
    topic = kafka.topic()
    sent = [Sent(b"%d" % i, b"k") for i in range(1_000)]
    client.produce(kafka, topic, sent)
    restarted(kafka.lifetime)
    client.produce(kafka, topic, [Sent(b"after", b"k")])
    got = client.consume(kafka, topic)
    assert [record.offset for record in got] == [*range(1_001)]
    assert [record.value for record in got] == [*(r.value for r in sent), b"after"]
