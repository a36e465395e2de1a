"""A GroupMember of kafkalite's own client, with the consumer protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from kafkalite import Consumer
from kafkalite.client.net.topology import TopicPartition
from kafkalite.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from tests.faults.group_member import (
    MAX_POLL_INTERVAL_MS,
    POLL_S,
    READ_COUNT_MAX,
    GroupMember,
    Outcome,
)

COMMIT_S_MAX = 5.0
REFUSED = (
    FencedMemberEpoch,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMemberId,
)
NO_RESPONSE = -1


class NativeMember(GroupMember):
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
        static: dict[str, Any] = {"group_instance_id": instance} if instance else {}
        self.consumer = Consumer(
            bootstrap,
            group=group,
            client_id=name,
            group_protocol="consumer",
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            reconnect_backoff_max_ms=100,
            on_assign=lambda found: self.assigned(numbers(found)),
            on_revoke=lambda found: self.revoked(numbers(found)),
            on_lost=lambda found: self.gone("lost", numbers(found)),
            **static,
        )

    def subscribe(self) -> None:
        self.consumer.subscribe(self.topic)

    def poll(self) -> Iterator[tuple[int, int]]:
        try:
            messages = self.consumer.consume(READ_COUNT_MAX, POLL_S)
        except (FencedInstanceId, UnreleasedInstanceId) as fault:
            # Another member has the same instance id.
            self.fail(f"instance: {fault}")
            return
        for message in messages:
            yield message.partition, message.offset

    def commit_offset(self, partition: int, offset: int, word: str) -> Outcome:
        try:
            self.consumer.commit({(self.topic, partition): (offset, word)}, COMMIT_S_MAX)
        except REFUSED as fault:
            return Outcome(fault.code)
        except KafkaError as fault:
            return Outcome(NO_RESPONSE, "" if fault.retriable else repr(fault))
        return Outcome()

    def close(self) -> None:
        self.consumer.close()


def numbers(partitions: list[TopicPartition]) -> list[int]:
    return [each.partition for each in partitions]


if __name__ == "__main__":
    NativeMember(*sys.argv[1:]).run()
