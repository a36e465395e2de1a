"""A GroupMember of librdkafka; the strategy "consumer" is the consumer protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.faults.group_member import (
    HEARTBEAT_MS,
    MAX_POLL_INTERVAL_MS,
    POLL_S,
    READ_COUNT_MAX,
    SESSION_MS,
    GroupMember,
    Outcome,
)

CONSUMER = "consumer"
EXPECTED = {
    # During a rebalance.
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError._FATAL,
    KafkaError._ASSIGNMENT_LOST,
    KafkaError._NO_OFFSET,
    # While the coordinator is unavailable.
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._DESTROY,
}
"""Errors of a commit that are expected under these faults."""


class LibrdkafkaMember(GroupMember):
    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        name: str,
        turn: str,
        strategy: str,
        instance: str = "",
    ) -> None:
        super().__init__(topic, name, turn)
        self.incremental = strategy in (CONSUMER, "cooperative-sticky")
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "max.poll.interval.ms": MAX_POLL_INTERVAL_MS,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            "error_cb": self.troubled,
        }
        if strategy == CONSUMER:
            config["group.protocol"] = CONSUMER
        else:
            config["partition.assignment.strategy"] = strategy
            config["session.timeout.ms"] = SESSION_MS
            config["heartbeat.interval.ms"] = HEARTBEAT_MS
        if instance:
            config["group.instance.id"] = instance
        self.consumer = Consumer(config)

    def troubled(self, fault: KafkaError) -> None:
        # A second member with the same instance id fences the first, or is refused itself.
        if fault.fatal():
            self.fail(str(fault))

    def subscribe(self) -> None:
        self.consumer.subscribe(
            [self.topic], on_assign=self.on_assign, on_revoke=self.on_revoke, on_lost=self.on_lost
        )

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned([each.partition for each in partitions])
        if self.incremental:
            consumer.incremental_assign(partitions)
        else:
            self.positions.clear()
            consumer.assign(partitions)

    def on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked([each.partition for each in partitions])
        self.unassign(consumer, partitions)

    def on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.gone("lost", [each.partition for each in partitions])
        self.unassign(consumer, partitions)

    def unassign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self.incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def poll(self) -> Iterator[tuple[int, int]]:
        for message in self.consumer.consume(READ_COUNT_MAX, POLL_S):
            if message.error() is None:
                yield message.partition(), message.offset()

    def commit_offset(self, partition: int, offset: int, word: str) -> Outcome:
        at = TopicPartition(self.topic, partition, offset, metadata=word)
        try:
            (done,) = self.consumer.commit(offsets=[at], asynchronous=False)
            fault = done.error
        except KafkaException as raised:
            fault = raised.args[0]
        if fault is None:
            return Outcome()
        code = fault.code()
        return Outcome(code, "" if code in EXPECTED else str(fault))

    def close(self) -> None:
        self.consumer.close()


if __name__ == "__main__":
    LibrdkafkaMember(*sys.argv[1:]).run()
