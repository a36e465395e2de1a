"""A GroupMember of aiokafka, with the classic protocol.

aiokafka runs in an event loop of its own thread, and calls the rebalance callbacks there.  These
run in a thread, because they wait for commits; a lock separates them from a read or commit of the
member's loop, as aiokafka's documentation advises.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaError,
    RebalanceInProgressError,
)
from aiokafka.structs import OffsetAndMetadata

from tests.faults.group_member import (
    HEARTBEAT_MS,
    MAX_POLL_INTERVAL_MS,
    POLL_S,
    READ_COUNT_MAX,
    SESSION_MS,
    GroupMember,
    Outcome,
)

ASSIGNORS = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
POLL_MS = int(POLL_S * 1000)
COMMIT_S_MAX = 5.0
NO_RESPONSE = -1
Result = TypeVar("Result")


class AiokafkaMember(GroupMember, ConsumerRebalanceListener):
    def __init__(
        self, bootstrap: str, topic: str, group: str, name: str, turn: str, strategy: str
    ) -> None:
        super().__init__(topic, name, turn)
        self.lock = threading.RLock()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.consumer = self.wait_for(self.start(bootstrap, group, name, strategy))

    async def start(self, bootstrap: str, group: str, name: str, strategy: str) -> AIOKafkaConsumer:
        while True:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                client_id=name,
                partition_assignment_strategy=[ASSIGNORS[strategy]],
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=HEARTBEAT_MS,
                max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
                rebalance_timeout_ms=MAX_POLL_INTERVAL_MS,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            try:
                await consumer.start()
                return consumer
            except KafkaConnectionError:
                await consumer.stop()  # the broker was just killed
                await asyncio.sleep(POLL_S)

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def subscribe(self) -> None:
        async def subscribe() -> None:
            self.consumer.subscribe([self.topic], listener=self)

        self.wait_for(subscribe())

    # Rebalance callbacks, called in the event loop.

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        # Records of these partitions may have been read already, so all positions are kept.
        self.assigned([each.partition for each in assigned])

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await asyncio.to_thread(self.revoked, [each.partition for each in revoked])

    def revoked(self, partitions: Iterable[int]) -> None:
        with self.lock:
            super().revoked(partitions)

    # Reading.

    def read(self) -> None:
        with self.lock:
            super().read()

    def commit(self, positions: dict[int, int]) -> None:
        with self.lock:
            super().commit(positions)

    def poll(self) -> Iterator[tuple[int, int]]:
        async def poll() -> dict[TopicPartition, list[Any]]:
            # In a rebalance it waits longer than its own timeout, and a callback for the lock.
            work = self.consumer.getmany(timeout_ms=POLL_MS, max_records=READ_COUNT_MAX)
            try:
                return await asyncio.wait_for(work, 2 * POLL_S)
            except TimeoutError:
                return {}

        try:
            found = self.wait_for(poll())
        except KafkaError as fault:
            # aiokafka ends when its JoinGroup gets this error, as in an upgrade of the group.
            if RebalanceInProgressError.__name__ not in str(fault):
                raise
            self.fail(str(fault))
            return
        for records in found.values():
            for record in records:
                yield record.partition, record.offset

    def commit_offset(self, partition: int, offset: int, word: str) -> Outcome:
        at = {TopicPartition(self.topic, partition): OffsetAndMetadata(offset, word)}

        async def commit() -> None:
            await asyncio.wait_for(self.consumer.commit(at), COMMIT_S_MAX)

        try:
            self.wait_for(commit())
        except CommitFailedError as fault:
            assert isinstance(fault.__cause__, KafkaError)
            return Outcome(fault.__cause__.errno)
        except (IllegalStateError, TimeoutError):
            # The partition is not assigned any more, or there was no response in time.
            return Outcome(NO_RESPONSE)
        except KafkaError as fault:
            return Outcome(NO_RESPONSE, "" if fault.retriable else repr(fault))
        return Outcome()

    def close(self) -> None:
        # The error that has ended it, if there was one, is raised again.
        with contextlib.suppress(KafkaError):
            self.wait_for(self.consumer.stop())


if __name__ == "__main__":
    AiokafkaMember(*sys.argv[1:]).run()
