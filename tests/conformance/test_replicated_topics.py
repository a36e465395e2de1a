"""librdkafka with a replicated topic whose followers are stopped, or whose leader is killed."""

from __future__ import annotations

import os
import signal

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec, PartitionMetadata

from kafkalite.testing import Broker
from tests.conformance.table import ANSWER_S_MAX, Kafka, Refused, done, until

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


def partition_of(kafka: Kafka) -> PartitionMetadata:
    topic = kafka.admin.list_topics(TOPIC, timeout=ANSWER_S_MAX).topics[TOPIC]
    (partition,) = topic.partitions.values()
    return partition


def isr(kafka: Kafka) -> set[int]:
    return set(partition_of(kafka).isrs)


def create_topic(kafka: Kafka) -> None:
    """Create the topic, which LEADER leads, and wait until a record is acknowledged."""
    topic = NewTopic(
        TOPIC,
        num_partitions=1,
        replica_assignment=[[LEADER, *FOLLOWERS]],
        config={"min.insync.replicas": "2"},
    )
    done(kafka.admin.create_topics([topic]))
    until(lambda: error_of_a_record(kafka.bootstrap) == 0)


def test_acks_all_is_refused_while_the_isr_is_below_its_minimum() -> None:
    with Broker(workers=3, config=CONFIG) as broker:
        kafka = Kafka(broker.bootstrap)
        create_topic(kafka)
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


def test_deleted_records_stay_deleted_when_the_leader_is_killed_at_once() -> None:
    with Broker(workers=3) as broker:
        kafka = Kafka(broker.bootstrap)
        create_topic(kafka)
        end = kafka.end(TOPIC, committed=False)
        assert end > 0
        kafka.remove_records(TOPIC, end)
        broker.kill(LEADER)
        until(lambda: partition_of(kafka).leader in FOLLOWERS)
        until(lambda: earliest(kafka) is not None)  # the new leader may learn of it a little later
        assert earliest(kafka) == end


def earliest(kafka: Kafka) -> int | None:
    """Return the log start offset, or None while the node of the metadata does not lead yet."""
    wanted = {TopicPartition(TOPIC, 0): OffsetSpec.earliest()}
    try:
        (start,) = done(kafka.admin.list_offsets(wanted))
    except Refused:
        return None
    return int(start.offset)


def test_delete_records_times_out_while_an_in_sync_follower_is_stopped() -> None:
    config = {"broker.session.timeout.ms": CONFIG["broker.session.timeout.ms"]}
    with Broker(workers=3, config=config) as broker:
        kafka = Kafka(broker.bootstrap)
        create_topic(kafka)
        end = TopicPartition(TOPIC, 0, kafka.end(TOPIC, committed=False))
        (stopped,) = (node["pid"] for node in broker.nodes if node["id"] == FOLLOWERS[0])
        os.kill(stopped, signal.SIGSTOP)
        try:
            asked = kafka.admin.delete_records([end], operation_timeout=0.3)
            with pytest.raises(KafkaException) as raised:
                asked[end].result(ANSWER_S_MAX)
            assert raised.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        finally:
            os.kill(stopped, signal.SIGCONT)
        (deleted,) = done(kafka.admin.delete_records([end]))
        assert deleted.low_watermark == end.offset
