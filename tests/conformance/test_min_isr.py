"""librdkafka's acks=all to a partition whose followers are stopped gets Kafka's errors."""

from __future__ import annotations

import os
import signal

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic

from kafkalite.testing import Broker
from tests.conformance.table import ANSWER_S_MAX, Kafka, done, until

TOPIC = "orders"
LEADER, FOLLOWERS = 1, (2, 3)
REQUEST_MS, WAIT_S = 2_000, 30
CONFIG = {
    "replica.lag.time.max.ms": "500",
    # Otherwise the broker restarts a process that is stopped.
    "broker.session.timeout.ms": "600000",
}


def error_of_a_record(bootstrap: str) -> int:
    """Send a record with acks=all, once; return its error code, 0 if it was acknowledged."""
    errors: list[KafkaError | None] = []
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "retries": 0,
        "request.timeout.ms": REQUEST_MS,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.produce(TOPIC, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    (error,) = errors
    return error.code() if error is not None else 0


def isr(kafka: Kafka) -> set[int]:
    (partition,) = kafka.admin.list_topics(TOPIC, timeout=ANSWER_S_MAX).topics[
        TOPIC
    ].partitions.values()
    return set(partition.isrs)


def test_acks_all_is_refused_while_the_isr_is_below_its_minimum() -> None:
    with Broker(workers=3, config=CONFIG) as broker:
        kafka = Kafka(broker.bootstrap)
        topic = NewTopic(
            TOPIC,
            num_partitions=1,
            replica_assignment=[[LEADER, *FOLLOWERS]],
            config={"min.insync.replicas": "2"},
        )
        done(kafka.admin.create_topics([topic]))
        until(lambda: error_of_a_record(kafka.bootstrap) == 0)
        stopped = [node["pid"] for node in broker.nodes if node["id"] in FOLLOWERS]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            # It is appended before the followers lag, and never committed.
            assert error_of_a_record(kafka.bootstrap) == KafkaError.REQUEST_TIMED_OUT
            until(lambda: isr(kafka) == {LEADER})
            for _ in range(3):
                assert error_of_a_record(kafka.bootstrap) == KafkaError.NOT_ENOUGH_REPLICAS
            assert isr(kafka) == {LEADER}
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        until(lambda: isr(kafka) == {LEADER, *FOLLOWERS})
        assert error_of_a_record(kafka.bootstrap) == 0
