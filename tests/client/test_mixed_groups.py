"""Members of this client and of Java, kafka-python and aiokafka in one group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import pytest

from kafkalite.testing import Broker
from tests.client.consuming import numbered, produce, until
from tests.client.group_consumers import PROTOCOLS, GroupBroker, MemberLog
from tests.conformance.clients import AIOKAFKA, JAVA, KAFKA_PYTHON, missing
from tests.conformance.driven import Driven, DrivenMember
from tests.conformance.table import Kafka

PARTITIONS = 4
COUNT = 10
"""Records of each partition in each stage of the test."""

CLASSIC = {
    "partition.assignment.strategy": "range", "heartbeat.interval.ms": "100",
    "session.timeout.ms": "30000",
}  # fmt: skip

NEIGHBOURS = {
    "kafka-python": (KAFKA_PYTHON, CLASSIC),
    "aiokafka": (AIOKAFKA, CLASSIC),
    "java classic": (JAVA, CLASSIC),
    "java consumer": (JAVA, {"group.protocol": "consumer"}),
}


@pytest.fixture(params=PROTOCOLS)
def broker(request: pytest.FixtureRequest, group_node: Broker) -> GroupBroker:
    return GroupBroker(group_node.bootstrap, group_node.topic, request.param)


class MixedGroup:
    """One member of this client, one of another, and the records that each has read."""

    def __init__(self, broker: GroupBroker, neighbour: Driven, settings: Mapping[str, str]) -> None:
        self.broker = broker
        self.topic = broker.topic(PARTITIONS)
        self.group = f"g-{self.topic}"
        self.neighbour, self.settings = neighbour, settings
        self.produced = 0
        self.read: Counter[tuple[int, int]] = Counter()
        self.theirs: DrivenMember | None = None
        self.ours: MemberLog | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.ours is not None:
            self.ours.consumer.close()
        if self.theirs is not None:
            self.theirs.leave() if kind is None else self.theirs.kill()

    def join_ours(self) -> None:
        options = {"partition_assignment_strategy": "range", "session_timeout_ms": 30_000}
        self.ours = MemberLog(self.broker, self.topic, self.group, **options)

    def join_theirs(self) -> None:
        kafka = Kafka(self.broker.bootstrap)
        self.theirs = self.neighbour.join(kafka, self.group, [self.topic], self.settings)

    def leave_ours(self) -> None:
        assert self.ours is not None
        self.ours.consumer.close()
        self.ours = None

    def produce(self) -> None:
        for partition in range(PARTITIONS):
            produce(self.broker.bootstrap, self.topic, numbered(COUNT), partition)
        self.produced += PARTITIONS * COUNT

    def owned(self) -> Sequence[Sequence[int]]:
        """Poll our member, and return the partitions of each member."""
        found = []
        if self.ours is not None:
            message = self.ours.consumer.poll(0)
            if message is not None:
                self.read[message.partition, message.offset] += 1
            found.append(self.ours.partitions)
        if self.theirs is not None:
            assert not self.theirs.faults
            found.append(sorted(partition for _, partition in self.theirs.assigned))
        return found

    def times_read(self) -> Counter[tuple[int, int]]:
        theirs = [] if self.theirs is None else [*self.theirs.read]
        return self.read + Counter((each.partition, each.offset) for each in theirs)

    def settle(self, *sizes: int) -> None:
        """Wait until members have so many partitions, and have read all records once."""

        def settled() -> bool:
            owned = self.owned()
            numbers = sorted(number for partitions in owned for number in partitions)
            return (
                [len(partitions) for partitions in owned] == [*sizes]
                and numbers == [*range(PARTITIONS)]
                and len(self.times_read()) == self.produced
            )

        until(settled, f"an assignment of {sizes}")
        assert set(self.times_read().values()) <= {1}, "a record was read by two owners"


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_members_of_two_clients_read_each_record_once(broker, name):
    neighbour, settings = NEIGHBOURS[name]
    if reason := missing(neighbour):
        pytest.skip(reason)
    with MixedGroup(broker, neighbour, settings) as group:
        group.join_ours()
        group.produce()
        group.settle(PARTITIONS)
        group.join_theirs()
        group.settle(PARTITIONS // 2, PARTITIONS // 2)
        group.produce()
        group.settle(PARTITIONS // 2, PARTITIONS // 2)
        group.leave_ours()
        group.produce()
        group.settle(PARTITIONS)
        group.join_ours()
        group.settle(PARTITIONS // 2, PARTITIONS // 2)
