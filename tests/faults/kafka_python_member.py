"""A GroupMember of kafka-python, with the classic protocol and its range assignor.

kafka-python (3.0.12) keeps its position in a partition that it is assigned again, even if its
session expired while it rejoined, and another member has committed more.  The member therefore
reads on from the committed offsets after each rebalance.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import kafka
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    BrokerResponseError,
    FencedInstanceIdError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    RetriableError,
    UnknownMemberIdError,
)

from tests.faults.group_member import (
    HEARTBEAT_MS,
    MAX_POLL_INTERVAL_MS,
    READ_COUNT_MAX,
    SESSION_MS,
    GroupMember,
    Outcome,
)

POLL_MS = 200
"""A shorter poll, which ends during a join, sometimes loses track of the join."""
COMMIT_MS_MAX = 5_000
REFUSED = (
    FencedInstanceIdError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
NO_RESPONSE = -1


class KafkaPythonMember(GroupMember, kafka.ConsumerRebalanceListener):
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
        self.new: list[TopicPartition] = []
        """Partitions of the last assignment whose positions are not those committed yet."""
        static: dict[str, Any] = {"group_instance_id": instance} if instance else {}
        self.consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            client_id=name,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            max_poll_records=READ_COUNT_MAX,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            reconnect_backoff_max_ms=100,
            **static,
        )

    def subscribe(self) -> None:
        self.consumer.subscribe(topics=[self.topic], listener=self)
        # A topic that it discovers after it began to join makes it rejoin.
        self.consumer.partitions_for_topic(self.topic)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self.positions.clear()
        self.new = [*assigned]
        self.assigned([each.partition for each in assigned])

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self.revoked([each.partition for each in revoked])

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self.gone("lost", [each.partition for each in lost])

    def poll(self) -> Iterator[tuple[int, int]]:
        try:
            found = self.consumer.poll(POLL_MS)
        except RetriableError:
            return
        except FencedInstanceIdError as fault:
            self.fail(f"fenced: {fault}")
            return
        if self.new:
            self.rewind()
            return
        for records in found.values():
            for record in records:
                yield record.partition, record.offset

    def rewind(self) -> None:
        """Set the positions of new partitions to the committed offsets; a failure is retried."""
        pending = self.new  # a callback may replace it
        try:
            while pending:
                place = pending[-1]
                offset = self.consumer.committed(place, timeout_ms=COMMIT_MS_MAX)
                if place in self.consumer.assignment():
                    if offset is None:
                        self.consumer.seek_to_beginning(place)
                    else:
                        self.consumer.seek(place, offset)
                pending.pop()
        except KafkaError:
            return

    def commit_offset(self, partition: int, offset: int, word: str) -> Outcome:
        place = TopicPartition(self.topic, partition)
        try:
            self.consumer.commit({place: OffsetAndMetadata(offset, word, -1)}, COMMIT_MS_MAX)
        except REFUSED as fault:
            return Outcome(fault.errno)
        except KafkaError as fault:
            is_strange = isinstance(fault, BrokerResponseError) and not fault.retriable
            return Outcome(NO_RESPONSE, repr(fault) if is_strange else "")
        return Outcome()

    def close(self) -> None:
        self.consumer.close()


if __name__ == "__main__":
    KafkaPythonMember(*sys.argv[1:]).run()
