"""Test a program against a real broker, with the fixtures of kafkalite.testing.

    python -m pytest examples/test_orders.py

The fixtures need no import.  `kafka_broker` is one broker for the session, on a free port;
`kafka_topic` is a new topic for each test.
"""

import pytest

from kafkalite import Consumer, Producer
from kafkalite.testing import Broker


def copy_paid_orders(bootstrap: str, source: str, target: str) -> int:
    """Copy the paid orders of a topic to another; return how many there were."""
    count = 0
    with (
        Consumer(bootstrap, topics=source, consumer_timeout_ms=500) as consumer,
        Producer(bootstrap) as producer,
    ):
        for message in consumer:
            if message.value.endswith(b"paid"):
                producer.send(target, message.value, key=message.key)
                count += 1
    return count


def test_paid_orders_are_copied(kafka_broker: Broker, kafka_topic: str) -> None:
    target = kafka_broker.topic()
    with Producer(kafka_broker.bootstrap) as producer:
        producer.send(kafka_topic, "1 paid", key="a")
        producer.send(kafka_topic, "2 open", key="b")
        producer.send(kafka_topic, "3 paid", key="c")

    assert copy_paid_orders(kafka_broker.bootstrap, kafka_topic, target) == 2

    with Consumer(kafka_broker.bootstrap, topics=target) as consumer:
        copied = consumer.consume(2, timeout=5)
        assert [message.value for message in copied] == [b"1 paid", b"3 paid"]


@pytest.mark.parametrize("kafka_topic", [3], indirect=True)
def test_orders_of_all_partitions_are_copied(kafka_broker: Broker, kafka_topic: str) -> None:
    with Producer(kafka_broker.bootstrap) as producer:
        for partition in range(3):
            producer.send(kafka_topic, "paid", partition=partition)

    assert copy_paid_orders(kafka_broker.bootstrap, kafka_topic, kafka_broker.topic()) == 3


def test_a_record_survives_a_restart() -> None:
    with Broker() as broker, Producer(broker.bootstrap) as producer:  # a broker of its own
        topic = broker.topic()
        producer.send(topic, "before").result()
        broker.kill()
        delivery = producer.send(topic, "after")  # waits in the producer
        broker.start()
        assert delivery.result().offset == 1
