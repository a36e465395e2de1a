"""Scenarios of a broker that ends while records come in: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

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
    stream = client.stream(kafka, topic, PARTITIONS)
    for _ in range(RESTARTS):
        seen = stream.count
        until(lambda: stream.count > seen + 500)  # noqa: B023
        end_and_start(kafka.lifetime)
    sent = stream.end()
    assert stream.faults == []
    for index in range(PARTITIONS):
        got = client.consume(kafka, topic, index)
        assert {record.offset: record.value for record in got} == stream.acked[index]
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
