"""A member of a group as a process of its own, to be killed and stopped: it reads and commits.

    python -m tests.faults.group_member BOOTSTRAP TOPIC GROUP NAME TURN STRATEGY [INSTANCE]

It writes its events to standard output, each a JSON list on a line:

    ["assigned", [partition, …]]   ["revoked", […]]   ["lost", […]]
    ["read", partition, first offset, last offset]
    ["commit", partition, offset, metadata, error code or 0]
    ["error", text]

A commit's metadata is the member's name, the number of its start, and a counter, so that the log of
offsets shows which member committed what.  It leaves the group at SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

SESSION_MS = 2_000
HEARTBEAT_MS = 300
READ_COUNT_MAX = 200
POLL_S = 0.1
EXPECTED = {
    # During a rebalance.
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
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


def tell(*words: Any) -> None:
    print(json.dumps(words), flush=True)


class Member:
    """One consumer, from its subscription to its end."""

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
        self.topic = topic
        self.name = f"{name}/{turn}"
        self.cooperative = strategy == "cooperative-sticky"
        self.commits = 0
        self.running = True
        self.positions: dict[int, int] = {}
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": 10_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            "error_cb": self.troubled,
        }
        if instance:
            config["group.instance.id"] = instance
        self.consumer = Consumer(config)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.end)
        self.consumer.subscribe(
            [self.topic], on_assign=self.assigned, on_revoke=self.revoked, on_lost=self.lost
        )
        while self.running:
            self.read()
            self.commit(self.positions)
        self.consumer.close()

    def end(self, *_: object) -> None:
        self.running = False

    def troubled(self, fault: KafkaError) -> None:
        # A second member with the same instance id fences the first.
        if fault.fatal():
            tell("error", str(fault))
            self.running = False

    # Rebalance callbacks.

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tell("assigned", [each.partition for each in partitions])
        if self.cooperative:
            consumer.incremental_assign(partitions)
        else:
            self.positions.clear()
            consumer.assign(partitions)

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        going = {each.partition for each in partitions}
        self.commit({each: at for each, at in self.positions.items() if each in going})
        self.gone("revoked", consumer, partitions)

    def lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.gone("lost", consumer, partitions)

    def gone(self, word: str, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.positions.pop(each.partition, None)
        tell(word, [each.partition for each in partitions])
        if self.cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    # Reading.

    def read(self) -> None:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for message in self.consumer.consume(READ_COUNT_MAX, POLL_S):
            if message.error() is not None:
                continue
            partition, offset = message.partition(), message.offset()
            first.setdefault(partition, offset)
            last[partition] = offset
        for partition, offset in last.items():
            tell("read", partition, first[partition], offset)
            self.positions[partition] = offset + 1

    def commit(self, positions: dict[int, int]) -> None:
        for partition, offset in list(positions.items()):
            self.commits += 1
            word = f"{self.name}/{self.commits}"
            at = TopicPartition(self.topic, partition, offset, metadata=word)
            try:
                (done,) = self.consumer.commit(offsets=[at], asynchronous=False)
                fault = done.error
            except KafkaException as raised:
                fault = raised.args[0]
            code = fault.code() if fault is not None else 0
            tell("commit", partition, offset, word, code)
            if code and code not in EXPECTED:
                tell("error", f"commit: {fault}")
            if positions is self.positions and (not code or positions.get(partition) != offset):
                # A failed commit is retried while the partition is assigned.
                positions.pop(partition, None)


if __name__ == "__main__":
    Member(*sys.argv[1:]).run()
